"""Models that nobody shipped: their drafts become ports that pass every static proof.

The tree's own ruff rules are among them.
"""

from __future__ import annotations

import pytest
from changed_ports import DRAFTED, port_of

from scaffold.cli.app import main
from scaffold.descriptor import load_descriptor_text
from scaffold.plan import plan_changes
from scaffold.protocol import read_protocol
from scaffold.workflow import load_port

pytestmark = pytest.mark.trees

#: A stored draft and its release.
MODELS = {
    "a tower that is split where docstrings are checked": ("mimo_v2_omni", "0.33.0"),
    "a file that does not import torch": ("qianfan_ocr_tiles", "0.32.0"),
    "a cut whose methods are in such a file": ("qianfan_ocr_cut", "0.33.0"),
    "an inherited constructor": ("glm4v_moe", "0.22.0"),
    "a constructor that runs its base's": ("glm_ocr", "0.22.0"),
}


@pytest.mark.parametrize(("model", "release"), MODELS.values(), ids=MODELS)
def test_a_drafted_model_becomes_a_port(release_tree, capsys, model: str, release: str) -> None:
    tree = str(release_tree(release).root)
    with pytest.raises(SystemExit) as done:
        # QianfanOCR inherits InternVL's port.
        main(["new", str(DRAFTED[model]), "--vllm", tree, "--diff", "--replace"])
    output = capsys.readouterr()
    assert done.value.code == 0, output.err
    assert f" {port_of(model).class_name}(" in output.out


@pytest.mark.parametrize(
    ("release", "dtype", "captured"),
    [
        ("0.33.0", "self.input_norm.input_dtype", "self.input_norm.input_dtype or dtype"),
        ("0.33.0", "self.vision_model.input_norm.input_dtype", "dtype"),
        ("0.33.0", "self.mlp1.input_dtype", "dtype"),
        ("0.33.0", None, "dtype"),
        ("0.31.0", "self.input_norm.input_dtype", "dtype"),  # the class has no such norm
    ],
)
def test_a_graph_of_units_reads_raw_pixels_where_the_model_normalises_them(
    release_tree, release: str, dtype: str | None, captured: str
) -> None:
    """They arrive as bytes by default: a buffer of the model's type would be twice as large, and each replay cast."""
    tree = release_tree(release)
    plan = plan_changes(port_of("nemotron_vl", {"pixels.dtype": dtype}), tree, read_protocol(tree))
    assert f"torch.zeros(max_patches, 3, side, side, device=device, dtype={captured})" in plan.methods.source


INKLING = """\
schema: 1
model: {module: vllm.models.inkling.nvidia.model, class: InklingForConditionalGeneration}
layout: tiles
modalities:
  image: {pixels: pixel_values, sizes: num_patches}
sizes: {columns: [n]}
let: {side: self.visual.vision_encoder.patch_size}
item: {rows: n, tokens: n}
pixels: {shape: [2, side, side, 3]}
capture: {rows: b}
budget: {min: 64}
forward: {call: self.visual(pixels)}
output: {hidden_size: self.config.hidden_size}
"""


def test_a_model_that_was_made_without_its_encoder_has_no_graphs(release_tree) -> None:
    """Inkling without vision: vLLM captures whatever a port has, and a server that started before would not."""
    tree = release_tree("0.33.0")
    plan = plan_changes(load_descriptor_text(INKLING, "inkling.yaml"), tree, read_protocol(tree))
    assert (
        """\
def supports_encoder_cudagraph(self) -> bool:  # type: ignore[override]
    # A configuration may leave `visual` out.
    return self.visual is not None
"""
        in plan.methods.source
    )
    assert (
        plan_changes(load_port("internvl"), tree, read_protocol(tree), replace=True).methods.view.encoder_gate is None
    )


def test_an_eager_call_converts_pixels_as_the_model_does(release_tree) -> None:
    """Inkling's processor gives bfloat16, whatever the type of the model is."""
    tree = release_tree("0.33.0")
    plan = plan_changes(load_descriptor_text(INKLING, "inkling.yaml"), tree, read_protocol(tree))

    given = "pixel_values.to(device=self.visual.device, dtype=self.visual.dtype)"
    assert f"return self.visual({given})" in " ".join(plan.methods.source.split())


WAITS = """\
    # The tower waits for the GPU here: .to(device) of a host tensor.
    with gpu_sync_allowed():
"""


@pytest.mark.parametrize(
    ("model", "release", "waits", "drops"),
    [
        ("dots_ocr_packed", "0.33.0", False, False),
        ("dots_ocr_packed", "0.22.0", False, True),
        ("mimo_v2_omni", "0.33.0", True, False),
        ("qwen2_vl", "0.21.0", False, False),
    ],
)
def test_a_replay_waits_for_no_more_than_it_says(
    release_tree, model: str, release: str, waits: bool, drops: bool
) -> None:
    """Where the release can upload a tensor, the longest sequence is computed on the host. A guard is left for what
    waits besides, where vLLM's check of a step asks for one."""
    tree = release_tree(release)
    methods = plan_changes(port_of(model), tree, read_protocol(tree)).methods
    assert methods.source.count(WAITS) == methods.source.count("gpu_sync_allowed") == waits
    assert ("vllm.utils.gpu_sync_debug", "gpu_sync_allowed") in methods.imports or not waits
    assert methods.source.count('del metadata["max_seqlen"]') == drops


def test_a_tower_that_computes_its_positions_takes_an_image_of_any_width(release_tree) -> None:
    """No table of dots.ocr limits the image of a capture."""
    tree = release_tree("0.33.0")
    source = plan_changes(port_of("dots_ocr_packed"), tree, read_protocol(tree)).methods.source
    assert source.count("grid_thw = [[1, m, token_budget * m]]") == 1
    assert source.count("max_batch_size=max_batch_size") == 1
