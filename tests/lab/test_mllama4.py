"""Llama 4 in the CPU lab: the port of the last release without one, and on releases that have one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaffold.verify.numeric import check_numerics_all
from scaffold.workflow import load_spec, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

PRISTINE = "0.23.0"
OTHERS = ("0.20.0", "0.22.0", "0.24.0", "0.26.0", "0.27.0", "0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")


@pytest.mark.parametrize("release", [PRISTINE, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_generated_port_equals_the_pristine_tree(release_tree, release):
    tree = release_tree(release)
    requests = numeric_requests(load_spec("mllama4"), tree, tails=("fa2", "fa3"))
    # The model has a switch, but the forward does not pass it: nothing is there to shard twice.
    sharded = [replace(item, options=replace(item.options, data_parallel_switch=True)) for item in requests]

    for report in check_numerics_all(sharded):
        assert report.passed, "\n".join(report.lines())
        assert report.hits >= 70
        assert report.misses >= 10
        assert any(check.name == "data parallelism stays outside" for check in report.checks)


def test_last_release_without_a_port(release_tree):
    source = "vllm/model_executor/models/mllama4.py"
    assert "get_encoder_cudagraph_config" not in release_tree(PRISTINE).read(source)
    assert "get_encoder_cudagraph_config" in release_tree("0.24.0").read(source)
