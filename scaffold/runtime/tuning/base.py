"""The base of tunings. A tuning is a named change of modules with a precondition; `Undo` takes it back exactly."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from scaffold.runtime.tuning.forwards import has_hooks, runs_as_written

#: The modules of a tower by path.
Modules = Mapping[str, nn.Module]


class Undo:
    """A list of changes. `roll_back` takes them back in reverse order."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []
        self._after_load: list[Callable[[], None]] = []
        #: Additional device memory of the changes, in bytes.
        self.extra_bytes = 0

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of an object. Undone, the object has its old value again, or no value of its own."""
        own = vars(owner)
        held = name in own or name in getattr(owner, "_modules", ())
        previous = getattr(owner, name) if held else None

        def back() -> None:
            if held:
                setattr(owner, name, previous)
            else:
                delattr(owner, name)

        setattr(owner, name, value)
        self._actions.append(back)

    def replace_data(
        self, parameter: torch.Tensor, new: torch.Tensor, restore: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        """Give a parameter other data. Nothing keeps the old data: `restore` makes them again from the new ones."""
        self.extra_bytes += new.untyped_storage().nbytes() - parameter.numel() * parameter.element_size()

        # Keep the kind of the parameter: vLLM can load a parameter made outside of inference mode only as such.
        inference = parameter.is_inference()

        def back() -> None:
            with torch.inference_mode(inference), torch.no_grad():
                parameter.data = restore(parameter.data)

        with torch.inference_mode(inference), torch.no_grad():
            parameter.data = new if new.is_inference() == inference else new.clone()
        self._actions.append(back)

    def after_load(self, action: Callable[[], None]) -> None:
        """Run an action whenever the tower may have new weights, until the changes are undone."""
        self._after_load.append(action)

    def read_weights(self) -> None:
        """Run what waits for new weights."""
        for action in self._after_load:
            action()

    def roll_back(self) -> None:
        """Take everything back. A second call does nothing."""
        while self._actions:
            self._actions.pop()()
        self._after_load.clear()
        self.extra_bytes = 0


@dataclass
class Outcome:
    """The result of one tuning: the modules that it changed, and its reasons to leave others alone."""

    name: str
    applied: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    extra_bytes: int = 0
    #: Largest relative error of the tower with this tuning (and those before it); None without a proof.
    error: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.name}: {len(self.applied)} modules"]
        if self.extra_bytes:
            parts.append(f"{self.extra_bytes / 2**20:.1f} MiB more")
        if self.error is not None:
            parts.append(f"largest relative error {self.error:.2g}")
        reasons: dict[str, int] = {}
        for why in self.refused.values():
            reasons[why] = reasons.get(why, 0) + 1
        parts += [f"{count} left alone ({why})" for why, count in reasons.items()]
        return ", ".join(parts)


class Tuning(ABC):
    """One kind of change. `sites` names the candidate modules, `refusal` decides, `apply` acts."""

    name: ClassVar[str]
    #: Its effect in one line.
    summary: ClassVar[str]
    #: `exact`: equal in real arithmetic, and the same roundings. `rounding`: equal in real arithmetic. `fp8`: neither.
    level: ClassVar[str]
    #: Its effect alone on an exact graph on one H200 (`benchmarks/results/tuning_h200.json`, `single`), and that of FP8
    #: beside all others (`fp8_h200.json`, and `fp8_checkpoint_h100.json` for checkpoints in FP8).
    measured: ClassVar[str]
    #: The largest error that it may add to a tower, relative to the largest output, where that is more than rounding.
    largest_error: ClassVar[float] = 0.0
    #: Whether it is slower than the original code where Triton is missing.
    needs_triton: ClassVar[bool] = False

    @abstractmethod
    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        """The modules, by path, that this tuning may suit."""

    @abstractmethod
    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        """The reason to leave this module alone; None if this tuning may change it. Changes nothing."""

    @abstractmethod
    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        """Tune one module that `refusal` accepts."""

    def run(self, tower: Modules, undo: Undo, dry: bool = False) -> Outcome:
        """Tune every module that `refusal` accepts. With `dry`, only name them."""
        outcome = Outcome(self.name)
        before = undo.extra_bytes
        for path, module in list(self.sites(tower)):
            why = common_refusal(path, module, tower) or self.refusal(path, module, tower)
            if why is not None:
                outcome.refused[path] = why
                continue
            if not dry:
                self.apply(path, module, tower, undo)
            outcome.applied.append(path)
        outcome.extra_bytes = undo.extra_bytes - before
        return outcome


def common_refusal(path: str, module: nn.Module, tower: Modules) -> str | None:
    """Reasons that hold for every tuning."""
    if has_hooks(module):
        return "it has hooks"
    if not runs_as_written(module):
        return "somebody put something in the place of its forward"
    around = path
    while around:
        if getattr(tower.get(around), "do_not_compile", True) is False:
            return "vLLM compiles the code around it"
        around = around.rpartition(".")[0]
    return None


#: The classes of vLLM that tunings know, by their module below `vllm.model_executor.layers`. Other modules of vLLM have
#: classes of the same names.
_HOMES = {
    name: home
    for home, names in {
        "layernorm": ("RMSNorm", "LayerNorm"),
        "linear": (
            "ColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear", "RowParallelLinear",
            "ReplicatedLinear",
        ),
        "activation": ("SiluAndMul", "QuickGELU", "GELU", "GELUTanh"),
        "attention.mm_encoder_attention": ("MMEncoderAttention",),
        "conv": ("Conv2dLayer",),
        "rotary_embedding.common": ("ApplyRotaryEmb",),
    }.items()
    for name in names
}  # fmt: skip


def is_from_vllm(module: Any, name: str) -> bool:
    """Whether a module is of exactly this class of vLLM (no subclass, and no other class of the name)."""
    home = sys.modules.get(f"vllm.model_executor.layers.{_HOMES[name]}")
    return home is not None and type(module) is getattr(home, name, None)


#: Linear layers whose parameters are a weight of `[outputs, inputs]` and a bias.
_LINEARS = tuple(name for name, home in _HOMES.items() if home == "linear")


def is_wrapped_for_lora(module: nn.Module) -> bool:
    """Whether a layer adds the products of an adapter to those of another layer."""
    return type(module).__name__.endswith("WithLoRA") or hasattr(module, "base_layer")


def is_norm(module: nn.Module | None) -> bool:
    """Whether a module is a layer norm of torch or of vLLM, or an RMS norm of vLLM, not a subclass."""
    return module is not None and (is_layer_norm(module) or is_from_vllm(module, "RMSNorm"))


def is_layer_norm(module: nn.Module) -> bool:
    """Whether a module is a layer norm of torch or of vLLM, not a subclass."""
    return type(module) is nn.LayerNorm or is_from_vllm(module, "LayerNorm")


def plain_linear(module: nn.Module | None) -> str | None:
    """Why a module is no linear layer with plain weights; None if it is one.

    A tensor-parallel shard is one, with the rows or columns of a smaller layer. It must not gather its outputs or split
    its inputs itself. The two layers of an MLP do neither.
    """
    if module is None:
        return "there is no linear layer"
    name = type(module).__name__
    if is_wrapped_for_lora(module):
        return "LoRA wraps it"
    if type(module) is not nn.Linear and not any(is_from_vllm(module, known) for known in _LINEARS):
        return f"{name} is no plain linear layer"
    if type(module) is not nn.Linear:
        method = getattr(module, "quant_method", None)
        method = type(getattr(method, "plain", method)).__name__  # past the method of another tuning
        if method != "UnquantizedLinearMethod":
            return f"its weights are quantised ({method})"
        whole = getattr(module, "gather_output", False) or not getattr(module, "input_is_parallel", True)
        if getattr(module, "tp_size", 1) != 1 and whole:
            return "it is a tensor-parallel shard with whole inputs or outputs"
    if has_hooks(module):
        return "it has hooks"
    if not runs_as_written(module):
        return "somebody put something in the place of its forward"
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return "its weight is not a matrix of floating-point numbers"
    if weight.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        return f"its weights are quantised ({weight.dtype})"
    return None


@contextlib.contextmanager
def rolled_back_on_error(undo: Undo) -> Iterator[None]:
    """Take every change back if the block raises."""
    try:
        yield
    except BaseException:
        undo.roll_back()
        raise
