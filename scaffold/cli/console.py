"""The output of commands: which text goes to which stream.

Text: results on stdout, progress and diagnostics on stderr. With a machine format stdout holds one document, written
when the run ends (`finish`), so that notes and a later error are one list; text for people goes to stderr. A command
whose result is itself a document (a patch, a schema, JSON by `--json`) takes stdout for it, and everything else goes to
stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import get_terminal_size
from typing import IO

import click

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.files import read_regular
from scaffold.report.plain import lines_of, one_line, without_commands


@dataclass
class Console:
    """The user's choices of output, passed to every command as `ctx.obj`."""

    output_format: str = "text"
    color: str = "auto"
    quiet: bool = False
    debug: bool = False
    #: The user's words behind the program's name.
    words: tuple[str, ...] = ()
    #: Where the files are whose names in diagnostics are no paths from here: `vllm-0.22.0` and `internvl.yaml`, say.
    places: dict[str, Path] = field(default_factory=dict, repr=False)
    _held: list[Diagnostic] = field(default_factory=list, repr=False)
    _stdout_taken: bool = False
    _used: bool = False

    @property
    def is_text(self) -> bool:
        return self.output_format == "text"

    def wants_color(self, stream: IO[str]) -> bool:
        """Colours only on a terminal, or on request; `NO_COLOR` switches them off."""
        if self.color != "auto":
            return self.color == "always"
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def result(self, text: str) -> None:
        """A line of the result for people. Whatever is in it stays in that line (`report.plain`)."""
        self.block(one_line(text))

    def block(self, text: str) -> None:
        """A result for people that was laid out in lines."""
        self._used = True
        self._write(text, err=self._stdout_taken or not self.is_text)

    def document(self, text: str, paint: Callable[[str], str] | None = None) -> None:
        """A result for a program: stdout holds documents and nothing else from now on. Written byte for byte, except
        for people (on a terminal, or with colours: `paint` colours a line) and for the log of a workflow.
        """
        self._stdout_taken = True
        if paint is not None or sys.stdout.isatty() or self.output_format == "github":
            text = self._harmless(text)
        if paint is not None:
            text = "\n".join(map(paint, text.split("\n")))
        click.echo(_encode(text), nl=False)

    def note(self, text: str) -> None:
        """A line of progress or a hint; `--quiet` drops it."""
        self._used = True
        if not self.quiet:
            self._write(one_line(text), err=True)

    def fault(self, text: str) -> None:
        """Lines for people about what has no diagnostic: a wrong use of the command line, a bug."""
        self._write(text.rstrip("\n"), err=True)

    def _write(self, text: str, *, err: bool) -> None:
        click.echo(_encode(self._harmless(text)).decode(), err=err)

    def _harmless(self, text: str) -> str:
        text = lines_of(text)
        return without_commands(text) if self.output_format == "github" else text

    def report(self, diagnostics: Sequence[Diagnostic], *, more: bool = False) -> None:
        """Diagnostics: at once as text, at the end of the run in a machine format. `more`: the run will have others."""
        self._used = True
        if self.quiet:
            diagnostics = [d for d in diagnostics if d.severity is Severity.ERROR]
        if not self.is_text:
            self._held.extend(diagnostics)
            return
        from scaffold.report import render_diagnostics

        color = self.wants_color(sys.stderr)
        text = render_diagnostics(diagnostics, format="text", color=color, sources=self._read_source, more=more)
        click.echo(text, err=True, color=True, nl=False)

    def finish(self, exit_code: int, problems: Sequence[Diagnostic] = ()) -> None:
        """Report what stopped the run, if anything; in a machine format write the document. Called once, at the end.

        A run that was only asked for help, or for a document that came without any diagnostic, has no document.
        """
        if problems:
            self.report(problems)
        if self.is_text or not self._used:
            return
        from scaffold.report import render_diagnostics

        folder = _below_workspace(os.environ.get("GITHUB_WORKSPACE"))
        text = render_diagnostics(self._held, format=self.output_format, exit_code=exit_code, folder=folder)
        click.echo(_encode(text), err=self._stdout_taken, nl=False)

    def _read_source(self, file: str) -> str | None:
        """The text of a file by its name in diagnostics; None if it cannot be read."""
        path = next(
            (place / file[len(name) :].lstrip("/") for name, place in self.places.items() if _is_in(file, name)),
            Path(file),
        )
        try:
            return read_regular(path).decode("utf-8")
        except (OSError, ValueError):
            return None

    @contextmanager
    def progress(self, label: str) -> Iterator[Callable[[int, int | None], None]]:
        """A callback `(done bytes, total bytes or None)` that draws a bar on a terminal and one line elsewhere."""
        counter = _Counter(one_line(label), quiet=self.quiet)
        try:
            yield counter.show
        finally:
            counter.close()


class _Counter:
    """Bytes of a download: redrawn in place on a terminal, announced once in a log."""

    def __init__(self, label: str, *, quiet: bool) -> None:
        self._label, self._quiet = label, quiet
        self._shown = -1
        self._line_open = False

    def show(self, done: int, total: int | None) -> None:
        if self._quiet:
            return
        if not sys.stderr.isatty():
            if self._shown < 0:
                self._shown = 0
                size = f" ({total / 1e6:.0f} MB)" if total else ""
                click.echo(f"{self._label}{size}", err=True)
            return
        step = done * 1000 // total if total else done // 1_000_000
        if step != self._shown:
            self._shown, self._line_open = step, True
            click.echo(f"\r{self._line(done, total, get_terminal_size().columns - 1)}", err=True, nl=False)

    def _line(self, done: int, total: int | None, width: int) -> str:
        """The bar takes what the label and the numbers leave of the line, which must not wrap."""
        if not total:
            return f"{self._label} {done / 1e6:.1f} MB"[:width]
        numbers = f"{done / 1e6:5.1f} / {total / 1e6:.1f} MB"
        room = min(width - len(self._label) - len(numbers) - 2, 30)
        bar = f"{'━' * (room * done // total):<{room}} " if room > 3 else ""
        return f"{self._label} {bar}{numbers}"[:width]

    def close(self) -> None:
        """The next output starts on a new line."""
        if self._line_open:
            click.echo(err=True)


def _encode(text: str) -> bytes:
    """UTF-8. A file name that is no text appears as its escape."""
    return text.encode("utf-8", "backslashreplace")


def _below_workspace(workspace: str | None) -> str:
    """The current folder from the root of the repository that a job of GitHub checked out; "" where there is no job."""
    try:
        return Path.cwd().relative_to(Path(workspace).resolve()).as_posix() if workspace else ""
    except (OSError, ValueError):  # the folder is gone, or elsewhere
        return ""


def _is_in(file: str, name: str) -> bool:
    """Whether `file` is the file `name`, or lies in the folder of that name."""
    return file == name or file.startswith(f"{name}/")
