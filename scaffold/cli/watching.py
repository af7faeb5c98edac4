"""A run of the lab on a terminal: what it does now, in the last line."""

from __future__ import annotations

import shutil
import sys
import threading
import time
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


class TimedLine(StatusLine):
    """A status line that counts seconds, in front of the text: a run without steps is seen to go on."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._text = ""
        self._begin = time.monotonic()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> TimedLine:
        if self._live:
            self._clock.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        if self._live:
            self._clock.join()
        super().__exit__(*exc_info)

    def status(self, text: str) -> None:
        self._text = text
        self.tick()

    def tick(self) -> None:
        """Draw the line with the seconds so far."""
        super().status(f"{int(time.monotonic() - self._begin)} s: {self._text}" if self._text else "")

    def _count(self) -> None:
        while not self._ended.wait(1):
            self.tick()
