"""The options of the runtime, and the report of a capture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaffold.runtime.adapter import GraphKey


@dataclass(frozen=True, slots=True)
class Options:
    """A user's choices. The defaults are safe and fast.

    At start-up the manager captures `start_steps` budgets per octave of every ladder (None: all budgets). An idle
    worker captures at most `idle_graphs` more: graphs that the traffic lacks, and finer steps. They take at most a
    quarter of what the graphs of start-up took, and at most `idle_bytes` of the device. Metadata of plans, or whatever
    else the adapter keeps of sizes, take at most an eighth and `plan_bytes`. The capture at start-up holds that much
    memory when it ends, so that a server that measures it plans with it. The memory of graphs of more than `paid_above`
    tokens (None: of no graph) comes off that, first off the part for idle captures.

    `max_graph_bytes` and `max_capture_seconds` cap the start-up. The memory cap drops the largest budgets. Budgets that
    the time cap leaves out wait until the worker is idle.

    `calibration_ms` bounds the time for measuring the crossover at start-up; 0 never measures. A size whose replay and
    eager times are predicted to be close runs both ways in turn from its `trial_after`-th use on, and the faster way
    stays. At most `trials` sizes do so. `sample_every` times one replay in so many.

    `compact` captures the largest graph once beforehand to lay the pool out for it. Leave it off where graphs hold
    collectives: these may register the addresses of that graph, which is thrown away. `retry` runs a forward once
    eagerly after its capture failed, and captures it again. Leave it off for collectives, too: the other ranks, whose
    capture worked, would not take part.
    """

    packing: str = "planned"
    start_steps: int | None = 2
    idle_graphs: int = 128
    idle_bytes: int = 320 << 20
    paid_above: int | None = None
    max_graph_bytes: int | None = None
    max_capture_seconds: float | None = None
    calibration_ms: float = 50.0
    trial_after: int = 3
    trials: int = 64
    sample_every: int = 64
    plan_entries: int = 1024
    plan_bytes: int = 128 << 20
    compact: bool = True
    retry: bool = True
    debug_addresses: bool = False

    def without_clocks(self, steps: int) -> Options:
        """These options, but neither a clock nor earlier calls decide how a batch runs.

        Start-up captures everything: `steps` budgets per octave at least.
        """
        start_steps = self.start_steps and max(self.start_steps, steps)
        return replace(
            self, start_steps=start_steps, idle_graphs=0, max_capture_seconds=None, calibration_ms=0.0, trials=0
        )

    def __post_init__(self) -> None:
        if self.packing not in ("planned", "greedy"):
            raise ValueError(f'packing is "planned" or "greedy", not {self.packing!r}')


@dataclass(slots=True)
class CaptureReport:
    """The result of `capture`. `dropped` and `failed` give the reasons in words."""

    captured: list[GraphKey] = field(default_factory=list)
    #: How many more graphs may be captured while the worker is idle.
    idle: int = 0
    #: How many start-up graphs the time cap left for an idle worker.
    late: int = 0
    shared: dict[GraphKey, GraphKey] = field(default_factory=dict)
    dropped: dict[GraphKey, str] = field(default_factory=dict)
    failed: dict[GraphKey, str] = field(default_factory=dict)
    seconds: float = 0.0
    first_seconds: float = 0.0
    device_bytes: int = 0
    arena_bytes: int = 0
    #: Held for what comes later: idle captures, and `kept_bytes` for metadata of plans or interpolated positions.
    held_bytes: int = 0
    kept_bytes: int = 0

    def __str__(self) -> str:
        head = (
            f"{len(self.captured)} encoder graphs in {self.seconds:.2f} s, {self.device_bytes / 2**20:.0f} MiB "
            f"({self.arena_bytes / 2**20:.0f} MiB of it shared buffers), at most {self.idle} more when idle; "
            f"{self.held_bytes / 2**20:.0f} MiB are kept free for these and for metadata"
        )
        late = [f"  {self.late} are left for when the worker is idle: the time is over"] if self.late else []
        lines = [f"  dropped {key}: {why}" for key, why in self.dropped.items()]
        lines += [f"  failed  {key}: {why}" for key, why in self.failed.items()]
        return "\n".join([head, *late, *lines])
