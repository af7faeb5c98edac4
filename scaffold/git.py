"""The only place that runs `git`. It reads only, and runs nothing that the repository's own configuration names.

A repository can come with a tree that somebody else packed, so we do not trust its `config` and attributes. Git runs
here without hooks, file-system monitor, pager and questions on the terminal. It fetches nothing that a partial clone
left out, and uses no bare repository inside of another. It does not start where it would open a pipe and wait.

Single commands could still run programs for files or commits: clean filters, text conversions, external differences,
`gpg`. So callers use plumbing that runs none of them, such as `ls-files`, `ls-tree`, `rev-list` and `cat-file`, and
never `status`, `diff`, `log` or `show`. A test runs every command of the tool on a repository that sets all of them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from scaffold.files import NotRegularError, read_regular

_TIMEOUT_S = 30
#: Variables of the caller that tell where git and the user's own settings are. All other variables of git may belong to
#: a repository whose hook or alias called us.
_KEPT = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES")
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # no fetch, also in versions before GIT_NO_LAZY_FETCH (2.45)
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit")
_OPTIONS = ("--no-pager", *(word for setting in _SETTINGS for word in ("-c", setting)))


def run_git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run one read-only git command in `folder`, even if a hook of another repository called us.

    Raises OSError when there is no git, `subprocess.TimeoutExpired` when it does not answer, NotRegularError when it
    would wait for a pipe.
    """
    _require_regular(folder.absolute())
    return _run(folder, *arguments)


#: Entries of a repository that are looked at: a large one has a hundredth.
_MAX_ENTRIES = 300_000
#: Settings that name a file which git opens for what is asked here.
_READ_SETTINGS = r"^(include(if\..*)?\.path|core\.(attributes|excludes)file)$"
_NAMES_A_FILE = re.compile(rb"(file|path)\s*=", re.IGNORECASE)


@lru_cache(maxsize=16)
def _require_regular(folder: Path) -> None:
    """Raise NotRegularError for something in the repository of `folder` that is neither a file nor a folder."""
    places = [str(above / ".git") for above in (folder, *folder.parents)]
    seen: set[str] = set()
    for place in places:  # it grows
        if os.path.isdir(place):  # noqa: PTH112 (a Path for each of thousands costs more than the question)
            place = os.path.realpath(place)  # noqa: PLW2901 (each folder once, whatever leads to it)
        if place in seen:
            continue
        seen.add(place)
        if len(seen) > _MAX_ENTRIES:
            raise NotRegularError(f"the repository has more than {_MAX_ENTRIES:,} entries")
        if os.path.isdir(place):  # noqa: PTH112
            with suppress(OSError), os.scandir(place) as entries:
                places += (entry.path for entry in entries if not entry.is_file() or entry.name in _NAMING)
        elif os.path.isfile(place):  # noqa: PTH113
            places += _named_by(Path(place))
        elif os.path.exists(place):  # noqa: PTH110
            raise NotRegularError(f"{place} is not a regular file")


#: Files that name others.
_NAMING = frozenset((".git", "commondir", "alternates", "config", "config.worktree"))


def _named_by(file: Path) -> Iterator[str]:
    """The files and folders that git opens because of a file of the repository."""
    try:
        data = read_regular(file)
    except OSError:
        return
    if file.name in (".git", "commondir"):
        yield str(file.parent / os.fsdecode(data.removeprefix(b"gitdir:").strip()))
    elif file.name == "alternates":
        for line in data.splitlines():
            yield str(file.parent.parent / os.fsdecode(line.strip(b'"')))
    elif _NAMES_A_FILE.search(data):
        # Git itself says how its settings are read, here as a file that belongs to no repository.
        listed = _run(Path("/"), "config", "--file", str(file), "--no-includes", "-z", "--get-regexp", _READ_SETTINGS)
        for record in filter(None, os.fsdecode(listed.stdout).split("\0")):
            named = os.path.join(file.parent, os.path.expanduser(record.partition("\n")[2]))  # noqa: PTH111, PTH118
            if not os.path.isdir(named) and named != os.devnull:  # noqa: PTH112
                yield named


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT)
    }
    return subprocess.run(
        ["git", *_OPTIONS, *arguments],
        cwd=folder,
        env=environment | _ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


def ask_git(folder: Path, *arguments: str) -> bytes | None:
    """Git's answer; None if it fails, does not answer in time, or is not installed."""
    try:
        done = run_git(folder, *arguments)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
