"""What a command prints, and where: results on stdout, progress and diagnostics on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click

from scaffold.diagnostics import Diagnostic, Severity


@dataclass(frozen=True)
class Console:
    """The user's choices of output, passed to every command as `ctx.obj`."""

    output_format: str = "text"
    color: str = "auto"
    quiet: bool = False
    debug: bool = False

    def wants_color(self, stream: IO[str]) -> bool:
        """Colours only on a terminal, unless asked for; `NO_COLOR` is honoured."""
        if self.color != "auto":
            return self.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def result(self, text: str) -> None:
        """Write a result to stdout."""
        click.echo(text, color=self.wants_color(sys.stdout))

    def note(self, text: str) -> None:
        """Write progress or a hint to stderr; `--quiet` drops it."""
        if not self.quiet:
            click.echo(text, err=True, color=self.wants_color(sys.stderr))

    def style(self, text: str, **options: str | bool) -> str:
        return click.style(text, **options)  # type: ignore[arg-type]

    def report(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Write diagnostics: text to stderr, machine formats to stdout, even when there are none."""
        from scaffold.report import render_diagnostics

        if self.quiet:
            diagnostics = [d for d in diagnostics if d.severity is Severity.ERROR]
        if not diagnostics and self.output_format == "text":
            return
        text = render_diagnostics(
            diagnostics, format=self.output_format, color=self.wants_color(sys.stderr), sources=_read_source
        )
        click.echo(text, err=self.output_format == "text", color=self.wants_color(sys.stderr), nl=False)
        if text and not text.endswith("\n"):
            click.echo(err=self.output_format == "text")

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


def _read_source(file: str) -> str | None:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        return None
