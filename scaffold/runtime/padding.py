"""Padders: one for each kind of buffer. Every padder writes every element of its target.

The target is uninitialised memory, so an element that a padder forgets is garbage on the device. Sources and targets
may be on the host (a staging buffer) or on the device; no padder reads a device value on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from scaffold.runtime.adapter import BufferKind


@dataclass(frozen=True, slots=True)
class PadContext:
    """The rows of the captured graph and its longest sequence, for padders that need them."""

    end: int | None = None
    longest: int | None = None


Padder = Callable[[torch.Tensor, torch.Tensor, PadContext], None]


def pad_rows(target: torch.Tensor, source: torch.Tensor, context: PadContext) -> None:
    """Rows, then zeros."""
    n = source.shape[0]
    target[:n].copy_(source, non_blocking=True)
    if n < target.shape[0]:
        target[n:].zero_()


def pad_lengths(target: torch.Tensor, source: torch.Tensor, context: PadContext) -> None:
    """Lengths, then empty sequences."""
    pad_rows(target, source, context)


def pad_mask(target: torch.Tensor, source: torch.Tensor, context: PadContext) -> None:
    """A mask, then False: padded rows are not real."""
    pad_rows(target, source, context)


def pad_cumulative(target: torch.Tensor, source: torch.Tensor, context: PadContext) -> None:
    """Offsets, then either empty sequences or sequences that cover the padded rows.

    Without `context.end` the last offset repeats: zeros would run backwards and give a sequence of negative length.

    With it, sequences of at most `longest` rows cover the rows between the last real offset and `end`, so that no
    attention kernel leaves a row of its output unwritten. FlashAttention 3 multiplies such rows by probability zero,
    and zero times a stale NaN is NaN. Rows beyond the free slots stay uncovered; `cumulative_slots` tells how many
    slots are needed.
    """
    n = source.shape[0]
    target[:n].copy_(source, non_blocking=True)
    free = target.shape[0] - n
    if free <= 0:
        return
    if context.end is None:
        target[n:] = source[n - 1]
        return
    # Arithmetic on the device: reading the last offset on the host would be a sync when the source is on the device.
    step = context.longest or context.end
    ramp = torch.arange(1, free + 1, dtype=target.dtype, device=source.device) * step
    target[n:].copy_((ramp + source[n - 1]).clamp_(max=context.end), non_blocking=True)


def cumulative_slots(padded_rows: int, longest: int | None) -> int:
    """How many sequences cover `padded_rows` rows when none may be longer than `longest`."""
    if padded_rows <= 0:
        return 0
    return 1 if not longest else -(-padded_rows // longest)


def pad_two_section(target: torch.Tensor, source: torch.Tensor, context: PadContext) -> None:
    """Two offset sections, each padded by its own last value (a tail over both would move the second section)."""
    ours, theirs = target.shape[0] // 2, source.shape[0] // 2
    plain = PadContext()
    pad_cumulative(target[:ours], source[:theirs], plain)
    pad_cumulative(target[ours:], source[theirs:], plain)


def pad_permutation(target: torch.Tensor, source: torch.Tensor, context: PadContext) -> None:
    """A permutation of the first rows; the others map to themselves, so that the whole stays a permutation."""
    n, capacity = source.shape[0], target.shape[0]
    target[:n].copy_(source, non_blocking=True)
    if n < capacity:
        target[n:].copy_(torch.arange(n, capacity, dtype=target.dtype, device=target.device))


def pad_bound(target: torch.Tensor, source: torch.Tensor, context: PadContext) -> None:
    """Do nothing: the capture froze the bound. `exceeds` guards it."""


PADDERS: dict[BufferKind, Padder] = {
    BufferKind.ROWS: pad_rows,
    BufferKind.CUMULATIVE: pad_cumulative,
    BufferKind.TWO_SECTION: pad_two_section,
    BufferKind.LENGTHS: pad_lengths,
    BufferKind.PERMUTATION: pad_permutation,
    BufferKind.BOUND: pad_bound,
    BufferKind.MASK: pad_mask,
}


def exceeds(kind: BufferKind, captured: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a value does not fit into a captured buffer. Never reads a device value."""
    if captured.ndim == 0:
        if kind is not BufferKind.BOUND:
            return bool(value.numel() != 1)
        return bool(value.device.type == "cpu" and int(value) > int(captured))
    if value.ndim != captured.ndim or value.shape[1:] != captured.shape[1:]:
        return True
    if kind is BufferKind.TWO_SECTION:
        return bool(value.shape[0] % 2 != 0 or value.shape[0] // 2 > captured.shape[0] // 2)
    return bool(value.shape[0] > captured.shape[0])
