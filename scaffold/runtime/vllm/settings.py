"""What a vLLM user can set: `additional_config={"encoder_graphs": {...}}`, or JSON in `VITCG_ENCODER_GRAPHS`.

vLLM's own options (`encoder_cudagraph_token_budgets` and so on) keep their meaning and win.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaffold.runtime.budgets import DEFAULT_STEPS, octave_ladder, optimal_ladder
from scaffold.runtime.options import Options
from scaffold.runtime.trace import Trace
from scaffold.runtime.tuning.choice import read_choice

KEY = "encoder_graphs"
VARIABLE = "VITCG_ENCODER_GRAPHS"

#: Settings that are handed on to the core.
_FROM_OPTIONS = (
    "packing", "start_steps", "idle_graphs", "max_graph_bytes", "max_capture_seconds", "calibration_ms", "trial_after",
    "trials", "sample_every", "compact", "debug_addresses",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """`steps` an octave of the default ladder; `trace` is a file, or several, that a ladder of `graphs` is fitted to;
    `record` is a file that sizes are recorded in, `stats` one for the counters; `self_check` compares every graph with
    eager at start-up; `tuning` chooses tower tunings (`docs/tuning.md`), and `tuning_check` proves each of them at
    start-up."""

    steps: int = DEFAULT_STEPS
    trace: str | Sequence[str] | None = None
    graphs: int = 64
    record: str | None = None
    stats: str | None = None
    self_check: bool = False
    prometheus: bool = False
    tuning: Any = "on"
    tuning_check: bool = False
    options: Options = dataclasses.field(default_factory=Options)

    def ladder(self, low: int, high: int, path: str = "default") -> list[int]:
        """Budgets from `low` to `high`: fitted to this path's trace if there is one, else geometric by octaves."""
        if self.trace is not None:
            merged = Trace()
            for file in [self.trace] if isinstance(self.trace, str) else self.trace:
                try:
                    merged.merge(Trace.from_json(Path(file).read_text(encoding="utf-8")))
                except ValueError as error:
                    raise ValueError(f"{file}: {error}") from error
            within = {size: count for size, count in merged.sizes(path).items() if size <= high}
            if within:
                return optimal_ladder(within, self.graphs, always=[low, high])
        return octave_ladder(low, high, self.steps)


def read_settings(vllm_config: Any) -> Settings:
    """Settings of a vLLM configuration. Raises ValueError for a key or value that means nothing."""
    additional = getattr(vllm_config, "additional_config", None)
    given = additional.get(KEY) if isinstance(additional, Mapping) else None
    where = f'additional_config["{KEY}"]'
    if given is None and os.environ.get(VARIABLE):
        where = VARIABLE
        try:
            given = json.loads(os.environ[VARIABLE])
        except json.JSONDecodeError as error:
            raise ValueError(f"{VARIABLE} is not JSON: {error}") from error
    if given is None:
        return Settings()
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be a dictionary, not {type(given).__name__}")
    own = [f.name for f in dataclasses.fields(Settings) if f.name != "options"]
    for name in given:
        if name not in own and name not in _FROM_OPTIONS:
            close = difflib.get_close_matches(name, [*own, *_FROM_OPTIONS], 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{where} has no setting {name!r}{hint}")
    options = Options(**{name: given[name] for name in _FROM_OPTIONS if name in given})
    try:
        read_choice(given.get("tuning"))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return Settings(**{name: given[name] for name in own if name in given}, options=options)
