"""Capturing the graphs of one encoder: which keys, in which order, within which caps, at start-up and when idle."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from scaffold.runtime.adapter import AxisKeys, BufferKind, EncoderAdapter, EncoderDescription, GraphKey, Limits, Room
from scaffold.runtime.backend import CaptureError, Graph, GraphBackend
from scaffold.runtime.budgets import refine, start_ladder
from scaffold.runtime.buffers import GraphBuffers, SharedBuffers, nbytes_of
from scaffold.runtime.compiled import Launches
from scaffold.runtime.options import CaptureReport, Options

logger = logging.getLogger("scaffold.runtime")

#: Budgets per octave that an idle worker captures in the end, whatever the traffic is.
IDLE_STEPS = 8
#: An idle worker captures a missing graph after so many batches needed it. A single size may never come again.
WANTED_USES = 2
#: Start-up holds these shares of its graphs' memory for later: for idle captures, and for what is kept of sizes.
#: Later graphs share the pool of the first ones, and metadata grow with the largest budget as graphs do.
IDLE_SHARE, KEPT_SHARE = 1 / 4, 1 / 8
#: Seconds until the next idle capture after one in which the device lost more memory than torch gave to it. Another
#: process may have taken it: its engine starts beside ours. After the last of them, it is taken for the driver's own.
AGAIN_AFTER = (5.0, 30.0, 180.0)


@dataclass(slots=True)
class Captured:
    """A graph, its static inputs, and addresses that must not change."""

    key: GraphKey
    graph: Graph
    buffers: GraphBuffers
    #: Tokens that the graph computes: fewer than the budget where tiles are coarser.
    tokens: int
    addresses: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Want:
    """A missing graph: how many batches needed it, and how much time it would have saved them together."""

    uses: int = 0
    saving: float = 0.0


class GraphSet:
    """The graphs of one encoder, their shared buffers and their memory pool.

    `small` are budgets of the ladders below those that start-up captures. An idle worker captures one of them only when
    the traffic needs it, for at most as many items as the budget has tokens. A failed capture does not stop the others:
    `report` has its reason.
    """

    def __init__(
        self,
        adapter: EncoderAdapter,
        backend: GraphBackend,
        options: Options,
        limits: Limits,
        ladders: Mapping[str, Sequence[int]],
        description: EncoderDescription,
        small: Mapping[str, Sequence[int]],
    ) -> None:
        self.adapter = adapter
        self.backend = backend
        self.options = options
        self.limits = limits
        self.ladders = ladders
        self.description = description
        self._small = small
        self.report = CaptureReport()
        self.graphs: dict[GraphKey, Captured] = {}
        self._launches = Launches()
        self.clear()

    def clear(self) -> None:
        """Drop every graph and all static memory."""
        self.graphs.clear()
        self.pool: Any = None
        self.buffers = SharedBuffers(self.backend, self.description)
        #: Graphs that the traffic lacks, by key.
        self.wanted: dict[GraphKey, Want] = {}
        self._left = self.options.idle_graphs
        #: Bytes that idle captures may still take, and the most that one of them has taken so far.
        self._room = self._dearest = 0
        #: Bytes that torch keeps of the temporary tensors of idle captures.
        self._kept = 0
        self._held: object = None
        self._shapes: dict[Hashable, GraphKey] = {}
        self._anchor: object = None
        self._full = False
        #: Idle captures that were undone since the device lost memory beside them, and when the next may be.
        self._undone, self._not_before = 0, 0.0

    def keys(self) -> list[GraphKey]:
        """The keys that start-up captures. Every path and axis gives the ends of its ladder first, then finer steps."""
        groups = [
            [GraphKey(path, budget, axes) for budget in start_ladder(ladder, self.options.start_steps)]
            for (path, axes), ladder in self._groups().items()
        ]
        return [key for stage in itertools.zip_longest(*groups) for key in stage if key is not None]

    def _groups(self) -> dict[tuple[str, AxisKeys], list[int]]:
        """The ladder of each path and axis, without the `small` budgets."""
        return {
            (path, axes): [b for b in ladder if b and b not in self._small.get(path, ())]
            for path, ladder in self.ladders.items()
            for axes in itertools.product(*self.description.axes)
        }

    def smallest(self, path: str) -> int:
        """The smallest budget of a path that is not `small`. Any smaller batch may use its graph."""
        return next((b for b in self.ladders[path] if b and b not in self._small.get(path, ())), 0)

    def limits_of(self, budget: int, items: int = 0) -> Limits:
        """The limits of a graph of `budget` tokens. It holds at most as many items, since each has at least one token.

        `items` is the number of items in a batch. It may exceed the tokens of a path on which some items have none.
        """
        return replace(self.limits, items=min(self.limits.items, max(budget, items)))

    def values_of(self, key: GraphKey) -> dict[str, torch.Tensor | None]:
        """The capture values of a key."""
        with self._launches.noted():
            return dict(self.adapter.capture_values(key, self.limits_of(key.budget)))

    def capture(self, pool: Any = None) -> CaptureReport:
        """Capture the start-up keys that fit the caps, after `clear`."""
        started = time.perf_counter()
        self.pool = self.backend.new_pool() if pool is None else pool
        report = self.report = CaptureReport()
        self.backend.trim()
        before = self.backend.memory_used()
        with torch.inference_mode(), self.backend.capturing():
            keys = self._warm_up(self.keys(), report)
            self._launches.compile_others()
            self._capture_all(keys, report, before, started)
            self._launches.wait()
        self.backend.trim()
        report.seconds = time.perf_counter() - started
        report.device_bytes = max(self.backend.memory_used() - before, 0)
        report.arena_bytes = self.buffers.nbytes
        self._hold_room(report)
        report.idle = self._left if self._room else 0
        return report

    def _hold_room(self, report: CaptureReport) -> None:
        """Hold the memory that comes to be used later, so that whoever measures the memory of this capture counts it.

        vLLM sizes its KV cache by such a measurement, and its peaks need all that it leaves. Where the device lacks the
        memory, nothing is captured later.
        """
        if not self.graphs:
            return
        options, graphs = self.options, report.device_bytes
        largest = max(key.budget for key in self.graphs)
        # The memory of all graphs grows with the largest.
        paid = graphs * max(largest - (options.paid_above or largest), 0) // largest
        idle, sizes = int(graphs * IDLE_SHARE), int(graphs * KEPT_SHARE)
        room = min(options.idle_bytes, max(idle - paid, 0)) if options.idle_graphs else 0
        if options.max_graph_bytes is not None:
            room = max(min(room, options.max_graph_bytes - graphs), 0)
        kept = min(options.plan_bytes, sizes, max(idle + sizes - paid, 0)) if self._keeps_sizes() else 0
        try:
            self._held = self.backend.hold(room + kept)
        except torch.OutOfMemoryError:
            logger.warning(
                "no encoder graphs are captured when idle, and no metadata are kept: %d MiB for them are not free",
                (room + kept) >> 20,
            )
            return
        self._room, report.kept_bytes, report.held_bytes = room, kept, room + kept

    def _keeps_sizes(self) -> bool:
        """Whether anything on the device is kept of sizes: metadata in plans, or tables of a model's code around."""
        if getattr(self.adapter, "around", None) is not None:  # its plans hold no metadata
            return bool(getattr(self.adapter, "keeps_tables", False))
        return any(captured.buffers.layout.nbytes for captured in self.graphs.values())

    def free_room(self) -> None:
        """Give the held memory back to the device, for what needs it now."""
        if self._held is not None:
            self._held = None
            self.backend.trim()

    def _warm_up(self, keys: list[GraphKey], report: CaptureReport) -> list[GraphKey]:
        """Load libraries, size the arenas and the pool for the largest graphs, and drop keys beyond the memory cap.

        The two smallest forwards of each path and axis load kernels and make torch.compile settle on dynamic shapes.
        vLLM warms up every graph, which doubles the capture time (28 ms of Python per forward). The largest graph of
        Step3-VL alone took 1 s to run and takes 30 ms to capture.
        """
        kept: list[GraphKey] = []
        most = 0
        measured: set[str] = set()
        for path, axes in self._groups():
            todo = sorted((key for key in keys if (key.path, key.axes) == (path, axes)), reverse=True)
            for key in todo[:-3:-1]:
                self._warm_up_one(key)
            fits, peak = self._fit_memory(todo, report, measure=path not in measured)
            measured.add(path)
            kept += fits
            most = max(most, peak)
        kept_keys = set(kept)
        self.backend.trim()  # else the process would hold the warm-up's memory twice: here and in the graph pool
        if self.options.compact and most:
            self._anchor = self.backend.reserve(self.pool, most)
        return [key for key in keys if key in kept_keys]

    def _warm_up_one(self, key: GraphKey) -> int:
        """Run the forward of a key once. Returns its peak memory in bytes, 0 if it failed."""
        try:
            values = self.values_of(key)
            return self.backend.warm_up(lambda: self.adapter.forward(dict(values), key.path))
        except Exception as error:  # the capture itself will say whether this key works
            logger.debug("warm-up of %s failed: %s", key, error)
            return 0

    def _fit_memory(self, keys: list[GraphKey], report: CaptureReport, *, measure: bool) -> tuple[list[GraphKey], int]:
        """The keys of one path and axis that fit the memory cap, largest first, and the peak bytes of the first."""
        cap = self.options.max_graph_bytes
        for position, key in enumerate(keys):
            try:
                values = self.values_of(key)
            except Exception as error:
                logger.debug("no values to measure %s with: %s", key, error)
                return keys[position:], 0
            need = sum(nbytes_of(v) for v in values.values() if v is not None)
            if cap is not None and need > cap:
                report.dropped[key] = f"its buffers take {need / 2**20:.0f} MiB of {cap / 2**20:.0f} MiB allowed"
                continue
            peak = 0
            if self.options.compact and (measure or cap is not None):
                peak = self._peak_of(key, values)
            elif cap is not None:
                peak = self._warm_up_one(key)
            if cap is not None and peak + need > cap:
                report.dropped[key] = f"it needs about {(peak + need) / 2**20:.0f} MiB of {cap / 2**20:.0f} MiB allowed"
                self.backend.trim()
                continue
            self.buffers.reserve(values)
            return keys[position:], peak
        return [], 0

    def _peak_of(self, key: GraphKey, values: Mapping[str, torch.Tensor | None]) -> int:
        def forward() -> torch.Tensor:
            return self.adapter.forward(dict(values), key.path)

        bounds = (v for n, v in values.items() if v is not None and self.description.buffer(n).kind is BufferKind.BOUND)
        forward.host_values = tuple(bounds)  # type: ignore[attr-defined]
        try:
            return self.backend.peak_of(forward)
        except Exception as error:
            logger.debug("%s cannot be measured: %s", key, error)
            return 0

    def _capture_all(self, keys: list[GraphKey], report: CaptureReport, before: int, started: float) -> None:
        cap_bytes, cap_seconds = self.options.max_graph_bytes, self.options.max_capture_seconds
        # A compact set has its pool laid out already. Otherwise larger graphs come first, and smaller ones reuse their
        # memory.
        queue = keys if self.options.compact else sorted(keys, key=lambda key: -key.budget)
        ends = 2 * len(self._groups())
        for position, key in enumerate(queue):
            if cap_seconds is not None and position >= ends and time.perf_counter() - started > cap_seconds:
                report.late = len(queue) - position
                break
            if cap_bytes is not None and report.captured:
                used = self.backend.memory_used() - before
                if used > cap_bytes:
                    report.dropped[key] = f"{used / 2**20:.0f} MiB of {cap_bytes / 2**20:.0f} MiB allowed are in use"
                    continue
            tick = time.perf_counter()
            self._capture_one(key, report)
            report.first_seconds = report.first_seconds or time.perf_counter() - tick
            if cap_bytes is not None and self.backend.memory_used() - before > cap_bytes:
                self._give_back(key, report, cap_bytes)

    def _give_back(self, key: GraphKey, report: CaptureReport, cap: int) -> None:
        """Drop a graph whose capture went over the memory cap."""
        dropped = self.graphs.pop(key, None)
        if dropped is None:
            return
        if key in report.captured:
            report.captured.remove(key)
        report.shared.pop(key, None)
        self._shapes = {shape: k for shape, k in self._shapes.items() if k != key}
        if all(captured is not dropped for captured in self.graphs.values()):
            self.buffers.release(dropped.buffers)
        report.dropped[key] = f"it went over the {cap / 2**20:.0f} MiB allowed"
        self.backend.trim()

    def _capture_one(self, key: GraphKey, report: CaptureReport) -> None:
        try:
            values = self.values_of(key)
            shape = self._shape_of(key, values)
            twin = self._shapes.get(shape)
            if twin in self.graphs:
                # Budgets between two tiles describe the same graph, and so do rooms of units: they share it.
                assert twin is not None
                self.graphs[key] = self.graphs[twin]
                report.shared[key] = twin
                return
            buffers = self.buffers.bind(key, values)
            try:
                captured = self._capture_on(key, buffers)
            except Exception:
                self.buffers.release(buffers)
                raise
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            report.failed[key] = why
            # A smaller graph may still fit at start-up. After that, the memory belongs to the server.
            self._full = self._full or "out of memory" in why.lower() or isinstance(error, torch.OutOfMemoryError)
            logger.debug("encoder graph %s cannot be captured", key, exc_info=error)
            return
        self.graphs[key] = captured
        self._shapes[shape] = key
        report.captured.append(key)

    @staticmethod
    def _shape_of(key: GraphKey, values: Mapping[str, torch.Tensor | None]) -> Hashable:
        described: list[Hashable] = [key.path, *(axis for axis in key.axes if not isinstance(axis, Room))]
        for name in sorted(values):
            value = values[name]
            if value is None:
                continue
            frozen = float(value) if value.ndim == 0 and value.device.type == "cpu" else None
            described.append((name, tuple(value.shape), value.dtype, frozen))
        return tuple(described)

    def _capture_on(self, key: GraphKey, buffers: GraphBuffers) -> Captured:
        def forward() -> torch.Tensor:
            return self.adapter.forward(dict(buffers.forward_values()), key.path)

        forward.host_values = tuple(buffers.bounds.values())  # type: ignore[attr-defined]
        with torch.inference_mode():
            try:
                graph = self.backend.capture(forward, self.pool)
            except Exception as error:
                if not self.options.retry:
                    raise
                # The forward may initialise something lazily (compile a kernel): run it eagerly once and try again.
                logger.debug("capture of %s failed, trying again after a warm-up: %s", key, error)
                self.backend.warm_up(forward)
                graph = self.backend.capture(forward, self.pool)
        addresses = self.addresses(buffers) if self.options.debug_addresses else {}
        tokens = key.budget
        if self.adapter.output_rows(key.path, tokens) is not None:
            tokens = min(tokens, graph.output.shape[0])
        return Captured(key, graph, buffers, tokens, addresses)

    def next_key(self) -> GraphKey | None:
        """The key to capture next while nothing waits. None if nothing is missing, or no more graphs are allowed.

        Graphs that the traffic needed more than once come first, ordered by the time that they would have saved.
        Budgets that start-up left out follow, up to `IDLE_STEPS` per octave.
        """
        if self.pool is None or self._full or self._left <= 0 or self._room <= self._dearest:
            return None
        if self._not_before and time.monotonic() < self._not_before:
            return None
        key = self._missing_key()
        return key if key is not None and self._has_room() else None

    @property
    def bytes_for_sizes(self) -> int:
        """Bytes for what is kept of sizes: a pool does not give back what a capture took beyond its room."""
        return max(self.report.kept_bytes + min(self._room, 0), 0)

    def _has_room(self) -> bool:
        """Whether the memory that was left for idle captures is still free: if not, somebody else needs it."""
        return self._held is not None or self.backend.memory_free() >= self._room

    def _missing_key(self) -> GraphKey | None:
        tried = {*self.graphs, *self.report.failed, *self.report.dropped}
        largest: dict[tuple[str, AxisKeys], int] = {}
        for key in self.graphs:
            largest[key.path, key.axes] = max(largest.get((key.path, key.axes), 0), key.budget)
        # Graphs that the memory cap dropped must not come back, and no larger ones either.
        wanted = {
            key: want.saving
            for key, want in self.wanted.items()
            if want.uses >= WANTED_USES and key not in tried and key.budget <= largest.get((key.path, key.axes), 0)
        }
        if wanted:
            return max(wanted, key=lambda key: wanted[key])
        for (path, axes), ladder in self._groups().items():
            within = [budget for budget in ladder if budget <= largest.get((path, axes), 0)]
            chosen = {key.budget for key in tried if (key.path, key.axes) == (path, axes)}
            budget = refine(within, chosen, 1 / IDLE_STEPS)
            if budget is not None:
                return GraphKey(path, budget, axes)
        return None

    def capture_next(self) -> GraphKey | None:
        """Capture the graph of `next_key`. Returns its key, or None if there is none to capture.

        Raises CaptureError if the capture fails. The next key may still work.
        """
        key = self.next_key()
        if key is None:
            return None
        self.free_room()
        if not self._has_room():
            return None
        before, outside, in_torch = self._memory(), self.backend.memory_outside(), self._memory_in_torch()
        with torch.inference_mode(), self.backend.capturing():
            self._capture_one(key, self.report)
        elsewhere = False
        if self._memory() - before > self._room:
            elsewhere = self._memory_in_torch() - in_torch <= self._room and self._undone < len(AGAIN_AFTER)
            self._full = self._full or not elsewhere
            self._give_back(key, self.report, self._room)
        self._kept += max(self.backend.memory_outside() - outside, 0)
        took = max(self._memory_in_torch() - in_torch if elsewhere else self._memory() - before, 0)
        self.report.device_bytes += took
        self._room -= took
        self._dearest = max(self._dearest, took)
        # An eager run before a second try leaves memory, too.
        if self._kept > self._room or (self._kept and key not in self.graphs):
            self.backend.trim()
            self._kept = 0
        self.wanted.pop(key, None)
        self._left -= 1
        self.report.idle = self._left
        if key in self.graphs:
            if self._room <= self._dearest:
                logger.info("no more encoder graphs are captured when idle: their memory is used")
            return key
        if elsewhere and key in self.report.dropped:
            del self.report.dropped[key]
            seconds = AGAIN_AFTER[self._undone]
            self._undone, self._not_before = self._undone + 1, time.monotonic() + seconds
            logger.info("the device lost memory while %s was captured: it is tried again in %.0f s", key, seconds)
            return None
        why = self.report.failed.get(key) or self.report.dropped[key]
        if self._full:
            logger.warning("no memory is left for more encoder graphs: %s failed, and no other is tried", key)
        else:
            logger.warning("encoder graph %s cannot be captured: %s", key, why)
        raise CaptureError(why)

    def _memory(self) -> int:
        """The memory that graphs take of the device, and our buffers.

        Not what torch keeps of the tensors that only a capture needed: the next one gets it. Counted as a graph's, it
        ended the idle captures of Qwen3-VL after 7 graphs that had taken 5 MiB together.
        """
        return self.backend.memory_used() - self.backend.memory_outside() + self.buffers.nbytes

    def _memory_in_torch(self) -> int:
        """The part of `_memory` that torch gave to graphs and buffers: no other process has a share in it."""
        return self.backend.memory_in_pools() + self.buffers.nbytes

    def drop(self, key: GraphKey, why: str) -> None:
        """Drop a graph, and every key that shares it. Their sizes then run on a larger graph, or eager."""
        captured = self.graphs.get(key)
        for other in [k for k, c in self.graphs.items() if c is captured]:
            del self.graphs[other]
            self.report.failed[other] = why

    def addresses(self, buffers: GraphBuffers) -> dict[str, int]:
        """Addresses of every tensor that a graph on these buffers reads, by a readable name. They must not change."""
        addresses = {
            f"buffer {name}": value.data_ptr()
            for name, value in buffers.forward_values().items()
            if value is not None and buffers.specs[name].kind is not BufferKind.BOUND
        }
        watched = getattr(self.adapter, "watched", dict)
        addresses.update((f"tensor {name}", tensor.data_ptr()) for name, tensor in watched().items())
        return addresses
