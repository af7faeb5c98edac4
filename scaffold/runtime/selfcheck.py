"""A start-up check that every graph equals eager, with garbage in all memory that the graph must not read.

A user asks for it. It is cheap: one eager run and one replay per graph. It needs no inputs: the static buffers hold the
values of the capture, and the same forward runs on them once eagerly and once as a replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scaffold.runtime.adapter import GraphKey, holds_pixels
from scaffold.runtime.buffers import buffers_fill
from scaffold.runtime.capture import Captured
from scaffold.runtime.manager import EncoderGraphManager


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one graph with eager."""

    key: GraphKey
    ok: bool
    #: Largest absolute difference; NaN if the replay has a NaN where eager has none.
    error: float
    detail: str = ""


def check_graphs(manager: EncoderGraphManager, *, rtol: float = 2e-2, atol: float = 2e-2) -> list[Finding]:
    """Fill the pool with NaN, then replay every graph on its capture values. Restores nothing: run it at start-up."""
    findings = []
    for key, captured in sorted(manager.graphs.items()):
        if captured.key != key:
            continue  # shares the graph of another budget
        with torch.inference_mode():
            findings.append(_check_one(manager, captured, rtol, atol))
    return findings


def _check_one(manager: EncoderGraphManager, captured: Captured, rtol: float, atol: float) -> Finding:
    buffers = captured.buffers
    values = dict(manager.adapter.capture_values(captured.key, manager.limits))
    for name in buffers.data:
        value = values.get(name)
        if value is not None and holds_pixels(value):
            values[name] = random_pixels(value)  # zeros would hide inputs that the graph does not read
    buffers_fill(buffers, values)
    expected = manager.adapter.forward(dict(buffers.forward_values()), captured.key.path).clone()
    poison_pool(manager)
    captured.graph.replay()
    actual = captured.graph.output.clone()
    return _compare(captured.key, actual, expected, rtol, atol)


def random_pixels(like: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """Random pixels of a shape and type: standard normal, or uniform bytes."""
    if like.dtype is torch.uint8:
        return torch.randint(0, 256, like.shape, dtype=like.dtype, device=like.device, generator=generator)
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def _compare(key: GraphKey, actual: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> Finding:
    if actual.shape != expected.shape:
        return Finding(key, False, float("nan"), f"shape {tuple(actual.shape)}, eager has {tuple(expected.shape)}")
    # Rows that eager itself leaves unwritten prove nothing. If it leaves all of them, nothing proves the graph.
    comparable = torch.isfinite(expected.float())
    if expected.numel() and not bool(comparable.any()):
        return Finding(key, False, float("nan"), "eager has no finite value to compare with, all is nan or infinite")
    difference = (actual.float() - expected.float()).abs()[comparable]
    error = float(difference.max()) if difference.numel() else 0.0
    allowed = atol + rtol * float(expected.float()[comparable].abs().max()) if difference.numel() else 0.0
    ok = error <= allowed  # False for NaN
    return Finding(key, ok, error, "" if ok else f"largest difference {error:.3g}, allowed {allowed:.3g}")


def poison_pool(manager: EncoderGraphManager) -> None:
    """Fill the memory of the graphs with NaN: a replay must write its intermediate values before it reads them.

    On a GPU another graph of the same pool does it, since the allocator gives it the memory of the others.
    """
    spoil = getattr(manager.backend, "spoil", None)
    if spoil is not None:
        spoil(manager.pool)
