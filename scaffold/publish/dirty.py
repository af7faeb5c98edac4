"""Which target files hold work that git could not give back.

This module compares three states of a file: in the last commit, in the index, on the disk. It asks git for the first
two only, and reads and hashes the disk itself. `git status` would run the clean filters of the repository's own
configuration, and believes an index that says to assume a file unchanged. This module must not guess: a checkout in
which git does not answer is an error of its own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.files import NotRegularError
from scaffold.git import run_git
from scaffold.publish import disk
from scaffold.publish.store import FileRecord, Store

_OPERATIONS = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
}
_SUBMODULE = "160000"


class DirtyState(str, Enum):
    """How a file differs from the last commit."""

    STAGED = "has staged changes"
    UNSTAGED = "has changes that are not committed"
    UNTRACKED = "is not tracked by git"
    UNMERGED = "has merge conflicts"


def require_clean(root: Path, paths: Sequence[str], shown: Path = Path()) -> tuple[Diagnostic, ...]:
    """Raise `DiagnosticError` VCG507 for each of `paths` (relative to `root`) with the only copy of somebody's work.

    In a checkout (also a worktree or a submodule): staged, unstaged, untracked (also ignored) or unmerged files, and
    all of them while a merge, rebase, cherry-pick or revert is in progress. A file with exactly the bytes of the last
    run on it is not dirty: that is our work, and `revert` has the copy. Without a checkout (a release sdist)
    only files changed since the last run are dirty. Raises VCG508 when git does not answer.

    Returns notes for the user (VCG509 when git is missing). `shown` goes before each path in a message: `root`, as the
    user named it.
    """
    dirty, notes = _find_dirty(root, paths)
    if dirty:
        raise DiagnosticError(
            Diagnostic(
                "VCG507",
                f"{(shown / path).as_posix()} {reason}",
                help="commit or stash it first, or use --allow-dirty",
            )
            for path, reason in dirty.items()
        )
    return notes


def _find_dirty(root: Path, paths: Sequence[str]) -> tuple[dict[str, str], tuple[Diagnostic, ...]]:
    """The dirty files in the order given, each with a phrase to put after it; and notes."""
    store = Store(root)
    ours = _last_records(store)
    if not any((folder / ".git").exists() for folder in (store.root, *store.root.parents)):
        return _edited_since(store.root, ours, paths), ()
    try:
        operation = _operation(store.root)
        states = changed_files(store.root, paths)
    except FileNotFoundError:
        note = Diagnostic(
            "VCG509",
            f"{store.root} is a git checkout, but there is no `git` command: uncommitted work is not noticed",
            help="install git, or make sure yourself that nothing is lost",
            severity=Severity.INFO,
        )
        return _edited_since(store.root, ours, paths), (note,)
    if operation is not None:
        return dict.fromkeys(paths, f"is in a checkout with {operation} in progress"), ()
    if states is None:
        return _edited_since(store.root, ours, paths), ()
    return {path: states[path].value for path in paths if path in states and not _holds(store.root, path, ours)}, ()


def _last_records(store: Store) -> dict[str, FileRecord]:
    history = store.history() if store.exists() else []
    return {file.path: file for record in history for file in record.files}


def _holds(root: Path, path: str, ours: dict[str, FileRecord]) -> bool:
    """Whether `path` still has the bytes that our last run on it wrote."""
    return path in ours and disk.digest(disk.read(root / path)) == ours[path].after


def _edited_since(root: Path, ours: dict[str, FileRecord], paths: Sequence[str]) -> dict[str, str]:
    edited = [path for path in paths if path in ours and not _holds(root, path, ours)]
    return dict.fromkeys(edited, "was changed since the last run")


def _require_own_work_tree(root: Path) -> None:
    """The repository's settings may name any folder as its work tree (`core.worktree`); then it tracks nothing here."""
    found = Path(os.fsdecode(_git(root, "rev-parse", "--show-toplevel").removesuffix(b"\n")))
    own = next(folder for folder in (root.absolute(), *root.absolute().parents) if (folder / ".git").exists())
    if found.resolve() != own.resolve():
        raise _no_answer(root, f"its work tree is {own}, and git takes {found} for it")


def _operation(root: Path) -> str | None:
    """The operation in progress in the checkout, such as a merge; None if there is none."""
    git_dir = Path(os.fsdecode(_git(root, "rev-parse", "--absolute-git-dir").removesuffix(b"\n")))
    return next((operation for marker, operation in _OPERATIONS.items() if (git_dir / marker).exists()), None)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Git's record of one path: six octal digits of mode, object id."""

    mode: str
    oid: str


def changed_files(root: Path, paths: Sequence[str] | None = None) -> dict[str, DirtyState] | None:
    """Those of `paths` (default: all that git tracks) that differ from the last commit, relative to `root`.

    None when git tracks nothing below `root`: it is an sdist in somebody's checkout. Raises FileNotFoundError when
    there is no git, VCG508 when it does not answer.
    """
    if paths is not None and not paths:
        return {}
    _require_own_work_tree(root)
    index: dict[str, _Entry] = {}
    unmerged = set()
    where = ("--", *paths) if paths is not None else ()
    for record in _records(_git(root, "ls-files", "--stage", "-z", *where)):
        (mode, oid, stage), path = record
        index[path] = _Entry(mode, oid)
        if stage != "0":
            unmerged.add(path)
    head = _head(root, where)
    changed: dict[str, DirtyState] = {}
    settings = _settings(root)
    for path in dict.fromkeys((*index, *head)) if paths is None else paths:
        entry, committed = index.get(path), head.get(path)
        if path in unmerged:
            changed[path] = DirtyState.UNMERGED
        elif entry != committed:
            changed[path] = DirtyState.STAGED
        elif entry is None:
            if os.path.lexists(root / path):
                changed[path] = DirtyState.UNTRACKED
        elif entry.mode != _SUBMODULE and _differs(root, path, entry, settings):
            changed[path] = DirtyState.UNSTAGED
    tracked = index or head or _git(root, "ls-files", "-z", "--", ".")
    return changed if tracked else None


def _head(root: Path, where: Sequence[str]) -> dict[str, _Entry]:
    """The files of the last commit; none before the first commit."""
    try:
        listed = _git(root, "ls-tree", "-r", "-z", "HEAD", *where)
    except DiagnosticError:
        if _run(root, "rev-parse", "--quiet", "--verify", "HEAD").returncode != 1:
            raise
        return {}
    return {path: _Entry(mode, oid) for (mode, _, oid), path in _records(listed)}


def _records(listed: bytes) -> list[tuple[list[str], str]]:
    """The lines of `ls-files --stage -z` and `ls-tree -z`: three words and a path."""
    split = (record.partition("\t") for record in os.fsdecode(listed).split("\0") if record)
    return [(words.split(" "), path) for words, _, path in split]


def _differs(root: Path, path: str, entry: _Entry, settings: dict[str, str]) -> bool:
    """Whether the file on the disk differs from the one in git's index."""
    try:
        status = (root / path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(int(entry.mode, 8)):
        return True
    if stat.S_ISLNK(status.st_mode):
        return _blob_id(os.fsencode((root / path).readlink()), entry) != entry.oid
    executable = entry.mode == "100755"
    if bool(status.st_mode & stat.S_IXUSR) != executable and settings.get("core.filemode") not in _OFF:
        return True
    data = disk.read(root / path) or b""
    if _blob_id(data, entry) == entry.oid:
        return False
    text = data.replace(b"\r\n", b"\n")
    return _blob_id(text, entry) != entry.oid or not _converts_line_ends(root, path, settings)


def _blob_id(data: bytes, like: _Entry) -> str:
    """The id that git gives to a file with these bytes: SHA-1, in some repositories SHA-256."""
    made = hashlib.sha1(usedforsecurity=False) if len(like.oid) == 40 else hashlib.sha256()
    made.update(b"blob %d\0" % len(data) + data)
    return made.hexdigest()


_OFF = ("false", "no", "off", "0", "")


def _settings(root: Path) -> dict[str, str]:
    """The settings that decide what a difference is, in small letters. It reads no others."""
    listed = os.fsdecode(_git(root, "config", "-z", "--get-regexp", r"^core\.(filemode|autocrlf)$", can_be_none=True))
    pairs = (record.partition("\n") for record in listed.split("\0") if record)
    return {name.lower(): value.lower() for name, _, value in pairs}


def _converts_line_ends(root: Path, path: str, settings: dict[str, str]) -> bool:
    """Whether git itself puts CR LF into this file when it checks it out."""
    for folder in (root / path).absolute().parents:  # git reads those of the work tree, and would wait for a pipe
        if (folder / ".gitattributes").exists() and not (folder / ".gitattributes").is_file():
            raise _no_answer(root, f"{folder / '.gitattributes'} is not a regular file")
    attribute = os.fsdecode(_git(root, "ls-files", "--eol", "-z", "--", path)).partition("attr/")[2].partition("\t")[0]
    return attribute.strip() != "-text" if attribute.strip() else settings.get("core.autocrlf", "") not in _OFF


def _git(root: Path, *arguments: str, can_be_none: bool = False) -> bytes:
    """Git's answer. FileNotFoundError when there is no git, VCG508 when it gives no answer.

    With `can_be_none`, exit code 1 means that there is nothing to report.
    """
    done = _run(root, *arguments)
    if done.returncode != 0 and not (can_be_none and done.returncode == 1):
        raise _no_answer(root, os.fsdecode(done.stderr).strip())
    return done.stdout


def _run(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return run_git(root, *arguments)
    except subprocess.TimeoutExpired as error:
        raise _no_answer(root, f"no answer within {error.timeout:g} s") from error
    except NotRegularError as error:
        raise _no_answer(root, str(error)) from error


def _no_answer(root: Path, why: str) -> DiagnosticError:
    return DiagnosticError.of(
        "VCG508",
        f"git cannot tell which files of {root} are dirty",
        help="repair the checkout as git says, or use --allow-dirty if you know that nothing is lost",
        notes=tuple(why.splitlines()),
    )
