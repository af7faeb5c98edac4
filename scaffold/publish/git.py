"""Which target files hold work that git could not give back.

Asks the `git` command, read-only, with hooks, file-system monitors and optional locks off. It must not guess: when
there is a checkout and git does not answer, that is an error of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.publish import disk
from scaffold.publish.store import FileRecord, Store

_TIMEOUT_S = 30
# A hook or an alias that called us may have set these for its own repository.
_REPOSITORY_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_NAMESPACE",
)
_OPERATIONS = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
}


class DirtyState(str, Enum):
    """Why a file counts as dirty."""

    STAGED = "has staged changes"
    UNSTAGED = "has changes that are not committed"
    UNTRACKED = "is not tracked by git"
    UNMERGED = "has merge conflicts"
    IN_OPERATION = "is in a checkout where an operation is in progress"
    EDITED = "was changed since the last run"


@dataclass(frozen=True, slots=True)
class DirtyFile:
    """`path` is relative to the root that was asked about; `reason` is a phrase to put after it."""

    path: str
    state: DirtyState
    reason: str


def find_dirty(root: Path, paths: Sequence[str]) -> tuple[DirtyFile, ...]:
    """Those of `paths` (relative to `root`) that hold work which only exists there, in the order given.

    In a checkout (also a worktree or a submodule): staged, unstaged, untracked or unmerged files, and all of them while
    a merge, rebase, cherry-pick or revert is in progress. A file that still holds exactly what the last run on it
    wrote is not dirty: that is our work, and `revert` has the copy. Without a checkout (a release sdist) only files
    changed since the last run are dirty. Raises `DiagnosticError` VCG508 when git does not answer.
    """
    return _survey(root, paths)[0]


def require_clean(root: Path, paths: Sequence[str]) -> tuple[Diagnostic, ...]:
    """Raise `DiagnosticError` VCG507 for each dirty file; return notes for the user (VCG509 when git is missing)."""
    dirty, notes = _survey(root, paths)
    if dirty:
        raise DiagnosticError(
            Diagnostic(
                "VCG507",
                f"{file.path} {file.reason}",
                help="commit or stash it first, or use --allow-dirty",
            )
            for file in dirty
        )
    return notes


def _survey(root: Path, paths: Sequence[str]) -> tuple[tuple[DirtyFile, ...], tuple[Diagnostic, ...]]:
    store = Store(root)
    ours = _last_records(store)
    if not any((folder / ".git").exists() for folder in (store.root, *store.root.parents)):
        return _edited_since(store.root, ours, paths), ()
    try:
        states = _git_states(store.root, paths)
    except FileNotFoundError:
        note = Diagnostic(
            "VCG509",
            f"{store.root} is a git checkout, but there is no `git` command: uncommitted work is not noticed",
            help="install git, or make sure yourself that nothing is lost",
            severity=Severity.INFO,
        )
        return _edited_since(store.root, ours, paths), (note,)
    if states is None:
        return _edited_since(store.root, ours, paths), ()
    return tuple(
        DirtyFile(path, *states[path])
        for path in paths
        if path in states and (states[path][0] is DirtyState.IN_OPERATION or not _holds(store.root, path, ours))
    ), ()


def _last_records(store: Store) -> dict[str, FileRecord]:
    history = store.history() if store.exists() else []
    return {file.path: file for record in history for file in record.files}


def _holds(root: Path, path: str, ours: dict[str, FileRecord]) -> bool:
    """Whether `path` still has the bytes that our last run on it wrote."""
    return path in ours and disk.digest(disk.read(root / path)) == ours[path].after


def _edited_since(root: Path, ours: dict[str, FileRecord], paths: Sequence[str]) -> tuple[DirtyFile, ...]:
    edited = (path for path in paths if path in ours and not _holds(root, path, ours))
    return tuple(DirtyFile(path, DirtyState.EDITED, DirtyState.EDITED.value) for path in edited)


def _git_states(root: Path, paths: Sequence[str]) -> dict[str, tuple[DirtyState, str]] | None:
    """State and reason of each dirty path; None when git tracks nothing of this tree (an sdist in a checkout)."""
    git_dir, prefix = _git(root, "rev-parse", "--absolute-git-dir", "--show-prefix").split("\n")[:2]
    for marker, operation in _OPERATIONS.items():
        if (Path(git_dir) / marker).exists():
            return dict.fromkeys(paths, (DirtyState.IN_OPERATION, f"is in a checkout with {operation} in progress"))
    if not paths:
        return {}
    status = _git(root, "status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--", *paths)
    states = {entry[3:].removeprefix(prefix): _state(entry[:2]) for entry in status.split("\0") if entry}
    if any(state is DirtyState.UNTRACKED for state in states.values()) and not _git(root, "ls-files", "-z", "--", "."):
        return None
    return {path: (state, state.value) for path, state in states.items()}


def _state(code: str) -> DirtyState:
    """Meaning of the two letters (index, work tree) of `git status --porcelain`."""
    if code == "??":
        return DirtyState.UNTRACKED
    if "U" in code or code in ("AA", "DD"):
        return DirtyState.UNMERGED
    return DirtyState.STAGED if code[0] != " " else DirtyState.UNSTAGED


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """One read-only git command in `folder`, whatever repository a hook that called us is in.

    Raises OSError when there is no git, `subprocess.TimeoutExpired` when it does not answer.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}
    return subprocess.run(
        ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


def _git(root: Path, *arguments: str) -> str:
    """What git answers. FileNotFoundError when there is no git, VCG508 when it gives no answer."""
    try:
        done = run_git(root, *arguments)
    except subprocess.TimeoutExpired as error:
        raise _no_answer(root, f"no answer within {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise _no_answer(root, os.fsdecode(done.stderr).strip())
    return os.fsdecode(done.stdout)


def _no_answer(root: Path, why: str) -> DiagnosticError:
    return DiagnosticError(
        Diagnostic(
            "VCG508",
            f"git cannot tell which files of {root} are dirty",
            help="repair the checkout as git says, or use --allow-dirty if you know that nothing is lost",
            notes=tuple(why.splitlines()),
        )
    )
