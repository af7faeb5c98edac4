"""Unified differences, coloured on a terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from scaffold.changes import FileChange
from scaffold.cli.console import Console


def show_differences(console: Console, changes: Sequence[FileChange]) -> None:
    """Print the changes as one patch that `git apply` and `patch -p1` take."""
    for change in changes:
        for line in unified_difference(change):
            console.result(_coloured(console, line))


def unified_difference(change: FileChange) -> Iterator[str]:
    """The lines of a unified difference, without line ends."""
    before, after = (_lines(content) for content in (change.before, change.after))
    old = "/dev/null" if change.before is None else f"a/{change.path}"
    new = "/dev/null" if change.after is None else f"b/{change.path}"
    for line in difflib.unified_diff(before, after, old, new, lineterm="\n"):
        yield line[:-1] if line.endswith("\n") else f"{line}\n\\ No newline at end of file"


def _lines(content: bytes | None) -> list[str]:
    return [] if content is None else content.decode("utf-8").splitlines(keepends=True)


def _coloured(console: Console, line: str) -> str:
    if line.startswith(("---", "+++")):
        return console.style(line, bold=True)
    for prefix, color in (("@@", "cyan"), ("+", "green"), ("-", "red")):
        if line.startswith(prefix):
            return console.style(line, fg=color)
    return line
