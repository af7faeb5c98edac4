"""Defects of hand-written packed-grid ports: each is seen on the releases that have it, and never on generated code.

The numbers are those of the catalogue of upstream's defects. A probe lets the release's own manager capture and replay
with the tower's forward left out, and reports the buffers: what a kernel makes of a wrong buffer differs between
kernels, and FlashInfer's do not run on a CPU. On an H200, A2 costs Qwen2-VL and Qwen3-VL of 0.33 the image results of
graphs that were captured with video enabled, and A3 those of Qwen3-VL with FlashInfer and several images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from probing import Probe, ProbeReport, probe_buffers

from scaffold.verify.numeric import NumericRequest
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
#: The first release with the model's hand-written port.
FIRST_PORT = {"qwen2_vl": 22, "qwen2_5_vl": 21, "qwen3_vl": 20}
SAMPLE = ("0.21.0", "0.33.0")
EVERYTHING = tuple(f"0.{minor}.0" for minor in range(20, 34))

BUDGET = 64
ROWS_PER_TOKEN = 4  # two by two patches are merged into a token
TABLE_ROWS = 8192  # of the rotary table

IMAGES_AFTER_VIDEO = Probe(BUDGET, 3, 10, items=((1, 4, 6), (1, 4, 4)))
MANY_FRAMES = Probe(BUDGET, 8, 112, "video", ((3, 4, 4),))
FLASHINFER = Probe(BUDGET, 3, 10, items=((1, 4, 6), (1, 4, 4)), backend="FLASHINFER")
ONE_FULL_IMAGE = Probe(BUDGET, 3, 0, items=((1, 16, 16),))
LARGE_BUDGET = Probe(2 * TABLE_ROWS, 1, 0, items=((1, 4, 4),))
TOO_MANY_FRAMES = Probe(BUDGET, 3, 10, "video", ((20, 2, 2), (2, 4, 4)))
NO_ITEMS = Probe(BUDGET, 3, 10)
PROBES = (IMAGES_AFTER_VIDEO, MANY_FRAMES, FLASHINFER, ONE_FULL_IMAGE, LARGE_BUDGET, TOO_MANY_FRAMES, NO_ITEMS)


# -- what a defect looks like ------------------------------------------------------------------------------------------


def offsets(buffers: Any) -> dict[str, Sequence[int]]:
    """Cumulative offsets of all sets of sequences."""
    found = {key: buffer.values for key, buffer in buffers.items() if key.startswith("cu_")}
    assert found, "no buffer holds offsets"
    return found


def has_negative_lengths(report: ProbeReport) -> bool:
    return any(end < start for values in offsets(report.served).values() for start, end in pairwise(values))


def loses_a_section(report: ProbeReport) -> bool:
    """Whether one of FlashInfer's two sections does not begin, grow and end as that of the replay."""
    for key, served in offsets(report.served).items():
        replayed = offsets(report.replayed)[key]
        for got, want in zip(halves(served), halves(replayed), strict=True):
            assert want[-1] > 0
            same = got[: len(want)] == want and got[-1] == want[-1]
            if not same or any(end < start for start, end in pairwise(got)):
                return True
    return False


def halves(values: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = len(values) // 2
    return values[:middle], values[middle:]


def raises_at_replay(report: ProbeReport) -> bool:
    return report.error.startswith("execute: RuntimeError")


def captured_rows(report: ProbeReport) -> int:
    return report.captured["pixel_values"].shape[0]


def leaves_the_table(report: ProbeReport) -> bool:
    return any(side > TABLE_ROWS for _, *sides in report.grids for side in sides)


def most_sequences(report: ProbeReport) -> int:
    return max(len(values) - 1 for values in offsets(report.captured).values())


@dataclass(frozen=True)
class Defect:
    """`releases` are the minor releases, by model, whose hand-written port has the defect; a model may have none."""

    name: str
    probe: Probe
    seen: Callable[[ProbeReport], bool]
    releases: dict[str, range]


def since(first: int) -> range:
    return range(first, 34)


ALL = {model: since(first) for model, first in FIRST_PORT.items()}

DEFECTS = (
    Defect(
        "A2 image replays leave zeros behind the offsets: sequences of negative length",
        IMAGES_AFTER_VIDEO,
        has_negative_lengths,
        {"qwen2_vl": since(22), "qwen2_5_vl": range(21, 23), "qwen3_vl": since(20)},
    ),
    Defect(
        "A3 FlashInfer's value offsets are lost when a replay has fewer sequences than the capture",
        FLASHINFER,
        loses_a_section,
        {"qwen2_5_vl": range(21, 23), "qwen3_vl": since(20)},
    ),
    Defect("A14 more frames than captured sequences raise", TOO_MANY_FRAMES, raises_at_replay, ALL),
    Defect(
        "A15 a budget is divided by the number of items and rounded down: an image that fills it does not fit",
        ONE_FULL_IMAGE,
        lambda report: captured_rows(report) < BUDGET * ROWS_PER_TOKEN,
        {"qwen3_vl": range(20, 22)},
    ),
    Defect("A16 the captured grid is wider than the rotary table", LARGE_BUDGET, leaves_the_table, ALL),
    Defect(
        "D1 frames multiply the rows of a graph beyond its budget",
        MANY_FRAMES,
        lambda report: captured_rows(report) > BUDGET * ROWS_PER_TOKEN,
        ALL,
    ),
    # One sequence more than the budget has tokens may cover the rows behind a batch.
    Defect(
        "D2 more attention sequences than the budget has tokens",
        MANY_FRAMES,
        lambda report: most_sequences(report) > BUDGET + 1,
        ALL,
    ),
)


# -- looking -----------------------------------------------------------------------------------------------------------

Looks = Callable[[str], dict[tuple[str, str], dict[Probe, ProbeReport]]]


@pytest.fixture(scope="module")
def looks(release_tree: Any) -> Looks:
    """`looks(release)[implementation, model][probe]`, all of a release from one import of it."""
    served: dict[str, dict[tuple[str, str], dict[Probe, ProbeReport]]] = {}

    def get(release: str) -> dict[tuple[str, str], dict[Probe, ProbeReport]]:
        if release not in served:
            tree = release_tree(release)
            asked: dict[tuple[str, str], NumericRequest] = {}
            for model in MODELS:
                if has_port(release, model):
                    asked["upstream", model] = NumericRequest(tree.root, {}, model)
                (asked["generated", model],) = numeric_requests(load_port(model), tree)
            # Qwen2-VL's tower does not know FlashInfer.
            probes = [
                tuple(probe for probe in PROBES if probe is not FLASHINFER or model != "qwen2_vl") for _, model in asked
            ]
            reports = probe_buffers(zip(asked.values(), probes, strict=True))
            served[release] = {
                key: dict(zip(wanted, found, strict=True))
                for key, wanted, found in zip(asked, probes, reports, strict=True)
            }
        return served[release]

    return get


def minor(release: str) -> int:
    return int(release.split(".")[1])


def has_port(release: str, model: str) -> bool:
    return minor(release) >= FIRST_PORT[model]


def cells(releases: tuple[str, ...], *, hand_written: bool = False) -> list[Any]:
    """Every release, defect and model to which the defect applies at all."""
    return [
        pytest.param(release, defect, model, id=f"{release} {defect.name.partition(' ')[0]} {model}")
        for release in releases
        for defect in DEFECTS
        for model in defect.releases
        if has_port(release, model) or not hand_written
    ]


def assert_hand_written(looks: Looks, release: str, defect: Defect, model: str) -> None:
    report = looks(release)["upstream", model][defect.probe]
    assert defect.seen(report) is (minor(release) in defect.releases[model]), report


def assert_generated(looks: Looks, release: str, defect: Defect, model: str) -> None:
    report = looks(release)["generated", model][defect.probe]
    assert report.error == "", report
    assert report.results == report.hits + report.misses == len(defect.probe.items), report
    assert not defect.seen(report), report


@pytest.mark.parametrize(("release", "defect", "model"), cells(SAMPLE, hand_written=True))
def test_the_hand_written_port_has_the_defect(release: str, defect: Defect, model: str, looks: Looks) -> None:
    assert_hand_written(looks, release, defect, model)


@pytest.mark.parametrize(("release", "defect", "model"), cells(SAMPLE))
def test_the_generated_port_does_not_have_it(release: str, defect: Defect, model: str, looks: Looks) -> None:
    assert_generated(looks, release, defect, model)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "defect", "model"), cells(EVERYTHING))
def test_every_release_has_its_known_defects(release: str, defect: Defect, model: str, looks: Looks) -> None:
    assert_generated(looks, release, defect, model)
    if has_port(release, model):
        assert_hand_written(looks, release, defect, model)


# -- what is more than the absence of a defect -------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("release", SAMPLE)
def test_a_graph_has_exactly_the_rows_of_its_budget(release: str, model: str, looks: Looks) -> None:
    """D1 and A15: whatever the numbers of items and frames, and for every buffer that has a row a patch."""
    for probe, report in looks(release)["generated", model].items():
        rows = {key: buffer.shape[0] for key, buffer in report.captured.items() if len(buffer.shape) == 2}
        assert set(rows.values()) == {probe.budget * ROWS_PER_TOKEN}, (probe, rows)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("release", SAMPLE[-1:])
@pytest.mark.parametrize("probe", [IMAGES_AFTER_VIDEO, MANY_FRAMES], ids=lambda probe: f"{probe.max_frames} frames")
def test_sequences_are_bounded_by_the_limits(probe: Probe, release: str, model: str, looks: Looks) -> None:
    """D2: no batch has more items than the user allows, or more frames than its limit and its tokens."""
    report = looks(release)["generated", model][probe]
    most = max(probe.max_items, min(probe.budget, probe.max_frames))
    assert len(offsets(report.captured)["cu_seqlens"]) - 1 == most


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("release", SAMPLE)
def test_captured_sequences_fit_the_budget_and_the_table(release: str, model: str, looks: Looks) -> None:
    """A16: the strips of the captured grid hold exactly the budget, and none is longer than the rotary table."""
    report = looks(release)["generated", model][LARGE_BUDGET]
    assert sum(t * h * w for t, h, w in report.grids) == LARGE_BUDGET.budget * ROWS_PER_TOKEN
    assert max(side for grid in report.grids for side in grid) == TABLE_ROWS


@pytest.mark.parametrize(
    ("implementation", "release", "model"),
    [("generated", release, model) for release in SAMPLE for model in MODELS]
    + [("upstream", release, model) for release in SAMPLE for model in MODELS if has_port(release, model)],
)
def test_no_items_never_reach_the_tower(implementation: str, release: str, model: str, looks: Looks) -> None:
    """E12: towers cannot compute the metadata of no items. A rank that gets none selects an empty list and executes it;
    in every generation the manager then calls neither replay nor tower. So the defect is latent upstream, and what the
    generated code must keep is that an empty selection is one: no rows, no sizes, no results."""
    reports = looks(release)[implementation, model]
    report = reports[NO_ITEMS]
    assert report.error == ""
    assert (report.results, report.hits, report.misses, report.tower_calls) == (0, 0, 0, 0)
    selected = reports[IMAGES_AFTER_VIDEO].selected
    assert {"pixel_values": 0, "image_grid_thw": 0}.items() <= selected.items()
    assert set(selected.values()) == {0}


#: Images only, with few sequences beside them: 260 tokens each of a budget of 4096, and every item of one token.
FEW_SEQUENCES = (
    Probe(4096, 8, 0, items=((1, 26, 40),) * 8),
    Probe(4096, 1, 0, items=((1, 2, 2),)),
    Probe(BUDGET, BUDGET, 0, items=((1, 2, 2),) * BUDGET),
)
#: Before attention's output was zero-filled: without hooks, with one for results, and with one for padding too.
COVERED = {
    "0.21.0": ("qwen2_5_vl",),
    "0.22.0": ("qwen2_vl", "ernie45_vl"),
    "0.29.0": ("qwen2_5_vl",),
}
RECIPES = {"ernie45_vl": str(Path(__file__).with_name("ernie45_vl_rows.py"))}
#: Rows of a kernel tile: attention over a sequence of L rows computes L * L products.
SHORT = 128


def assert_short_sequences_behind(tree: Any, models: tuple[str, ...]) -> None:
    asked = [
        request for model in models for request in numeric_requests(load_port(model), tree, recipe=RECIPES.get(model))
    ]
    for reports in probe_buffers((request, FEW_SEQUENCES) for request in asked):
        for probe, report in zip(FEW_SEQUENCES, reports, strict=True):
            assert (report.error, report.misses) == ("", 0), report
            rows, used = probe.budget * ROWS_PER_TOKEN, sum(t * h * w for t, h, w in probe.items)
            for key, values in offsets(report.served).items():
                behind = [end - start for start, end in pairwise(values) if start >= used]
                assert (values[-1], sum(behind)) == (rows, rows - used), key
                window = report.captured.get("max_seqlen_window")
                most = window.values[0] if window and window.values and "window" in key else SHORT
                assert max(behind) <= most, (probe, key)
                # Every sequence of the batch has a token, and one more may cover the rest.
                assert len(values) - 1 <= probe.budget + 1, (probe, key)


@pytest.mark.parametrize("release", COVERED)
def test_rows_behind_a_batch_are_short_sequences(release: str, release_tree: Any) -> None:
    """All rows behind a batch are in sequences of a kernel tile or of a window. One sequence of 8064 rows, as it once
    was, is 7.5 times the attention work of the batch before it."""
    assert_short_sequences_behind(release_tree(release), COVERED[release])


@pytest.mark.slow
@pytest.mark.parametrize("release", [release for release in EVERYTHING if minor(release) < 31])
def test_every_release_covers_the_rows_behind_a_batch(release: str, release_tree: Any) -> None:
    models = (*MODELS, "glm4_1v", *(["ernie45_vl"] if minor(release) > 21 else []))
    assert_short_sequences_behind(release_tree(release), models)
