"""Reads which tunings a user chose. It knows only their names, so that it needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Every tuning, in the order of application.
NAMES = (
    "fused-activations", "gelu-epilogue", "pad-mlp", "fused-norms", "fused-residuals", "inplace-rotary",
    "unsplit-attention", "fitted-attention", "small-windows", "channels-last", "fp8-inputs",
    "fp8-linears",
)  # fmt: skip
#: The tunings that run by default: each equals the untuned tower up to rounding.
DEFAULT = NAMES[:-1]


@dataclass(frozen=True, slots=True)
class TuningChoice:
    """The tunings to run. With `dry`, they tell what they would do and change nothing."""

    names: tuple[str, ...] = DEFAULT
    dry: bool = False


def read_choice(given: Any) -> TuningChoice:
    """`True`, None or `"on"` (the defaults), `False` or `"off"`, `"list"` (dry), a list of names, or `{name: switch}`.

    Raises ValueError for anything else, and for a name that is no tuning.
    """
    if given is None or given is True or given == "on":
        return TuningChoice()
    if given is False or given == "off":
        return TuningChoice(())
    if given == "list":
        return TuningChoice(dry=True)
    if isinstance(given, str) or not isinstance(given, (Mapping, Sequence)):
        raise ValueError(f'tuning is "on", "off", "list", a list of names or {{name: true or false}}, not {given!r}')
    for name in given:
        if name not in NAMES:
            close = difflib.get_close_matches(str(name), NAMES, 1)
            raise ValueError(f"there is no tuning {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    if not isinstance(given, Mapping):
        return TuningChoice(tuple(name for name in NAMES if name in given))
    return TuningChoice(tuple(name for name in NAMES if given.get(name, name in DEFAULT)))
