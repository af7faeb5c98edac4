"""One run of the engine with faults serves several test files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu_wheel
import pytest


@dataclass(frozen=True)
class Faults:
    """What the child found in each half, and its folder: `qwen2_vl/` is a model to serve, `sizes.json`, `stats.json`
    and `metrics/` were written while its last manager served."""

    adapters: dict[str, Any]
    managers: dict[str, Any]
    folder: Path


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    assert cpu_wheel.plugin_is_registered(), "the installed package is older than pyproject.toml: install it again"
    folder = tmp_path_factory.mktemp("faults")
    files = {"record": str(folder / "sizes.json"), "stats": str(folder / "stats.json")}
    # Else the times of this machine would decide which batch is replayed.
    settings = json.dumps({**files, "calibration_ms": 0, "trials": 0})
    env = cpu_wheel.environment(folder, VITCG_ENCODER_GRAPHS=settings, VITCG_METRICS_DIR=str(folder / "metrics"))
    done = cpu_wheel.run_python(Path(__file__).with_name("faults_child.py"), str(folder), env=env, timeout=600)
    return Faults(*cpu_wheel.results_of(done), folder)
