"""Reads the events of torch's profiler (Chrome trace events) into kernel records.

A kernel belongs to the operator and the module whose host ranges enclose its launch. This also covers kernels that no
torch operator launches (Triton, compiled code). The profiler's own tree leaves those without a parent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from scaffold.measure.profiles import Events, KernelRecord

#: Ranges that `measure` opens around each module call: `vitcg:<number>:<path>:<class>`.
MODULE_RANGE = "vitcg:"

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")


def read_trace(events: Events) -> tuple[KernelRecord, ...]:
    """Every device activity in order of its launch. Raises ValueError for a trace without any."""
    events = [event for event in events if "dur" in event]
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _LAUNCH and "correlation" in event.get("args", {})
    }
    operators, modules = _Ranges(), _Ranges()
    for event in events:
        if event.get("cat") == "cpu_op":
            operators.add(event)
        elif event.get("cat") == "user_annotation" and str(event.get("name", "")).startswith(MODULE_RANGE):
            modules.add(event)
    operators.close()
    modules.close()
    records = []
    for event in events:
        if event.get("cat") not in _DEVICE:
            continue
        launch = launches.get(event["args"].get("correlation"))
        at = launch["ts"] if launch is not None else -1.0
        records.append((at, _record(event, launch, operators, modules)))
    if not records:
        raise ValueError("the trace holds no kernels: it was recorded without a GPU, or without CUDA activities")
    return tuple(record for _, record in sorted(records, key=lambda pair: pair[0]))


def _record(
    event: Mapping[str, Any], launch: Mapping[str, Any] | None, operators: _Ranges, modules: _Ranges
) -> KernelRecord:
    op, number, path, kind = "", -1, "", ""
    shapes: tuple[tuple[int, ...], ...] = ()
    if launch is not None:
        inner = operators.around(launch)
        if inner:
            op = str(inner[0]["name"])
            described = next((e for e in inner if any(_dims(e))), inner[0])
            shapes = tuple(shape for shape in _dims(described) if shape)
            if described is not inner[0]:
                op = f"{described['name']}/{op}"
        around = modules.around(launch)
        if around:
            _, digits, path, kind = str(around[0]["name"]).split(":", 3)
            number = int(digits)
    return KernelRecord(str(event["name"]), float(event["dur"]), op, shapes, path, kind, number)


def _dims(event: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    found = event.get("args", {}).get("Input Dims", ())
    return tuple(tuple(d) if isinstance(d, list) and all(isinstance(n, int) for n in d) else () for d in found)


class _Ranges:
    """Host ranges by thread, to find those around a moment. Ranges of one thread nest."""

    def __init__(self) -> None:
        self._by_thread: dict[Any, list[Mapping[str, Any]]] = {}
        self._starts: dict[Any, list[float]] = {}
        self._parents: dict[Any, list[int]] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        self._by_thread.setdefault((event["pid"], event["tid"]), []).append(event)

    def close(self) -> None:
        """Sort by start (an outer range first) and note each range's nearest enclosing one."""
        for thread, events in self._by_thread.items():
            events.sort(key=lambda e: (e["ts"], -e["dur"]))
            self._starts[thread] = [e["ts"] for e in events]
            open_ranges: list[int] = []
            parents = []
            for index, event in enumerate(events):
                while open_ranges and _end(events[open_ranges[-1]]) < _end(event):
                    open_ranges.pop()
                parents.append(open_ranges[-1] if open_ranges else -1)
                open_ranges.append(index)
            self._parents[thread] = parents

    def around(self, launch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The ranges that enclose a launch, innermost first."""
        thread = (launch["pid"], launch["tid"])
        if thread not in self._starts:
            return []
        index = bisect_right(self._starts[thread], launch["ts"]) - 1
        found = []
        while index >= 0:
            event = self._by_thread[thread][index]
            if _end(event) >= launch["ts"]:
                found.append(event)
            index = self._parents[thread][index]
        return found


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])
