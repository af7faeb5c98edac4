"""ERNIE-4.5-VL in the CPU lab: the tower in a graph, the resampler outside of it on the rows of the batch."""

from __future__ import annotations

from typing import Any

import pytest

from scaffold.verify.numeric import NumericRequest, check_numerics
from scaffold.workflow import load_spec, prove_numerics

pytestmark = [pytest.mark.trees, pytest.mark.lab]

MODEL = "vllm/model_executor/models/ernie45_vl.py"
PRISTINE = "0.27.0"
OTHERS = ("0.22.0", "0.23.0", "0.24.0", "0.26.0", "0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


@pytest.mark.parametrize("release", [PRISTINE, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_generated_port_equals_the_pristine_tree(release_tree: Any, release: str) -> None:
    for report in prove_numerics(load_spec("ernie45_vl"), release_tree(release), tails=("fa2", "fa3")):
        text = "\n".join(report.lines())
        assert report.passed, text
        assert report.negative_lengths == 0, text
        assert report.hits >= 80, text
        assert report.misses >= 8, text
        eager = [check for check in report.checks if check.name.startswith("eager unchanged: ")]
        assert {check.max_abs for check in eager} == {0.0}


def test_last_release_without_a_port(release_tree: Any) -> None:
    assert "encoder_metadata" not in release_tree(PRISTINE).read(MODEL)
    assert "encoder_metadata" in release_tree("0.28.0").read(MODEL)


@pytest.mark.slow
def test_hand_written_port_resamples_eager_results_twice(release_tree: Any) -> None:
    """The manager of these releases hands eager results to the hook, too."""
    report = check_numerics(NumericRequest(release_tree("0.33.0").root, {}, "ernie45_vl", ("image",), "0.33.0"))

    wrong = {check.name.split(": ")[1] for check in report.checks if not check.passed}
    assert "an item above all budgets" in wrong, "\n".join(report.lines())
    assert "a budget exactly full" not in wrong
