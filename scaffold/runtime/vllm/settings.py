"""The settings of a vLLM user: `additional_config={"encoder_graphs": {...}}`, or JSON in `VITCG_ENCODER_GRAPHS`.

vLLM's own options (`encoder_cudagraph_token_budgets` and so on) keep their meaning and win.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaffold.runtime.budgets import DEFAULT_STEPS, octave_ladder, optimal_ladder
from scaffold.runtime.options import Options
from scaffold.runtime.trace import Trace
from scaffold.runtime.tuning.choice import read_choice

KEY = "encoder_graphs"
#: The setting with those of sound, which differ from the others.
SOUND = "audio"
VARIABLE = "VITCG_ENCODER_GRAPHS"

#: Settings of the core (`Options`).
_FROM_OPTIONS = (
    "packing", "start_steps", "idle_graphs", "idle_bytes", "plan_bytes", "max_graph_bytes", "max_capture_seconds",
    "calibration_ms", "trial_after", "trials", "sample_every", "compact", "debug_addresses",
)  # fmt: skip


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _at_least(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"a whole number, {least} at least", lambda value: _is_int(value) and value >= least


def _or_none(check: tuple[str, Callable[[Any], bool]]) -> tuple[str, Callable[[Any], bool]]:
    words, holds = check
    return f"{words}, or null", lambda value: value is None or holds(value)


_FLAG = ("true or false", lambda value: isinstance(value, bool))
_FILE = ("the name of a file, or null", lambda value: value is None or (isinstance(value, str) and value != ""))
_SECONDS = ("a number above 0", lambda value: (_is_int(value) or isinstance(value, float)) and 0 < value < math.inf)
#: The allowed values of each setting, in words and as a check. `tuning` has a reader of its own.
_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "steps": _at_least(1),
    "trace": (
        "the name of a file, or a list of them",
        lambda value: value is None or (isinstance(value, str) and value != "") or _are_names(value),
    ),
    "graphs": _at_least(2),
    "record": _FILE,
    "stats": _FILE,
    "self_check": _FLAG,
    "prometheus": _FLAG,
    SOUND: ("settings of sound, or null", lambda value: value is None or isinstance(value, Mapping)),
    "tuning_check": _FLAG,
    "reproducible": _FLAG,
    "packing": ('"planned" or "greedy"', lambda value: value in ("planned", "greedy")),
    "start_steps": _or_none(_at_least(1)),
    "idle_graphs": _at_least(0),
    "idle_bytes": _at_least(0),
    "plan_bytes": _at_least(0),
    "max_graph_bytes": _or_none(_at_least(1)),
    "max_capture_seconds": _or_none(_SECONDS),
    "calibration_ms": (
        "a number, 0 at least", lambda value: (_is_int(value) or isinstance(value, float)) and 0 <= value < math.inf
    ),
    "trial_after": _at_least(2),
    "trials": _at_least(0),
    "sample_every": _at_least(1),
    "compact": _FLAG,
    "debug_addresses": _FLAG,
}  # fmt: skip


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, str) and v for v in value)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings, and the `options` of the core among them.

    `steps` is the number of budgets per octave of the default ladder. `trace` names one or several files, and the
    ladder then has at most `graphs` budgets that fit their sizes. `record` names a file for the sizes of the traffic,
    `stats` one for the counters. `self_check` compares every graph with eager at start-up. With `prometheus` the
    counters are among vLLM's metrics. `tuning` chooses tower tunings (`docs/tuning.md`); `tuning_check` compares the
    tuned tower at start-up.
    With `reproducible` the same batch gives the same bits in every process; `VLLM_BATCH_INVARIANT` implies it. `audio`
    has other values for the encoder of sound beside one of images (`for_sound`).
    """

    steps: int = DEFAULT_STEPS
    trace: str | Sequence[str] | None = None
    graphs: int = 64
    record: str | None = None
    stats: str | None = None
    self_check: bool = False
    prometheus: bool = True
    tuning: Any = None
    tuning_check: bool = True
    reproducible: bool = False
    audio: Mapping[str, Any] | None = None
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
            # An idle worker captures graphs for smaller sizes. A smaller budget here would bound the items of every
            # batch: a captured item needs at least one token.
            within = {size: count for size, count in merged.sizes(path).items() if low <= size <= high}
            if within:
                return optimal_ladder(within, self.graphs, always=[low, high])
        return octave_ladder(low, high, self.steps)


def read_settings(vllm_config: Any) -> Settings:
    """Settings of a vLLM configuration. Raises ValueError for a key or value that means nothing."""
    given, where = _given(vllm_config)
    if isinstance(given, Mapping) and isinstance(given.get(SOUND), Mapping):
        _read(given[SOUND], f'{where}["{SOUND}"]', without=(SOUND, "tuning", "tuning_check"))
    return _read({} if given is None else given, where)


def for_sound(vllm_config: Any) -> Any:
    """The configuration of the encoder of sound in a model whose images have one, too.

    vLLM's budgets, items and frames are those of images. Files get names of their own. A trace of images says nothing
    of sounds, and their tower is not tuned: the tunings were measured on those of images.
    """
    given, _ = _given(vllm_config)
    shared = {name: value for name, value in (given or {}).items() if name not in (SOUND, "trace")}
    for name in ("record", "stats"):
        if shared.get(name):
            shared[name] = str(Path(shared[name]).with_suffix(f".{SOUND}{Path(shared[name]).suffix}"))
    own = {**shared, **((given or {}).get(SOUND) or {}), "tuning": "off"}
    config = copy.copy(vllm_config)
    config.additional_config = {**(getattr(vllm_config, "additional_config", None) or {}), KEY: own}
    config.compilation_config = copy.copy(vllm_config.compilation_config)
    config.compilation_config.encoder_cudagraph_token_budgets = []
    config.compilation_config.encoder_cudagraph_max_vision_items_per_batch = 0
    config.compilation_config.encoder_cudagraph_max_frames_per_batch = 0
    return config


def _given(vllm_config: Any) -> tuple[Any, str]:
    """The settings as they are written, and where."""
    additional = getattr(vllm_config, "additional_config", None)
    given = additional.get(KEY) if isinstance(additional, Mapping) else None
    if given is not None or not os.environ.get(VARIABLE):
        return given, f'additional_config["{KEY}"]'
    try:
        return json.loads(os.environ[VARIABLE]), VARIABLE
    except json.JSONDecodeError as error:
        raise ValueError(f"{VARIABLE} is not JSON: {error}") from error


def _read(given: Any, where: str, without: Collection[str] = ()) -> Settings:
    invariant = os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be a dictionary, not {type(given).__name__}")
    own = [f.name for f in dataclasses.fields(Settings) if f.name not in ("options", *without)]
    for name in given:
        if name not in own and name not in _FROM_OPTIONS:
            close = difflib.get_close_matches(name, [*own, *_FROM_OPTIONS], 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"{where} has no setting {name!r}{hint}")
    for name, (words, holds) in _CHECKS.items():
        if name in given and not holds(given[name]):
            raise ValueError(f"{where}: {name!r} is {words}, not {given[name]!r}")
    options = Options(**{name: given[name] for name in _FROM_OPTIONS if name in given})
    try:
        read_choice(given.get("tuning"))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    chosen = {name: given[name] for name in own if name in given}
    chosen["reproducible"] = invariant or given.get("reproducible", False)
    return Settings(**chosen, options=options)
