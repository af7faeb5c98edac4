"""Unified differences, coloured on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click

from scaffold.changes import FileChange, unified_lines
from scaffold.cli.console import Console


def show_differences(console: Console, changes: Sequence[FileChange]) -> None:
    """Print the changes as one patch that `git apply` and `patch -p1` take: stdout then holds nothing else."""
    lines = [line for change in changes for line in unified_difference(change)]
    paint = _coloured if console.wants_color(sys.stdout) else None
    console.document("".join(f"{line}\n" for line in lines), paint)


def unified_difference(change: FileChange) -> Iterator[str]:
    """The lines of a unified difference, without line ends."""
    before, after = (_lines(content) for content in (change.before, change.after))
    old = "/dev/null" if change.before is None else f"a/{change.path}"
    new = "/dev/null" if change.after is None else f"b/{change.path}"
    for line in unified_lines(before, after, (old, new), end="\n"):
        yield line[:-1] if line.endswith("\n") else f"{line}\n\\ No newline at end of file"


def _lines(content: bytes | None) -> list[str]:
    """Lines as patches have them: only a line feed ends one, not a form feed or a Unicode separator."""
    if not content:
        return []
    lines = content.decode("utf-8").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _coloured(line: str) -> str:
    if line.startswith(("---", "+++")):
        return click.style(line, bold=True)
    for prefix, color in (("@@", "cyan"), ("+", "green"), ("-", "red")):
        if line.startswith(prefix):
            return click.style(line, fg=color)
    return line
