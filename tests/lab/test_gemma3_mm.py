"""Gemma 3 in the CPU lab: the port of the last release without one, and what upstream's own port gets wrong."""

from __future__ import annotations

import pytest

from scaffold.verify.numeric import NumericOptions, NumericRequest, check_numerics
from scaffold.workflow import load_spec, prove_numerics

pytestmark = [pytest.mark.trees, pytest.mark.lab]

PRISTINE = "0.24.0"
OTHERS = ("0.20.0", "0.22.0", "0.23.0", "0.26.0", "0.27.0", "0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


@pytest.mark.parametrize("release", [PRISTINE, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_generated_port_equals_the_pristine_tree(release_tree, release):
    for report in prove_numerics(load_spec("gemma3_mm"), release_tree(release), tails=("fa2", "fa3")):
        assert report.passed, "\n".join(report.lines())
        assert report.hits >= 70
        assert report.misses >= 10


@pytest.mark.parametrize("release", ["0.33.0"])
def test_hand_written_port_has_the_defects(release_tree, release):
    """A6: a graph has a tile for each item only, so that an image of several tiles does not fit. E10: no start with a
    budget below one tile."""
    options = NumericOptions(min_budget_above_max=True)
    request = NumericRequest(release_tree(release).root, {}, "gemma3_mm", ("image",), release, options=options)

    report = check_numerics(request)

    assert {diagnostic.code for diagnostic in report.diagnostics()} == {"VCG654", "VCG662"}, "\n".join(report.lines())
    wrong = {check.name.split(": ")[1] for check in report.checks if not check.passed and "images: " in check.name}
    assert {"pan and scan", "one image fills the budget"} <= wrong


def test_last_release_without_a_port(release_tree):
    source = "vllm/model_executor/models/gemma3_mm.py"
    assert "get_encoder_cudagraph_config" not in release_tree(PRISTINE).read(source)
    assert "get_encoder_cudagraph_config" in release_tree("0.25.0").read(source)
