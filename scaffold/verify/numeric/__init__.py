"""The CPU lab: proves a change numerically with a release's own classes and manager, without a GPU.

`check_numerics` builds an overlay of the pristine tree with the changed files and runs the release's real model classes
with tiny random weights. It drives the release's unmodified encoder-graph manager on emulated CUDA graphs, and compares
every result with what the *pristine* tree's own `embed_multimodal` returns. A CPU does not show kernels, bfloat16
rounding and speed.

The parent process imports neither torch nor vLLM; both live in child processes (`scaffold.verify.numeric.child`).
"""

from scaffold.verify.numeric.installed import Missing, find_installed
from scaffold.verify.numeric.recipes import RECIPES
from scaffold.verify.numeric.reports import (
    TAILS,
    UNDECIDED,
    Automatic,
    Check,
    NumericOptions,
    NumericReport,
    NumericRequest,
    ObservedHazard,
    Property,
    Tail,
    Watch,
)
from scaffold.verify.numeric.runner import (
    check_numerics,
    check_numerics_all,
    check_real_graphs,
    keep_warm,
    record_run,
)

__all__ = [
    "RECIPES",
    "TAILS",
    "UNDECIDED",
    "Automatic",
    "Check",
    "Missing",
    "NumericOptions",
    "NumericReport",
    "NumericRequest",
    "ObservedHazard",
    "Property",
    "Tail",
    "Watch",
    "check_numerics",
    "check_numerics_all",
    "check_real_graphs",
    "find_installed",
    "keep_warm",
    "record_run",
]
