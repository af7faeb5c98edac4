"""Every system call of a run fails once, with every error, in this process; then the roll-back fails as well."""

from __future__ import annotations

import errno
import itertools
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from publish_scene import CALLS, JOBS, make_tree, on_each_call, run_publish, snapshot, store_files

from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.publish import disk, recover, require_finished

#: error -> (the code that it leads to, at which calls it comes: one of each kind of explanation at all of them)
ERRORS = {
    errno.ENOSPC: ("VCG702", 1),
    errno.EDQUOT: ("VCG702", 9),
    errno.EROFS: ("VCG701", 1),
    errno.EACCES: ("VCG701", 9),
    errno.EPERM: ("VCG701", 9),
    errno.EIO: ("VCG703", 1),
    errno.EBUSY: ("VCG703", 9),
}

NEEDS_SPACE = ("create", "write", "mkdir")


@pytest.fixture(autouse=True)
def _plain_and_fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(disk, "fsync", lambda _: None)  # nothing here cuts the power
    previous = os.umask(0o022)
    yield
    os.umask(previous)


class Scenes:
    """Fresh trees before a job, and the two states that may be seen after it."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder, self.job, self.count = folder, job, itertools.count()
        self.before = snapshot(self.fresh())
        done = self.fresh()
        JOBS[job](done)
        self.after = snapshot(done)
        assert self.before != self.after

    def fresh(self) -> Path:
        root = self.folder / str(next(self.count))
        root.mkdir()
        make_tree(root)
        if self.job == "revert":
            run_publish(root)
        return root


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int, str], BaseException | None]) -> list[str]:
    """Ask `fails(number of the call, its name)` for an error before each system call; a write does its half first."""
    trace: list[str] = []

    def action(name: str, real: Callable[..., object], arguments: tuple) -> object:
        trace.append(name)
        error = fails(len(trace), name)
        if error is None:
            return real(*arguments)
        if name == "write":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2])
        raise error

    for name, replacement in on_each_call(action).items():
        monkeypatch.setattr(disk, name, replacement)
    return trace


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("job", ["publish", "revert"])
def test_one_failing_call(job: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = Scenes(tmp_path, job)
    code, stride = ERRORS[number]
    hit: set[str] = set()
    for step in itertools.count(1, stride):
        root = scenes.fresh()
        with monkeypatch.context() as patch:
            error = OSError(number, os.strerror(number))
            trace = failing(patch, lambda call, _, step=step, error=error: error if call == step else None)
            try:
                JOBS[job](root)
                diagnostics = None
            except DiagnosticError as refused:
                diagnostics = refused.diagnostics
        if len(trace) < step:
            break
        hit.add(trace[step - 1])
        if diagnostics is None:  # it failed while cleaning up after the commit: the run is done
            assert "replace" not in trace[step - 1 :]
            assert recover(root) is None
            assert snapshot(root) == scenes.after
        else:
            assert [d.code for d in diagnostics] == [code]
            assert diagnostics[0].exit is Exit.IO
            assert diagnostics[0].help
            assert snapshot(root) == scenes.before
            assert "journal.json" not in store_files(root)
            JOBS[job](root)
            assert snapshot(root) == scenes.after
    never = {"rmdir", "unlink", "remove_tree"} if job == "publish" else set()
    assert hit == set(CALLS) - never if stride == 1 else len(hit) >= 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ValueError("a bug of ours")], ids=repr)
def test_other_exceptions_roll_back_and_go_on(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = Scenes(tmp_path, "publish")
    root = scenes.fresh()
    with monkeypatch.context() as patch:
        seen = itertools.count(1)
        failing(patch, lambda _, name: error if name == "replace" and next(seen) == 5 else None)
        with pytest.raises(type(error)) as raised:
            run_publish(root)
    assert raised.value is error
    assert snapshot(root) == scenes.before
    assert "journal.json" not in store_files(root)


@pytest.mark.parametrize("job", ["publish", "revert"])
def test_a_full_disk_stays_full_and_the_rollback_needs_no_space(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = Scenes(tmp_path, job)
    refused = 0
    for step in itertools.count(1):
        root = scenes.fresh()
        with monkeypatch.context() as patch:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            trace = failing(
                patch, lambda call, name, step=step, full=full: full if call >= step and name in NEEDS_SPACE else None
            )
            try:
                JOBS[job](root)
                codes = []
            except DiagnosticError as error:
                codes = [diagnostic.code for diagnostic in error.diagnostics]
        refused += bool(codes)
        assert codes in ([], ["VCG702"])
        assert snapshot(root) == (scenes.before if codes else scenes.after)
        if len(trace) < step:
            break
    assert refused > 20


@pytest.mark.parametrize("job", ["publish", "revert"])
def test_a_disk_that_dies_leaves_what_recover_needs(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = Scenes(tmp_path, job)
    codes = []
    for step in itertools.count(1):
        root = scenes.fresh()
        with monkeypatch.context() as patch:
            dead = OSError(errno.EIO, os.strerror(errno.EIO))
            trace = failing(patch, lambda call, _, step=step, dead=dead: dead if call >= step else None)
            try:
                JOBS[job](root)
                codes.append(None)
            except DiagnosticError as error:
                (diagnostic,) = error.diagnostics
                codes.append(diagnostic.code)
            if codes[-1] == "VCG704":
                assert f"vitcg-scaffold revert --unfinished {shlex.quote(str(root))}`" in (diagnostic.help or "")
                with pytest.raises(DiagnosticError, match="VCG704"):
                    recover(root)
        if codes[-1] == "VCG704":
            with pytest.raises(DiagnosticError, match="VCG706"):
                require_finished(root)
            with pytest.raises(DiagnosticError, match="VCG706"):
                JOBS[job](root)
            assert recover(root) is not None
        require_finished(root)
        assert recover(root) is None
        assert snapshot(root) == (scenes.before if codes[-1] else scenes.after)
        if len(trace) < step:
            break
    # First nothing was written, then the roll-back was impossible, then the run was done.
    assert codes == sorted(codes, key=["VCG703", "VCG704", None].index)
    assert codes.count("VCG704") > 5


def test_file_systems_without_fsync_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_tree(tmp_path)

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(disk, "fsync", fsync)
    run_publish(root)
    assert (root / "adapters/v1/new.py").read_bytes() == b"created\n"


def test_owner_and_attributes_are_kept_only_if_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    scenes = Scenes(tmp_path, "publish")
    root = scenes.fresh()
    monkeypatch.setattr(os, "chown", refuse)
    monkeypatch.setattr("shutil.copystat", refuse)
    run_publish(root)
    assert snapshot(root) == scenes.after


def test_a_limit_that_the_kernel_enforces(tmp_path: Path) -> None:
    """No injection: the kernel itself refuses to write more than 1,000 bytes to a file."""
    (tmp_path / "a").write_bytes(b"old")
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from scaffold.changes import FileChange\n"
        "from scaffold.publish import publish_changes\n"
        "from scaffold.diagnostics import DiagnosticError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    publish_changes(Path(sys.argv[1]), [FileChange('n', None, b'1'),\n"
        "                    FileChange('a', b'old', b'x' * 5000)], label='big')\n"
        "except DiagnosticError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("VCG703: writing failed: File too large")
    assert sorted(snapshot(tmp_path)) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
