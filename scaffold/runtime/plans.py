"""Everything about a call that follows from its sizes, kept by their signature: batches, paths, copies and metadata.

A plan is made at the first call of its sizes (`EncoderGraphManager._build_plan`) and used again by later ones. Nothing
in it refers back to it, so that one which is dropped gives its memory back at once.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from scaffold.runtime.adapter import AxisKeys, GraphKey, Inputs, Item
from scaffold.runtime.capture import Captured

#: Timed calls of each way: after the first number a clear difference decides a trial, after the second any does. Clocks
#: of a hot chip wander by half a per cent from call to call, and the smallest of three was off by as much.
TRIAL_CALLS = (3, 7)
#: What is clear.
TRIAL_CLEAR = 0.02
#: A replay must be slower than eager by this much to lose a trial: it leaves the host free.
TRIAL_MARGIN = 0.003
#: A trial is for predictions that may be wrong by this much; eager far from the crossover would cost a call dearly.
TRIAL_RANGE = (0.8, 1.25)


@dataclass(slots=True)
class Trial:
    """Replay and eager in turn over the next calls of one size. Nothing runs twice and the host never waits."""

    ms: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    eager: bool = True
    clock: Any = None

    def verdict(self) -> bool | None:
        """Whether eager is faster; None: more calls must tell. Smallest and median time must agree for eager."""
        replay, eager = self.ms
        calls = min(len(replay), len(eager))
        if calls < TRIAL_CALLS[0]:
            return None
        low, high = sorted((min(replay) / min(eager) - 1, statistics.median(replay) / statistics.median(eager) - 1))
        if low > TRIAL_CLEAR or high < -TRIAL_CLEAR or calls >= TRIAL_CALLS[1]:
            return low > TRIAL_MARGIN
        return None


@dataclass(slots=True)
class Run:
    """One path of one batch: a replay, or eager with the reason."""

    path: str
    tokens: int
    budget: int | None
    axes: AxisKeys
    #: Why it runs eager.
    reason: str = ""
    captured: Captured | None = None
    #: Runs the graph on a batch; what it returns belongs to the caller. None: there is no graph for these sizes.
    replay: Callable[[Inputs], torch.Tensor] | None = None
    #: Eager in this call, though there may be a graph: it is faster for these sizes, or on trial.
    eager: bool = True
    trial: Trial | None = None
    #: The graph that these sizes lack, and how much time one would save a call.
    lacks: GraphKey | None = None
    saving: float = 0.0


@dataclass(slots=True)
class Step:
    """One batch."""

    indices: tuple[int, ...]
    #: All items in order, and their inputs are those of the call.
    passes: bool
    whole: bool
    runs: list[Run]


@dataclass(slots=True)
class CallPlan:
    """Everything about a call that follows from its sizes."""

    items: list[Item]
    steps: list[Step]
    nbytes: int = 0
    uses: int = 0
    memoised: bool = False


class PlanCache(OrderedDict[Hashable, CallPlan]):
    """Plans by the signature of their calls; the one that was used longest ago goes first.

    `entries` plans at most, whose metadata take `nbytes` bytes of the device at most.
    """

    def __init__(self, entries: int, nbytes: int) -> None:
        super().__init__()
        self._entries = entries
        self._most = nbytes
        self._nbytes = 0

    def remember(self, signature: Hashable, plan: CallPlan) -> None:
        """Keep a plan, in place of another one of these sizes."""
        self._forget_one(self.pop(signature, None))
        self._nbytes += plan.nbytes
        self[signature] = plan
        while self and (len(self) > self._entries or self._nbytes > self._most):
            self._forget_one(self.popitem(last=False)[1])

    def forget(self, unless: Callable[[CallPlan], bool] = lambda plan: False) -> None:
        """Drop all plans but those that still hold."""
        for signature in [signature for signature, plan in self.items() if not unless(plan)]:
            self._forget_one(self.pop(signature))

    def _forget_one(self, plan: CallPlan | None) -> None:
        if plan is not None:
            self._nbytes -= plan.nbytes
