"""Why a replay is wrong: the failing call is served once more under observation, and the first deviation is named.

A wrong embedding alone says little. Between the caller's inputs and the result stand five steps, each of which has
something to be compared with; the first one that deviates is the cause:

1. The selected items, run without a graph, against the oracle.
2. The values of the replay, run through the captured forward without a graph, against the oracle.
3. The buffers of the graph after the manager filled them, against those values, and their tails against their kind.
4. The sequences that attention saw, against the bound that was frozen at the capture.
5. The graph's output, against the oracle, before and after results were cut out of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric import attention
from scaffold.verify.numeric.graphs import Lab
from scaffold.verify.numeric.reports import FROZEN, ROUND_UP, SECTIONS, captured_short

CAPTURE = "prepare_encoder_cudagraph_capture_inputs"
REPLAY = "prepare_encoder_cudagraph_replay_buffers"
SELECT = "select_encoder_cudagraph_items"

Tensors = dict[str, torch.Tensor]


def tensors(container: Any) -> Tensors:
    """The tensors of what a capture or replay method returns, in either form that releases have."""
    found = (
        container.values
        if hasattr(container, "values")
        else {**getattr(container, "mm_kwargs", {}), **container.buffers}
    )
    return {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}


@contextmanager
def wrapped(owner: Any, **wrappers: Callable[..., Any]) -> Iterator[None]:
    """Put `wrapper(original, *args, **kwargs)` in front of methods of one object. Nests."""
    present = {name: wrapper for name, wrapper in wrappers.items() if hasattr(owner, name)}
    outer = {name: vars(owner)[name] for name in present if name in vars(owner)}
    for name, wrapper in present.items():
        setattr(owner, name, partial(wrapper, getattr(owner, name)))
    try:
        yield
    finally:
        for name in present:
            delattr(owner, name)  # the class's own method is behind it
            if name in outer:
                setattr(owner, name, outer[name])


def _argument(method: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The value of one parameter in a call; its default, or None where a release has no such parameter."""
    bound = inspect.signature(method).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments.get(name)


@dataclass
class Replay:
    """One batch that a graph served: its items, what was handed to the graph, and what came out."""

    indices: list[int]
    selected: Mapping[str, Any]
    path: str
    budget: int
    values: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    output: torch.Tensor | None = None
    cut: tuple[int, int] | None = None
    apart: tuple[int, int] | None = None


class Witness:
    """Remembers the buffers of every graph of one manager, and on request observes how it serves a call."""

    def __init__(self, lab: Lab, host: nn.Module) -> None:
        self._lab = lab
        self._host: Any = host
        self._captured: dict[tuple[str, int], Tensors] = {}

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Note which buffers each graph is captured with."""

        def capture(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            inputs = original(*args, **kwargs)
            path = _argument(original, "path", args, kwargs) or "default"
            self._captured[path, _argument(original, "token_budget", args, kwargs)] = tensors(inputs)
            return inputs

        with wrapped(self._host, **{CAPTURE: capture}):
            yield

    def observe(self, manager: Any, execute: Callable[[], Any]) -> list[Replay]:
        """The replays of one call, in order; up to the one that raised, if one does."""
        replays: list[Replay] = []
        selection: tuple[list[int], Mapping[str, Any]] = ([], {})
        latest: Tensors = {}

        def select(original: Callable[..., Any], mm_kwargs: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal selection
            result = original(mm_kwargs, indices, *args, **kwargs)
            selection = list(indices), result
            return result

        def prepare(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            nonlocal latest
            result = original(*args, **kwargs)
            latest = tensors(result)
            if replays and not replays[-1].values and replays[-1].output is None:
                replays[-1].values = latest
            return result

        def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            budget = _argument(original, "token_budget", args, kwargs)
            path = _argument(original, "path", args, kwargs) or "default"
            indices, selected = selection
            replay = Replay(indices, selected, path, budget, buffers=self._captured.get((path, budget), {}))
            # Up to 0.22 the values are prepared before this call, later inside it.
            handed = _argument(original, "replay_buffers", args, kwargs)
            if handed is not None:
                replay.values = {**latest, **_of_kwargs(selected, replay.buffers)}
            replays.append(replay)
            attention.Counters.cut = attention.Counters.apart = None
            try:
                output = original(*args, **kwargs)
            finally:
                replay.cut, replay.apart = attention.Counters.cut, attention.Counters.apart
            with self._lab.unwatched():
                replay.buffers = {key: value.clone() for key, value in replay.buffers.items()}
                replay.output = None if output is None else output.clone()
            return output

        with (
            wrapped(self._host, **{SELECT: select, REPLAY: prepare}),
            wrapped(manager, _run_budget_graph=run),
            suppress(Exception),
        ):
            execute()
        return replays


def _of_kwargs(selected: Mapping[str, Any], buffers: Tensors) -> Tensors:
    return {key: value for key, value in selected.items() if key in buffers and isinstance(value, torch.Tensor)}


def first_difference(got: Sequence[Any], want: Sequence[torch.Tensor], tolerance: float) -> str:
    """Where the values of a list of embeddings deviate first: item and row. Empty where it is a shape that deviates."""
    for index, (result, oracle) in enumerate(zip(got, want, strict=False)):
        if not isinstance(result, torch.Tensor) or result.shape != oracle.shape:
            return ""  # what was compared says so already, with both shapes
        rows = _wrong_rows(result, oracle, tolerance)
        if rows:
            return f"item {index}, {len(rows)} of {len(oracle)} rows, the first is row {rows[0]}"
    return ""


def explain(host: nn.Module, replays: Sequence[Replay], want: Sequence[torch.Tensor], tolerance: float) -> str:
    """The first step of the first wrong replay that deviates, as text; empty where none does."""
    # Each of several paths gives a part of an item, and the oracle has only whole items.
    whole = all(replay.path == "default" for replay in replays)
    for replay in replays:
        oracle = torch.cat([want[index] for index in replay.indices]) if whole and replay.indices else None
        with torch.inference_mode():
            found = _explain_one(host, replay, oracle, tolerance)
        if found:
            return found
    ended = all(replay.output is not None for replay in replays)
    if whole and ended and sorted(index for replay in replays for index in replay.indices) == list(range(len(want))):
        return "each graph's output is right: the rows that belong to an item are cut out wrongly, or in another order"
    return ""


def _explain_one(host: Any, replay: Replay, oracle: torch.Tensor | None, tolerance: float) -> str:
    steps: tuple[Callable[[], str], ...] = (
        lambda: _capacity(replay),
        lambda: _selection(host, replay, oracle, tolerance),
        lambda: _never_filled(replay),
        lambda: _filled(replay),
        lambda: _tails(replay),
        lambda: _sections(replay),
        lambda: _bound(replay),
        lambda: _values(host, replay, oracle, tolerance),
        lambda: _output(replay, oracle, tolerance),
    )
    # A step that cannot run on this release or model says nothing; the others still may.
    for step in steps:
        try:
            found = step()
        except Exception:
            continue
        if found:
            return found
    return ""


def _capacity(replay: Replay) -> str:
    for key, value in replay.values.items():
        buffer = replay.buffers.get(key)
        if buffer is not None and value.ndim and buffer.ndim and len(value) > len(buffer):
            return (
                f"{captured_short(key)} {len(buffer)} entries for a budget of {replay.budget} tokens, and a replay "
                f"brings {len(value)}: {ROUND_UP}"
            )
    return ""


def _selection(host: Any, replay: Replay, oracle: torch.Tensor | None, tolerance: float) -> str:
    if oracle is None or not hasattr(host, "encoder_eager_forward"):
        return ""
    kwargs = {"path": replay.path} if "path" in inspect.signature(host.encoder_eager_forward).parameters else {}
    got = host.encoder_eager_forward(replay.selected, **kwargs)
    if not isinstance(got, torch.Tensor) or got.shape != oracle.shape:
        return ""
    if _wrong_rows(got, oracle, tolerance):
        return (
            f"the inputs selected for items {replay.indices} give other embeddings even without a graph: look at the "
            "order and the rows in select_encoder_cudagraph_items, and at the item specs"
        )
    return ""


def _never_filled(replay: Replay) -> str:
    if not replay.values:
        return ""
    stale = [key for key, buffer in replay.buffers.items() if buffer.ndim and key not in replay.values]
    # Before 0.23 a graph has one pixel buffer, under the key of one modality.
    stale = [key for key in stale if not key.startswith("pixel")] if len(stale) < len(replay.buffers) else stale
    if stale:
        return f"buffer {stale[0]!r} gets no value for a replay, so it is stale: it keeps what the capture left in it"
    return ""


def _filled(replay: Replay) -> str:
    for key, value in replay.values.items():
        buffer = replay.buffers.get(key)
        if buffer is None or not value.ndim or len(value) > len(buffer):
            continue
        head = buffer[: len(value)]
        wrong = (head != value.to(head.dtype)).flatten(1).any(1) if value.ndim > 1 else head != value.to(head.dtype)
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0])
            return f"buffer {key!r} differs from the replay's value from entry {index} on: look at its padding function"
    return ""


def _tails(replay: Replay) -> str:
    for key, value in replay.values.items():
        buffer = replay.buffers.get(key)
        if buffer is None or value.ndim != 1 or value.dtype.is_floating_point or len(value) < 2 or value[0] != 0:
            continue
        if not bool((value[1:] >= value[:-1]).all()) or value[-1] == len(value) - 1:
            continue  # a permutation that changes nothing is no list of offsets
        for index, (low, high) in enumerate(pairwise(buffer.tolist())):
            if high < low:
                return (
                    f"offsets in {key!r} fall from {low} to {high} at entry {index + 1}: their tail must repeat the "
                    "last value, not hold zeros"
                )
    return ""


def _sections(replay: Replay) -> str:
    if replay.apart is None:
        return ""
    queries, values = replay.apart
    return (
        f"a sequence's queries begin at row {queries} and its values at row {values}: {SECTIONS}, and each half of the "
        "buffer must be filled from its own half"
    )


def _bound(replay: Replay) -> str:
    if replay.cut is None:
        return ""
    length, bound = replay.cut
    ratio = f" ({length // bound} times as many)" if bound and length % bound == 0 else ""
    return (
        f"an attention sequence has {length} rows{ratio}, {FROZEN} {bound} when the graph was captured: "
        "give the capture a bound in rows (patches) of the longest sequence, not in output tokens"
    )


def _values(host: Any, replay: Replay, oracle: torch.Tensor | None, tolerance: float) -> str:
    if oracle is None or not replay.values:
        return ""
    forward = host.encoder_cudagraph_forward
    names = inspect.signature(forward).parameters
    kwargs = {"path": replay.path} if "path" in names else {}
    if "inputs" not in names:
        return ""
    missing = {key: buffer for key, buffer in replay.buffers.items() if key not in replay.values}
    got = forward({**missing, **replay.values}, **kwargs)
    if not isinstance(got, torch.Tensor) or got.numel() != oracle.numel():
        return ""
    if not _wrong_rows(got.reshape(oracle.shape), oracle, tolerance):
        return ""
    return (
        "the values of the replay give other embeddings even without padding and without a graph: look at the "
        f"metadata in {REPLAY} and at what the forward reads"
    )


def _output(replay: Replay, oracle: torch.Tensor | None, tolerance: float) -> str:
    if oracle is None or replay.output is None or replay.output.shape[-1] != oracle.shape[-1]:
        return ""
    output = replay.output.reshape(-1, oracle.shape[-1])[: len(oracle)]
    if output.shape != oracle.shape:
        return ""
    rows = _wrong_rows(output, oracle, tolerance)
    if not rows:
        return ""
    if bool(torch.isfinite(output).all()):
        return (
            f"the graph for {replay.budget} tokens is wrong from row {rows[0]} on although its buffers are right: a "
            "value that belongs to a batch was frozen when it was captured"
        )
    return (
        f"the graph for {replay.budget} tokens gives NaN from row {rows[0]} on: rows behind the batch, which no "
        "attention sequence covers, reach valid ones; extend the offsets over them, or let attention write into zeros"
    )


def _wrong_rows(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> list[int]:
    if not want.numel():
        return []
    limit = tolerance * max(float(want.abs().max()), 1e-12)
    # "Not close" instead of "far": NaN is far from everything.
    close = ((got.double() - want.double()).abs() <= limit).reshape(len(want), -1).all(1)
    return [int(index) for index in (~close).nonzero().flatten()]
