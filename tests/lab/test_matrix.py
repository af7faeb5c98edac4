"""The support matrix against what runs: a sample of its cells is run again, and all of them are of today's code.

`make test-all` runs every cell again. The sample is of releases of which other tests of this folder look at the same
proof (`check_once`); they have each generation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.version import Version

from scaffold.descriptor import CropsPort, CutPort, RowsPort, shipped_names
from scaffold.protocol import GENERATIONS
from scaffold.workflow import load_port

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import matrix

pytest.importorskip("torch", reason="needs the `cpu` extra")

CELLS = matrix.load()
#: `test_step3_vl.py` runs a release of each generation.
SAMPLE = ("internvl 0.22.0", "qwen2_vl 0.23.0")
PROVEN = [name for name, cell in CELLS.items() if cell["state"] == "proven"]


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in SAMPLE else pytest.mark.slow) for one in PROVEN])
def test_a_cell_comes_out_as_it_is_shown(name, release_tree, check_once):
    shown, (model, release) = CELLS[name], name.split()
    release_tree(release)  # fetched, or skipped when offline

    ran = matrix.run_cell(model, release)

    assert ran["code"] == shown["code"], "another code was proven than is generated now: run `make matrix`"
    assert ran["state"] == shown["state"], ran.get("reason")
    states = {modality: cell["state"] for modality, cell in ran["modalities"].items()}
    assert states == {modality: cell["state"] for modality, cell in shown["modalities"].items()}
    # A cell that replays nothing proves nothing. A wide tower gets few calls.
    assert ran["replayed"] > (100 if shown["replayed"] > 100 else shown["replayed"] // 2)


#: One release of each generation, and the newest. A template's change shows in all releases of one alike.
ENDS = {*(generation.first for generation in GENERATIONS), GENERATIONS[-1].last}


@pytest.mark.trees
@pytest.mark.parametrize(
    "release",
    [one if one in ENDS else pytest.param(one, marks=pytest.mark.slow) for one in matrix.RELEASES],
)
@pytest.mark.parametrize("models", [matrix.CORE, pytest.param(matrix.FURTHER, marks=pytest.mark.slow)])
def test_no_cell_is_of_another_code(models, release, release_tree, monkeypatch):
    monkeypatch.setattr(matrix, "tree_of", release_tree)

    outdated = [
        model
        for model in models
        if (cell := CELLS.get(f"{model} {release}")) and cell["code"] != matrix.current_code(model, release)
    ]

    assert outdated == [], "the generated code has changed since these were proven: run `make matrix`"


#: What a release cannot be given, by the layouts for which it holds in all older releases than this one.
SINCE = {CutPort: ("0.22", "VCG442"), CropsPort: ("0.22", "VCG442"), RowsPort: ("0.23", "VCG446")}
#: Models that came later than that, or whose encoder an older release cannot capture: the first that can.
LATER = {
    "cohere_compass": ("0.30", {"VCG410"}),
    "deepseek_ocr2": ("0.27", {"VCG448"}),
    "deepseek_v4": ("0.30", {"VCG420"}),
    "deepseek_v41": ("0.30", {"VCG420"}),
    "ernie45_vl": ("0.22", {"VCG441"}),
    "kimi_k3": ("0.27", {"VCG420"}),
    "minimax_m3": ("0.24", {"VCG420"}),
    "mistral3": ("0.29", {"VCG446"}),
    "pixtral": ("0.29", {"VCG446"}),
}


def test_every_cell_was_run():
    """What a release cannot be given is refused with its code, not left out; and a newer one than that serves it."""
    assert set(CELLS) == {f"{model} {release}" for model in matrix.MODELS for release in matrix.RELEASES}
    assert {cell["state"] for cell in CELLS.values()} == {"proven", "refused"}
    assert min(CELLS[name]["replayed"] for name in PROVEN) > 20
    assert {name.split()[0] for name in PROVEN} == set(matrix.MODELS) == set(shipped_names())
    assert {*SAMPLE} <= {*PROVEN}
    assert LATER.keys() <= set(matrix.MODELS)
    for model in matrix.MODELS:
        cells = {release: CELLS[f"{model} {release}"] for release in matrix.RELEASES}
        refused = {one: cell["reason"].partition(":")[0] for one, cell in cells.items() if cell["state"] == "refused"}
        assert [*refused] == list(matrix.RELEASES[: len(refused)]), model
        since, code = SINCE.get(type(load_port(model)), ("0", ""))
        early = {found for one, found in refused.items() if Version(one) < Version(since)}
        late = {found for one, found in refused.items() if Version(one) >= Version(since)}
        assert early <= {code, *LATER.get(model, ("", set()))[1]}, model
        first = next(one for one in matrix.RELEASES if one not in refused)
        if model in LATER:
            assert (first, late) == (f"{LATER[model][0]}.0", LATER[model][1]), model
        else:
            assert late <= {"VCG410", "VCG420", "VCG446", "VCG448"}, model
            assert model not in matrix.CORE or not refused
