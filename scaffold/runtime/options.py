"""What a user may choose of the runtime, and what a capture reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaffold.runtime.adapter import GraphKey


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose. The defaults are safe and fast.

    `start_graphs` of every ladder are captured at start-up, evenly spread; the others when their budget is needed for
    the `demand_after`-th time, at most `demand_graphs` of them (None: capture all at start-up). A graph takes 20 to 70
    ms to capture, so a fine ladder costs no start-up time, and only what the traffic needs costs memory.
    `max_tokens` is the most that one batch can have, if less than the largest budget (to leave out unreachable keys).
    `max_graph_bytes` and `max_capture_seconds` cap the start-up: the largest budgets are dropped for memory, the ladder
    is thinned for time. `lazy_after` captures an exact graph for a call's sizes once they were seen that often (at most
    `lazy_graphs`). `sample_every` times one replay in so many. `calibration_ms` bounds the time spent on measuring the
    crossover at start-up; 0 never measures and always replays. From its `trial_after`-th use on, a size for which
    replay and eager are predicted to be close runs both ways in turn, at most `trials` sizes in all; the faster one
    stays. `max_stretch` is how much larger than the fitting budget a graph may be when the fitting one is missing or
    lacks another capacity. `compact` captures the largest graph once beforehand to lay the pool out for it; leave it
    off where graphs hold collectives, which may register the addresses of a graph that is thrown away. `retry` runs a
    forward whose capture failed once eagerly and captures again; not where it holds collectives, which the other ranks,
    whose capture worked, would not take part in.
    """

    packing: str = "planned"
    start_graphs: int | None = 8
    demand_after: int = 2
    demand_graphs: int = 96
    max_graph_bytes: int | None = None
    max_capture_seconds: float | None = None
    max_tokens: int | None = None
    lazy_after: int | None = None
    lazy_graphs: int = 16
    calibration_ms: float = 50.0
    trial_after: int = 3
    trials: int = 64
    sample_every: int = 64
    plan_entries: int = 1024
    plan_bytes: int = 128 << 20
    max_stretch: float = 2.0
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
    #: How many more graphs may be captured when they are needed.
    on_demand: int = 0
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
            f"({self.arena_bytes / 2**20:.0f} MiB of it shared buffers), {self.on_demand} more when needed"
        )
        lines = [f"  dropped {key}: {why}" for key, why in self.dropped.items()]
        lines += [f"  failed  {key}: {why}" for key, why in self.failed.items()]
        return "\n".join([head, *lines])
