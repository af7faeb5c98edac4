"""Decides from measured times whether a replay is worth it.

A replay costs the time of its budget; eager costs the time of the tokens, but not less than its launches. For small
inputs a replay wins by far (Qwen2.5-VL, 64 tokens, H200: 4 ms against 23). For large ones both wait for the same
kernels, and a padded replay can lose: vLLM's powers of two are 14 to 52 % slower than eager above 1000 tokens.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from scaffold.runtime.packing import REPLAY_OVERHEAD_TOKENS

#: Several replays lose to one eager call of all items where they are predicted to be slower by more than this factor.
CLEARLY_SLOWER = 1.02
#: A replay loses to eager without a trial where it is predicted to be slower by more than this factor. A prediction of
#: eager counts its kernels alone: no memory that it allocates, no kernel that it is the first to run. On an H100 a
#: factor of 1.02 sent a quarter of the photos of Qwen2.5-VL to eager: 1.02 times the time of replays alone.
EAGER_GAINS = 1.10
#: Eager must be predicted to win beside a host that launches its kernels this much slower, too: hosts are shared.
#: Images of LLaVA-OneVision went to eager, which was predicted to take 0.91 of a padded replay. They took 0.95 of it on
#: one host, and up to 2.6 times as long on another.
SLOW_HOST = 1.5


@dataclass(slots=True)
class Curve:
    """Milliseconds as a function of tokens: linear between samples.

    Beyond the last sample, and before the first, the curve goes on with the nearest slope. It never falls below half of
    the first sample: graphs of a few tokens do not exist at start-up, so nothing can time them then. On an H100, 4
    tokens take 0.75 to 0.85 times as long as 64.
    """

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
            return self._before_first(tokens)
        low, low_ms = self.points[index - 1]
        if index == len(self.points):
            if index == 1:
                return low_ms * tokens / low
            before, before_ms = self.points[index - 2]
            return low_ms + max(low_ms - before_ms, 0.0) * (tokens - low) / (low - before)
        high, high_ms = self.points[index]
        return low_ms + (high_ms - low_ms) * (tokens - low) / (high - low)

    def _before_first(self, tokens: int) -> float:
        first, first_ms = self.points[0]
        if len(self.points) == 1:
            return first_ms
        second, second_ms = self.points[1]
        less = max(second_ms - first_ms, 0.0) * (first - tokens) / (second - first)
        return max(first_ms - less, first_ms / 2)


@dataclass(slots=True)
class Crossover:
    """Replay and eager times of one path.

    Eager runs the same kernels as a replay without padding, but takes at least `launch_ms`, the host's time to launch
    them, and `extra_ms` more for metadata. So the comparison of a large replay with eager depends on the padding alone,
    not on the noise between two measurements, and without padding a replay never loses.
    """

    replay: Curve = field(default_factory=Curve)
    launch_ms: float | None = None
    extra_ms: float | None = None

    def eager_at(self, tokens: int, calls: int = 1, host: float = 1.0) -> float | None:
        """The predicted time of an eager run that calls the encoder so many times, or None without samples.

        `host`: how many times the measured time the host takes to launch it.
        """
        kernels = self.replay.at(tokens)
        if kernels is None or self.launch_ms is None:
            return None
        return max(kernels, self.launch_ms * calls * host) + (self.extra_ms or 0.0)

    def ratio(self, tokens: int, budget: int, calls: int = 1) -> float | None:
        """The predicted time of a replay of `budget` relative to eager on `tokens`, or None without samples."""
        replay, eager = self.replay.at(budget), self.eager_at(tokens, calls)
        return None if replay is None or not eager else replay / eager

    def prefers_eager(self, tokens: int, budget: int, calls: int = 1) -> bool:
        """Whether eager on `tokens` is predicted to be faster than the graph of `budget`, beside a slow host, too."""
        replay, eager = self.replay.at(budget), self.eager_at(tokens, calls)
        slow = self.eager_at(tokens, calls, SLOW_HOST)
        if replay is None or eager is None or slow is None:
            return False
        return replay > max(eager * EAGER_GAINS, slow)

    def saving(self, tokens: int, budget: int, captured: int | None, calls: int = 1) -> float:
        """The time that a graph of `budget` would save `tokens` over the graph of `captured` tokens, or over eager.

        In milliseconds if there are samples, else in tokens; 0 if it saves nothing.
        """
        new, eager = self.replay.at(budget), self.eager_at(tokens, calls)
        if new is None or eager is None:
            new, eager = float(budget), 2.0 * tokens + REPLAY_OVERHEAD_TOKENS
            now = eager if captured is None else float(captured)
        else:
            old = None if captured is None else self.replay.at(captured)
            now = eager if old is None else min(eager, old)
        return max(now - new, 0.0)


def sample_budgets(ladder: Sequence[int], samples: int) -> list[int]:
    """A few budgets spread over a ladder, both ends included, to measure instead of all."""
    budgets = [b for b in ladder if b > 0]
    if len(budgets) <= samples:
        return budgets
    step = (len(budgets) - 1) / (samples - 1)
    return sorted({budgets[round(i * step)] for i in range(samples)})
