"""Tunes the vision tower of a host, proves the result, and takes it back.

Tuned modules are the host's own, so eager execution and captured graphs run the same code: a batch that goes eager
differs from a replay by no more than before, and the crossover compares like with like.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.base import Outcome, Tuning, Undo, rolled_back_on_error
from scaffold.runtime.tuning.choice import CLASSES, TuningChoice

logger = logging.getLogger("scaffold.runtime.tuning")


def _make_tuning(name: str, place: str) -> Tuning:
    module, _, class_name = place.partition(".")
    made = getattr(import_module(f"{__package__}.{module}"), class_name)()
    assert isinstance(made, Tuning)
    assert made.name == name
    return made


#: In the order of application.
TUNINGS = tuple(_make_tuning(*item) for item in CLASSES.items())

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
    #: The time that tuning took, and the part of it in which the tower ran to be compared.
    seconds: float = 0.0
    check_seconds: float = 0.0
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

    @property
    def is_in_place(self) -> bool:
        """Whether any module is tuned now."""
        return self._host is not None and any(outcome.applied for outcome in self.outcomes)

    def undo(self) -> None:
        """Take all tunings back. The caller must not replay graphs of the tuned tower any more."""
        while self._changes:
            self._changes.pop().roll_back()
        if self._host is not None and vars(self._host).get(_MARK) is self:
            delattr(self._host, _MARK)
        self._host = None


def tuning_of(host: Any) -> Tuned | None:
    """The tunings that are in place in a host, whoever put them there."""
    found: Tuned | None = getattr(host, "__dict__", {}).get(_MARK)
    return found


#: Paths of what encodes sound. A proof of images and videos runs none of these, and one of sound nothing else.
_OF_SOUND = re.compile(r"audio|sound|speech|whisper")


def tower_modules(host: Any, sound: bool | None = None) -> dict[str, nn.Module]:
    """The modules of a host outside its language model, by path. Empty if the language model cannot be found.

    With `sound` those that encode sound, where their paths tell, and without it the others. None: all.
    """
    if not isinstance(host, nn.Module):
        return {}
    language = _language_model(host)
    if language is None:
        return {}
    theirs = set(map(id, language.modules()))
    found = {path: module for path, module in host.named_modules() if path and id(module) not in theirs}
    heard = {path for path in found if _OF_SOUND.search(path)}
    if sound is None or not heard:
        return found
    return {path: module for path, module in found.items() if (path in heard) is sound}


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


#: Compute capabilities on which every tuning was measured: H100 and H200.
MEASURED = {(9, 0)}


def general_refusal(device: torch.device, anywhere: bool) -> str | None:
    """The reason to tune nothing on a device, or None. `anywhere`: a user asked for it on any GPU."""
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        return "VLLM_BATCH_INVARIANT asks for vLLM's own kernels"
    if torch.version.hip is not None:
        return "the kernels were never run on ROCm"
    # On a CPU the references run: our tests compare towers there, and no server captures graphs.
    if device.type not in ("cuda", "cpu"):
        return f"the kernels were never run on {device.type}"
    if device.type == "cuda" and not anywhere and torch.cuda.get_device_capability(device) not in MEASURED:
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        return (
            f"the tunings were never measured on GPUs of compute capability {capability}; the setting "
            '{"encoder_graphs": {"tuning": "on"}} turns them on'
        )
    return None


#: Runs the tower on fixed random inputs. A step moves every pixel by at most half of it, relative to the pixel.
Proof = Callable[[float], "Sequence[torch.Tensor]"]


def tune(
    host: Any, choice: TuningChoice | None = None, prove: Proof | None = None, *, sound: bool | None = None
) -> Tuned:
    """Apply tunings to the towers of a host, each one whole or not at all. Never raises for a tuning.

    With `prove`, it compares the output of the tuned tower with that of the untuned one. If the error exceeds the bound
    (`BOUNDS`, `OWN_ROUNDING`), or the tuned tower fails, it compares after each tuning, and takes back what is wrong.
    `sound` is as in `tower_modules`.
    """
    choice = choice or TuningChoice()
    tuned = Tuned()
    tower = tower_modules(host, sound)
    if not tower or not choice.names:
        return tuned
    if _MARK in vars(host) and not choice.dry:
        logger.info("the tower is tuned already")
        return vars(host)[_MARK]  # type: ignore[no-any-return]
    why = general_refusal(_device(tower), choice.anywhere)
    if why is not None:
        logger.info("the tower is not tuned: %s", why)
        return tuned
    begin = time.perf_counter()
    _Tuner(host, choice, prove, tuned, sound).run()
    tuned.seconds = time.perf_counter() - begin
    if not choice.dry:
        checked = "" if prove is None else f", {tuned.check_seconds:.1f} s of them to run it and compare"
        logger.info("tuning the tower took %.1f s%s", tuned.seconds, checked)
    return tuned


class _Tuner:
    """Applies the chosen tunings to one host."""

    def __init__(self, host: Any, choice: TuningChoice, prove: Proof | None, tuned: Tuned, sound: bool | None) -> None:
        self._host, self._choice, self._tuned, self._sound = host, choice, tuned, sound
        self._prove = None if choice.dry else prove
        self._want: list[torch.Tensor] = []
        self._bound = float("inf")

    def run(self) -> None:
        """All tunings together, and one by one where the whole tower is wrong.

        A tuning that may add more than roundings comes alone: its bound would hide the errors of the others.
        """
        if self._prove is not None and not self._measure():
            return
        chosen = [tuning for tuning in TUNINGS if tuning.name in self._choice.names]
        together = [tuning for tuning in chosen if not tuning.largest_error]
        for group in (together, *([tuning] for tuning in chosen if tuning.largest_error)):
            if not self._apply(group):
                for tuning in group:
                    self._apply([tuning])

    def _measure(self) -> bool:
        """Run the untuned tower. Whether its output tells right from wrong."""
        tower, tuned = tower_modules(self._host, self._sound), self._tuned
        dtype = _dtype(tower)
        try:
            self._want = self._outputs()
            tuned.rounding = largest_error(self._outputs(torch.finfo(dtype).eps), self._want)
        except Exception as error:
            logger.info("no tuning: it was to be proved, and the untuned tower failed: %s", error)
            return False
        if not tuned.rounding < 1.0:
            logger.warning(
                "no tuning: it was to be proved, and the untuned tower's output on random pixels says nothing"
            )
            return False
        if tuned.rounding > 0.1:
            logger.warning("the tower amplifies roundings to %.2g of its output: the proof says little", tuned.rounding)
        self._bound = max(BOUNDS.get(dtype, 2e-2), OWN_ROUNDING * tuned.rounding)
        return True

    def _outputs(self, step: float = 0.0) -> list[torch.Tensor]:
        assert self._prove is not None
        begin = time.perf_counter()
        with torch.inference_mode():
            outputs = [t.clone() for t in self._prove(step)]
        if outputs and outputs[0].is_cuda:
            torch.cuda.synchronize(outputs[0].device)
        self._tuned.check_seconds += time.perf_counter() - begin
        return outputs

    def _apply(self, group: Sequence[Tuning]) -> bool:
        """Apply tunings and compare the tower. If it is wrong, take them back: one alone has an outcome that says so,
        and of several nothing remains.
        """
        applied = [self._apply_one(tuning) for tuning in group]
        acts = [outcome for outcome, _ in applied if outcome.applied]
        why = None
        if self._prove is not None and acts:
            try:
                error = largest_error(self._outputs(), self._want)
            except Exception as failure:
                why = f"{type(failure).__name__}: {failure}"
            else:
                allowed = max(self._bound, *(tuning.largest_error for tuning in group))
                for outcome in acts:
                    outcome.error = error
                if not error <= allowed:
                    why = f"its error of {error:.2g} exceeds {allowed:.2g}"
        if why is not None:
            for _, undo in reversed(applied):
                undo.roll_back()
            if len(group) > 1:
                logger.info("the tuned tower is wrong, so that tunings are compared one by one: %s", why)
                return False
            logger.warning("the tuning %s was taken back: %s", group[0].name, why)
            acts[0].refused.update(dict.fromkeys(acts[0].applied, why))
            acts[0].applied, acts[0].extra_bytes = [], 0
        for outcome, undo in applied:
            self._tuned.outcomes.append(outcome)
            self._tuned._changes.append(undo)
            logger.info("%s%s", "would tune: " if self._choice.dry else "", outcome)
        if applied and not self._choice.dry:
            self._tuned._host = self._host
            setattr(self._host, _MARK, self._tuned)
        return True

    def _apply_one(self, tuning: Tuning) -> tuple[Outcome, Undo]:
        undo = Undo()
        tower = tower_modules(self._host, self._sound)
        if tuning.needs_triton and _device(tower).type == "cuda" and kernels.triton_kernels() is None:
            return Outcome(tuning.name, refused={"": "Triton is not installed"}), undo
        try:
            with rolled_back_on_error(undo):
                return tuning.run(tower, undo, self._choice.dry), undo
        except Exception as error:
            logger.warning("the tuning %s failed and was taken back: %s", tuning.name, error)
            return Outcome(tuning.name, refused={"": f"{type(error).__name__}: {error}"}), undo


def moved(pixels: torch.Tensor, step: float, seed: int = 0) -> torch.Tensor:
    """Pixels, each moved by at most half a step relative to its size. The same seed gives the same pixels.

    Bytes cannot move by so little. As many move by one as give all moves the same variance: uniform bytes have one of
    256 ** 2 / 12, of which the moves have the step ** 2 / 12.
    """
    if step == 0.0:
        return pixels
    generator = torch.Generator(pixels.device).manual_seed(seed)
    noise = torch.rand(pixels.shape, device=pixels.device, dtype=torch.float64, generator=generator) - 0.5
    if pixels.dtype is torch.uint8:
        share = (step * 256 / 12) ** 2
        return (pixels + torch.where(noise.abs() < share / 2, noise.sign(), 0.0)).clamp(0, 255).to(pixels.dtype)
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
