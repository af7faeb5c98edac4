"""Which token budgets to capture: a geometric ladder by default, an optimal one from a trace, and which to leave out.

This is pure arithmetic on integers, without torch. A budget is the number of tokens of a graph. A batch runs on the
smallest budget that holds it, and the difference is waste.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

#: Steps per octave of the default ladder: at most 1/32 of a batch is padding, 1.1 % on average.
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
    budget, and must not decrease. `always` are budgets that must be in the ladder. Raises ValueError where `graphs` has
    no room for them and the largest size.
    """
    return optimal_ladders(sizes, graphs, cost=cost, always=always)[graphs]


def optimal_ladders(
    sizes: Mapping[int, int], graphs: int, *, cost: Callable[[int], float] = float, always: Iterable[int] = ()
) -> dict[int, list[int]]:
    """The optimal ladders for every number of graphs that is possible, up to `graphs`. See `optimal_ladder`.

    Dynamic programming over the distinct sizes, O(graphs * n). The last budget of a ladder covers the sizes after a
    split, at the price of the largest one. Each split is a line as a function of that price. The lowest lines of all
    splits form a hull, and growing prices walk along it (the convex hull trick).
    """
    if graphs < 1:
        raise ValueError("a ladder needs at least one budget")
    wanted = set(always)
    merged: dict[int, int] = dict.fromkeys(wanted, 0)
    for size, count in sizes.items():
        if size > 0 and count > 0:
            merged[size] = merged.get(size, 0) + count
    points = sorted(merged)
    if not points:
        return {count: [] for count in range(1, graphs + 1)}
    n = len(points)
    needed = len({*wanted, points[-1]})
    if needed > graphs:
        raise ValueError(f"{needed} budgets must be kept, but only {graphs} graphs are allowed")
    weight = [0]
    for point in points:
        weight.append(weight[-1] + merged[point])
    price = [cost(point) for point in points]
    best = [0.0] + [math.inf] * n
    choices: list[list[int]] = []
    values: list[float] = []
    for _ in range(min(graphs, n)):
        best, choice = _one_more(best, points, weight, price, wanted)
        choices.append(choice)
        values.append(best[n])

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
    for count in range(needed, graphs + 1):
        # More graphs never cost more, but equal cost with fewer graphs is better.
        fewest = min(range(min(count, len(values))), key=lambda k: (values[k], k)) + 1
        found[count] = ladder_of(fewest)
    return found


def _one_more(
    best: list[float], points: list[int], weight: list[int], price: list[float], wanted: set[int]
) -> tuple[list[float], list[int]]:
    """The least costs of the first `i` sizes with one budget more than `best` has, and where its sizes begin."""
    row = [math.inf] * len(best)
    choice = [0] * len(best)
    # Lines `intercept - slope * price` of the hull, with their splits. Slopes grow; the first line is the lowest now.
    hull: list[tuple[int, float, int]] = []
    first = 0
    for i, point in enumerate(points):
        if best[i] < math.inf:
            slope, intercept = weight[i], best[i]
            while len(hull) > first and hull[-1][0] == slope and hull[-1][1] >= intercept:
                hull.pop()
            while len(hull) > first + 1:
                (below, low, _), (above, high, _) = hull[-2:]
                if (intercept - low) * (above - below) > (high - low) * (slope - below):
                    break
                hull.pop()  # nowhere the lowest
            if len(hull) <= first or slope > hull[-1][0]:
                hull.append((slope, intercept, i))
        at = price[i]
        while (
            first + 1 < len(hull)
            and hull[first + 1][1] - hull[first + 1][0] * at < hull[first][1] - hull[first][0] * at
        ):
            first += 1
        if first < len(hull):
            slope, intercept, split = hull[first]
            row[i + 1], choice[i + 1] = weight[i + 1] * at + intercept - slope * at, split
        if point in wanted:  # no budget may cover sizes on both sides of it
            first = len(hull)
    return row, choice


def waste(sizes: Mapping[int, int], ladder: Sequence[int], cost: Callable[[int], float] = float) -> float:
    """Share of the replayed cost that is padding, 0 to 1. Sizes above the ladder run eager and do not count."""
    useful = spent = 0.0
    for size, count in sizes.items():
        budget = fitting_budget(ladder, size)
        if budget is not None and size > 0:
            useful += count * cost(size)
            spent += count * cost(budget)
    return 0.0 if spent == 0 else 1 - useful / spent


def start_ladder(ladder: Sequence[int], steps: int | None) -> list[int]:
    """The budgets of a sorted ladder that `steps` an octave need, in the order of `refine`; all of them for None."""
    chosen: dict[int, None] = {}
    while (budget := refine(ladder, chosen, 1 / steps if steps else 0.0)) is not None:
        chosen[budget] = None
    return list(chosen)


def refine(ladder: Sequence[int], chosen: Collection[int], within: float) -> int | None:
    """The budget to add to those `chosen` of a sorted ladder next; None when no gap is wider than `within`.

    First come both ends, then always a budget of the widest gap, in proportion, the smaller one of equal gaps: small
    inputs gain most from a graph. It is the roundest number of the gap. So an octave ladder grows by powers of two,
    then by their halves, and so on, and every stage of it is one that `octave_ladder` gives.
    """
    for end in (ladder[-1:], ladder[:1]):
        if end and end[0] not in chosen:
            return end[0]
    here = [budget for budget in ladder if budget in chosen]
    gaps = [(high / low - 1, -low, high) for low, high in itertools.pairwise(here)]
    for width, low, high in sorted(gaps, reverse=True):
        if width <= within:
            break
        between = ladder[bisect.bisect_right(ladder, -low) : bisect.bisect_left(ladder, high)]
        if between:
            middle = math.sqrt(-low * high)
            return max(between, key=lambda budget: (budget & -budget, -abs(budget - middle)))
    return None
