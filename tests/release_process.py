"""Runs scripts of tests on a release's source tree: one process imports the release, and each script runs in its fork.

The import takes longer than most scripts. At most one process waits, which has a release; tests of one release follow
each other (`scope_of` in `conftest.py`), and a changed copy of it in between has a process for one script. A script
calls `prepare_release` before it imports vLLM, and can be run by hand, too.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scaffold.protocol.cache import cache_root

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
_prepared: list[Path] = []


def prepare_release(tree: Path) -> None:
    """Let `import vllm` mean the package of `tree`, as the CPU lab does; nothing where this process has done it."""
    from scaffold.verify.numeric.cpu_imports import prepare
    from scaffold.verify.numeric.runner import _bytecode_cache

    if not _prepared:
        prepare(tree, Path(_bytecode_cache()))  # or each fork compiles the models that it imports
        _prepared.append(tree)


@contextmanager
def vllm_on_cpu() -> Iterator[Any]:
    """vLLM's configuration and process group, with its operators for the CPU."""
    from scaffold.verify.numeric.cpu_imports import patch_vllm, start_distributed

    patch_vllm()
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    current = VllmConfig(device_config=DeviceConfig(device="cpu"))
    with tempfile.TemporaryDirectory() as scratch, set_current_vllm_config(current):
        start_distributed(Path(scratch))
        yield current


def print_checks(check: Callable[[str], object]) -> int:
    """Print what a script finds for each recipe, with a release's classes on the CPU: `script TREE RECIPE...`."""
    prepare_release(Path(sys.argv[1]))
    import torch

    with vllm_on_cpu(), torch.inference_mode():
        report = {name: check(name) for name in sys.argv[2:]}
    print(json.dumps(report))
    return 0


def recorded(manager: type[Any], make_backend: Callable[[], Any] | None = None) -> type[Any]:
    """A class of managers whose graphs are emulated."""
    import torch

    from scaffold.runtime.recording import RecordingBackend
    from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS

    class OnCpu(manager):
        def _make_backend(self) -> Any:
            backend = RecordingBackend(bodies=PYTHON_OPERATORS) if make_backend is None else make_backend()
            torch.cuda.is_current_stream_capturing = lambda: backend.is_capturing
            return backend

    return OnCpu


def are_close(got: Any, want: Any) -> bool:
    """Whether embeddings of an item agree, as graphs on the CPU round."""
    import torch

    return got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


class _Process:
    """The process that imported `tree`, and waits for scripts."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        path = os.pathsep.join([str(TESTS), str(ROOT), str(ROOT / "generated")])
        # Or glibc gives the pages of each tensor back.
        memory = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import release_process; release_process.serve()", str(tree)],
            env={**os.environ, **memory, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, arguments: tuple[str, ...], variables: dict[str, str]) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as scratch:
            request = {"script": str(script), "arguments": arguments, "scratch": scratch, "variables": variables}
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            status = int(self._process.stdout.readline() or 1)
            texts = [Path(scratch, name) for name in ("out", "err")]
            out, err = (text.read_text("utf-8") if text.exists() else "" for text in texts)
        return subprocess.CompletedProcess([str(script), *arguments], status, out, err)

    def serves(self, tree: Path) -> bool:
        return self.tree == tree and self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


_waiting: list[_Process] = []


def run_script(script: Path, tree: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """What `python script TREE arguments...` prints and returns, with these variables in its environment."""
    if not tree.is_relative_to(cache_root()):
        process = _Process(tree)
        try:
            return process.run(script, (str(tree), *arguments), variables)
        finally:
            process.stop()
    if not all(process.serves(tree) for process in _waiting):
        close()
    if not _waiting:
        _waiting.append(_Process(tree))
    return _waiting[0].run(script, (str(tree), *arguments), variables)


def last_line(done: subprocess.CompletedProcess) -> dict:
    """The JSON object that a script printed last."""
    lines = done.stdout.strip().splitlines()
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1])


def close() -> None:
    """End the process that waits, and give its memory back."""
    while _waiting:
        _waiting.pop().stop()


def serve() -> None:
    """The process: import the release, then run each script that standard input names in a fork."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare_release(Path(sys.argv[1]))
    for name in ("vllm.v1.worker.encoder_cudagraph", "vllm.model_executor.layers.attention"):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        fork = os.fork()
        if fork == 0:
            os._exit(_run(request))
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])}\n")
        answers.flush()


def _run(request: dict) -> int:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(request["scratch"], name), os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(request["variables"])
    sys.argv = [request["script"], *request["arguments"]]
    sys.path.insert(0, str(Path(request["script"]).parent))
    status = 1
    try:
        runpy.run_path(request["script"], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return status
