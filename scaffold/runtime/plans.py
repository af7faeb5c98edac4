"""The plans of calls, kept by the signature of their sizes: batches, paths, copies and metadata.

The first call of some sizes makes their plan (`EncoderGraphManager._build_plan`), and later calls use it again. Nothing
in a plan refers back to the plan, so a dropped plan gives its memory back at once.
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

#: Timed calls of replay and of eager. After the first number a clear difference decides a trial, after the second any
#: difference does. Clocks of a hot chip wander by half a per cent from call to call, and the smallest of three times
#: was off by as much.
TRIAL_CALLS = (3, 7)
#: The relative difference that is clear.
TRIAL_CLEAR = 0.02
#: A replay must be slower than eager by this much to lose a trial: it leaves the host free.
TRIAL_MARGIN = 0.003
#: A trial runs only where the predicted ratio of replay to eager lies in this range, which is as wide as predictions
#: are wrong. Farther from the crossover the slower of the two would cost a call dearly: with 0.8 to 1.25, the pass of a
#: stream on an H200 in which trials began took up to 5 % longer than the pass before it.
TRIAL_RANGE = (0.97, 1.05)


@dataclass(slots=True)
class Trial:
    """Replay and eager in turn over the next calls of one size. Nothing runs twice and the host never waits."""

    ms: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    eager: bool = True
    clock: Any = None

    def verdict(self) -> bool | None:
        """Whether eager is faster; None before enough calls. Eager must win by its smallest and its median time."""
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
    #: The reason to run eager.
    reason: str = ""
    captured: Captured | None = None
    #: Runs the graph on a batch; the caller owns the output. None: there is no graph for these sizes.
    replay: Callable[[Inputs], torch.Tensor] | None = None
    #: Run eager in this call. If there is a graph, eager is faster for these sizes, or on trial.
    eager: bool = True
    trial: Trial | None = None
    #: Calls of the encoder in an eager run.
    calls: int = 1
    #: The missing graph for these sizes, and how much time it would save per call.
    lacks: GraphKey | None = None
    saving: float = 0.0


@dataclass(slots=True)
class Step:
    """One batch."""

    indices: tuple[int, ...]
    #: The batch is the whole call, and its inputs are the inputs of the call as they are.
    passes: bool
    whole: bool
    runs: list[Run]
    #: The model calls its encoder several times, each time with some of the batch.
    in_parts: bool = False


@dataclass(slots=True)
class CallPlan:
    """Everything that the sizes of a call determine."""

    items: list[Item]
    steps: list[Step]
    nbytes: int = 0
    uses: int = 0
    memoised: bool = False


class PlanCache(OrderedDict[Hashable, CallPlan]):
    """Plans by the signature of their calls. A full cache drops the plan that was used longest ago.

    It holds at most `entries` plans, and their metadata take at most `most_bytes` bytes of the device.
    """

    def __init__(self, entries: int) -> None:
        super().__init__()
        self._entries = entries
        self.most_bytes = 0
        self._nbytes = 0

    def remember(self, signature: Hashable, plan: CallPlan) -> None:
        """Keep a plan that the memory holds. It replaces an older plan of the same sizes."""
        self._forget_one(self.pop(signature, None))
        if plan.nbytes > self.most_bytes:
            return
        self._nbytes += plan.nbytes
        self[signature] = plan
        self._trim()

    def keep_at_most(self, nbytes: int) -> None:
        """Bound the bytes of metadata, and drop the oldest plans above it."""
        self.most_bytes = nbytes
        self._trim()

    def _trim(self) -> None:
        while self and (len(self) > self._entries or self._nbytes > self.most_bytes):
            self._forget_one(self.popitem(last=False)[1])

    def forget(self, unless: Callable[[CallPlan], bool] = lambda plan: False) -> None:
        """Drop all plans, except those that `unless` accepts."""
        for signature in [signature for signature, plan in self.items() if not unless(plan)]:
            self._forget_one(self.pop(signature))

    def _forget_one(self, plan: CallPlan | None) -> None:
        if plan is not None:
            self._nbytes -= plan.nbytes
