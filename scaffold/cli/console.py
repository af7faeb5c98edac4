"""What a command prints, and where.

Text: results on stdout, progress and diagnostics on stderr. With a machine format stdout holds one document, written
when the run ends (`finish`), so that notes and a later error are one list; what is meant for people goes to stderr. A
command whose result is itself a document (a patch, a schema, JSON that was asked for) takes stdout for it, and
everything else goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import click

from scaffold.diagnostics import Diagnostic, Severity


@dataclass
class Console:
    """The user's choices of output, passed to every command as `ctx.obj`."""

    output_format: str = "text"
    color: str = "auto"
    quiet: bool = False
    debug: bool = False
    _held: list[Diagnostic] = field(default_factory=list, repr=False)
    _stdout_taken: bool = False
    _used: bool = False

    @property
    def is_text(self) -> bool:
        return self.output_format == "text"

    def wants_color(self, stream: IO[str]) -> bool:
        """Colours only on a terminal, unless asked for; `NO_COLOR` is honoured."""
        if self.color != "auto":
            return self.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def result(self, text: str) -> None:
        """A result for people."""
        self._used = True
        _write(text, err=self._stdout_taken or not self.is_text)

    def document(self, text: str) -> None:
        """A result for a program: stdout holds documents and nothing else from now on. Written byte for byte."""
        self._stdout_taken = True
        click.echo(text.encode("utf-8"), nl=False)

    def note(self, text: str) -> None:
        """Progress or a hint; `--quiet` drops it."""
        self._used = True
        if not self.quiet:
            _write(text, err=True)

    def report(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Diagnostics: at once as text, at the end of the run in a machine format."""
        self._used = True
        if self.quiet:
            diagnostics = [d for d in diagnostics if d.severity is Severity.ERROR]
        if not self.is_text:
            self._held.extend(diagnostics)
            return
        from scaffold.report import render_diagnostics

        color = self.wants_color(sys.stderr)
        text = render_diagnostics(diagnostics, format="text", color=color, sources=_read_source)
        click.echo(text, err=True, color=True, nl=False)

    def finish(self, exit_code: int) -> None:
        """Write the document of a machine format, also when there is nothing to say. Called once, at the end.

        Not when the run was only asked for help, or for a document that came without any diagnostic.
        """
        if self.is_text or not self._used:
            return
        from scaffold.report import render_diagnostics

        text = render_diagnostics(self._held, format=self.output_format, exit_code=exit_code)
        click.echo(text.encode("utf-8"), err=self._stdout_taken, nl=False)

    def progress(self, label: str) -> Callable[[int, int | None], None]:
        """A callback `(done bytes, total bytes or None)` that draws a bar on a terminal and one line elsewhere."""
        return _Progress(self, label)


class _Progress:
    """A byte counter: redrawn in place on a terminal, announced once in a log."""

    def __init__(self, console: Console, label: str) -> None:
        self._console, self._label, self._shown = console, label, -1

    def __call__(self, done: int, total: int | None) -> None:
        if self._console.quiet:
            return
        if not sys.stderr.isatty():
            if self._shown < 0:
                self._shown = 0
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                click.echo(f"{self._label}{size}", err=True)
            return
        tenths = done * 1000 // total if total else done // 1_000_000
        if tenths == self._shown:
            return
        self._shown = tenths
        if total:
            filled = 30 * done // total
            bar = "━" * filled + " " * (30 - filled)
            text = f"\r{self._label} {bar} {done / 1e6:5.1f} / {total / 1e6:.1f} MB"
        else:
            text = f"\r{self._label} {done / 1e6:.1f} MB"
        click.echo(text, err=True, nl=done == total)


def _write(text: str, *, err: bool) -> None:
    """As it is: who styles a text has asked `wants_color` before."""
    click.echo(text, err=err, color=True)


def _read_source(file: str) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        return None
