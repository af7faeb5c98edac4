"""Two encoders of one model in one engine: that of its images and videos, and that of its sound.

vLLM makes one manager for a model, and each of its batches has one modality. So the two encoders have a manager each,
with a ladder, limits, graphs, memory, counters and faults of its own, and this one hands batches on.
"""

from __future__ import annotations

from typing import Any

import torch

from scaffold.runtime.vllm.served import ServedManager


class BothManagers:
    """The interface of vLLM's manager, for a manager of images and videos and one of sound: both ours or vLLM's."""

    def __init__(self, seen: Any, heard: Any) -> None:
        self.seen, self.heard = seen, heard
        self._is_heard: dict[tuple[str, ...], bool] = {}

    @property
    def _both(self) -> tuple[Any, Any]:
        return self.seen, self.heard

    @property
    def token_budgets(self) -> list[int]:
        """The budgets of both: vLLM logs the largest."""
        return sorted({budget for one in self._both for budget in one.token_budgets})

    def supports_modality(self, modality: str) -> bool:
        """Whether `execute` takes inputs of this modality."""
        return any(one.supports_modality(modality) for one in self._both)

    def is_captured(self) -> bool:
        """Whether there are graphs to replay."""
        return any(one.is_captured() for one in self._both)

    def get_num_graphs_to_capture(self) -> int:
        """Graphs that `capture` will try."""
        return sum(one.get_num_graphs_to_capture() for one in self._both)

    def capture(self, graph_pool: Any = None) -> None:
        """Capture both. Each of ours lays a pool of its own out for its largest graph; those of vLLM share one."""
        self.seen.capture(graph_pool)
        self.heard.capture(None if isinstance(self.heard, ServedManager) else graph_pool)

    def clear(self) -> None:
        """Release graphs, buffers and pools."""
        for one in self._both:
            one.clear()

    def execute(self, mm_kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
        """One tensor per item of a batch, which has one modality; None where vLLM is to encode it eagerly."""
        outputs: list[torch.Tensor] | None = self._manager_of(mm_kwargs).execute(mm_kwargs)
        return outputs

    def _manager_of(self, mm_kwargs: dict[str, Any]) -> Any:
        """The manager of a batch. An adapter of sound finds items in its own inputs alone."""
        names = tuple(mm_kwargs)
        if names not in self._is_heard:
            self._is_heard[names] = bool(self.heard.model._get_encoder_cudagraph_items(mm_kwargs))
        return self.heard if self._is_heard[names] else self.seen

    @property
    def graph_hits(self) -> int:
        """Items served by graphs."""
        return sum(one.graph_hits for one in self._both)

    @property
    def graph_misses(self) -> int:
        """Items that ran eager."""
        return sum(one.graph_misses for one in self._both)

    def get_cumulative_stats(self) -> dict[str, Any]:
        """vLLM's five numbers for both together, and all of each under `detail`."""
        each = {name: one.get_cumulative_stats() for name, one in (("vision", self.seen), ("audio", self.heard))}
        hits, misses = self.graph_hits, self.graph_misses
        return {
            "graph_hits": hits,
            "graph_misses": misses,
            "hit_rate": hits / (hits + misses) if hits + misses else 0.0,
            "num_budgets": sum(one["num_budgets"] for one in each.values()),
            "token_budgets": self.token_budgets,
            "detail": each,
        }
