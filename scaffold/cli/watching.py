"""A run of the lab on a terminal: what it does now, in the last line."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

from scaffold.report.plain import one_line

if TYPE_CHECKING:
    from scaffold.cli.console import Console
    from scaffold.verify.numeric import NumericReport, NumericRequest, Property


class StatusLine:
    """A `Watch` that redraws the last line of a terminal, and prints nothing elsewhere."""

    def __init__(self, console: Console) -> None:
        self._live = sys.stderr.isatty() and not console.quiet
        self._compared = 0

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.status("")  # an error that ends the run starts on a line of its own

    def started(self, request: NumericRequest) -> None:
        self._compared = 0
        self.status("imports vLLM")

    def note(self, text: str) -> None:
        self.status(text)

    def basis(self, text: str) -> None:
        return None

    def case(self, text: str, total: int) -> None:
        self._compared += 1
        self.status(f"{self._compared} of {total}: {text}")

    def settled(self, found: Property) -> None:
        return None

    def ended(self, report: NumericReport) -> None:
        self.status("")

    def status(self, text: str) -> None:
        """Redraw the last line of a terminal; nothing elsewhere."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r\x1b[K{one_line(text)[:width]}", err=True, nl=False, color=True)
