"""What a user may choose of the runtime, and what a capture reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaffold.runtime.adapter import GraphKey


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose. The defaults are safe and fast.

    At start-up the manager captures `start_steps` budgets per octave of every ladder (None: all budgets). An idle
    worker captures more, `idle_graphs` at most: what the traffic lacks, and finer steps.
    `max_graph_bytes` and `max_capture_seconds` cap the start-up: the largest budgets are dropped for memory; what is
    left when the time is over is captured when the worker is idle. `sample_every` times one replay in so many.
    `calibration_ms` bounds the time spent on measuring the crossover at start-up; 0 never measures and always replays.
    From its `trial_after`-th use on, a size for which replay and eager are predicted to be close runs both ways in
    turn, at most `trials` sizes in all; the faster one stays. `compact` captures the largest graph once beforehand to
    lay the pool out for it; leave it off where graphs hold collectives, which may register the addresses of a graph
    that is thrown away. `retry` runs a forward whose capture failed once eagerly and captures again; not where it holds
    collectives, which the other ranks, whose capture worked, would not take part in.
    """

    packing: str = "planned"
    start_steps: int | None = 2
    idle_graphs: int = 128
    max_graph_bytes: int | None = None
    max_capture_seconds: float | None = None
    calibration_ms: float = 50.0
    trial_after: int = 3
    trials: int = 64
    sample_every: int = 64
    plan_entries: int = 1024
    plan_bytes: int = 256 << 20
    compact: bool = True
    retry: bool = True
    debug_addresses: bool = False

    def __post_init__(self) -> None:
        if self.packing not in ("planned", "greedy"):
            raise ValueError(f'packing is "planned" or "greedy", not {self.packing!r}')


@dataclass(slots=True)
class CaptureReport:
    """What `capture` did. `dropped` and `failed` say why, in words."""

    captured: list[GraphKey] = field(default_factory=list)
    #: How many more graphs may be captured while the worker is idle.
    idle: int = 0
    #: How many of the start's the time cap left for then.
    late: int = 0
    shared: dict[GraphKey, GraphKey] = field(default_factory=dict)
    dropped: dict[GraphKey, str] = field(default_factory=dict)
    failed: dict[GraphKey, str] = field(default_factory=dict)
    seconds: float = 0.0
    first_seconds: float = 0.0
    device_bytes: int = 0
    arena_bytes: int = 0

    def __str__(self) -> str:
        head = (
            f"{len(self.captured)} encoder graphs in {self.seconds:.2f} s, {self.device_bytes / 2**20:.0f} MiB "
            f"({self.arena_bytes / 2**20:.0f} MiB of it shared buffers), at most {self.idle} more when idle"
        )
        late = [f"  {self.late} are left for when the worker is idle: the time is over"] if self.late else []
        lines = [f"  dropped {key}: {why}" for key, why in self.dropped.items()]
        lines += [f"  failed  {key}: {why}" for key, why in self.failed.items()]
        return "\n".join([head, *late, *lines])
