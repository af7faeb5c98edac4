"""The support matrix against what runs: a sample of its cells is run again, and all of them are of today's code.

`make matrix` runs every cell; the sample has each model and each protocol generation, where it can on releases of which
other tests of this folder look at the same proof (`check_once`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.version import Version

from scaffold.descriptor import CropsPort, CutPort, RowsPort, shipped_names
from scaffold.protocol import GENERATIONS, read_protocol
from scaffold.workflow import load_port

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import matrix

pytest.importorskip("torch", reason="needs the `cpu` extra")

CELLS = matrix.load()
#: The first three, one of each layout, without VITCG_SLOW=1: other tests of this folder look at these generations, too.
SAMPLE = (
    ("step3_vl", "0.21.0"),
    ("internvl", "0.22.0"),
    ("qwen2_vl", "0.23.0"),
    ("qwen2_5_vl", "0.24.0"),
    ("qwen3_vl", "0.27.0"),
    ("qwen2_5_vl", "0.33.0"),
)


def cell_of_each_further_model():
    """A release on which each is proven, other ones than the pristine releases of their own tests in this folder."""
    for place, model in enumerate(matrix.FURTHER):
        proven = [one for one in matrix.RELEASES if CELLS.get(f"{model} {one}", {}).get("state") == "proven"]
        if proven:
            yield model, proven[place % len(proven)]


FURTHER = [*cell_of_each_further_model()]
#: Where it is not a hundred: a tower that is wide whatever the configuration says gets few calls.
REPLAYED = {"phi3v": 20}


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    ("model", "release"),
    [*SAMPLE[:3], *(pytest.param(*cell, marks=pytest.mark.slow) for cell in SAMPLE[3:] + tuple(FURTHER))],
)
def test_a_cell_comes_out_as_it_is_shown(model, release, release_tree, check_once):
    shown = CELLS.get(f"{model} {release}")
    assert shown is not None, "the matrix has no such cell: run `make matrix`"
    release_tree(release)  # fetched, or skipped when offline

    ran = matrix.run_cell(model, release)

    assert ran["code"] == shown["code"], "another code was proven than is generated now: run `make matrix`"
    assert ran["state"] == shown["state"], ran.get("reason")
    states = {modality: cell["state"] for modality, cell in ran["modalities"].items()}
    assert states == {modality: cell["state"] for modality, cell in shown["modalities"].items()}
    assert ran["replayed"] > REPLAYED.get(model, 100), "a cell that replays nothing proves nothing"


@pytest.mark.trees
def test_the_sample_has_every_model_and_every_generation(release_tree):
    assert {model for model, _ in SAMPLE} == set(matrix.CORE)
    assert {model for model, _ in (*SAMPLE, *FURTHER)} == set(shipped_names()), "run `make matrix`"
    assert {read_protocol(release_tree(release)).generation for _, release in SAMPLE} == set(GENERATIONS)


#: The ends of each generation. A template's change shows in all releases of one alike.
ENDS = {release for generation in GENERATIONS for release in (generation.first, generation.last)}


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
