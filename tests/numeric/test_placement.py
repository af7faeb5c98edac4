"""Inputs lie where the release's own runner puts them: what its processor does not keep on the host is on the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from release_process import last_line, run_script

GRIDS = {
    "qwen2_vl image": ["image_grid_thw"],
    "qwen2_vl video": ["second_per_grid_ts", "video_grid_thw"],
    "glm4_1v image": ["image_grid_thw"],
    "glm4_1v video": ["second_per_grid_ts", "video_grid_thw"],
}
NOTHING = {f"{model} image": [] for model in ("step3_vl", "mllama4", "gemma3_mm", "ernie45_vl")}
INTERNVL = {
    "internvl image": ["image_num_patches", "image_token_id"],
    "internvl video": ["video_num_patches", "video_token_id"],
}
NUMBERS = {"step3_vl image": ["num_patches"], "gemma3_mm image": ["num_patches"]}


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    ("release", "on_host"),
    [
        ("0.21.0", {**GRIDS, **NOTHING, "internvl image": [], "internvl video": []}),
        ("0.28.0", {**GRIDS, **NOTHING, **INTERNVL, **NUMBERS}),
        (
            "0.33.0",
            {
                **GRIDS,
                **INTERNVL,
                **NUMBERS,
                "mllama4 image": ["aspect_ratios", "patches_per_image"],
                "ernie45_vl image": ["image_grid_thw"],
            },
        ),
    ],
)
def test_sizes_are_on_the_host_only_where_the_release_keeps_them_there(release, on_host, release_tree):
    done = run_script(Path(__file__).with_name("placement_child.py"), release_tree(release).root)
    assert last_line(done) == on_host
