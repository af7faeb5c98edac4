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

PortedCopy = Callable[[str], Path]


@pytest.fixture(scope="session")
def ported_copy(release_tree, tmp_path_factory) -> PortedCopy:
    """`ported_copy("0.33.0")`: a working copy after `new MODEL --replace` for each of the five models."""
    copies: dict[str, Path] = {}

    def get(release: str) -> Path:
        if release not in copies:
            release_tree(release)  # fetched, or skipped when offline
            folder = tmp_path_factory.mktemp("ported") / f"vllm-{release}"
            for model in MODELS:
                _new(model, release, folder)
            copies[release] = folder
        return copies[release]

    return get


def _new(model: str, release: str, folder: Path) -> None:
    script = "import sys\nfrom scaffold.cli.app import main\nmain(sys.argv[1:])"
    arguments = ["new", model, "--vllm", release, "--into", str(folder), "--replace", "--no-verify"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
