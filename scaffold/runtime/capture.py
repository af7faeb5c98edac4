"""Capturing the graphs of one encoder: which keys, in which order, within which caps, at start-up and on demand."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scaffold.runtime.adapter import AxisKeys, BufferKind, EncoderAdapter, EncoderDescription, GraphKey, Limits
from scaffold.runtime.backend import Graph, GraphBackend
from scaffold.runtime.budgets import reachable_budgets, thin_ladder
from scaffold.runtime.buffers import GraphBuffers, SharedBuffers, nbytes_of
from scaffold.runtime.options import CaptureReport, Options

logger = logging.getLogger("scaffold.runtime")


@dataclass(slots=True)
class Captured:
    """A graph, its static inputs, and addresses that must not change."""

    key: GraphKey
    graph: Graph
    buffers: GraphBuffers
    #: Tokens that it computes: fewer than the budget where tiles are coarser.
    tokens: int
    addresses: dict[str, int] = field(default_factory=dict)


class GraphSet:
    """The graphs of one encoder, their shared buffers and their memory pool.

    `ladders` is the manager's, which may get further budgets. Nothing raises for a key that cannot be captured:
    `report` says why, and its sizes run eager.
    """

    def __init__(
        self,
        adapter: EncoderAdapter,
        backend: GraphBackend,
        options: Options,
        limits: Limits,
        ladders: Mapping[str, Sequence[int]],
        description: EncoderDescription,
    ) -> None:
        self.adapter = adapter
        self.backend = backend
        self.options = options
        self.limits = limits
        self.ladders = ladders
        self.description = description
        self.report = CaptureReport()
        self.graphs: dict[GraphKey, Captured] = {}
        self.clear()

    def clear(self) -> None:
        """Drop every graph and all static memory."""
        self.graphs.clear()
        self.pool: Any = None
        self.buffers = SharedBuffers(self.backend, self.description)
        #: Keys that may be captured when they are needed.
        self.deferred: set[GraphKey] = set()
        self._demand: Counter[GraphKey] = Counter()
        self._shapes: dict[Hashable, GraphKey] = {}
        self._anchor: object = None
        self._full = False

    def keys(self) -> list[GraphKey]:
        """Every key in capture order: largest first, so that smaller graphs live in the memory of larger ones."""
        return [
            GraphKey(path, budget, axes)
            for path, ladder in self.ladders.items()
            for budget in sorted(ladder, reverse=True)
            if budget > 0
            for axes in itertools.product(*self.description.axes)
        ]

    def capture(self, pool: Any = None) -> CaptureReport:
        """Capture every key that fits the caps, after `clear`. At start-up only some of them, the others on demand."""
        started = time.perf_counter()
        self.pool = self.backend.new_pool() if pool is None else pool
        report = self.report = CaptureReport()
        self.backend.trim()
        before = self.backend.memory_used()
        keys = self._defer(self._prune(self.keys(), report))
        with torch.inference_mode(), self.backend.capturing():
            keys = self._warm_up(keys, report)
            self._capture_all(keys, report, before)
        self._defer_no_larger()
        self.backend.trim()
        report.seconds = time.perf_counter() - started
        report.device_bytes = max(self.backend.memory_used() - before, 0)
        report.arena_bytes = self.buffers.nbytes
        return report

    def _prune(self, keys: list[GraphKey], report: CaptureReport) -> list[GraphKey]:
        """Leave out keys that no batch can need, if the adapter says which sizes an item can have.

        `item_tokens(path, axes)` of an adapter gives them, and None where they are not known.
        """
        sizes_of = getattr(self.adapter, "item_tokens", None)
        if sizes_of is None:
            return keys
        reachable: dict[tuple[str, AxisKeys], set[int]] = {}
        for path, axes in {(key.path, key.axes) for key in keys}:
            budgets = [b for b in self.ladders[path] if b]
            sizes = sizes_of(path, axes)
            top = self.options.max_tokens or max(budgets)
            reachable[path, axes] = set(
                budgets if sizes is None else reachable_budgets(budgets, sizes, self.limits.items, top)
            )
        kept = []
        for key in keys:
            if key.budget in reachable[key.path, key.axes]:
                kept.append(key)
            else:
                report.dropped[key] = "no batch within the limits can need it"
        return kept

    def _defer(self, keys: list[GraphKey]) -> list[GraphKey]:
        """The keys to capture at start-up; the others may be captured when they are needed."""
        start = self.options.start_graphs
        if start is None:
            return keys
        groups: dict[tuple[str, AxisKeys], list[int]] = {}
        for key in keys:
            groups.setdefault((key.path, key.axes), []).append(key.budget)
        first = {
            GraphKey(path, budget, axes)
            for (path, axes), budgets in groups.items()
            # The largest decides on memory, the smallest gains most.
            for budget in (*thin_ladder(sorted(budgets), max(start - 1, 1)), min(budgets))
        }
        self.deferred = {key for key in keys if key not in first}
        self.report.on_demand = min(len(self.deferred), self.options.demand_graphs)
        return [key for key in keys if key in first]

    def _defer_no_larger(self) -> None:
        """What the memory cap dropped must not come back on demand."""
        largest: dict[str, int] = {}
        for key in self.graphs:
            largest[key.path] = max(largest.get(key.path, 0), key.budget)
        self.deferred = {key for key in self.deferred if key.budget <= largest.get(key.path, 0)}
        self.report.on_demand = min(len(self.deferred), self.options.demand_graphs)

    def _warm_up(self, keys: list[GraphKey], report: CaptureReport) -> list[GraphKey]:
        """Load libraries, size the arenas and the pool by the largest graphs, and drop what exceeds the memory cap.

        Two small forwards a path load kernels and make torch.compile settle on dynamic shapes. vLLM warms every graph
        up, which doubles the capture time (28 ms of Python a forward); the largest graph alone took 1 s of Step3-VL's
        start-up to run and takes 30 ms to capture.
        """
        kept: list[GraphKey] = []
        most = 0
        for _, members in itertools.groupby(keys, key=lambda k: k.path):
            by_axes: dict[AxisKeys, list[GraphKey]] = {}
            for key in members:
                by_axes.setdefault(key.axes, []).append(key)
            for position, todo in enumerate(by_axes.values()):
                for key in todo[:-3:-1]:
                    self._warm_up_one(key)
                fits, peak = self._fit_memory(todo, report, measure=position == 0)
                kept += fits
                most = max(most, peak)
        kept_keys = set(kept)
        self.backend.trim()  # the warm-up's memory would be held twice: here and in the graph pool
        if self.options.compact and most:
            self._anchor = self.backend.reserve(self.pool, most)
        return [key for key in keys if key in kept_keys]

    def _warm_up_one(self, key: GraphKey) -> int:
        """Run the forward of a key once. Returns the peak of bytes that it needed, 0 if it failed."""
        try:
            values = dict(self.adapter.capture_values(key, self.limits))
            return self.backend.warm_up(lambda: self.adapter.forward(dict(values), key.path))
        except Exception as error:  # the capture itself will say whether this key works
            logger.debug("warm-up of %s failed: %s", key, error)
            return 0

    def _fit_memory(self, keys: list[GraphKey], report: CaptureReport, *, measure: bool) -> tuple[list[GraphKey], int]:
        """Keys of one path and axis, largest first, without those too large for the cap; bytes that the first needs."""
        cap = self.options.max_graph_bytes
        for position, key in enumerate(keys):
            try:
                values = dict(self.adapter.capture_values(key, self.limits))
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

    def _capture_all(self, keys: list[GraphKey], report: CaptureReport, before: int) -> None:
        cap_bytes, cap_seconds = self.options.max_graph_bytes, self.options.max_capture_seconds
        started = time.perf_counter()
        queue = list(keys)
        if cap_bytes is not None and self.options.compact:
            # The pool is laid out already, so the order is free. Small budgets gain most from a graph.
            largest = [next(group) for _, group in itertools.groupby(keys, key=lambda k: k.path)]
            queue = largest + [key for key in reversed(keys) if key not in largest]
        while queue:
            key = queue.pop(0)
            if cap_bytes is not None and report.captured:
                used = self.backend.memory_used() - before
                if used > cap_bytes:
                    report.dropped[key] = f"{used / 2**20:.0f} MiB of {cap_bytes / 2**20:.0f} MiB allowed are in use"
                    continue
            tick = time.perf_counter()
            self._capture_one(key, report)
            tock = time.perf_counter()
            if cap_bytes is not None and self.backend.memory_used() - before > cap_bytes:
                self._give_back(key, report, cap_bytes)
            if len(report.captured) == 1 and not report.first_seconds:
                report.first_seconds = tock - tick
            elif cap_seconds is not None and queue and len(report.captured) >= 2:
                each = (tock - started - report.first_seconds) / (len(report.captured) - 1)
                queue = self._fit_time(queue, report, cap_seconds - (tock - started), each)

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

    def _fit_time(self, queue: list[GraphKey], report: CaptureReport, left: float, each: float) -> list[GraphKey]:
        """Thin what is still to capture so that it fits the time left: every path and axis keeps an even spread."""
        affordable = int(left / each) if each > 0 else len(queue)
        if affordable >= len(queue):
            return queue
        share = max(affordable, 0) / len(queue)
        keep: set[GraphKey] = set()
        groups: dict[tuple[str, AxisKeys], list[int]] = {}
        for key in queue:
            groups.setdefault((key.path, key.axes), []).append(key.budget)
        for (path, axes), budgets in groups.items():
            count = int(len(budgets) * share)
            # Small budgets gain most from a graph: the smallest stays even when hardly anything else does.
            kept = set(thin_ladder(sorted(budgets), count - 1)) | {min(budgets)} if count >= 1 else set()
            keep.update(GraphKey(path, budget, axes) for budget in kept)
        for key in queue:
            if key not in keep:
                report.dropped[key] = f"the time cap of {self.options.max_capture_seconds:.1f} s leaves no room"
        return [key for key in queue if key in keep]

    def _capture_one(self, key: GraphKey, report: CaptureReport) -> None:
        try:
            values = dict(self.adapter.capture_values(key, self.limits))
            shape = self._shape_of(key, values)
            twin = self._shapes.get(shape)
            if twin in self.graphs:
                # Budgets between two tiles describe the same graph: share it.
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
            # Each further try would hold a request up. At start-up a smaller graph may still fit.
            self._full = self._full or "out of memory" in why.lower() or isinstance(error, torch.OutOfMemoryError)
            logger.debug("encoder graph %s cannot be captured", key, exc_info=error)
            return
        self.graphs[key] = captured
        self._shapes[shape] = key
        report.captured.append(key)

    @staticmethod
    def _shape_of(key: GraphKey, values: Mapping[str, torch.Tensor | None]) -> Hashable:
        described: list[Hashable] = [key.path, key.axes]
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
                # Something may have been initialised lazily (a kernel compiled): run it eagerly and try once more.
                logger.debug("capture of %s failed, trying again after a warm-up: %s", key, error)
                self.backend.warm_up(forward)
                graph = self.backend.capture(forward, self.pool)
        addresses = self.addresses(buffers) if self.options.debug_addresses else {}
        tokens = key.budget
        if self.adapter.output_rows(key.path, tokens) is not None:
            tokens = min(tokens, graph.output.shape[0])
        return Captured(key, graph, buffers, tokens, addresses)

    def capture_key(self, key: GraphKey) -> bool:
        """Capture one more graph now (lazy capture of a hot size). Returns whether it worked."""
        if key in self.graphs:
            return True
        cap = self.options.max_graph_bytes
        if self._full or (cap is not None and self.report.device_bytes >= cap):
            return False
        before = self.backend.memory_used()
        with torch.inference_mode(), self.backend.capturing():
            self._capture_one(key, self.report)
        self.report.device_bytes += max(self.backend.memory_used() - before, 0)
        if key not in self.graphs:
            if not self._full:
                logger.warning("encoder graph %s cannot be captured: %s", key, self.report.failed[key])
            elif self.deferred:
                logger.warning("no memory is left for more encoder graphs: %s failed, and no other is tried", key)
                self.deferred.clear()
            return False
        return True

    def drop(self, key: GraphKey, why: str) -> None:
        """Give a graph up, and whatever shares it: those sizes run eager from now on."""
        captured = self.graphs.get(key)
        for other in [k for k, c in self.graphs.items() if c is captured]:
            del self.graphs[other]
            self.report.failed[other] = why

    def capture_on_demand(self, key: GraphKey) -> bool:
        """Count a use of a budget without a graph, and capture it when it was needed often enough."""
        self._demand[key] += 1
        if self._demand[key] < self.options.demand_after:
            return False
        self.deferred.discard(key)
        captured = self.capture_key(key)
        self.report.on_demand -= 1
        if self.report.on_demand <= 0:
            self.deferred.clear()
        return captured

    def addresses(self, buffers: GraphBuffers) -> dict[str, int]:
        """Of everything that a graph on these buffers reads, by a name for people: they must stay as they are."""
        addresses = {
            f"buffer {name}": value.data_ptr()
            for name, value in buffers.forward_values().items()
            if value is not None and buffers.specs[name].kind is not BufferKind.BOUND
        }
        watched = getattr(self.adapter, "watched", dict)
        addresses.update((f"tensor {name}", tensor.data_ptr()) for name, tensor in watched().items())
        return addresses
