"""Working copies of releases in which all five models were generated, made once a session by the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "step3_vl")

PortedCopy = Callable[..., Path]


@pytest.fixture(scope="session")
def ported_copy(release_tree, tmp_path_factory) -> PortedCopy:
    """`ported_copy("0.33.0")`: a copy after `new MODEL --replace --reenter` for each of five (or given) models."""
    copies: dict[tuple[str, tuple[str, ...]], Path] = {}

    def get(release: str, models: tuple[str, ...] = MODELS) -> Path:
        if (release, models) not in copies:
            release_tree(release)  # fetched, or skipped when offline
            folder = tmp_path_factory.mktemp("ported") / f"vllm-{release}"
            _new(models, release, folder)
            copies[release, models] = folder
        return copies[release, models]

    return get


def _new(models: tuple[str, ...], release: str, folder: Path) -> None:
    """One command after the other, in one process."""
    script = """
import sys
from scaffold.cli.app import main
for model in sys.argv[1].split(","):
    try:
        main(["new", model, *sys.argv[2:]])
    except SystemExit as ended:
        if ended.code:
            raise
"""
    arguments = [",".join(models), "--vllm", release, "--into", str(folder), "--replace", "--reenter", "--static"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
