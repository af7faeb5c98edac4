"""GLM-4.1V in the CPU lab: the split reaches into the child module that adds position embeddings to pixels."""

from __future__ import annotations

from typing import Any

import pytest

from scaffold.verify.numeric import NumericReport
from scaffold.workflow import load_spec, prove_numerics

pytestmark = [pytest.mark.trees, pytest.mark.lab]

PRISTINE = "0.23.0"
OTHERS = ("0.20.0", "0.21.0", "0.22.0", "0.24.0", "0.26.0", "0.27.0", "0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


def assert_proven(report: NumericReport) -> None:
    text = "\n".join(report.lines())
    assert report.passed, text
    assert report.negative_lengths == 0, text
    assert report.hits >= 150, text
    assert report.misses >= 10, text
    eager = [check for check in report.checks if check.name.startswith("eager unchanged: ")]
    assert {check.max_abs for check in eager} == {0.0}, "the eager results of a changed tower are not bit-identical"
    for modality in ("image", "video"):
        assert sum(check.modality == modality for check in eager) >= 20, text
        assert any(check.name.startswith("precomputed embed") for check in report.checks if check.modality == modality)


@pytest.mark.parametrize("release", [PRISTINE, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_generated_port_equals_the_pristine_tree(release_tree: Any, release: str) -> None:
    """Before 0.24 videos of one batch have one size here: with several sizes eager results depend on the batch."""
    for report in prove_numerics(load_spec("glm4_1v"), release_tree(release), tails=("fa2", "fa3")):
        assert_proven(report)


def test_last_release_without_a_port(release_tree: Any) -> None:
    source = "vllm/model_executor/models/glm4_1v.py"
    assert "encoder_metadata" not in release_tree(PRISTINE).read(source)
    assert "encoder_metadata" in release_tree("0.24.0").read(source)
