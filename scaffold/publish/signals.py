"""Signals during publishing are noted and delivered afterwards, so that none of them can interrupt a roll-back."""

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
    """What has arrived so far. `check` is called where the run can be given up for the last time."""

    def __init__(self) -> None:
        self.received: int | None = None

    def note(self, number: int, _frame: FrameType | None) -> None:
        self.received = number

    def check(self) -> None:
        if self.received is not None:
            raise Interrupted


@contextmanager
def deferred_signals() -> Iterator[Deferred]:
    """Hold signals back for the length of the block, then hand the last one to the handler that was there before.

    So Ctrl-C still ends in KeyboardInterrupt and SIGTERM in the death that the shell reports as 143, only after the
    roll-back. If that handler returns although the run was given up, SystemExit(128 + signal) is raised. Outside the
    main thread Python delivers no signals, and nothing is done.
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
            if callable(handler):  # called here and not raised anew: Python would run it at some later instruction
                handler(deferred.received, None)
            else:
                signal.raise_signal(deferred.received)
            if given_up:
                raise SystemExit(128 + deferred.received)
