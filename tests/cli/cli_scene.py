"""What the tests of the command line share: the places of a port, runs in a child process, whole trees as values."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MODEL = "vllm/model_executor/models/internvl.py"
TEST = "tests/models/multimodal/generation/test_vit_cudagraph.py"
DOCS = "docs/design/cuda_graphs_multimodal.md"
EXAMPLE = "examples/generate/multimodal/vision_language_offline.py"
#: The four places of a port, in the order in which they are reported.
PLACES = (MODEL, TEST, DOCS, EXAMPLE)
PROTOCOL = (
    "vllm/model_executor/models/interfaces.py",
    "vllm/v1/worker/encoder_cudagraph_defs.py",
    "vllm/v1/worker/encoder_cudagraph.py",
)
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """What a run left: exit code and both streams."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "120"} | more


def child(
    *arguments: str | Path, before: str = "", cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own; `before` is Python that runs first, to inject a failure.

    Ctrl-C reaches it as in the foreground: a shell lets what it runs in the background ignore SIGINT.
    """
    foreground = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    script = f"{foreground}\n{before}\nfrom scaffold.cli.app import main\nmain(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**more),
        check=False,
    )


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a tree but our own records, to compare it byte for byte."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not {".git", ".vitcg-scaffold"} & set(path.relative_to(root).parts)
    }
