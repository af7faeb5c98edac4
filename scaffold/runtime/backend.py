"""Capture and replay: the interface, and CUDA graphs.

The manager speaks to this interface only. `recording.RecordingBackend` is the second implementation: it replaces CUDA
graphs on a machine without a GPU, with the same semantics.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class CaptureError(RuntimeError):
    """A forward that cannot be captured. The manager then has no graph for that key."""


class Graph(Protocol):
    """One captured forward."""

    @property
    def output(self) -> torch.Tensor:
        """The result of the last replay. It borrows graph memory: valid until any other graph of the pool replays."""

    def replay(self) -> None:
        """Run on the present contents of the static buffers, asynchronously."""


class Timer(Protocol):
    """A clock that runs from its creation on the device's stream."""

    def stop(self) -> None:
        """End the measurement."""

    def ms(self) -> float | None:
        """Milliseconds, or None while the device has not passed the end."""


class GraphBackend(Protocol):
    """The operations that the manager needs of a device."""

    name: str

    def new_pool(self) -> Any:
        """A memory pool that graphs may share."""

    def empty(self, nbytes: int) -> torch.Tensor:
        """Uninitialised device bytes."""

    def staging(self, nbytes: int) -> torch.Tensor:
        """Uninitialised host bytes that can be copied to the device asynchronously."""

    def capture(self, forward: Callable[[], torch.Tensor], pool: Any) -> Graph:
        """Capture a forward on static buffers. Raises if it cannot be captured."""

    def warm_up(self, forward: Callable[[], torch.Tensor]) -> int:
        """Run a forward once, eagerly. Returns its peak memory in bytes."""

    def peak_of(self, forward: Callable[[], torch.Tensor]) -> int:
        """Bytes of the block that serves a pool best for a forward. Does not run the forward if it can avoid that."""

    def reserve(self, pool: Any, nbytes: int) -> object:
        """Give a pool one contiguous block before its graphs are captured. It stays while the result lives."""

    def timer(self) -> Timer:
        """A running clock of the device, read later without waiting."""

    def idle(self) -> bool:
        """Whether the device has finished all its work. Does not wait."""

    def capturing(self) -> Any:
        """A context around a series of captures."""

    def memory_used(self) -> int:
        """Bytes of device memory in use."""

    def memory_outside(self) -> int:
        """Bytes of `memory_used` that torch has outside of the pools of graphs, less a constant: compare two of them.

        Torch keeps such memory when a tensor goes, and gives it to whatever runs next.
        """

    def memory_in_pools(self) -> int:
        """Bytes that captures added to the pools of graphs, less a constant: compare two of them."""

    def memory_free(self) -> int:
        """Bytes of device memory that nothing uses."""

    def hold(self, nbytes: int) -> object:
        """Device memory that counts as used while the result lives, and until `trim` after that."""

    def trim(self) -> None:
        """Give unused cached memory back to the device."""

    def mark(self) -> object:
        """An event at the present end of the stream."""

    def wait(self, mark: object | None) -> None:
        """Wait on the host until an event has passed."""

    def elapsed_ms(self, action: Callable[[], object]) -> float:
        """Device time of an action in milliseconds. Synchronises."""


class _CudaGraph:
    """A replayable graph and an alias of its output."""

    __slots__ = ("_graph", "output", "replay")

    def __init__(self, graph: torch.cuda.CUDAGraph, output: torch.Tensor) -> None:
        self._graph = graph
        self.output = output
        # Bind the launch once, below torch's Python wrapper, which only serves its debug mode. The replay path then
        # makes one call and no look-ups.
        launch = getattr(super(torch.cuda.CUDAGraph, graph), "replay", None)
        self.replay = graph.replay if launch is None or getattr(graph, "_tracker", None) is not None else launch


def borrow(tensor: torch.Tensor) -> torch.Tensor:
    """An alias that does not keep its memory reserved.

    The owner goes away after the capture, so the pool may give the output's memory to the next graph. That is safe
    because the manager copies the output before anything else replays. It saves one output buffer per graph (58 MB at
    8192 tokens of Qwen2.5-VL) and the copy into it.
    """
    memory = tensor.untyped_storage()
    alias = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), memory.device, memory.nbytes())
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        alias, tensor.storage_offset(), tensor.shape, tensor.stride()
    )


class _CudaTimer:
    """Events around one replay. The manager reads them later, so the host never waits in the replay path."""

    __slots__ = ("_begin", "_end")

    def __init__(self) -> None:
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def ms(self) -> float | None:
        return float(self._begin.elapsed_time(self._end)) if self._end.query() else None


_SIDE_STREAMS: dict[int, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One capture stream per device: cuBLAS keeps a workspace (32 MiB on Hopper) for every stream that it has seen."""
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _SIDE_STREAMS:
        _SIDE_STREAMS[index] = torch.cuda.Stream(device)
    return _SIDE_STREAMS[index]


#: The sizes of a pool's first block that are tried, relative to the peak of the largest forward: gaps come in addition.
#: On an H200 1.0 and 1.1 left three of five towers with further segments of 320 to 770 MiB, and 1.2 left none.
BLOCK_SIZES = (1.0, 1.05, 1.1, 1.15, 1.2)


#: A pool that takes so much of the smallest is small enough.
SMALL_ENOUGH = 1.05


def fit_block(peak: int, pool_with: Callable[[int], int]) -> int:
    """Bytes of the largest block with which a pool, `pool_with(block)`, is small enough: its further segments count.

    The graphs of other sizes find room in one large block. In a small one with further segments, they need more.
    """
    took: dict[int, int] = {}
    for block in (int(peak * size) for size in BLOCK_SIZES):
        if took and block > SMALL_ENOUGH * min(took.values()):
            break  # it takes more by itself
        took[block] = pool_with(block)
    return max(block for block, pool in took.items() if pool <= SMALL_ENOUGH * min(took.values()))


class CudaGraphBackend:
    """CUDA graphs in one shared memory pool."""

    name = "cuda"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._spoiler: tuple[Any, Graph] | None = None
        #: Bytes that captures added to pools.
        self._pool_bytes = 0
        #: Pools that took the place of pools that a failed capture broke.
        self._successors: dict[Any, Any] = {}

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def empty(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def staging(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Run captures on one side stream with the garbage collector off.

        `torch.cuda.graph` may collect garbage before each capture (about 330 ms per graph in a vLLM process), and a
        collection in the middle of a capture can free memory that the graph must not touch.
        """
        enabled = gc.isenabled()
        gc.disable()
        torch.cuda.synchronize(self.device)
        current = torch.cuda.current_stream(self.device)
        # vLLM captures inside its own side stream, which its collectives know: stay on it.
        if current == torch.cuda.default_stream(self.device):
            self._stream = self._stream or _side_stream(self.device)
        else:
            self._stream = current
        try:
            yield
        finally:
            torch.cuda.synchronize(self.device)
            if enabled:
                gc.enable()

    def capture(self, forward: Callable[[], torch.Tensor], pool: Any) -> Graph:
        stream = self._stream or _side_stream(self.device)
        current = torch.cuda.current_stream(self.device)
        graph = torch.cuda.CUDAGraph()
        while pool in self._successors:
            pool = self._successors[pool]
        stream.wait_stream(current)
        reserved = torch.cuda.memory_reserved(self.device)
        with torch.cuda.stream(stream):
            # thread_local: another thread's harmless CUDA call (a copy of finished outputs) must not break us.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                output = forward()
            except BaseException:
                self._abandon(graph, pool)
                raise
            finally:
                self._pool_bytes += torch.cuda.memory_reserved(self.device) - reserved
            graph.capture_end()
        current.wait_stream(stream)
        if not isinstance(output, torch.Tensor):
            raise CaptureError(f"the captured forward returned {type(output).__name__}, not a tensor")
        return _CudaGraph(graph, borrow(output))

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """End a capture whose forward raised, so that the allocator, the stream and random numbers are usable again."""
        invalidated = False
        try:
            graph.capture_end()
        except RuntimeError:
            # The runtime had invalidated the capture. Torch then leaves its allocator routed to the pool. That pool
            # refuses every later capture and is never freed. In torch 2.11 it stays unusable even if we end the capture
            # by hand, so later captures get another pool.
            invalidated = True
            self._route_back(pool)
            self._successors[pool] = torch.cuda.graph_pool_handle()
        with contextlib.suppress(RuntimeError):  # the error of the capture comes up here once more
            torch.cuda.synchronize(self.device)
        if invalidated:
            self._end_in_generator()

    def _end_in_generator(self) -> None:
        """Tell the generator of random numbers that no capture goes on.

        The end of a working capture tells it; the end of an invalidated one does not. The next random number outside of
        a capture would then raise "Offset increment outside graph capture" (torch 2.11).
        """
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            torch.zeros(1, device=self.device)
            graph.capture_end()
        except RuntimeError:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            self._route_back(pool)

    def _route_back(self, pool: Any) -> None:
        """Take the allocator away from the pool of a capture that torch did not end."""
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        for _ in range(2):
            with contextlib.suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(index, pool)

    def warm_up(self, forward: Callable[[], torch.Tensor]) -> int:
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        stream = self._stream or torch.cuda.current_stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            forward()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.max_memory_allocated(self.device) - before)

    def peak_of(self, forward: Callable[[], torch.Tensor]) -> int:
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        pools = self._pool_bytes
        try:
            # The allocator counts during a capture, too, while the device runs nothing: 26 ms of Step3-VL, not 1 s.
            self.capture(forward, torch.cuda.graph_pool_handle())
            peak = torch.cuda.max_memory_allocated(self.device) - before
        except Exception:
            block = int(self.warm_up(forward) * BLOCK_SIZES[-1])
        else:
            block = fit_block(peak, lambda block: self._pool_with(block, forward)) if peak else 0
        self.trim()
        self._pool_bytes = pools  # those pools are gone
        return block

    def _pool_with(self, block: int, forward: Callable[[], torch.Tensor]) -> int:
        """Bytes of a pool that starts with a block of this size, after it has captured a forward."""
        self.trim()
        pool, reserved = torch.cuda.graph_pool_handle(), torch.cuda.memory_reserved(self.device)
        try:
            anchor = self.reserve(pool, block)  # keeps the pool until its size is known
            self.capture(forward, pool)
            took = int(torch.cuda.memory_reserved(self.device) - reserved)
        except torch.OutOfMemoryError:
            return sys.maxsize
        del anchor
        return took

    def reserve(self, pool: Any, nbytes: int) -> object:
        """Give the pool one block for the largest graph. The allocator then cuts the tensors of all graphs from it.

        Without the block, the allocator gives each tensor that finds no gap a segment of its own: 1546 MiB for a
        forward of Qwen2.5-VL whose peak is 1042 MiB, and 7116 for one of Step3-VL with 3655. With it they take 1256 and
        4390.
        """

        def fill() -> torch.Tensor:
            block = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
            return block[:1].zero_()

        return self.capture(fill, pool)

    def timer(self) -> _CudaTimer:
        """A running clock for one replay."""
        return _CudaTimer()

    def idle(self) -> bool:
        return bool(torch.cuda.current_stream(self.device).query())

    def spoil(self, pool: Any) -> None:
        """Fill the memory that the graphs of a pool share with NaN, for checks only.

        A further graph does it. During its capture, the allocator hands out the pool's free blocks, and the replays of
        the other graphs write into exactly those.
        """
        if self._spoiler is None or self._spoiler[0] != pool:

            def fill() -> torch.Tensor:
                free = [
                    block["size"]
                    for segment in torch.cuda.memory_snapshot()
                    if tuple(segment["segment_pool_id"]) == tuple(pool)
                    for block in segment["blocks"]
                    if block["state"] == "inactive"
                ]
                held = [
                    torch.empty(size // 2, dtype=torch.bfloat16, device=self.device).fill_(float("nan"))
                    for size in sorted(free, reverse=True)
                ]
                return held[0] if held else torch.zeros((), device=self.device)

            with self.capturing():
                self._spoiler = (pool, self.capture(fill, pool))
        self._spoiler[1].replay()

    def memory_used(self) -> int:
        free, total = torch.cuda.mem_get_info(self.device)
        return int(total - free)

    def memory_outside(self) -> int:
        return int(torch.cuda.memory_reserved(self.device)) - self._pool_bytes

    def memory_in_pools(self) -> int:
        return self._pool_bytes

    def memory_free(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    def hold(self, nbytes: int) -> object:
        return self.empty(nbytes)

    def trim(self) -> None:
        torch.cuda.empty_cache()

    def mark(self) -> object:
        event = torch.cuda.Event()
        event.record()
        return event

    def wait(self, mark: object | None) -> None:
        if isinstance(mark, torch.cuda.Event) and not mark.query():
            mark.synchronize()

    def elapsed_ms(self, action: Callable[[], object]) -> float:
        torch.cuda.synchronize(self.device)
        begin = time.perf_counter()
        action()
        torch.cuda.synchronize(self.device)
        return (time.perf_counter() - begin) * 1e3
