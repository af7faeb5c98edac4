"""The parent side of the lab: overlay trees, child processes with a time limit, and what their deaths mean."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import scaffold
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.verify.numeric.model import NumericReport, NumericRequest, Progress
from scaffold.verify.numeric.overlay import build_overlay
from scaffold.verify.numeric.recipes import RECIPES


def check_numerics(request: NumericRequest, *, progress: Progress | None = None) -> NumericReport:
    """Run the lab and report what was compared.

    A defect of the change under test is a failed report, also when it crashes or hangs the process. A request that
    makes no sense raises `DiagnosticError` (VCG659 unknown recipe, VCG663 overlay path, VCG656 not a vLLM tree).
    """
    if request.recipe not in RECIPES:
        raise DiagnosticError(
            Diagnostic(
                "VCG659",
                f"the lab has no recipe for {request.recipe!r}",
                help=f"known recipes: {', '.join(RECIPES)}",
            )
        )
    say = progress or (lambda text: None)
    with tempfile.TemporaryDirectory(prefix="vitcg-lab-") as scratch:
        directory = Path(scratch)
        children: list[_Child] = []
        try:
            return _run(request, directory, children, say)
        except _ChildFailed as failed:
            return NumericReport(request.recipe, request.release, request.tail, failure=failed.diagnostic)
        finally:
            for child in children:
                child.stop()


def _run(request: NumericRequest, directory: Path, children: list[_Child], say: Progress) -> NumericReport:
    exchange = directory / "oracle.pt"
    roots = directory / "pristine", directory / "changed"
    build_overlay(request.tree, {}, roots[0])

    def start(role: str, root: Path) -> _Child:
        children.append(_Child(role, request, (root, roots[1]), exchange, say))
        return children[-1]

    if not _changed_modules(request.overlay):
        return _report(request, start("both", roots[0]))
    build_overlay(request.tree, request.overlay, roots[1])
    pair = start("pair", roots[0])
    message = pair.wait_for("report", "shared")
    if message["event"] == "report":
        return NumericReport.from_json(request, message["data"])
    # The change replaces a module that everything imports: two versions of it need two processes.
    oracle, check = start("oracle", roots[0]), start("check", roots[1])
    check.wait_for("built")
    oracle.wait_for("done")
    check.tell("go")
    return _report(request, check)


def _report(request: NumericRequest, child: _Child) -> NumericReport:
    return NumericReport.from_json(request, child.wait_for("report")["data"])


def _changed_modules(overlay: Mapping[str, bytes]) -> list[str]:
    """Names of the modules of the package that an overlay replaces; other files are not imported."""
    paths = [path for path in overlay if path.startswith("vllm/") and path.endswith(".py")]
    return [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths]


class _ChildFailed(Exception):
    """Ends the run; carries the diagnostic of the failed report."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class _Child:
    """One child process and its events."""

    def __init__(
        self, role: str, request: NumericRequest, roots: tuple[Path, Path], exchange: Path, say: Progress
    ) -> None:
        self._role = role
        self._request = request
        self._say = say
        self._deadline = time.monotonic() + request.options.timeout_s
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stderr = exchange.with_name(f"{role}.stderr")
        environment = dict(os.environ)
        source = str(Path(scaffold.__file__).resolve().parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, environment.get("PYTHONPATH"))))
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scaffold.verify.numeric.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                cwd=exchange.parent,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self.tell(
            json.dumps(
                {
                    "role": role,
                    "root": str(roots[0]),
                    "changed_root": str(roots[1]),
                    "changed_modules": _changed_modules(request.overlay),
                    "exchange": str(exchange),
                    "bytecode_cache": _bytecode_cache(),
                    "recipe": request.recipe,
                    "modalities": list(request.modalities),
                    "tail": request.tail,
                    "options": asdict(request.options),
                }
            )
        )

    def tell(self, line: str) -> None:
        """Write one line to the child; a child that is gone is noticed by the next `wait_for`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def wait_for(self, *expected: str) -> Mapping[str, Any]:
        """The next event of one of these kinds; raises `_ChildFailed` on an error, a death or a timeout."""
        while True:
            try:
                message = self._events.get(timeout=max(self._deadline - time.monotonic(), 0))
            except queue.Empty:
                raise _ChildFailed(self._timed_out()) from None
            if message is None:
                raise _ChildFailed(self._died())
            if message["event"] == "error":
                raise _ChildFailed(self._raised(message))
            if message["event"] == "progress":
                self._say(message["text"])
            if message["event"] in expected:
                return message

    def stop(self) -> None:
        """End the process and what it forked, and release the pipes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    # -- what a failure means --------------------------------------------------------------------------------------

    def _raised(self, message: Mapping[str, Any]) -> Diagnostic:
        role, stage, what = message["role"], message["stage"], f"{message['kind']}: {message['message']}"
        notes = tuple("".join(message["traceback"]).rstrip().splitlines()[-14:])
        code, help_text = _likely_cause(role, stage, message["kind"], message["message"])
        return Diagnostic(
            code, f"{self._request.recipe}: the lab failed ({role}, {stage}): {what}", help=help_text,
            notes=notes,
        )  # fmt: skip

    def _died(self) -> Diagnostic:
        status = self._process.wait()
        return Diagnostic(
            "VCG654",
            f"{self._request.recipe}: the lab's {self._role} process ended with status {status} and no report",
            help="a negative status is a signal: -9 usually means that memory ran out, -11 a crash in compiled code",
            notes=self._stderr_tail(),
        )

    def _timed_out(self) -> Diagnostic:
        limit = self._request.options.timeout_s
        return Diagnostic(
            "VCG655",
            f"{self._request.recipe}: the lab's {self._role} process gave no result within {limit:.0f} s",
            help="look for a loop that waits on data in the changed code, or raise `timeout_s` on a slow machine",
            notes=self._stderr_tail(),
        )

    def _stderr_tail(self) -> tuple[str, ...]:
        return tuple(self._stderr.read_text(errors="replace").splitlines()[-14:])


def _likely_cause(role: str, stage: str, kind: str, message: str) -> tuple[str, str]:
    """The code and the next step for an exception in a child."""
    if kind in ("ModuleNotFoundError", "ImportError") and stage == "shared import" and "vllm" not in message:
        return "VCG656", "install the `cpu` extra: the lab needs torch and the packages that vLLM imports"
    if role == "oracle" or stage in ("shared import", "oracle") or (role == "both" and stage in ("import", "build")):
        return "VCG656", "the pristine tree itself does not run in the lab: this release or model may need a new trick"
    if stage == "weights":
        return (
            "VCG664",
            "the change must keep every parameter: names and shapes of the pristine model are loaded strictly",
        )
    if stage in ("import", "build"):
        return "VCG654", "the changed files do not import or build; the last frame names the statement"
    return "VCG654", "the manager or the generated methods raised; the last frame names the statement"


def _bytecode_cache() -> str:
    """Where compiled files of release trees are kept, so that the second import is fast and no tree is written to."""
    import platformdirs

    return str(platformdirs.user_cache_path("vitcg-scaffold") / "lab-bytecode" / f"cpython-{sys.hexversion:x}")
