"""Finds what a slow call did besides its work: compiling kernels, allocating device memory, collecting garbage.

A `Witness` counts these from its creation on. Read it before and after a call, outside of the timed part: the
difference is the work of the call.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
import torch._dynamo.utils as dynamo

#: Counters of `torch.cuda.memory_stats`. Each of these operations calls into the driver, and some wait for the device.
DEVICE_COUNTERS = ("num_device_alloc", "num_device_free", "num_alloc_retries")


class Witness:
    """Counts the operations that cost a call time and are not its work."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.collected_ms = 0.0
        self._began = 0.0
        gc.callbacks.append(self._collects)
        self._watch_triton()

    def _watch_triton(self) -> None:
        """Note every kernel that Triton compiles in this process, with its specialisation."""
        try:
            from triton import knobs
        except ImportError:  # without Triton there is nothing to note
            return

        def compiled(*_: Any, repr: str = "", fn: Any = None, **__: Any) -> None:
            self.compiled.append(f"{getattr(fn, 'name', fn)} {repr[:200]}")

        knobs.runtime.jit_post_compile_hook = compiled

    def _collects(self, phase: str, _: Any) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collected_ms += (time.perf_counter() - self._began) * 1e3

    def state(self) -> dict[str, Any]:
        """The counters now."""
        counters = torch.cuda.memory_stats()
        pinned = torch.cuda.host_memory_stats()
        return {
            "compiled": len(self.compiled),
            "dynamo_graphs": dynamo.counters["stats"]["unique_graphs"],
            "garbage_ms": self.collected_ms,
            **{name: counters.get(name, 0) for name in DEVICE_COUNTERS},
            "num_host_alloc": pinned.get("num_host_alloc", 0),
        }

    def since(self, before: dict[str, Any]) -> dict[str, Any]:
        """The counters that changed since then, by how much."""
        now = self.state()
        found: dict[str, Any] = {key: round(now[key] - was, 2) for key, was in before.items() if now[key] != was}
        if "compiled" in found:
            found["compiled"] = self.compiled[before["compiled"] :]
        return found
