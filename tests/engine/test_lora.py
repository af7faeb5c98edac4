"""LoRA on the vision tower, with two adapters and images of several sizes in one batch (vLLM issue 52376).

vLLM maps adapters to rows of the tower in the order of its batch, and the capture sees a tower without adapters. So
with graphs, embeddings would be silently wrong: every image runs eager, and the statistics say why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cpu_wheel
import engine_worker
import pytest
from test_engine import OURS, WAYS

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs an installed vLLM (the `cpu` extra)"),
]


def serve(tmp_path: Path, plugins: str, **job: Any) -> dict[str, Any]:
    site = engine_worker.write_site(tmp_path / "weights")
    env = cpu_wheel.environment(tmp_path, TORCHDYNAMO_DISABLE="1", VLLM_PLUGINS=plugins)
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(site), str(cpu_wheel.ROOT / "benchmarks"), str(HERE)])
    result = tmp_path / "result.json"
    done = cpu_wheel.run_python(
        HERE / "lora_child.py", str(tmp_path / "models"), str(result), json.dumps(job), env=env, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(result.read_text(encoding="utf-8"))


def wrong(got: list[list[float]], want: list[list[float]]) -> list[int]:
    """The requests whose logprobs differ by more than rounding."""
    return [n for n, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pytest.approx(pair[1], abs=1e-4)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[float]]:
    """What vLLM alone answers to each request alone."""
    served = serve(tmp_path_factory.mktemp("alone"), WAYS["alone"][0], graphs=False)
    assert wrong(served["together"], served["alone"]) == []
    assert wrong(served["without"], served["alone"]) == [*range(len(served["alone"]))]  # each adapter changes something
    return served["alone"]


def test_two_adapters_and_mixed_sizes_in_one_batch_are_right(expected, tmp_path):
    served = serve(tmp_path, OURS, graphs=True)
    assert wrong(served["alone"], expected) == []
    assert wrong(served["together"], expected) == []
    stats = served["encoder"]["stats"]
    assert stats["graph_hits"] == 0
    assert set(stats["detail"]["miss_reasons"]) == {"lora"}
    assert stats["detail"]["miss_reasons"]["lora"] == 3 * len(expected)


@pytest.mark.slow  # the control: these tests can fail
def test_without_the_guard_they_are_wrong(expected, tmp_path):
    """The control: the test above can fail."""
    served = serve(tmp_path, OURS, graphs=True, guarded=False)
    assert wrong(served["together"], expected) != []
