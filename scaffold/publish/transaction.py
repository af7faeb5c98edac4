"""One run: check, stage, journal, replace, commit; and the ways back.

A run changes the tree between two renames only (see `store`). Any exception in between rolls back in this process;
after a kill, `recover` does the same from the journal. Both run one function, `_roll_back`, which survives a kill and
can repeat. Every other command refuses a tree with an unfinished run instead of repairing it in passing: its plan would
come from a half-written tree, and the user should hear of the kill.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scaffold.changes import FileChange
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.publish import disk
from scaffold.publish.signals import Deferred, deferred_signals
from scaffold.publish.store import FileRecord, RunRecord, Store, damaged


@dataclass(frozen=True, slots=True)
class _Step:
    """One file of a run. The new bytes get the mode of `like`, or a fresh file's mode if it is None."""

    path: str
    before: bytes | None
    after: bytes | None
    like: Path | None
    unlinked: bool


def publish_changes(root: Path, changes: Sequence[FileChange], *, label: str) -> RunRecord:
    """Write `changes` into the tree at `root`, all or nothing, and keep the old bytes for `revert_last`.

    `label` names the run in later messages. Raises `DiagnosticError`: VCG501 to VCG503 when the tree has changed since
    planning, VCG70x when it cannot be written. The tree is then as before. Signals arrive after the roll-back. Changes
    that change nothing leave no trace.
    """
    wanted = [change for change in changes if not change.is_noop]
    assert len({change.path for change in wanted}) == len(wanted), "a file is changed twice in one run"
    if not wanted:
        return RunRecord(0, label, ())
    with _exclusive(root) as (store, signals):
        _refuse_unfinished(store)
        steps = []
        for change in wanted:
            target = store.locate(change.path)
            like = None if change.before is None else target
            steps.append(_Step(change.path, change.before, change.after, like, disk.has_other_names(target)))
        return _run(store, signals, steps, label)


def revert_last(root: Path, *, force: bool = False) -> RunRecord:
    """Undo the last run that still stands: bytes, modes, new files and new folders. Call again for the one before.

    `unlinked` in the record marks the files whose hard links it could not restore.

    Raises `DiagnosticError`: VCG506 when there is none, VCG504 when a file was changed since, unless `force`.
    """
    store = Store(root)
    if not store.exists():
        raise _nothing_to_revert(store)
    with _exclusive(root) as (store, signals):
        _refuse_unfinished(store)
        history = store.history()
        if not history:
            raise _nothing_to_revert(store)
        last = history[-1]
        steps, edited = [], []
        for index, file in enumerate(last.files):
            now = disk.read(store.locate(file.path))
            if disk.digest(now) != file.after:
                edited.append(file)
            blob = store.old(last.id, index)
            after = disk.read(blob)
            if disk.digest(after) != file.before:
                raise damaged(blob, "these are not the bytes that were saved")
            steps.append(_Step(file.path, now, after, blob, file.unlinked))
        if edited and not force:
            raise DiagnosticError(_changed_since(file, last.label) for file in edited)
        steps = [step for step in steps if step.before != step.after]  # forced, and undone by hand already
        label = f"revert {last.label}"
        return _run(store, signals, steps, label, dropped_dirs=last.made_dirs, reverts=last.id)


def lost_links(undone: RunRecord) -> tuple[Diagnostic, ...]:
    """Notes for the user (VCG514) on hard links that undoing a run could not restore."""
    return tuple(
        Diagnostic(
            "VCG514",
            f"{file.path} had a second name, a hard link, and is a file of its own now",
            help="the other name has the bytes from before, too; link them again if they are to be one",
            severity=Severity.INFO,
        )
        for file in undone.files
        if file.unlinked
    )


def published_changes(root: Path, label: str) -> tuple[FileChange, ...]:
    """The files of the standing runs of that label, as the first of them found them and as they are now. May be empty.

    Runs belong together as long as nothing but runs changed their files in between: after another edit (a `git pull`,
    say) an earlier run does not know what the tree held before the next one.
    """
    store = Store(root)
    found: dict[str, bytes | None] = {}
    now: dict[str, bytes | None] = {}
    then: dict[str, str | None] = {}  # the digest of each file before the runs that were looked at, the latest first
    for record in reversed(store.history() if store.exists() else []):
        for file in record.files:
            if file.path not in now:
                now[file.path] = disk.read(store.locate(file.path))
                then[file.path] = disk.digest(now[file.path])
        if record.label == label:
            if found and any(then[file.path] != file.after for file in record.files):
                break
            own = {file.path: disk.read(store.old(record.id, index)) for index, file in enumerate(record.files)}
            found = {**found, **own}
        then.update((file.path, file.before) for file in record.files)
    return tuple(FileChange(path, before, now[path]) for path, before in found.items() if before != now[path])


def recover(root: Path, *, force: bool = False) -> RunRecord | None:
    """Bring a tree back to its state before a killed run, which is the result; None when there was nothing to repair.

    Once the record of a killed run is in `runs/`, the run is complete and there is nothing to do. Before that, this
    rolls it back. Raises `DiagnosticError` VCG505, without touching anything, when someone has edited a file of the run
    since, unless `force`.
    """
    if not Store(root).exists():
        return None
    with _exclusive(root) as (store, _):
        record = store.unfinished()
        if record is not None:
            _roll_back(store, record, force=force)
        store.tidy()
        return record


def require_finished(root: Path) -> None:
    """Refuse, before planning, a tree with an unfinished run (VCG706) or a running one (VCG705)."""
    if Store(root).journal.exists():
        with _exclusive(root) as (store, _):
            _refuse_unfinished(store)


def _run(
    store: Store,
    signals: Deferred,
    steps: Sequence[_Step],
    label: str,
    *,
    dropped_dirs: tuple[str, ...] = (),
    reverts: int | None = None,
) -> RunRecord:
    for step in steps:
        _check_target(store, step)
    files = tuple(
        FileRecord(step.path, disk.digest(step.before), disk.digest(step.after), step.unlinked) for step in steps
    )
    record = RunRecord(
        store.next_id(),
        label,
        files,
        made_dirs=_missing_folders(store, steps),
        dropped_dirs=dropped_dirs,
        reverts=reverts,
    )
    try:
        _stage(store, record, steps)
        _apply(store, record)
        signals.check()  # once, at the last moment: everything before it takes milliseconds
        store.commit(record)
    except BaseException as error:
        _undo(store, record, error)
        raise
    store.tidy()
    return record


def _stage(store: Store, record: RunRecord, steps: Sequence[_Step]) -> None:
    """Put all bytes, old and new, on the disk beside the tree. After that, neither direction needs disk space."""
    folder = store.blobs / str(record.id)
    disk.mkdir(folder)
    for index, step in enumerate(steps):
        if step.before is not None:
            target = store.locate(step.path)
            disk.write_file(store.old(record.id, index), step.before, like=target, keep_time=True)
        if step.after is not None:
            like, keep_time = step.like, record.reverts is not None
            disk.write_file(store.new(record.id, index), step.after, like=like, keep_time=keep_time)
    disk.sync_directory(folder)
    disk.sync_directory(store.blobs)
    store.open_journal(record)


def _apply(store: Store, record: RunRecord) -> None:
    for folder in record.made_dirs:
        disk.mkdir(store.inside(folder))
    for index, file in enumerate(record.files):
        target = store.locate(file.path)
        if disk.digest(disk.read(target)) != file.before:  # someone was faster than us
            raise DiagnosticError(_changed_meanwhile(file.path))
        if file.after is None:
            disk.replace(target, store.gone(record.id, index))
        else:
            disk.replace(store.new(record.id, index), target)
    _sync_folders(store, record)


def _undo(store: Store, record: RunRecord, cause: BaseException) -> None:
    """Roll back in this process. If that fails as well, the journal stays and `recover` can try again."""
    try:
        if store.journal.exists():
            _roll_back(store, record)
        store.tidy()
    except (OSError, DiagnosticError) as error:
        raise DiagnosticError(_half_written(store, error, f"the run itself failed with: {cause!r}")) from cause


def _roll_back(store: Store, record: RunRecord, *, force: bool = False) -> None:
    """Restore every file that the run moved. It checks all of them before it touches any, and is idempotent."""
    pending, foreign = [], []
    for index, file in enumerate(record.files):
        if not store.touched(record, index):
            continue
        target = store.locate(file.path)
        now = disk.digest(disk.read(target))
        if now == file.before:
            continue
        if now != file.after:
            foreign.append(file)
        old = store.old(record.id, index)
        if file.before is not None and disk.digest(disk.read(old)) != file.before:
            raise damaged(old, "these are not the bytes that were saved")
        pending.append((file, target, old))
    if foreign and not force:
        raise DiagnosticError(_changed_after_kill(file, record.label) for file in foreign)
    for file, target, old in reversed(pending):
        if file.before is None:
            disk.unlink(target)
        else:
            disk.replace(old, target)
    for folder in reversed(record.made_dirs):
        disk.remove_if_empty(store.inside(folder))
    _sync_folders(store, record)
    store.close_journal()


def _sync_folders(store: Store, record: RunRecord) -> None:
    paths = [file.path for file in record.files] + list(record.made_dirs)
    for folder in sorted({store.inside(path).parent for path in paths}):
        if folder.is_dir():
            disk.sync_directory(folder)


def _check_target(store: Store, step: _Step) -> None:
    target = store.locate(step.path)
    if disk.read(target) != step.before:
        raise DiagnosticError(_changed_meanwhile(step.path))
    folder = next(parent for parent in target.parents if parent.exists())
    if disk.device(folder) != disk.device(store.folder):
        raise DiagnosticError.of(
            "VCG708",
            f"{step.path} lies on another file system than {store.folder}",
            help="files are replaced by renames, which need one file system: copy the tree to one and work there",
        )


def _missing_folders(store: Store, steps: Sequence[_Step]) -> tuple[str, ...]:
    """Folders that new files need, relative to the root, parents first."""
    missing = set()
    for step in steps:
        if step.after is not None:
            parents = store.inside(step.path).parents
            missing |= {parent.relative_to(store.root).as_posix() for parent in parents if not parent.exists()}
    return tuple(sorted(missing))


@contextmanager
def _exclusive(root: Path) -> Iterator[tuple[Store, Deferred]]:
    """Make this the only run in the tree, hold signals back, and explain I/O errors."""
    store = Store(root)
    with deferred_signals() as signals:
        try:
            store.open()
            with _locked(store):
                store.fill()
                yield store, signals
        except OSError as error:
            raise DiagnosticError(_explain(error, store)) from error


@contextmanager
def _locked(store: Store) -> Iterator[None]:
    """Hold the lock of the tree until the end, or until this process dies: `flock`, which filelock uses here, too.

    Importing filelock takes longer than publishing. The file stays: if we deleted it, two runs could hold two locks.
    """
    descriptor = os.open(store.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise damaged(store.lock, "it is not a regular file")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DiagnosticError.of(
                "VCG705",
                f"another run is writing to {store.root}",
                help="wait until it is done, then start again: the tree may look different",
            ) from error
        yield
    finally:
        os.close(descriptor)


def _refuse_unfinished(store: Store) -> None:
    record = store.unfinished()
    if record is not None:
        raise DiagnosticError.of(
            "VCG706",
            f"an earlier run (`{record.label}`) was killed while it wrote to {store.root}",
            help=f"run `{_recover_command(store)}`: it restores the state before that run",
        )


def _explain(error: OSError, store: Store) -> Diagnostic:
    """The diagnostic for an I/O error. If the journal is gone, roll-back is done and the tree is as before."""
    if store.journal.exists():
        return _half_written(store, error)
    where = f" ({error.filename})" if error.filename else ""
    cause = f"{error.strerror or error}{where}; no file of {store.root} was changed"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Diagnostic(
            "VCG701",
            f"the tree cannot be written: {cause}",
            help="work on a copy that you may write to, or use --diff to see the changes only",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Diagnostic("VCG702", f"no disk space: {cause}", help="free some space, then run the command again")
    return Diagnostic(
        "VCG703", f"writing failed: {cause}", help="remove the cause, then run the command again; nothing is lost"
    )


def _half_written(store: Store, error: Exception, *notes: str) -> Diagnostic:
    return Diagnostic(
        "VCG704",
        f"{store.root} holds a half-written run that could not be rolled back: {error}",
        help=f"run `{_recover_command(store)}` when the cause is gone",
        notes=notes,
    )


def _recover_command(store: Store) -> str:
    return f"vitcg-scaffold revert --unfinished {shlex.quote(str(store.root))}"


def _nothing_to_revert(store: Store) -> DiagnosticError:
    return DiagnosticError.of(
        "VCG506",
        f"no run to revert in {store.root}",
        help="only runs that wrote to this very tree can be reverted; for older changes use git",
    )


def _changed_meanwhile(path: str) -> Diagnostic:
    return Diagnostic(
        "VCG501",
        f"{path} changed while the run was in progress; nothing was written",
        help="run the command again: it plans from what the file holds now",
    )


def _changed_since(file: FileRecord, label: str) -> Diagnostic:
    return Diagnostic(
        "VCG504",
        f"{file.path}, {file.action} by `{label}`, was changed since; nothing was written",
        help="save your edits elsewhere, or use --force to drop them",
    )


def _changed_after_kill(file: FileRecord, label: str) -> Diagnostic:
    return Diagnostic(
        "VCG505",
        f"{file.path} was changed after the run `{label}` was killed; nothing was written",
        help="save your edits elsewhere, or use --force to drop them",
    )
