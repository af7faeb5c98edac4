"""`reproducible`: the same batch gives the same bits in two starts of an engine, whatever came before it.

Each start gets the same images in an order of its own, one at a time with idle moments between, then together.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import needs_vllm, serve

pytestmark = needs_vllm


def changing(batches: dict[str, list[str]]) -> list[str]:
    """The batches that did not give the same bits every time."""
    return [batch for batch, bits in batches.items() if len(set(bits)) > 1]


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder, settings = tmp_path_factory.mktemp("on"), json.dumps({"reproducible": True})
    return [serve("reproducible_child.py", folder, seed, VITCG_ENCODER_GRAPHS=settings) for seed in (1, 2)]


def test_a_batch_gives_the_same_bits_each_time(starts):
    for served in starts:
        assert changing(served["batches"]) == []
        assert sum(len(bits) > 1 for bits in served["batches"].values()) >= served["alone"]
        assert served["misses"] == 0
        assert served["hits"] > len(served["batches"]) > served["alone"]  # some had several images


def test_a_batch_gives_the_same_bits_in_another_start(starts):
    one, other = (served["batches"] for served in starts)
    shared = one.keys() & other.keys()
    assert len(shared) >= starts[0]["alone"]
    assert {batch: one[batch][0] for batch in shared} == {batch: other[batch][0] for batch in shared}
    assert starts[0]["graphs"] == starts[1]["graphs"]


def test_requests_alone_get_the_same_answers_in_any_order(starts):
    answers = [answer for served in starts for answer in served["answers"]]
    half = len(answers) // 2
    for one, other in zip(answers[:half], answers[half:], strict=True):
        assert all(answer == one[0] for answer in [*one, *other])


@pytest.mark.slow  # the control: these tests can fail
def test_without_the_setting_bits_change(tmp_path):
    """Else the tests above would show nothing: graphs of idle moments and trials change how a size runs."""
    served = serve("reproducible_child.py", tmp_path, 1, VITCG_ENCODER_GRAPHS='{"calibration_ms": 0}')
    assert changing(served["batches"])
