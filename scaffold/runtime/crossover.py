"""When is a replay not worth it? Measured times, and the decision.

A replay costs the time of its budget; eager costs the time of the tokens, but not less than its launches. For small
inputs a replay wins by far (Qwen2.5-VL, 64 tokens, H200: 4 ms against 23). For large ones both wait for the same
kernels, and a padded replay can lose: vLLM's powers of two are 14 to 52 % slower than eager above 1000 tokens.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Curve:
    """Milliseconds as a function of tokens: linear between samples, proportional beyond the last."""

    points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, tokens: int, ms: float) -> None:
        """One sample. A second sample of the same size keeps the smaller time: noise only adds."""
        at = bisect.bisect_left(self.points, (tokens, 0.0))
        if at < len(self.points) and self.points[at][0] == tokens:
            self.points[at] = (tokens, min(ms, self.points[at][1]))
        else:
            self.points.insert(at, (tokens, ms))

    def at(self, tokens: int) -> float | None:
        """The predicted time, or None without samples."""
        if not self.points:
            return None
        index = bisect.bisect_left(self.points, (tokens, 0.0))
        if index == 0:
            return self.points[0][1]
        low, low_ms = self.points[index - 1]
        if index == len(self.points):
            return low_ms * tokens / low
        high, high_ms = self.points[index]
        return low_ms + (high_ms - low_ms) * (tokens - low) / (high - low)


@dataclass(slots=True)
class Crossover:
    """Replay and eager times of one path.

    `eager_extra_ms` is what an eager call costs besides the tower's kernels (metadata, first launches).
    """

    replay: Curve = field(default_factory=Curve)
    eager: Curve = field(default_factory=Curve)
    eager_extra_ms: float = 0.0
    #: Replay must lose by this factor before eager is chosen: predictions are not exact, and eager's host time is
    #: taken from other work.
    margin: float = 1.01

    def prefers_eager(self, tokens: int, budget: int) -> bool:
        """Whether eager on `tokens` is predicted to be faster than the graph of `budget`."""
        replay, eager = self.replay.at(budget), self.eager.at(tokens)
        if replay is None or eager is None:
            return False
        return replay > (eager + self.eager_extra_ms) * self.margin


def sample_budgets(ladder: Sequence[int], samples: int) -> list[int]:
    """A few budgets spread over a ladder, both ends included, to measure instead of all."""
    budgets = [b for b in ladder if b > 0]
    if len(budgets) <= samples:
        return budgets
    step = (len(budgets) - 1) / (samples - 1)
    return sorted({budgets[round(i * step)] for i in range(samples)})
