"""Which token budgets to capture: a geometric ladder by default, an optimal one from a trace, and what to leave out.

Pure arithmetic on integers; it does not need torch. A budget is the number of tokens that a graph was captured for; a
batch runs on the smallest budget that holds it, and the difference is waste.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence

#: Steps an octave of the default ladder: at most 1/32 of a batch is padding, 1.1 % on average.
DEFAULT_STEPS = 32


def octave_ladder(low: int, high: int, steps: int = DEFAULT_STEPS) -> list[int]:
    """The default ladder: geometric by octaves, each cut into `steps` equal steps, as floating-point numbers are.

    Waste is bounded as in a geometric ladder of ratio 1 + 1/steps, and every budget is a multiple of a power of two.
    That matters: matrix products work on tiles of 64 to 256 rows, and on an H200 a graph for 267 tokens (1068 rows)
    takes 11 % longer than one for 256 (1024 rows), while its inputs are 4 % larger.
    """
    if low < 1 or high < low:
        raise ValueError(f"a ladder needs 1 <= low <= high, got {low} and {high}")
    if steps < 1:
        raise ValueError(f"a ladder needs at least one step an octave, got {steps}")
    ladder = [low]
    while ladder[-1] < high:
        here = ladder[-1]
        step = max((1 << (here.bit_length() - 1)) // steps, 1)
        ladder.append(min((here // step + 1) * step, high))
    return ladder


def geometric_ladder(low: int, high: int, ratio: float = 1 + 1 / DEFAULT_STEPS, granule: int = 1) -> list[int]:
    """Budgets from `low` to `high`, neighbours at most `ratio` apart, above `low` multiples of `granule`.

    A geometric ladder bounds the waste of every size alike, which is the best one can do without knowing the traffic.
    Both ends are always in it. Where the integers (or the granule) are coarser than the ratio, every step is taken.
    """
    if low < 1 or high < low:
        raise ValueError(f"a ladder needs 1 <= low <= high, got {low} and {high}")
    if ratio <= 1:
        raise ValueError(f"the ratio of a ladder must be above 1, got {ratio}")
    ladder = [low]
    while ladder[-1] < high:
        here = ladder[-1]
        step = max(here + 1, int(here * ratio))
        aligned = step // granule * granule
        if aligned <= here:
            aligned = -(-(here + 1) // granule) * granule
        ladder.append(min(aligned, high))
    return ladder


def powers_of_two(low: int, high: int) -> list[int]:
    """vLLM's own choice: `low` doubled until `high`, and `high`."""
    ladder = []
    budget = low
    while budget <= high:
        ladder.append(budget)
        budget *= 2
    if not ladder or ladder[-1] < high:
        ladder.append(high)
    return ladder


def fitting_budget(ladder: Sequence[int], tokens: int) -> int | None:
    """The smallest budget of a sorted ladder that holds `tokens`, or None."""
    at = bisect.bisect_left(ladder, tokens)
    return ladder[at] if at < len(ladder) else None


def optimal_ladder(
    sizes: Mapping[int, int], graphs: int, *, cost: Callable[[int], float] = float, always: Iterable[int] = ()
) -> list[int]:
    """The ladder of at most `graphs` budgets with the least total cost for a trace of sizes.

    `sizes` maps a batch size in tokens to how often it was seen; `cost` is the time of a replay as a function of its
    budget, and must not decrease. `always` are budgets that must be in the ladder (the largest one, say).
    """
    return optimal_ladders(sizes, graphs, cost=cost, always=always)[graphs]


def optimal_ladders(
    sizes: Mapping[int, int], graphs: int, *, cost: Callable[[int], float] = float, always: Iterable[int] = ()
) -> dict[int, list[int]]:
    """The optimal ladders for every number of graphs that is possible, up to `graphs`. See `optimal_ladder`.

    Dynamic programming over the distinct sizes, O(graphs * n * log n) for all of them together: the cost of a segment,
    weight times cost of its largest size, satisfies the quadrangle inequality, so the best split point is monotone.
    """
    if graphs < 1:
        raise ValueError("a ladder needs at least one budget")
    wanted = sorted(set(always))
    merged: dict[int, int] = dict.fromkeys(wanted, 0)
    for size, count in sizes.items():
        if size > 0 and count > 0:
            merged[size] = merged.get(size, 0) + count
    points = sorted(merged)
    if not points:
        return {count: [] for count in range(1, graphs + 1)}
    n = len(points)
    weight = [0]
    for point in points:
        weight.append(weight[-1] + merged[point])
    price = [cost(point) for point in points]
    # A segment may not hide a budget that must stay: segments start right behind the last such budget.
    first_start = []
    start = 0
    for i, point in enumerate(points):
        first_start.append(start)
        if point in wanted:
            start = i + 1
    infinity = float("inf")
    best = [0.0] + [infinity] * n
    choices: list[list[int]] = []
    layers = min(graphs, n)
    if len(wanted) > layers:
        raise ValueError(f"{len(wanted)} budgets must be kept, but only {graphs} graphs are allowed")
    values: list[float] = []
    for _ in range(layers):
        row = [infinity] * (n + 1)
        choice = [0] * (n + 1)
        # Best cost of the first `middle` sizes with one budget more than `best` used; split points are monotone.
        work = [(1, n, 0, n - 1)]
        while work:
            low, high, first, last = work.pop()
            if low > high:
                continue
            middle = (low + high) // 2
            value, at = infinity, -1
            for split in range(max(first, first_start[middle - 1]), min(last, middle - 1) + 1):
                candidate = best[split] + (weight[middle] - weight[split]) * price[middle - 1]
                if candidate < value:
                    value, at = candidate, split
            row[middle], choice[middle] = value, max(at, 0)
            # An infeasible middle says nothing about its neighbours' splits.
            work.append((low, middle - 1, first, at if at >= 0 else last))
            work.append((middle + 1, high, at if at >= 0 else first, last))
        choices.append(choice)
        values.append(row[n])
        best = row

    def ladder_of(count: int) -> list[int]:
        ladder = []
        end = n
        for k in range(count - 1, -1, -1):
            ladder.append(points[end - 1])
            end = choices[k][end]
            if end == 0:
                break
        return ladder[::-1]

    found: dict[int, list[int]] = {}
    for count in range(max(len(wanted), 1), graphs + 1):
        # More graphs never cost more, but equal cost with fewer graphs is better.
        fewest = min(range(min(count, layers)), key=lambda k: (values[k], k)) + 1
        found[count] = ladder_of(fewest)
    return found


def waste(sizes: Mapping[int, int], ladder: Sequence[int], cost: Callable[[int], float] = float) -> float:
    """Share of the replayed cost that is padding, 0 to 1. Sizes above the ladder run eager and do not count."""
    useful = spent = 0.0
    for size, count in sizes.items():
        budget = fitting_budget(ladder, size)
        if budget is not None and size > 0:
            useful += count * cost(size)
            spent += count * cost(budget)
    return 0.0 if spent == 0 else 1 - useful / spent


def reachable_budgets(ladder: Sequence[int], item_tokens: Iterable[int], max_items: int, max_tokens: int) -> list[int]:
    """The budgets that some batch can need: sums of at most `max_items` items, at most `max_tokens` together.

    `item_tokens` are the sizes that one item can have (multiples of a tile's tokens, say). A budget is unreachable when
    no possible sum lies above the next smaller budget and at most at it.
    """
    top = min(max_tokens, max(ladder, default=0))
    sizes = sorted({size for size in item_tokens if 0 < size <= top})
    mask = (1 << (top + 1)) - 1
    # Bit t of `sums` says that a batch of t tokens is possible. One round adds one item.
    sums = 0
    frontier = 1
    for _ in range(max_items):
        grown = 0
        for size in sizes:
            grown |= frontier << size
        grown &= mask
        frontier = grown & ~sums
        if not frontier:
            break
        sums |= grown
    kept = []
    below = 0
    for budget in sorted(ladder):
        window = (sums >> (below + 1)) & ((1 << max(budget - below, 0)) - 1)
        if window:
            kept.append(budget)
        below = budget
    return kept


def thin_ladder(ladder: Sequence[int], keep: int) -> list[int]:
    """`keep` budgets of a ladder, evenly spread and with the largest, for a cap on capture time."""
    count = len(ladder)
    if keep >= count:
        return list(ladder)
    if keep < 1:
        return []
    return [ladder[count - 1 - (k * count) // keep] for k in range(keep)][::-1]
