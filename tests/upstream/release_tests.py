"""vLLM's own tests, run as they are from a release's tree, on a machine without a GPU.

    python tests/upstream/release_tests.py TREE TEST-FILE [--collect-only]

Unlike `tests/runtime/run_upstream.py`, which puts our manager under a copy of the manager's test, nothing of the tree
is replaced here: the release's manager, models and test files are the tree's, imported with the tricks of the CPU lab.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = "tests/v1/cudagraph/test_encoder_cudagraph.py"
GENERATION = "tests/models/multimodal/generation/test_vit_cudagraph.py"

PLUGIN = """
import importlib
import json
import os
import sys
import types
from pathlib import Path

from scaffold.verify.numeric.cpu_imports import prepare
from scaffold.verify.numeric.runner import _bytecode_cache

# vLLM's root conftest installs it to send exceptions between processes.
sys.modules.setdefault("tblib", types.SimpleNamespace(pickling_support=types.SimpleNamespace(install=lambda: None)))
prepare(Path(os.environ["VITCG_TREE"]), Path(_bytecode_cache()))
found = {"outcomes": {}, "collected": [], "vllm": ""}


def pytest_configure(config):
    import vllm
    found["vllm"] = str(Path(vllm.__file__).resolve().parent.parent)
    for name in filter(None, os.environ["VITCG_IMPORT"].split(",")):
        importlib.import_module(name)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        found["outcomes"][report.nodeid] = report.outcome


def pytest_collection_finish(session):
    found["collected"] = [item.nodeid for item in session.items]


def pytest_sessionfinish(session):
    Path(os.environ["VITCG_FOUND"]).write_text(json.dumps(found))
"""


@dataclass(frozen=True)
class Found:
    """What a run of pytest in a tree came to. `outcomes` and `collected` are by node id."""

    code: int
    outcomes: dict[str, str]
    collected: list[str]
    text: str


def run_tests(tree: Path, path: str, *arguments: str, imports: tuple[str, ...] = ()) -> Found:
    """Run one test file of `tree` in a child process; `imports` are modules that have to load before it."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "vitcg_release_plugin.py").write_text(PLUGIN, encoding="utf-8")
        answer = Path(scratch, "found.json")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([scratch, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "VITCG_TREE": str(tree),
            "VITCG_FOUND": str(answer),
            "VITCG_IMPORT": ",".join(imports),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "vitcg_release_plugin", "--noconftest",
                   "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tree), *arguments, path]  # fmt: skip
        done = subprocess.run(command, env=environment, cwd=tree, check=False, text=True, capture_output=True)
        text = done.stdout + done.stderr
        if not answer.exists():
            return Found(done.returncode, {}, [], text)
        found = json.loads(answer.read_text("utf-8"))
        if Path(found["vllm"]) != tree.resolve():
            raise AssertionError(f"vLLM came from {found['vllm']}, not from {tree}")
        return Found(done.returncode, found["outcomes"], found["collected"], text)


if __name__ == "__main__":
    result = run_tests(Path(sys.argv[1]).resolve(), *sys.argv[2:])
    print(result.text)
    sys.exit(result.code)
