"""What no graph serves is encoded once, and no graph is replayed for it where the release's manager can be told so.

Before 0.27 the manager has one number of an item, which sizes its result too; from 0.27 on an item has another one for
the path, by which a video claims eight tokens or more for a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from probing import Probe, ProbeReport, probe_buffers

from scaffold.protocol import SourceTree
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

#: A recipe whose inputs are precomputed embeddings.
READY = """\
from scaffold.verify.numeric.recipes import {model}


class Ready(type({model}.RECIPE)):
    def make_inputs(self, modality, items, generator):
        return self.embeds_inputs(modality, items, generator)


RECIPE = Ready()
"""
GRIDS = Probe(64, 3, 10, items=((1, 4, 6), (1, 4, 4)))
TILES = Probe(4096, 3, 0, items=(1, 2))
#: Model -> what is served, and releases: one of each generation that differs, for the first model by default. From 0.31
#: on the manager gives nothing for embeddings.
SERVED = {
    "qwen2_vl": (GRIDS, ("0.22.0", "0.26.0", "0.29.0", "0.30.0")),
    "internvl": (TILES, ("0.22.0", "0.26.0", "0.29.0")),
}
#: In one graph are at most ten frames, and 64 tokens. Items, then hits and calls of the tower where frames claim tokens
#: and where the manager bounds them.
VIDEOS = {
    "one of two has too many frames": (((20, 2, 2), (2, 4, 4)), (1, 1), (0, 1)),
    "too many frames and tokens": (((20, 4, 4),), (0, 1), (0, 1)),
    "too many frames together": (((6, 2, 2), (6, 2, 2)), (2, 0), (0, 1)),  # a graph each, or one eager batch
}

Releases = Callable[[str], SourceTree]


def probe(model: str, tree: SourceTree, probes: tuple[Probe, ...], recipe: str | None = None) -> list[ProbeReport]:
    (request,) = numeric_requests(load_port(model), tree, recipe=recipe)
    (reports,) = probe_buffers([(request, probes)])
    assert [report.error for report in reports] == [""] * len(probes)
    return list(reports)


@pytest.mark.parametrize(
    ("release", "model"),
    [
        pytest.param(release, model, marks=() if model == "qwen2_vl" or not place else pytest.mark.slow)
        for model, (_, releases) in SERVED.items()
        for place, release in enumerate(releases)
    ],
)
def test_no_graph_is_replayed_for_ready_embeddings(
    release: str, model: str, release_tree: Releases, tmp_path: Path
) -> None:
    recipe = tmp_path / f"ready_{model}.py"
    recipe.write_text(READY.format(model=model))
    served, _ = SERVED[model]

    (report,) = probe(model, release_tree(release), (served,), str(recipe))

    assert (report.results, report.hits, report.tower_calls) == (len(served.items), 0, 0)


@pytest.mark.parametrize("release", ["0.29.0", "0.33.0"])
def test_the_tower_runs_once_for_too_many_frames(release: str, release_tree: Releases) -> None:
    probes = tuple(Probe(64, 3, 10, "video", items) for items, _, _ in VIDEOS.values())

    reports = probe("qwen2_vl", release_tree(release), probes)

    assert {name: (report.hits, report.tower_calls) for name, report in zip(VIDEOS, reports, strict=True)} == {
        name: found[release == "0.33.0"] for name, (_, *found) in VIDEOS.items()
    }
