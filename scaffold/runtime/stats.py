"""Counters that a program can read.

Counting costs a few dictionary operations per call. Nothing here touches the device: the manager samples replay times
and hands them in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from scaffold.runtime.adapter import GraphKey


@dataclass(slots=True)
class KeyStats:
    """The counters of one graph. Batches had `tokens` tokens in all, and the graph computed `budget_tokens`."""

    replays: int = 0
    items: int = 0
    tokens: int = 0
    budget_tokens: int = 0
    sampled: int = 0
    sampled_ms: float = 0.0

    @property
    def waste(self) -> float:
        """Share of padding among the computed tokens."""
        return 0.0 if self.budget_tokens == 0 else 1 - self.tokens / self.budget_tokens

    @property
    def mean_ms(self) -> float | None:
        """Mean sampled replay time in milliseconds, or None without a sample."""
        return self.sampled_ms / self.sampled if self.sampled else None


@dataclass(slots=True)
class Stats:
    """Counters since the start. Hits and misses count items, as vLLM's do."""

    hits: int = 0
    misses: int = 0
    calls: int = 0
    plans_built: int = 0
    plans_reused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    keys: dict[GraphKey, KeyStats] = field(default_factory=dict)

    def hit(self, key: GraphKey, items: int, tokens: int, computed: int | None = None) -> None:
        """One replay that computed `computed` tokens (default: the budget) for `tokens`."""
        stats = self.keys.get(key)
        if stats is None:
            stats = self.keys[key] = KeyStats()
        stats.replays += 1
        stats.items += items
        stats.tokens += tokens
        stats.budget_tokens += key.budget if computed is None else computed
        self.hits += items

    def miss(self, reason: str, items: int, *, whole: bool = True) -> None:
        """Items that ran eager. Not `whole`: a graph replayed another path of theirs, or they count already."""
        self.reasons[reason] += items
        if whole:
            self.misses += items

    @property
    def hit_rate(self) -> float:
        """Share of items that a graph served, 0 to 1."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for logs and JSON."""
        return {
            "hits": self.hits,
            "misses": self.misses,
            "hit_rate": self.hit_rate,
            "calls": self.calls,
            "plans_built": self.plans_built,
            "plans_reused": self.plans_reused,
            "miss_reasons": dict(self.reasons),
            "graphs": {
                str(key): {
                    "replays": s.replays,
                    "items": s.items,
                    "tokens": s.tokens,
                    "waste": s.waste,
                    "mean_ms": s.mean_ms,
                }
                for key, s in sorted(self.keys.items())
            },
        }
