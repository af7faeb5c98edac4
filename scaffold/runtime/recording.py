"""A stand-in for CUDA graphs on the CPU, with their traps.

A capture runs the forward once under a dispatch mode and keeps the list of operators with their arguments. A replay
runs the same operators on the same storages. So the rules of a GPU hold:

* Python values and shapes are frozen; only the contents of static buffers change.
* Unwritten memory holds garbage (here NaN).
* A host read of a device value fails.
* The next replay of any graph of the pool overwrites an output.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from scaffold.runtime.backend import CaptureError, Graph

#: Operators whose output shape depends on values. They wait for the device, so a capture on a GPU fails in them.
_SYNCHRONISING = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_consecutive",
    "aten::unique_dim",
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::equal",
}
_UNINITIALISED = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with NaN, or the largest integer, so that any use shows."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


class _Tape(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, bodies: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self._bodies = bodies
        #: Operator, arguments, outputs with storage of their own (by position), whether the operator leaves them
        #: unwritten.
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[tuple[int, torch.Tensor]], bool]] = []
        self.made: dict[int, torch.Tensor] = {}
        #: Values that live on the host in a real capture: Python data (`torch.tensor(3)`) and frozen bounds.
        self.host: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in self._bodies:
            with self:
                return self._bodies[name](*args, **kwargs)
        inputs = _tensors((args, kwargs))
        if name in _SYNCHRONISING and not all(_storage(a) in self.host for a in inputs):
            raise CaptureError(f"{name.removeprefix('aten::')} reads a device value on the host while capturing")
        if name in ("aten::index", "aten::index_put", "aten::index_put_") and _has_mask(args[1]):
            raise CaptureError("indexing with a mask depends on device values while capturing")
        result = func(*args, **kwargs)
        outputs = _tensors(result)
        if name == "aten::lift_fresh":
            self.host.update(_storage(t) for t in outputs)
            return result
        # Compare storages, not schemas: `reshape` and `to` may or may not alias.
        known = {_storage(a) for a in inputs}
        fresh = [(i, t) for i, t in enumerate(outputs) if _storage(t) not in known]
        for _, t in fresh:
            self.made[_storage(t)] = t
        mutates = func._schema.is_mutable
        if fresh or mutates:
            self.steps.append((func, args, kwargs, fresh, name in _UNINITIALISED))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


def _has_mask(indices: Any) -> bool:
    return any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices or ())


class RecordedGraph:
    """The operators of one forward, bound to their storages."""

    def __init__(self, backend: RecordingBackend, tape: _Tape, output: torch.Tensor) -> None:
        self._backend = backend
        self._tape = tape
        self.output = output
        self.replays = 0
        #: Whether its memory still holds its results.
        self._holds = True

    def replay(self) -> None:
        self._backend.before_replay(self)
        self._holds = True
        with torch.inference_mode():
            for func, args, kwargs, fresh, uninitialised in self._tape.steps:
                if uninitialised:
                    for _, tensor in fresh:
                        poison(tensor)
                    continue
                result = func(*args, **kwargs)
                if fresh:
                    made = _tensors(result)
                    for position, tensor in fresh:
                        tensor.copy_(made[position])
        self.replays += 1

    def spoil(self) -> None:
        """Overwrite everything that lives in the pool, as another graph's replay would."""
        if not self._holds:
            return
        self._holds = False
        with torch.inference_mode():
            for tensor in self._tape.made.values():
                poison(tensor)


class _Held:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class _Timer:
    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._end = self._begin

    def stop(self) -> None:
        self._end = time.perf_counter()

    def ms(self) -> float | None:
        return (self._end - self._begin) * 1e3


class RecordingBackend:
    """Capture and replay on the CPU."""

    name = "recording"
    #: Bytes of the pretended device.
    total = 1 << 50

    def __init__(
        self, device: torch.device | None = None, bodies: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.device = device or torch.device("cpu")
        #: Python bodies of custom operators by qualified name. A capture records their steps, not one opaque step.
        self.bodies = bodies or {}
        self.is_capturing = False
        self.graphs: list[RecordedGraph] = []
        self.captures = 0
        self.copies = 0
        #: Tests set these: raise for a capture (by its number), or pretend that memory is in use: by all graphs, and
        #: by each.
        self.fail: Callable[[int], bool] = lambda number: False
        self.bytes_per_graph = 0
        self.bytes_of_pool = 1 << 30
        self._held: weakref.WeakSet[_Held] = weakref.WeakSet()
        self.peak = 0
        self.clock: Callable[[Callable[[], object]], float] | None = None

    def new_pool(self) -> Any:
        return object()

    def empty(self, nbytes: int) -> torch.Tensor:
        # NaN in every floating type, and an index that is out of any range.
        memory = torch.empty(-(-nbytes // 4), dtype=torch.int32).fill_(0x7FFFFFFF)
        return memory.view(torch.uint8)[:nbytes]

    def staging(self, nbytes: int) -> torch.Tensor:
        return self.empty(nbytes)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        yield

    def capture(self, forward: Callable[[], torch.Tensor], pool: Any) -> Graph:
        self.captures += 1
        if self.fail(self.captures):
            raise CaptureError("refused by the test")
        tape = _Tape(self.bodies)
        tape.host = self._host_values(forward)
        self.is_capturing = True
        try:
            with tape:
                output = forward()
        finally:
            self.is_capturing = False
        if not isinstance(output, torch.Tensor):
            raise CaptureError(f"the captured forward returned {type(output).__name__}, not a tensor")
        graph = RecordedGraph(self, tape, output)
        graph.spoil()  # a capture does not execute, so its memory holds no result
        self.graphs.append(graph)
        return graph

    @staticmethod
    def _host_values(forward: Callable[[], torch.Tensor]) -> set[int]:
        bounds = getattr(forward, "host_values", ())
        return {_storage(t) for t in bounds}

    def before_replay(self, graph: RecordedGraph) -> None:
        for other in self.graphs:
            if other is not graph:
                other.spoil()

    def spoil(self, pool: Any) -> None:
        """Overwrite the memory of every graph."""
        for graph in self.graphs:
            graph.spoil()

    def timer(self) -> _Timer:
        """A running clock for one replay."""
        return _Timer()

    def idle(self) -> bool:
        return True

    def warm_up(self, forward: Callable[[], torch.Tensor]) -> int:
        forward()
        return self.peak

    def peak_of(self, forward: Callable[[], torch.Tensor]) -> int:
        return self.peak

    def reserve(self, pool: Any, nbytes: int) -> object:
        return None

    def memory_used(self) -> int:
        pool = self.bytes_of_pool if self.graphs else 0
        return pool + self.captures * self.bytes_per_graph + sum(held.nbytes for held in self._held)

    def memory_outside(self) -> int:
        return 0

    def memory_in_pools(self) -> int:
        return self.captures * self.bytes_per_graph

    def memory_free(self) -> int:
        return self.total - self.memory_used()

    def hold(self, nbytes: int) -> object:
        held = _Held(nbytes)
        self._held.add(held)
        return held

    def trim(self) -> None:
        return None

    def mark(self) -> object:
        return None

    def wait(self, mark: object | None) -> None:
        return None

    def elapsed_ms(self, action: Callable[[], object]) -> float:
        if self.clock is not None:
            return self.clock(action)
        begin = time.perf_counter()
        action()
        return (time.perf_counter() - begin) * 1e3
