"""The parent side of the lab: overlay trees, child processes with a time limit, and what their deaths mean."""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import scaffold
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.protocol.cache import made_folder
from scaffold.verify.numeric.overlay import build_overlay, changed_modules
from scaffold.verify.numeric.recipes import RECIPES, is_recipe
from scaffold.verify.numeric.reports import (
    ENVIRONMENT,
    NoteTaker,
    NumericReport,
    NumericRequest,
    Property,
    Watch,
)
from scaffold.watch import Recording


def check_numerics(request: NumericRequest, *, watch: Watch | None = None) -> NumericReport:
    """Run the lab and report what was compared.

    A defect of the change under test is a failed report, also when it crashes or hangs the process. A request that
    makes no sense raises `DiagnosticError` (VCG659 unknown recipe, VCG663 overlay path, VCG656 not a vLLM tree).
    """
    return check_numerics_all((request,), watch=watch)[0]


def check_numerics_all(requests: Iterable[NumericRequest], *, watch: Watch | None = None) -> tuple[NumericReport, ...]:
    """`check_numerics` for many requests, in order. Neighbours with the same pristine tree share one import of it."""
    reports: list[NumericReport] = []
    for (tree, before), group in groupby(requests, key=lambda request: (_Tree.of(request), request.before)):
        with _bench_of(tree, watch or NoteTaker(), before) as bench:
            reports += [bench.check(request) for request in group]
    return tuple(reports)


def record_run(request: NumericRequest, *, watch: Watch | None = None) -> Recording:
    """Which calls a tree's own model makes for a few batches of each modality. An overlay plays no part.

    Raises `DiagnosticError` where the model cannot be built.
    """
    with _bench_of(_Tree.of(request), watch or NoteTaker(), request.before) as bench:
        return bench.record(request)


def check_real_graphs(request: NumericRequest, installed: Path, *, watch: Watch | None = None) -> NumericReport:
    """Run a request on real CUDA graphs, in the installed vLLM whose root is `installed` (`find_installed`).

    The release's own manager and ours, each against eager results of the pristine class on the same GPU.
    """
    watch = watch or NoteTaker()
    with tempfile.TemporaryDirectory(prefix="vitcg-real-") as scratch:
        directory = Path(scratch)
        changed = bool(changed_modules(request.overlay))
        root = directory / "changed" if changed else installed
        pristine = directory / "pristine" if request.before else installed
        if changed:
            build_overlay(installed, request.overlay, root, request.beside)
        if request.before:
            build_overlay(installed, request.before, pristine, request.beside)
        children = [_RealChild(root, directory, watch)]
        try:
            children[0].ask(request, "check" if changed or request.host else "both", directory)
            if changed or request.host:
                children.append(_RealChild(pristine, directory, watch))
                children[1].ask(request, "oracle", directory)
                children[1].wait_for("ended")
            return NumericReport.from_json(request, children[0].wait_for("report")["data"])
        except _ChildFailed as failed:
            return NumericReport(
                request.recipe, request.release, request.tail, failure=failed.diagnostic, machine="a GPU"
            )
        finally:
            for child in children:
                child.stop()


@contextmanager
def keep_warm(trees: int = 1) -> Iterator[WarmProcess]:
    """Inside, the process that imported a tree stays for the next call with that tree: the import takes longest.

    For callers that check one tree again and again, or `trees` in turn, one call at a time. No tree may change
    meanwhile. Each process takes more than half a GB.
    """
    warm = WarmProcess(trees)
    outer = _WARM.set(warm)
    try:
        yield warm
    finally:
        warm.close()
        _WARM.reset(outer)


#: Nothing of the tree was changed: it is the pristine one.
_AS_IS: Mapping[str, bytes] = {}


@dataclass(frozen=True)
class _Tree:
    """A pristine tree with the packages beside it: what one import serves."""

    root: Path
    beside: tuple[tuple[str, Path], ...]

    @classmethod
    def of(cls, request: NumericRequest) -> _Tree:
        return cls(request.tree, request.beside)

    def overlay(self, files: Mapping[str, bytes], root: Path) -> None:
        build_overlay(self.root, files, root, self.beside)


@contextmanager
def _bench_of(tree: _Tree, watch: Watch, before: Mapping[str, bytes] = _AS_IS) -> Iterator[_Bench]:
    warm = _WARM.get()
    if warm is not None:
        try:
            yield warm.bench(tree, watch, before)
        except DiagnosticError:
            raise  # the bench knows whether its process still serves
        except BaseException:
            warm.forget_last()  # whatever was under way there is not known
            raise
    else:
        with _Bench(tree, watch, before) as bench:
            yield bench


class WarmProcess:
    """At most so many benches that outlive the call that opened them; the one that was asked last is the last one."""

    def __init__(self, trees: int) -> None:
        self._trees = trees
        self._benches: list[tuple[tuple[object, ...], _Bench]] = []

    def bench(self, tree: _Tree, watch: Watch, before: Mapping[str, bytes]) -> _Bench:
        key = tree, before, _Child.command
        known = next((one for one in self._benches if one[0] == key), None)
        if known is not None:
            self._benches.remove(known)
        else:
            self._end(self._trees - 1)
            known = key, _Bench(tree, watch, before).__enter__()
        self._benches.append(known)
        known[1].report_to(watch)
        return known[1]

    def close(self) -> None:
        """End the processes and give their memory back; a later call starts another one."""
        self._end(0)

    def forget_last(self) -> None:
        """End the process that was asked last, if it is there."""
        if self._benches:
            self._benches.pop()[1].__exit__()

    def _end(self, kept: int) -> None:
        while len(self._benches) > kept:
            self._benches.pop(0)[1].__exit__()


_WARM: ContextVar[WarmProcess | None] = ContextVar("_WARM", default=None)


class _Bench:
    """The processes that serve one pristine tree, and the directory that their trees of links live in."""

    def __init__(self, tree: _Tree, watch: Watch, before: Mapping[str, bytes]) -> None:
        self._tree = tree
        self._before = before
        self._watch = watch
        self._scratch = tempfile.TemporaryDirectory(prefix="vitcg-lab-")
        self._directory = Path(self._scratch.name)
        self._pristine: _Child | None = None
        self._count = 0

    def __enter__(self) -> _Bench:
        self._tree.overlay(self._before, self._directory / "pristine")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._pristine is not None:
            self._pristine.stop()
        self._scratch.cleanup()

    def report_to(self, watch: Watch) -> None:
        """Tell another watch from now on."""
        self._watch = watch
        if self._pristine is not None:
            self._pristine.watch = watch

    def check(self, request: NumericRequest) -> NumericReport:
        self._watch.started(request)
        report = self._check(request)
        self._watch.ended(report)
        return report

    def _check(self, request: NumericRequest) -> NumericReport:
        directory = self._lay_out(request)
        try:
            return NumericReport.from_json(request, self._run(request, directory)["data"])
        except _ChildFailed as failed:
            return NumericReport(request.recipe, request.release, request.tail, failure=failed.diagnostic)
        finally:
            shutil.rmtree(directory)

    def record(self, request: NumericRequest) -> Recording:
        directory = self._lay_out(request)
        child = self._child()
        try:
            child.ask(request, "record", directory)
            message = child.wait_for("recorded")
            child.wait_for("ended")
        except _ChildFailed as failed:
            raise DiagnosticError(failed.diagnostic) from None
        finally:
            shutil.rmtree(directory)
        return Recording.from_json(message["data"])

    def _lay_out(self, request: NumericRequest) -> Path:
        """A directory for one request, with its tree of links where it changes something."""
        if request.automatic is None and not is_recipe(request.recipe):
            help_text = f"write one and give it as --recipe FILE.py (docs/verify.md); shipped: {', '.join(RECIPES)}"
            message = f"the lab has no recipe for {request.recipe!r}"
            raise DiagnosticError.of("VCG659", message, help=help_text)
        self._count += 1
        directory = self._directory / str(self._count)
        directory.mkdir()
        if changed_modules(request.overlay):
            self._tree.overlay(request.overlay, directory / "changed")
        return directory

    def _child(self) -> _Child:
        """The process that imported the pristine tree; another one where it may still be at an earlier request."""
        if self._pristine is not None and not self._pristine.is_idle():
            self._pristine.stop()
            self._pristine = None
        if self._pristine is None:
            self._pristine = _Child(self._directory / "pristine", self._directory, self._watch)
        return self._pristine

    def _run(self, request: NumericRequest, directory: Path) -> Mapping[str, Any]:
        first = self._child()
        first.ask(request, "pair" if changed_modules(request.overlay) else "both", directory)
        message = first.wait_for("report", "shared")
        first.wait_for("ended")
        if message["event"] == "report":
            return message
        # The change replaces a module that everything imports: two versions of it need two imports.
        second = _Child(directory / "changed", directory, self._watch)
        try:
            second.ask(request, "check", directory)
            first.ask(request, "oracle", directory)
            first.wait_for("ended")
            return second.wait_for("report")
        finally:
            second.stop()


class _ChildFailed(Exception):
    """Ends the run; carries the diagnostic of the failed report."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


_NUMBERS = itertools.count()
#: Lines of what a process did and said before it ended without a result.
_LINES = 14
#: Seconds to wait for a process that said why it failed: to import a tree again takes as long.
_MOMENT = 5.0
#: Let glibc keep freed memory: a check gives back hundreds of MiB and asks for them again, and half of the time of
#: Step3-VL's went into the kernel's pages. Another C library ignores it.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**33)}


class _Child:
    """One process that imported a tree, and its events."""

    #: The command to run; a test puts something smaller here.
    command = (sys.executable, "-m", "scaffold.verify.numeric.child")

    def __init__(self, root: Path, directory: Path, watch: Watch) -> None:
        self._root = root
        self.watch = watch
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stderr = directory / f"stderr-{next(_NUMBERS)}"
        self._request: NumericRequest | None = None
        self._deadline = 0.0
        self._busy = False
        #: Its steps so far, for a run that ends without a result.
        self._done: list[str] = []
        environment = self.environment()
        source = str(Path(scaffold.__file__).resolve().parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (source, environment.get("PYTHONPATH"))))
        if not site.ENABLE_USER_SITE:  # the child has no `-s`, `-I` of ours
            environment["PYTHONNOUSERSITE"] = "1"
        environment.update(_KEEP_MEMORY)
        # Else transformers would take the remote code of an earlier run if its time and size are the same.
        environment["HF_MODULES_CACHE"] = str(directory / "remote-code")
        # Else numba writes what it compiled beside its source (Inkling), and the release in the cache is a changed one.
        environment["NUMBA_CACHE_DIR"] = str(directory / "numba")
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        self._tell({"root": str(root), "bytecode_cache": _bytecode_cache()})

    @staticmethod
    def environment() -> dict[str, str]:
        """The variables of the child."""
        return {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)}

    def ask(self, request: NumericRequest, role: str, directory: Path) -> None:
        """Hand over one request; its time limit starts now."""
        self._request = request
        self._busy = True
        self._done = []
        self._deadline = time.monotonic() + request.options.timeout_s
        self._tell(
            {
                "role": role,
                "root": str(self._root),
                "changed_root": str(directory / "changed"),
                "changed_modules": changed_modules(request.overlay),
                "exchange": str(directory / "oracle.pt"),
                "recipe": request.recipe,
                "host": request.host,
                "class_name": request.class_name,
                "automatic": asdict(request.automatic) if request.automatic else None,
                "modalities": list(request.modalities),
                "tail": request.tail,
                "options": asdict(request.options),
            }
        )

    def _tell(self, message: Mapping[str, Any]) -> None:
        """Write one line to the child; the next `wait_for` notices a child that is gone."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def is_idle(self) -> bool:
        """Whether it has ended what it was asked, and can be asked again. After an error that takes a moment."""
        self._deadline = min(self._deadline, time.monotonic() + _MOMENT)
        while self._busy and self._process.poll() is None:
            try:
                self._next()
            except _ChildFailed:
                return False
        return not self._busy

    def _next(self) -> dict[str, Any]:
        """The next event; raises `_ChildFailed` on a death or a timeout."""
        try:
            message = self._events.get(timeout=max(self._deadline - time.monotonic(), 0))
        except queue.Empty:
            self.stop()
            raise _ChildFailed(self._timed_out()) from None
        if message is None:
            raise _ChildFailed(self._died(self._process.wait()))
        self._busy = message["event"] != "ended"
        return message

    def wait_for(self, *expected: str) -> Mapping[str, Any]:
        """The next event of one of these kinds; raises `_ChildFailed` on an error, a death or a timeout."""
        while True:
            message = self._next()
            if message["event"] == "error":
                raise _ChildFailed(self._raised(message))
            if message["event"] == "progress":
                self.watch.note(message["text"])
                self._done.append(message["text"])
            if message["event"] == "basis":
                self.watch.basis(message["text"])
            if message["event"] == "case":
                self.watch.case(message["text"], message["total"])
            if message["event"] == "property":
                found = Property.from_json(message["data"])
                self.watch.settled(found)
                self._done.append(str(found).strip())
            if message["event"] in expected:
                return message
            if message["event"] == "ended":
                raise _ChildFailed(self._died(message["status"]))

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
        if message["kind"] == "NoRecipe":
            return Diagnostic("VCG668", f"{self._name()}: {message['message']}", help=message["help"])
        lines = message["traceback"]
        code, help_text = self._cause(role, stage, message["kind"], message["message"])
        if code == "VCG654" and not self._in_changed_files(lines):
            help_text = (
                "the traceback has no line of a changed file: look at what the generated methods returned or recorded"
            )
        notes = tuple("".join(lines).rstrip().splitlines()[-14:])
        return Diagnostic(code, f"{self._name()}: {_failed(role, stage)}: {what}", help=help_text, notes=notes)

    def _in_changed_files(self, traceback: Sequence[str]) -> bool:
        """Whether a traceback runs through a file of the change."""
        changed = () if self._request is None else self._request.overlay
        return any(f'/{path}"' in line for path in changed for line in traceback)

    def _cause(self, role: str, stage: str, kind: str, message: str) -> tuple[str, str]:
        """The code and the next step for an exception in the child."""
        return _likely_cause(role, stage, kind, message)

    def _died(self, status: int) -> Diagnostic:
        if status == -signal.SIGKILL:
            return Diagnostic(
                "VCG655",
                f"{self._name()}: the system killed the lab's process, as it does when memory runs out",
                help="run it with more free memory, or with a recipe of smaller sizes (`--recipe FILE.py`)",
                notes=self._last(),
            )
        return Diagnostic(
            "VCG654",
            f"{self._name()}: the lab's process ended with status {status} and no report",
            help="a negative status is a signal: -11 is a crash in compiled code",
            notes=self._last(),
        )

    def _timed_out(self) -> Diagnostic:
        assert self._request is not None
        return Diagnostic(
            "VCG655",
            f"{self._name()}: the lab gave no result within {self._request.options.timeout_s:.0f} s",
            help="look for a loop that waits on data in the changed code, or raise `timeout_s` on a slow machine",
            notes=self._last(),
        )

    def _name(self) -> str:
        return "lab" if self._request is None else self._request.recipe

    def _last(self) -> tuple[str, ...]:
        """Its last steps and its last words."""
        return (*self._done[-_LINES:], *self._stderr.read_text(errors="replace").splitlines()[-_LINES:])


class _RealChild(_Child):
    """A process that imports the installed vLLM and runs on its GPU."""

    command = (sys.executable, "-m", "scaffold.verify.numeric.real")

    @staticmethod
    def environment() -> dict[str, str]:
        """All: drivers and kernels need many."""
        return dict(os.environ)

    def _cause(self, role: str, stage: str, kind: str, message: str) -> tuple[str, str]:
        if role == "tree":
            return "VCG656", "`python -c 'import vllm'` has to work here, with the vLLM that serves models"
        return _likely_cause(role, stage, kind, message)


#: The failure of each stage of a child, with the model as the subject.
_DID_NOT = {
    "import": "does not import",
    "build": "cannot be built",
    "weights": "does not load the pristine weights",
    "oracle": "cannot embed the inputs",
    "eager": "cannot embed the inputs",
    "protocol": "cannot be captured",
    "record": "cannot be recorded",
}


def _failed(role: str, stage: str) -> str:
    """Which model failed at what."""
    if role == "tree":
        return "vLLM does not import"
    if _is_pristine(role, stage):
        return f"the pristine model {_DID_NOT[stage]}"
    model = "the model" if role == "both" else "the changed model"
    return f"{model} {_DID_NOT.get(stage, 'raised while graphs were captured or replayed')}"


def _is_pristine(role: str, stage: str) -> bool:
    """Whether the model that failed is the one before the change."""
    return role in ("oracle", "record") or stage == "oracle" or (role == "both" and stage in ("import", "build"))


def _likely_cause(role: str, stage: str, kind: str, message: str) -> tuple[str, str]:
    """The code and the next step for an exception in a child."""
    if role == "tree" or _is_pristine(role, stage):
        if kind in ("ModuleNotFoundError", "ImportError") and "vllm" not in message:
            return "VCG656", "install the module: `pip install 'vitcg-scaffold[cpu]'` brings torch and most others"
        return "VCG656", "the change is not to blame: the release fails without it; the last lines name the statement"
    if stage == "weights":
        return (
            "VCG664",
            "keep every parameter: the lab loads the pristine names and shapes strictly, as a checkpoint has them",
        )
    if stage == "protocol":
        return "VCG667", "port the tree first, or pass the changed files as the overlay and check the class's name"
    return "VCG654", "mend the changed file whose line stands last in the traceback"


def _bytecode_cache() -> str:
    """Where compiled modules of release trees are kept, so that the second import is fast and no tree is written to.

    Raises VCG712, OSError.
    """
    return str(made_folder("lab-bytecode", f"{sys.implementation.cache_tag}-{sys.hexversion:x}"))
