"""Notes signals during publishing and delivers them afterwards, so that none of them can interrupt a roll-back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Handler = Callable[[int, FrameType | None], object]


class Interrupted(BaseException):
    """A signal arrived before the run was complete: undo it."""


class Deferred:
    """The signals so far. `check` is the last place where one can still end the run."""

    def __init__(self) -> None:
        self.received: int | None = None

    def note(self, number: int, _frame: FrameType | None) -> None:
        self.received = number

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted


@contextmanager
def deferred_signals() -> Iterator[Deferred]:
    """Hold signals back for the length of the block, then hand the last one to the previous handler.

    Ctrl-C still ends in KeyboardInterrupt, and SIGTERM in the death that the shell reports as 143, but after the
    roll-back. If the previous handler returns although the run was given up, this raises SystemExit(128 + signal).
    Outside the main thread Python delivers no signals, and this does nothing.
    """
    deferred = Deferred()
    previous: dict[int, _Handler | int] = {}  # a plain number is SIG_DFL
    given_up = False
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if handler is not None and handler is not signal.SIG_IGN:
                    previous[number] = handler
                    signal.signal(number, deferred.note)
        yield deferred
    except Interrupted:
        given_up = True
    finally:
        for restored, handler in previous.items():
            signal.signal(restored, handler)
        if deferred.received is not None:
            handler = previous[deferred.received]
            if callable(handler):  # call it here: Python would run it at some later instruction if we raised it anew
                handler(deferred.received, None)
            else:
                signal.raise_signal(deferred.received)
            if given_up:
                raise SystemExit(128 + deferred.received)
