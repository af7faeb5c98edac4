"""Runs the scripts of this folder that serve with the installed vLLM, with our weights in every process of theirs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import cpu_wheel
import engine_worker
import pytest

HERE = Path(__file__).parent
#: What vLLM loads: our weights alone, or our plugin and attention that a graph can replay, too.
ALONE, OURS = engine_worker.PLUGIN, ",".join((engine_worker.PLUGIN, engine_worker.ATTENTION, cpu_wheel.PLUGIN))

needs_vllm = [
    pytest.mark.lab,
    pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs an installed vLLM (the `cpu` extra)"),
]


def environment(folder: Path, plugins: str, **changes: str | None) -> dict[str, str]:
    # What torch would compile (the sampler's logprobs) takes longer than everything else here. By itself vLLM gives
    # each rank a NUMA node of its own.
    settings = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_PLUGINS": plugins, **changes}
    env = cpu_wheel.environment(folder, **settings)
    site = engine_worker.write_site(folder / "weights")
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(site), str(cpu_wheel.ROOT / "benchmarks"), str(HERE)])
    return env


def serve(script: str, folder: Path, job: Any, plugins: str = OURS, **changes: str) -> dict[str, Any]:
    """What `script FOLDER RESULT.json JOB` writes. Models of one folder are written once."""
    result = folder / "result.json"
    env = environment(folder, plugins, **changes)
    done = cpu_wheel.run_python(
        HERE / script, str(folder / "models"), str(result), json.dumps(job), env=env, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(result.read_text(encoding="utf-8"))
