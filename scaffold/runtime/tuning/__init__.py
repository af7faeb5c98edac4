"""Tower tuning: make the captured forward fast, without changing its result.

`scaffold.runtime.vllm` tunes the host's own modules after weight loading and before capture. Each tuning is a small
class with a precondition. A module that does not meet it stays untouched, and the outcome has the reason. The package
loads a name at its first use: `choice` needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaffold.runtime.tuning.base import Outcome, Tuning, Undo
    from scaffold.runtime.tuning.choice import DEFAULT, NAMES, TuningChoice, read_choice
    from scaffold.runtime.tuning.tower import BOUNDS, TUNINGS, Proof, Tuned, largest_error, moved, tune, tuning_of

_HOME = {
    "base": ("Outcome", "Tuning", "Undo"),
    "choice": ("DEFAULT", "NAMES", "TuningChoice", "read_choice"),
    "tower": ("BOUNDS", "TUNINGS", "Proof", "Tuned", "largest_error", "moved", "tune", "tuning_of"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BOUNDS",
    "DEFAULT",
    "NAMES",
    "TUNINGS",
    "Outcome",
    "Proof",
    "Tuned",
    "Tuning",
    "TuningChoice",
    "Undo",
    "largest_error",
    "moved",
    "read_choice",
    "tune",
    "tuning_of",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)
