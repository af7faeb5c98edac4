"""Packed-grid models in the CPU lab: generated ports are right on pristine and on already ported trees, with every
attention kernel.

A tree that has an implementation gets ours in its place. Releases up to 0.30 do not zero-fill attention's output, so
there the rows behind a batch matter (`fa3`); the generated code must be safe on them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaffold.verify import numeric
from scaffold.verify.numeric import NumericReport
from scaffold.verify.numeric.reports import Tail
from scaffold.workflow import load_port, numeric_requests, tails_of

pytestmark = [pytest.mark.trees, pytest.mark.lab, pytest.mark.usefixtures("check_once")]

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
#: The first minor release whose tower can be used with FlashInfer.
FLASHINFER = {"qwen2_5_vl": 22, "qwen3_vl": 20}
MIN_BUDGET = 64  # output tokens, the same in all three


def tails(release: str, model: str) -> tuple[Tail, ...]:
    minor = int(release.split(".")[1])
    return ("fa2", "fa3", "cudnn") if FLASHINFER.get(model, 99) <= minor else ("fa2", "fa3")


Asked = tuple[tuple[str, Tail], ...]
#: Every generation of the protocol, and every pair of a model and a kernel; each of the three models also on its oldest
#: and its newest tree. Both kernels where `test_matrix.py` has the same cell, so that both ask the lab once
#: (`check_once`); all other cells are there, with VITCG_SLOW=1.
SAMPLE: dict[str, Asked] = {
    "0.20.0": (("qwen2_vl", "fa3"), ("qwen2_5_vl", "fa2"), ("qwen3_vl", "cudnn")),
    "0.22.0": (("qwen3_vl", "fa3"),),
    "0.23.0": (("qwen2_vl", "fa2"), ("qwen2_vl", "fa3")),
    "0.24.0": (("qwen2_5_vl", "cudnn"),),
    "0.29.0": (("qwen3_vl", "fa2"),),
    "0.33.0": (("qwen2_5_vl", "fa3"), ("qwen3_vl", "cudnn"), ("qwen2_vl", "fa2")),
}

#: Trees of the sample in which the tool has to split the tower itself.
PRISTINE = {("0.20.0", "qwen2_vl"), ("0.20.0", "qwen2_5_vl")}

Reports = Callable[[str, Asked], dict[tuple[str, str], NumericReport]]


@pytest.fixture(scope="module")
def reports(release_tree: Any) -> Reports:
    """All models and kernels of a release that a table asks for, from one import of it."""
    served: dict[tuple[str, Asked], dict[tuple[str, str], NumericReport]] = {}

    def get(release: str, wanted: Asked) -> dict[tuple[str, str], NumericReport]:
        if (release, wanted) not in served:
            tree = release_tree(release)
            requests = [
                request for model, tail in wanted for request in numeric_requests(load_port(model), tree, tails=(tail,))
            ]
            served[release, wanted] = dict(zip(wanted, numeric.check_numerics_all(requests), strict=True))
        return served[release, wanted]

    return get


def cells(table: dict[str, Asked]) -> list[Any]:
    return [
        pytest.param(release, wanted, *cell, id=" ".join((release, *cell)))
        for release, wanted in table.items()
        for cell in wanted
    ]


def assert_proven(report: NumericReport) -> None:
    text = "\n".join(report.lines())
    assert report.passed, text
    assert report.negative_lengths == 0, text
    # What follows keeps a report from passing because little was run.
    assert report.hits >= 150, text
    assert report.misses >= 10, text
    eager = [check for check in report.checks if check.name.startswith("eager unchanged: ")]
    assert {check.max_abs for check in eager} == {0.0}, "the eager results of a changed tower are not bit-identical"
    replayed = {(check.modality, f"eager unchanged: {check.name}") for check in report.checks}
    assert {(check.modality, check.name) for check in eager} <= replayed, text
    for modality in ("image", "video"):
        assert sum(check.modality == modality for check in eager) >= 20, text
        assert any(check.name.startswith("precomputed embed") for check in report.checks if check.modality == modality)
    assert any(check.name.endswith("more frames than the capacity") for check in report.checks), text
    assert any(check.name.endswith(f"minimum budget {MIN_BUDGET}") for check in report.checks), text


@pytest.mark.parametrize(("release", "wanted", "model", "tail"), cells(SAMPLE))
def test_a_generated_port_equals_the_pristine_tree(
    release: str, wanted: Asked, model: str, tail: str, reports: Reports
) -> None:
    assert_proven(reports(release, wanted)[model, tail])


@pytest.mark.parametrize(
    ("release", "model"), sorted({(release, model) for release, wanted in SAMPLE.items() for model, _ in wanted})
)
def test_the_sample_has_pristine_trees(release: str, model: str, release_tree: Any) -> None:
    source = release_tree(release).read(f"vllm/model_executor/models/{model}.py")
    assert ("encoder_metadata" not in source) is ((release, model) in PRISTINE)


@pytest.mark.parametrize("release", ["0.20.0", "0.21.0", "0.22.0", "0.33.0"])
@pytest.mark.parametrize("model", MODELS)
def test_flashinfer_is_asked_for_where_the_tower_can_be_used_with_it(
    release: str, model: str, release_tree: Any
) -> None:
    assert tails_of(load_port(model), release_tree(release)) == tails(release, model)


def test_a_release_without_the_model_has_kernels_too(release_tree: Any) -> None:
    """What it lacks is said where the port is planned (VCG420): this question came first, and crashed."""
    assert tails_of(load_port("cohere_compass"), release_tree("0.27.0")) == ("fa2", "fa3")
