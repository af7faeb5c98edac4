"""Reads which tunings a user chose. It knows only their names, so that it needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Every tuning in the order of application, and its class in this package. Activations come first, since padding asks
#: which activation is between two layers. The most special tuning of attention follows the others, since each falls
#: back to the one before it. FP8 comes last: it takes padded weights, and all before it is proved within roundings.
CLASSES = {
    "fused-activations": "mlp.FusedActivations",
    "gelu-epilogue": "mlp.GeluEpilogue",
    "pad-mlp": "mlp.PadMlp",
    "fused-norms": "norms.FusedNorms",
    "fused-residuals": "norms.FusedResiduals",
    "inplace-rotary": "attention.InplaceRotary",
    "unsplit-attention": "attention.UnsplitAttention",
    "fitted-attention": "attention.FittedAttention",
    "small-windows": "attention.SmallWindows",
    "channels-last": "convolution.ChannelsLast",
    "fp8-inputs": "fp8_inputs.Fp8Inputs",
    "fp8-linears": "fp8.Fp8Linears",
}
NAMES = tuple(CLASSES)
#: The tunings that run by default: each equals the untuned tower up to rounding.
DEFAULT = NAMES[:-1]


@dataclass(frozen=True, slots=True)
class TuningChoice:
    """The tunings to run. With `dry`, they tell what they would do and change nothing.

    `anywhere`: a user asked for them, so that they run on GPUs on which they were not measured, too.
    """

    names: tuple[str, ...] = DEFAULT
    dry: bool = False
    anywhere: bool = True


def read_choice(given: Any) -> TuningChoice:
    """None (the defaults where they were measured), `True` or `"on"` (anywhere), `False` or `"off"`, `"list"` (dry), a
    list of names (anywhere), or `{name: switch}` over the default.

    Raises ValueError for anything else, and for a name that is no tuning.
    """
    if given is None:
        return TuningChoice(anywhere=False)
    if given is True or given == "on":
        return TuningChoice()
    if given is False or given == "off":
        return TuningChoice(())
    if given == "list":
        return TuningChoice(dry=True, anywhere=False)
    if isinstance(given, str) or not isinstance(given, (Mapping, Sequence)):
        raise ValueError(f'tuning is "on", "off", "list", a list of names or {{name: true or false}}, not {given!r}')
    for name in given:
        if name not in NAMES:
            close = difflib.get_close_matches(str(name), NAMES, 1)
            raise ValueError(f"there is no tuning {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    if not isinstance(given, Mapping):
        return TuningChoice(tuple(name for name in NAMES if name in given))
    return TuningChoice(tuple(name for name in NAMES if given.get(name, name in DEFAULT)), anywhere=False)
