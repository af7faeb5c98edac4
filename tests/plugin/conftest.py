"""One run of the engine with faults serves several test files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu_wheel
import pytest

CHILD = Path(__file__).with_name("faults_child.py")


@dataclass(frozen=True)
class Served:
    """What the child found, and its folder: `qwen2_vl/` is a model to serve, `sizes.json` and `stats.json` were written
    while it served."""

    found: dict[str, Any]
    folder: Path


def serve(what: str, folder: Path) -> Served:
    assert cpu_wheel.plugin_is_registered(), "the installed package is older than pyproject.toml: install it again"
    files = {"record": str(folder / "sizes.json"), "stats": str(folder / "stats.json")}
    # Else the times of this machine would decide which batch is replayed.
    no_times = {"calibration_ms": 0, "trials": 0}
    env = cpu_wheel.environment(folder, VITCG_ENCODER_GRAPHS=json.dumps({**files, **no_times}))
    done = cpu_wheel.run_python(CHILD, str(folder), what, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0, done.stderr[-4000:]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    return Served(json.loads(lines[-1].removeprefix("RESULT ")), folder)


@pytest.fixture(scope="session")
def adapter_faults(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve("adapter", tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="session")
def manager_faults(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve("manager", tmp_path_factory.mktemp("manager"))
