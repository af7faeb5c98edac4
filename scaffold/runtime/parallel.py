"""Data parallelism: spread the items of a call over ranks, gather the outputs, restore the order.

Every rank sees the same inputs and computes the same assignment, so only outputs travel. The collective comes from the
host (vLLM's tensor-parallel group, or torch.distributed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class Group(Protocol):
    """The ranks that share the items of a call."""

    rank: int
    size: int

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Tensors of all ranks, which have the same shape, concatenated along the first dimension."""


class TorchGroup:
    """A group of `torch.distributed`."""

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = torch.distributed.get_rank(group)
        self.size = torch.distributed.get_world_size(group)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        torch.distributed.all_gather(parts, tensor.contiguous(), group=self._group)
        return torch.cat(parts)


def assign_by_cost(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices for each rank: the dearest item first, always to the rank with the least work.

    This is the LPT rule; its worst rank has at most 4/3 of the optimal work. Ties go to the lower rank and the lower
    index, so every rank computes the same assignment. Items keep the order of the call within a rank.
    """
    work = [0] * ranks
    assigned: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(ranks), key=lambda r: (work[r], r))
        assigned[rank].append(index)
        work[rank] += costs[index]
    return [sorted(indices) for indices in assigned]


def run_sharded(
    group: Group,
    *,
    costs: Sequence[int],
    tokens: Sequence[int],
    run: Callable[[list[int]], list[torch.Tensor]],
    width: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[torch.Tensor]:
    """Run this rank's items and gather those of all ranks. Returns one `[tokens, width]` tensor per item, in order.

    A rank without items does not call `run`, but still takes part in the gather. All ranks pad to the same number of
    rows, which follows from sizes alone.
    """
    assignment = assign_by_cost(costs, group.size)
    rows = [sum(tokens[i] for i in indices) for indices in assignment]
    capacity = max(rows, default=0)
    if capacity == 0:
        return [torch.empty((0, width), device=device, dtype=dtype) for _ in tokens]
    mine = assignment[group.rank]
    padded = torch.zeros((capacity, width), device=device, dtype=dtype)
    offset = 0
    for index, output in zip(mine, run(mine) if mine else (), strict=True):
        if tuple(output.shape) != (tokens[index], width):
            raise ValueError(f"item {index} gave shape {tuple(output.shape)}, expected {(tokens[index], width)}")
        padded[offset : offset + output.shape[0]].copy_(output)
        offset += output.shape[0]
    gathered = group.all_gather(padded)
    results: list[torch.Tensor | None] = [None] * len(tokens)
    for rank, indices in enumerate(assignment):
        offset = rank * capacity
        for index in indices:
            results[index] = gathered[offset : offset + tokens[index]]
            offset += tokens[index]
    return [r for r in results if r is not None]
