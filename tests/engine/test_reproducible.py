"""`reproducible`: the same batch gives the same bits in two starts of an engine, whatever came before it.

Each start gets the same images in an order of its own, one at a time with idle moments between, then together.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cpu_wheel
import engine_worker
import pytest
from test_engine import OURS

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs an installed vLLM (the `cpu` extra)"),
]


def serve(folder: Path, seed: int, **settings: Any) -> dict[str, Any]:
    site = engine_worker.write_site(folder / "weights")
    env = cpu_wheel.environment(
        folder, TORCHDYNAMO_DISABLE="1", VLLM_PLUGINS=OURS, VITCG_ENCODER_GRAPHS=json.dumps(settings)
    )
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(site), str(cpu_wheel.ROOT / "benchmarks"), str(HERE)])
    result = folder / f"{seed}.json"
    done = cpu_wheel.run_python(
        HERE / "reproducible_child.py", str(folder / "models"), str(result), str(seed), env=env, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(result.read_text(encoding="utf-8"))


def changing(batches: dict[str, list[str]]) -> list[str]:
    """The batches that did not give the same bits every time."""
    return [batch for batch, bits in batches.items() if len(set(bits)) > 1]


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return [serve(tmp_path_factory.mktemp("on"), seed, reproducible=True) for seed in (1, 2)]


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
    served = serve(tmp_path, 1, calibration_ms=0)
    assert changing(served["batches"])
