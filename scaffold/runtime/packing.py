"""Distribute the items of a call over replays. Pure functions on integers.

Two packers: `pack_greedy` gives exactly vLLM 0.33's batches (smallest first, with deferral at budget cliffs);
`pack_planned` minimises the predicted time over all cuts of the sorted items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scaffold.runtime.adapter import Item
from scaffold.runtime.budgets import fitting_budget

#: Time of a replay in units of tokens that does not depend on its size: launches, small kernels, host work. On an H200
#: an exact Qwen2.5-VL graph takes 3.8 ms for 64 tokens and 7.2 ms for 256, so a replay costs about 130 tokens.
REPLAY_OVERHEAD_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Batch:
    """Items of one replay, and the budget on each path (0: idle, None: nothing fits, run eager)."""

    indices: tuple[int, ...]
    budgets: Mapping[str, int | None]


def _budget(ladder: Sequence[int], tokens: int) -> int | None:
    return 0 if tokens == 0 else fitting_budget(ladder, tokens)


def pack_greedy(items: Sequence[Item], ladders: Mapping[str, Sequence[int]], max_items: int) -> list[Batch]:
    """Smallest items first; a batch ends when it is full or when the next item would cross a budget cliff.

    The rule of vLLM 0.33: an item is deferred if its own budget and the batch's together are smaller than the merged
    budget, and it alone outweighs the batch.
    """
    paths = tuple(ladders)
    top = {path: max(ladders[path], default=0) for path in paths}
    batches: list[Batch] = []
    current: list[int] = []
    filled = dict.fromkeys(paths, 0)

    def close() -> None:
        if current:
            batches.append(Batch(tuple(current), {path: _budget(ladders[path], filled[path]) for path in paths}))

    def crosses_cliff(item: Item) -> bool:
        for path in paths:
            tokens = item.tokens_on(path)
            if tokens == 0:
                continue
            have, alone, merged = (_budget(ladders[path], t) for t in (filled[path], tokens, filled[path] + tokens))
            if have is None or alone is None or merged is None:
                return True
            if have + alone < merged and alone >= have:
                return True
        return False

    for index in sorted(range(len(items)), key=lambda i: items[i].tokens):
        item = items[index]
        fits = len(current) < max_items and all(filled[p] + item.tokens_on(p) <= top[p] for p in paths)
        if current and (not fits or crosses_cliff(item)):
            close()
            current = []
            filled = dict.fromkeys(paths, 0)
        current.append(index)
        for path in paths:
            filled[path] += item.tokens_on(path)
    close()
    return batches


def _together(items: Sequence[Item], ladders: Mapping[str, Sequence[int]], max_items: int) -> list[Batch] | None:
    """One batch of all items, where no cut can be cheaper: a second replay costs more than the padding of this one.

    With the default ladder this holds for every call that fits into a replay. It saves a third of the manager's own
    part of a plan.
    """
    if len(ladders) != 1 or not 0 < len(items) <= max_items:
        return None
    ((path, ladder),) = ladders.items()
    tokens = sum([item.tokens_on(path) for item in items])
    budget = _budget(ladder, tokens)
    if budget is None or budget > tokens + REPLAY_OVERHEAD_TOKENS:
        return None
    return [Batch(tuple(range(len(items))), {path: budget})]


def pack_planned(
    items: Sequence[Item],
    ladders: Mapping[str, Sequence[int]],
    max_items: int,
) -> list[Batch]:
    """The cut of the size-sorted items into batches with the least predicted time, O(n * max_items).

    A replay costs the tokens of its budget and a fixed overhead; eager costs twice its own tokens and overhead. Items
    keep the order of the call within a batch, so that a batch of everything needs no gathering of pixels.
    """
    paths = tuple(ladders)
    together = _together(items, ladders, max_items)
    if together is not None:
        return together
    order = sorted(range(len(items)), key=lambda i: items[i].tokens)
    n = len(order)
    best = [0.0] + [float("inf")] * n
    start_of = [0] * (n + 1)
    budgets_of: list[dict[str, int | None]] = [{} for _ in range(n + 1)]
    for end in range(1, n + 1):
        filled = dict.fromkeys(paths, 0)
        for start in range(end - 1, max(end - max_items, 0) - 1, -1):
            item = items[order[start]]
            cost = 0.0
            budgets: dict[str, int | None] = {}
            oversized = False
            for path in paths:
                filled[path] += item.tokens_on(path)
                budget = budgets[path] = _budget(ladders[path], filled[path])
                if budget is None:
                    cost += 2.0 * (filled[path] + REPLAY_OVERHEAD_TOKENS)
                    oversized = True
                elif budget:
                    cost += budget + REPLAY_OVERHEAD_TOKENS
            if oversized and end - start > 1:
                break  # an item that needs eager runs alone: the others must not lose their graph to it
            if best[start] + cost <= best[end]:  # among equal cuts, take the one with fewer batches
                best[end], start_of[end], budgets_of[end] = best[start] + cost, start, budgets
    batches = []
    end = n
    while end > 0:
        start = start_of[end]
        batches.append(Batch(tuple(sorted(order[start:end])), budgets_of[end]))
        end = start
    return batches[::-1]
