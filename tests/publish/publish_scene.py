"""One tree and one run that does everything: modify, create (in new folders) and remove; bytes that are no text.

Also a driver: `python publish_scene.py JOB FOLDER SIGNAL [START]` runs JOB in forked processes, one for each system
call of it, and sends SIGNAL right before that call. Each has its own tree under FOLDER. Prints a JSON line a process.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from scaffold import publish
from scaffold.changes import FileChange
from scaffold.publish import disk

CALLS = ("create", "write", "fsync", "chmod", "replace", "unlink", "mkdir", "rmdir", "remove_tree")

OLD = {
    "model.py": (b"import torch\r\nx = 1\r\n", 0o644),
    "run.sh": (b"#!/bin/sh\n", 0o755),
    "docs/table.md": ("| ✅︎ |\n".encode(), 0o444),
    "docs/gone.md": (b"\x00\xff\xfe no text", 0o640),
    "untouched.txt": (b"keep", 0o600),
}
CHANGES = (
    FileChange("model.py", OLD["model.py"][0], b"import torch\r\nx = 2\r\ny = 3\r\n"),
    FileChange("adapters/v1/new.py", None, b"created\n"),
    FileChange("docs/gone.md", OLD["docs/gone.md"][0], None),
    FileChange("adapters/empty", None, b""),
    FileChange("run.sh", OLD["run.sh"][0], b""),
    FileChange("docs/table.md", OLD["docs/table.md"][0], b"\xff\x00\r"),
    FileChange("untouched.txt", b"keep", b"keep"),
)


def make_tree(root: Path) -> Path:
    for name, (data, mode) in OLD.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    return root


def snapshot(root: Path) -> dict[str, tuple[bytes | None, int]]:
    """Everything in the tree but our store and git's: bytes (None for a folder) and mode."""
    state: dict[str, tuple[bytes | None, int]] = {}
    for path in sorted(root.rglob("*")):
        if not {".vitcg-scaffold", ".git"} & set(path.relative_to(root).parts):
            name, mode = path.relative_to(root).as_posix(), path.lstat().st_mode & 0o7777
            state[name] = (None if path.is_dir() else path.read_bytes(), mode)
    return state


def store_files(root: Path) -> list[str]:
    store = root / ".vitcg-scaffold"
    return sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())


def run_publish(root: Path) -> None:
    publish.publish_changes(root, CHANGES, label="scene")


JOBS: dict[str, Callable[[Path], object]] = {
    "publish": run_publish,
    "revert": publish.revert_last,
    "recover": publish.recover,
}


def on_each_call(action: Callable[[str, Callable[..., object], tuple[object, ...]], object]) -> dict[str, object]:
    """Replacements for the system calls, each handing itself to `action(name, real call, arguments)`."""

    def wrap(name: str) -> Callable[..., object]:
        real = getattr(disk, name)
        return lambda *arguments: action(name, real, arguments)

    return {name: wrap(name) for name in CALLS}


def _signal_at(step: int, number: int) -> list[str]:
    """Patch this process: the signal comes before call `step`; for a write, after half of the bytes are out."""
    trace: list[str] = []

    def action(name: str, real: Callable[..., object], arguments: tuple[object, ...]) -> object:
        trace.append(name)
        hit = len(trace) == step
        if hit and name == "write":
            descriptor, data = arguments
            real(descriptor, data[: len(data) // 2])  # type: ignore[index, arg-type]
        if hit:
            os.kill(os.getpid(), number)
        if name == "write" and hit:  # a signal that was held back: go on with the other half
            descriptor, data = arguments
            return len(data) // 2 + real(descriptor, data[len(data) // 2 :])  # type: ignore[operator, index, arg-type]
        return real(*arguments)

    for name, replacement in on_each_call(action).items():
        setattr(disk, name, replacement)
    return trace


def _child(job: str, root: Path, step: int, number: int) -> int:
    # Those of a program in the foreground: a shell gives others to what it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    trace = _signal_at(step, number)
    try:
        JOBS[job](root)
    except KeyboardInterrupt:
        return 130
    return 0 if len(trace) < step else 1


def _prepare(job: str, root: Path, start: int) -> None:
    make_tree(root)
    if job == "revert":
        run_publish(root)
    if job == "recover":  # of a publishing run that was killed at call `start`
        _in_child(lambda: _child("publish", root, start, signal.SIGKILL))


def _in_child(work: Callable[[], int]) -> int:
    """Exit code of `work` in a forked process; negative: the signal that ended it."""
    process = os.fork()
    if process == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(job: str, folder: str, number: str, start: str = "0") -> None:
    os.umask(0o022)
    disk.fsync = lambda _: None  # a kill loses nothing that the kernel has
    for step in itertools.count(1):
        root = Path(folder, str(step))
        root.mkdir()
        _prepare(job, root, int(start))
        code = _in_child(lambda root=root, step=step: _child(job, root, step, int(number)))  # type: ignore[misc]
        print(json.dumps({"step": step, "code": code}), flush=True)
        if code == 0:
            break


if __name__ == "__main__":
    main(*sys.argv[1:])
