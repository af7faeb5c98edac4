"""Captures graphs while the process of a manager waits for work.

The same two loops call both runners of vLLM, V1 and V2 (0.23 to 0.33), and they know whether anything waits:

* `EngineCoreProc._process_input_queue` waits for a request when no request is left. With one rank the worker lives in
  this process.
* A worker process of its own (tensor or pipeline parallelism) waits in `MessageQueue.dequeue(indefinite=True)`.

We wrap both. After `QUIET` seconds without work, the wrapper captures one graph and looks again. A request that comes
during a capture waits for the rest of that one graph. The wrapper then skips the next pause, so that no two requests in
a row wait. An engine in the process of its user has no such loop and never tells that it is idle. There `is_seen` stays
False, and `ServedManager` captures now and then, within a small share of the time.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

logger = logging.getLogger("scaffold.runtime.vllm")

#: Seconds without work before a capture. Requests that follow each other leave shorter pauses.
QUIET = 0.1

_LOOPS = {
    "vllm.v1.engine.core": ("EngineCoreProc", "_process_input_queue"),
    "vllm.distributed.device_communicators.shm_broadcast": ("MessageQueue", "dequeue"),
}


class Captures(Protocol):
    """A manager that captures graphs while its worker is idle."""

    @property
    def wants_graphs(self) -> bool:
        """Whether there is anything to capture."""

    def capture_when_idle(self, most: int | None = None) -> int:
        """Capture at most `most` graphs."""


_managers: weakref.WeakSet[Any] = weakref.WeakSet()


class _Pauses:
    #: A loop of this process has waited for work.
    seen = False
    #: A capture kept a request waiting: let the next pause pass.
    rests = False


def is_seen() -> bool:
    """Whether a loop of this process has waited for work since `watch`."""
    return _Pauses.seen


def watch(manager: Captures) -> None:
    """Let a manager capture whenever this process waits for work."""
    _managers.add(manager)
    for module, (owner, name) in _LOOPS.items():
        loop = getattr(sys.modules.get(module), owner, None)
        original = getattr(loop, name, None)
        if original is not None and not hasattr(original, "captures_when_idle"):
            setattr(loop, name, _WRAPPERS[name](original))


def use_pause(comes: Callable[[float], bool]) -> None:
    """Capture graph by graph until work comes. `comes(seconds)` waits at most that long, and tells whether it came."""
    _Pauses.seen = True
    if _Pauses.rests:
        _Pauses.rests = False
        return
    while wanting := [manager for manager in _managers if manager.wants_graphs]:
        if comes(QUIET):
            return
        for manager in wanting:
            manager.capture_when_idle(1)
        if comes(0.0):
            _Pauses.rests = True
            return


def _around_queue(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _process_input_queue(self: Any, *arguments: Any, **named: Any) -> Any:
        def comes(seconds: float) -> bool:
            queue = self.input_queue
            with queue.not_empty:
                return bool(queue.not_empty.wait_for(lambda: len(queue.queue) > 0, seconds))

        _guarded(lambda: None if self.has_work() else use_pause(comes))
        return original(self, *arguments, **named)

    _process_input_queue.captures_when_idle = True  # type: ignore[attr-defined]
    return _process_input_queue


def _around_dequeue(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def dequeue(self: Any, timeout: float | None = None, indefinite: bool = False, **named: Any) -> Any:
        def comes(seconds: float) -> bool:
            until = time.monotonic() + seconds
            while not (written := _is_written(self)) and time.monotonic() < until:
                time.sleep(0.001)
            return written

        if indefinite and self._is_local_reader:
            _guarded(lambda: use_pause(comes))
        return original(self, timeout, indefinite, **named)

    dequeue.captures_when_idle = True  # type: ignore[attr-defined]
    return dequeue


def _is_written(queue: Any) -> bool:
    """Whether the next message of a shared-memory queue is there. It looks the message up as the queue's readers do."""
    with queue.buffer.get_metadata(queue.current_idx) as flags:
        return bool(flags[0]) and not flags[queue.local_reader_rank + 1]


def _guarded(action: Callable[[], None]) -> None:
    """Run an action. If it fails, no manager of this process captures while idle any more, and vLLM's loop goes on."""
    try:
        action()
    except Exception as error:
        _managers.clear()
        logger.warning("no further encoder graphs are captured while idle: %s: %s", type(error).__name__, error)
        logger.debug("where it happened", exc_info=error)


_WRAPPERS = {"_process_input_queue": _around_queue, "dequeue": _around_dequeue}
