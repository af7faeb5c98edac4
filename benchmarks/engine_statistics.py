"""Judges interleaved samples of several engines: medians, an interval of the difference, and a verdict.

Samples are lists by engine; position i of each is from turn i. Differences are those within turns, so that slow changes
(clocks, temperature, other work of the machine) drop out of them.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: The level of the interval, its number of draws, and the fewest turns for it. Fewer turns have no interval of this
#: level: 2 / 2**turns is more than the rest.
LEVEL, DRAWS, TURNS = 0.95, 2000, 6
HOLDS, NOISE, FAILS, UNKNOWN = "holds", "within noise", "fails", "one engine of each"


@dataclass(frozen=True)
class Difference:
    """Ours less theirs, in milliseconds.

    `interval` is that of the median of the turns' differences, or their extremes if there are few turns. `engines` has
    the median difference of each pair of single engines. `apart` is -1 when each sample of ours is below each of
    theirs, 1 when each is above, else 0.
    """

    median: float
    interval: tuple[float, float]
    relative: float
    engines: tuple[float, ...]
    turns: int
    apart: int

    @property
    def verdict(self) -> str:
        """The verdict on the claim "ours takes no longer".

        Engines of one mode differ, too, so every pair of engines must agree. With few turns, every pair of samples
        must.
        """
        if len(self.engines) < 2:
            return UNKNOWN
        if self.turns < TURNS:
            return {-1: HOLDS, 0: NOISE, 1: FAILS}[self.apart]
        if self.interval[1] < 0 and all(each < 0 for each in self.engines):
            return HOLDS
        if self.interval[0] > 0 and all(each > 0 for each in self.engines):
            return FAILS
        return NOISE

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "median_ms": round(self.median, 3),
            "interval_ms": [round(end, 3) for end in self.interval],
            "relative": round(self.relative, 4),
            "turns": self.turns,
            "engine_pairs_ms": [round(each, 3) for each in self.engines],
            "no_slower": self.verdict,
        }


def compare(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], seed: int = 0) -> Difference:
    """One list of samples for each engine of a mode. Raises ValueError where turns are missing."""
    turns = {len(samples) for samples in (*ours, *theirs)}
    if len(turns) != 1 or turns == {0}:
        raise ValueError(f"every engine must have a sample of every turn, not {sorted(turns)}")
    a, b = (list(map(statistics.fmean, zip(*mode, strict=True))) for mode in (ours, theirs))
    differences = [x - y for x, y in zip(a, b, strict=True)]
    median = statistics.median(differences)
    pairs = itertools.product(ours, theirs)
    return Difference(
        median=median,
        interval=interval(differences, seed),
        relative=median / statistics.median(b),
        engines=tuple(statistics.median(x - y for x, y in zip(*pair, strict=True)) for pair in pairs),
        turns=len(differences),
        apart=_apart(ours, theirs),
    )


def _apart(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> int:
    a, b = list(itertools.chain(*ours)), list(itertools.chain(*theirs))
    return (min(a) > max(b)) - (max(a) < min(b))


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap of the median; the extremes of few values."""
    if len(values) < TURNS:
        return min(values), max(values)
    draw = random.Random(seed).choices
    low, high = (len(values) - 1) // 2, len(values) // 2
    drawn = (sorted(draw(values, k=len(values))) for _ in range(DRAWS))
    medians = sorted((values[low] + values[high]) / 2 for values in drawn)
    cut = round((1 - LEVEL) / 2 * DRAWS)
    return medians[cut], medians[-cut - 1]


def spread(engines: Sequence[Sequence[float]]) -> float:
    """The distance between the medians of engines of one mode."""
    medians = [statistics.median(samples) for samples in engines]
    return max(medians) - min(medians)


def quantile(values: Sequence[float], share: float) -> float:
    """A value of the sample, without interpolation."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
