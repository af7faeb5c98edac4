"""The only place that runs `git`. It reads only, and runs nothing that the repository's own configuration names.

A repository can come with a tree that somebody else packed, so we do not trust its `config` and attributes. Git runs
here without hooks, file-system monitor, pager and questions on the terminal. It fetches nothing that a partial clone
left out, and uses no bare repository inside of another.

Single commands could still run programs for files or commits: clean filters, text conversions, external differences,
`gpg`. So callers use plumbing that runs none of them, such as `ls-files`, `ls-tree`, `rev-list` and `cat-file`, and
never `status`, `diff`, `log` or `show`. A test runs every command of the tool on a repository that sets all of them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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

    Raises OSError when there is no git, `subprocess.TimeoutExpired` when it does not answer.
    """
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
