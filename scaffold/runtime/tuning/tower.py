"""Tunes the vision tower of a host, proves the result, and takes it back.

Tuned modules are the host's own, so eager execution and captured graphs run the same code: a batch that goes eager
differs from a replay by no more than before, and the crossover compares like with like.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.attention import FittedAttention, InplaceRotary, SmallWindows, UnsplitAttention
from scaffold.runtime.tuning.base import Outcome, Tuning, Undo, rolled_back_on_error
from scaffold.runtime.tuning.choice import NAMES, TuningChoice
from scaffold.runtime.tuning.convolution import ChannelsLast
from scaffold.runtime.tuning.fp8 import Fp8Linears
from scaffold.runtime.tuning.fp8_inputs import Fp8Inputs
from scaffold.runtime.tuning.mlp import FusedActivations, GeluEpilogue, PadMlp
from scaffold.runtime.tuning.norms import FusedNorms, FusedResiduals

logger = logging.getLogger("scaffold.runtime.tuning")

#: In the order of application. Activations come first, since padding asks which activation is between two layers. The
#: most special tuning of attention follows the others, since each falls back to the one before it. FP8 comes last: it
#: takes padded weights, and all before it is proved within roundings.
TUNINGS: tuple[Tuning, ...] = (
    FusedActivations(),
    GeluEpilogue(),
    PadMlp(),
    FusedNorms(),
    FusedResiduals(),
    InplaceRotary(),
    UnsplitAttention(),
    FittedAttention(),
    SmallWindows(),
    ChannelsLast(),
    Fp8Inputs(),
    Fp8Linears(),
)
assert tuple(tuning.name for tuning in TUNINGS) == NAMES

#: Largest accepted error of a tuned tower, relative to its largest output, by the type of its weights. `OWN_ROUNDING`
#: times the tower's own rounding is accepted where that is more. A tower's own rounding is the change of its output
#: when every pixel changes by at most half a step of that type. On an H200 tuned towers differ by 0.8 to 1.2 times
#: their own rounding (0.01 to 0.04 in bfloat16, 24 to 32 layers). A wrong row is off by the size of the values.
BOUNDS = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4, torch.float64: 1e-6}
OWN_ROUNDING = 1.5


#: A tuned host keeps its handle under this name, so that a second manager does not tune it again.
_MARK = "_vitcg_tuned"


@dataclass
class Tuned:
    """The tunings of a host. `undo()` restores the host bit for bit."""

    outcomes: list[Outcome] = field(default_factory=list)
    #: The change of the untuned tower's output when its pixels change by half a step; None without a proof.
    rounding: float | None = None
    _changes: list[Undo] = field(default_factory=list, repr=False)
    _host: Any = field(default=None, repr=False)

    @property
    def extra_bytes(self) -> int:
        """Additional device memory of the tuned tower."""
        return sum(change.extra_bytes for change in self._changes)

    def read_weights(self) -> None:
        """Make again what tunings have made of the tower's weights: those may be new."""
        for change in self._changes:
            change.read_weights()

    def undo(self) -> None:
        """Take all tunings back. The caller must not replay graphs of the tuned tower any more."""
        while self._changes:
            self._changes.pop().roll_back()
        if self._host is not None and vars(self._host).get(_MARK) is self:
            delattr(self._host, _MARK)


def vision_modules(host: Any) -> dict[str, nn.Module]:
    """The modules of a host outside its language model, by path. Empty if the language model cannot be found."""
    if not isinstance(host, nn.Module):
        return {}
    language = _language_model(host)
    if language is None:
        return {}
    theirs = set(map(id, language.modules()))
    return {path: module for path, module in host.named_modules() if path and id(module) not in theirs}


def _language_model(host: nn.Module) -> nn.Module | None:
    found = getattr(host, "language_model", None)
    if isinstance(found, nn.Module):
        return found
    getter = getattr(host, "get_language_model", None)
    try:
        found = getter() if getter is not None else None
    except Exception:  # vLLM's default asks the model for names that it may not have
        return None
    return found if isinstance(found, nn.Module) and found is not host else None


def general_refusal(device: torch.device) -> str | None:
    """The reason to tune nothing on a device, or None."""
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        return "VLLM_BATCH_INVARIANT asks for vLLM's own kernels"
    if torch.version.hip is not None:
        return "the kernels were never run on ROCm"
    # On a CPU the references run: our tests compare towers there, and no server captures graphs.
    if device.type not in ("cuda", "cpu"):
        return f"the kernels were never run on {device.type}"
    return None


#: Runs the tower on fixed random inputs. A step moves every pixel by at most half of it, relative to the pixel.
Proof = Callable[[float], "Sequence[torch.Tensor]"]


def tune(host: Any, choice: TuningChoice | None = None, prove: Proof | None = None) -> Tuned:
    """Apply tunings to the vision tower of a host, each one whole or not at all. Never raises for a tuning.

    With `prove`, it compares the output after each tuning with that of the untuned tower. If the error exceeds the
    bound (`BOUNDS`, `OWN_ROUNDING`), it takes the tuning back.
    """
    choice = choice or TuningChoice()
    tuned = Tuned()
    tower = vision_modules(host)
    if not tower or not choice.names:
        return tuned
    if _MARK in vars(host) and not choice.dry:
        logger.info("the tower is tuned already")
        return vars(host)[_MARK]  # type: ignore[no-any-return]
    why = general_refusal(_device(tower))
    if why is not None:
        logger.info("no tuning: %s", why)
        return tuned
    _tune_each(host, choice, prove, tuned)
    return tuned


def _tune_each(host: Any, choice: TuningChoice, prove: Proof | None, tuned: Tuned) -> None:
    tower = vision_modules(host)
    lacks_triton = _device(tower).type == "cuda" and kernels.triton_kernels() is None
    want, bound = [], float("inf")
    if prove is not None and not choice.dry:
        dtype = _dtype(tower)
        try:
            want = _outputs(prove, 0.0)
            tuned.rounding = largest_error(_outputs(prove, torch.finfo(dtype).eps), want)
        except Exception as error:
            logger.warning("no tuning: it was to be proved, and the untuned tower failed: %s", error)
            return
        if not tuned.rounding < 1.0:
            logger.warning(
                "no tuning: it was to be proved, and the untuned tower's output on random pixels says nothing"
            )
            return
        if tuned.rounding > 0.1:
            logger.warning("the tower amplifies roundings to %.2g of its output: the proof says little", tuned.rounding)
        bound = max(BOUNDS.get(dtype, 2e-2), OWN_ROUNDING * tuned.rounding)
    for tuning in TUNINGS:
        if tuning.name not in choice.names:
            continue
        if tuning.needs_triton and lacks_triton:
            tuned.outcomes.append(Outcome(tuning.name, refused={"": "Triton is not installed"}))
            continue
        undo = Undo()
        try:
            with rolled_back_on_error(undo):
                outcome = tuning.run(vision_modules(host), undo, choice.dry)
                if want and outcome.applied:
                    assert prove is not None
                    outcome.error = largest_error(_outputs(prove, 0.0), want)
        except Exception as error:
            logger.warning("the tuning %s failed and was taken back: %s", tuning.name, error)
            tuned.outcomes.append(Outcome(tuning.name, refused={"": f"{type(error).__name__}: {error}"}))
            continue
        allowed = max(bound, tuning.largest_error)
        if outcome.error is not None and not outcome.error <= allowed:
            undo.roll_back()
            why = f"its error of {outcome.error:.2g} exceeds {allowed:.2g}"
            logger.warning("the tuning %s was taken back: %s", tuning.name, why)
            outcome.refused.update(dict.fromkeys(outcome.applied, why))
            outcome.applied, outcome.extra_bytes = [], 0
        tuned.outcomes.append(outcome)
        tuned._changes.append(undo)
        if not choice.dry:
            tuned._host = host
            setattr(host, _MARK, tuned)
        logger.info("%s%s", "would tune: " if choice.dry else "", outcome)


def _outputs(prove: Proof, step: float) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [t.clone() for t in prove(step)]


def moved(pixels: torch.Tensor, step: float, seed: int = 0) -> torch.Tensor:
    """Pixels, each moved by at most half a step relative to its size. The same seed gives the same pixels."""
    if step == 0.0:
        return pixels
    generator = torch.Generator(pixels.device).manual_seed(seed)
    noise = torch.rand(pixels.shape, device=pixels.device, dtype=torch.float64, generator=generator) - 0.5
    return (pixels.double() * (1 + step * noise)).to(pixels.dtype)


def _device(tower: Mapping[str, nn.Module]) -> torch.device:
    """The device of the tower's parameters."""
    found = (p.device for module in tower.values() for p in module.parameters(recurse=False))
    return next(found, torch.device("cpu"))


def _dtype(tower: Mapping[str, nn.Module]) -> torch.dtype:
    """The narrowest floating-point type of the tower's parameters."""
    types = {p.dtype for module in tower.values() for p in module.parameters(recurse=False) if p.is_floating_point()}
    return min(types, key=lambda t: torch.finfo(t).bits, default=torch.float32)


def largest_error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Largest difference relative to the largest value; infinite for another shape or where only one is finite."""
    worst = 0.0
    if len(got) != len(want):
        return float("inf")
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return float("inf")
        finite = torch.isfinite(b)
        if not bool(torch.isfinite(a[finite]).all()) or not bool(finite.any()):
            return float("inf")
        scale = float(b[finite].abs().max()) or 1.0
        worst = max(worst, float((a[finite].double() - b[finite].double()).abs().max()) / scale)
    return worst
