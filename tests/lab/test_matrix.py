"""The support matrix against what runs: a sample of its cells is run again, and all of them are of today's code.

`make matrix` runs every cell; the sample has each model and each protocol generation, where it can on releases of which
other tests of this folder look at the same proof (`check_once`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.version import Version

from scaffold.descriptor import shipped_names
from scaffold.protocol import GENERATIONS, read_protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import matrix

pytest.importorskip("torch", reason="needs the `cpu` extra")

CELLS = matrix.load()
SAMPLE = (
    ("step3_vl", "0.21.0"),
    ("internvl", "0.22.0"),
    ("qwen2_vl", "0.23.0"),
    ("qwen2_5_vl", "0.24.0"),
    ("qwen3_vl", "0.27.0"),
    ("qwen2_vl", "0.32.0"),
)
#: Of the further models, whose own tests in this folder run their pristine releases.
FURTHER = (
    ("mllama4", "0.26.0"),
    ("gemma3_mm", "0.28.0"),
    ("glm4_1v", "0.31.0"),
    ("ernie45_vl", "0.30.0"),
    ("cohere_compass", "0.33.0"),
    ("deepseek_ocr", "0.31.0"),
    ("deepseek_ocr2", "0.28.0"),
    ("deepseek_v4", "0.30.0"),
    ("deepseek_v41", "0.32.0"),
    ("deepseek_vl2", "0.24.0"),
    ("gemma4_mm", "0.27.0"),
    ("idefics3", "0.29.0"),
    ("kimi_k25", "0.26.0"),
    ("kimi_k3", "0.33.0"),
    ("kimi_vl", "0.23.0"),
    ("lfm2_vl", "0.31.0"),
    ("llava", "0.25.0"),
    ("llava_next", "0.29.0"),
    ("llava_onevision", "0.28.0"),
    ("minicpmv", "0.29.0"),
    ("minimax_m3", "0.32.0"),
    ("mistral3", "0.32.0"),
    ("molmo2", "0.26.0"),
    ("nano_nemotron_vl", "0.27.1"),
    ("paligemma", "0.27.0"),
    ("phi3v", "0.23.0"),
    ("pixtral", "0.31.0"),
)
#: Where it is not a hundred: a tower that is wide whatever the configuration says gets few calls.
REPLAYED = {"phi3v": 20}


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(
    ("model", "release"), [*SAMPLE, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in FURTHER)]
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
    assert {model for model, _ in (*SAMPLE, *FURTHER)} == set(matrix.MODELS) == set(shipped_names())
    assert {read_protocol(release_tree(release)).generation for _, release in SAMPLE} == set(GENERATIONS)


#: The ends of each generation. A template's change shows in all releases of one alike.
ENDS = {release for generation in GENERATIONS for release in (generation.first, generation.last)}


@pytest.mark.trees
@pytest.mark.parametrize(
    "release",
    [one if one in ENDS else pytest.param(one, marks=pytest.mark.slow) for one in matrix.RELEASES],
)
@pytest.mark.parametrize("models", [matrix.CORE, pytest.param(matrix.FURTHER, marks=pytest.mark.slow)])
def test_no_cell_is_of_another_code(models, release, release_tree):
    release_tree(release)

    outdated = [
        model
        for model in models
        if (cell := CELLS.get(f"{model} {release}")) and cell["code"] != matrix.current_code(model, release)
    ]

    assert outdated == [], "the generated code has changed since these were proven: run `make matrix`"


def test_every_cell_was_run():
    """What a release cannot be given is refused with its code, not left out."""
    states = {key: cell["state"] for key, cell in CELLS.items()}

    assert set(states) == {f"{model} {release}" for model in matrix.MODELS for release in matrix.RELEASES}
    refused = {key for key, state in states.items() if state == "refused"}
    # Cohere Compass came with 0.30.
    absent = {key for key in refused if CELLS[key]["reason"].startswith("VCG410: cannot read")}
    assert absent == {f"cohere_compass {release}" for release in matrix.RELEASES if Version(release) < Version("0.30")}
    # Before 0.23 the release is refused for all of them.
    later = {key for key in refused if CELLS[key]["reason"].startswith("VCG420: the tree has no module")}
    came = {"deepseek_v4": "0.30", "deepseek_v41": "0.30", "kimi_k3": "0.27", "minimax_m3": "0.24"}
    assert later == {
        f"{model} {release}"
        for model, first in came.items()
        for release in matrix.RELEASES
        if Version("0.23") <= Version(release) < Version(first)
    }
    absent |= later
    assert {CELLS[key]["reason"][:7] for key in refused - absent} <= {"VCG441:", "VCG442:", "VCG446:", "VCG448:"}
    assert {key for key in refused if CELLS[key]["reason"].startswith("VCG441: ")} == {
        f"ernie45_vl {release}" for release in ("0.20.0", "0.20.1", "0.20.2", "0.21.0")
    }
    rows = {"kimi_k25": "0.23", "kimi_vl": "0.23", "lfm2_vl": "0.23", **dict.fromkeys(came, "0.23")}
    rows |= {"mistral3": "0.29", "pixtral": "0.29"}
    assert {key for key in refused if CELLS[key]["reason"].startswith("VCG448: ")} == {
        f"deepseek_ocr2 {release}"
        for release in matrix.RELEASES
        if Version("0.22") <= Version(release) < Version("0.27")
    }
    assert {key for key in refused if CELLS[key]["reason"].startswith("VCG446: ")} == {
        f"{model} {release}"
        for model, first in rows.items()
        for release in matrix.RELEASES
        if Version(release) < Version(first)
    }
    assert {states[key] for key in states.keys() - refused} == {"proven"}


def test_the_table_and_the_picture_show_the_results():
    for path, text in matrix.render(CELLS).items():
        assert path.read_text("utf-8") == text, f"{path.name} is not drawn from matrix.json: run `make matrix`"


def test_a_cell_is_known_by_the_code_that_it_runs():
    """Adapters, tests, docs rows and examples are no part of it; a byte of a model file is."""
    before = matrix.fingerprint({"vllm/a.py": b"x"})

    assert before == matrix.fingerprint({"vllm/a.py": b"x"})
    assert len({before, matrix.fingerprint({"vllm/a.py": b"y"}), matrix.fingerprint({"vllm/b.py": b"x"})}) == 3


@pytest.mark.parametrize(
    ("state", "claimed"),
    [("failed", "failed"), ("refused", "refused"), ("proven", "proven")],
)
def test_a_state_is_shown_as_it_is(state, claimed):
    cell = {"state": state, "code": "0", "modalities": {"image": {"state": state}}}

    assert matrix.state_of({"internvl 0.33.0": cell}, "internvl", "0.33.0", "image") == claimed
    assert matrix.state_of({}, "internvl", "0.33.0", "image") == "not run"
