"""Tunings of norms: one kernel for each norm, and one for a residual sum together with the norm after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.base import Modules, Tuning, Undo, is_layer_norm, is_norm
from scaffold.runtime.tuning.blocks import Block, block_of, known_block
from scaffold.runtime.tuning.forwards import is_untouched

#: The name under which a norm has the least number of rows from which the layer behind it takes them in FP8.
FP8_ROWS = "_vitcg_fp8_rows"

#: The widest row that one program of the norm kernel holds.
_WIDEST = 16384


def norm_refusal(module: nn.Module) -> str | None:
    """The reason why the fused kernel cannot compute a norm; None if it can."""
    if not is_untouched(module):
        return "it has hooks, or somebody put something in the place of its forward"
    if is_layer_norm(module):
        if len(module.normalized_shape) != 1:
            return "it normalises over several dimensions"
        width = module.normalized_shape[0]
    else:
        if getattr(module, "variance_size_override", None) is not None:
            return "its variance is of a part of the row"
        width = module.weight.shape[0]
    return "its rows are too wide" if width > _WIDEST else None


class Norm:
    """A norm's numbers. It reads them at each use, since vLLM may load other weights."""

    __slots__ = ("kind", "module")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kind = "layer" if is_layer_norm(module) else "rms"

    @property
    def numbers(self) -> tuple[torch.Tensor | None, torch.Tensor | None, float, str]:
        """Weight, bias, epsilon and kind, as the kernels take them."""
        module = self.module
        if self.kind == "layer":
            return module.weight, module.bias, module.eps, "layer"
        weight = module.weight.data if getattr(module, "has_weight", True) else None
        return weight, None, module.variance_epsilon, "rms"

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of `x`."""
        return kernels.norm(x, *self.numbers, fp8=self._in_fp8(x))

    def of_sum(
        self, x: torch.Tensor, branch: torch.Tensor, scale: torch.Tensor | None = None, in_place: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x + branch * scale`, and the norm of that sum."""
        return kernels.add_norm(x, branch, scale, *self.numbers, fp8=self._in_fp8(x), in_place=in_place)

    def added_to(self, x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """`x` plus the norm of `branch`."""
        return kernels.norm_add(x, branch, *self.numbers, fp8=self._in_fp8(x))

    def _in_fp8(self, x: torch.Tensor) -> bool:
        """Whether a layer that multiplies in FP8 takes the result next."""
        least = vars(self.module).get(FP8_ROWS)
        return least is not None and kernels.count_rows(x) >= least

    def fits(self, x: torch.Tensor) -> bool:
        """Whether the kernel may stand for the module: mixed types round elsewhere, autocast changes them, and somebody
        may have put something around the module since.
        """
        weight = self.numbers[0]
        alike = weight is None or weight.dtype is x.dtype
        return alike and is_untouched(self.module) and not torch.is_autocast_enabled(x.device.type)


class FusedNorms(Tuning):
    """Run every norm of the tower as one kernel."""

    name = "fused-norms"
    summary = "run each RMS or layer norm as one kernel"
    level = "rounding"
    needs_triton = True
    measured = (
        "Qwen2.5-VL 27.7 to 21.4 ms, Step3-VL 67.8 to 65.4 ms, InternVL 13.0 to 12.5 ms, Qwen2-VL 25.4 to 24.9 ms"
    )

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        return ((path, module) for path, module in tower.items() if is_norm(module))

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        return norm_refusal(module)

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        norm, original = Norm(module), module.forward
        takes = {"x"} if norm.kind == "layer" else {"x", "residual"}

        def forward(*arguments: Any, **keywords: Any) -> Any:
            given = dict(zip(("x", "residual"), arguments, strict=False)) | keywords
            residual = given.get("residual")
            known = len(given) == len(arguments) + len(keywords) and given.keys() <= takes and "x" in given
            if not known or not norm.fits(given["x"]):
                return original(*arguments, **keywords)
            if residual is None:
                return norm.of(given["x"])
            total, out = norm.of_sum(given["x"], residual)
            return out, total

        undo.set(module, "forward", forward)


class FusedResiduals(Tuning):
    """Run the residual sum inside a block (with its layer scale) and the norm after it in one kernel."""

    name = "fused-residuals"
    summary = "add a residual and normalise the sum in one kernel"
    level = "rounding"
    needs_triton = True
    measured = (
        "Qwen2.5-VL 27.5 to 21.4 ms, Step3-VL 68.1 to 63.0 ms, InternVL 13.1 to 11.9 ms, Qwen3-VL 18.5 to 18.1 ms"
    )

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            if sum(map(is_norm, module.children())) >= 2:
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        known = block_of(module)
        if known is None:
            return f"the forward of {type(module).__name__} is no block of two branches"
        for name in (known.norm1, known.norm2):
            why = norm_refusal(getattr(module, name))
            if why is not None:
                return f"{name}: {why}"
        for scale in known.scales:
            held = {**vars(module), **module._parameters, **module._buffers}
            if scale is not None and not isinstance(held.get(scale), torch.Tensor):
                return f"{scale} is no layer scale"
        return None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        block = known_block(module)
        undo.set(module, "forward", (_norm_behind if block.norms_behind else _norm_before)(module, block))


def _norm_before(module: nn.Module, block: Block) -> Any:
    """`x += scale1 * attention(norm1(x)); x += scale2 * mlp(norm2(x))`."""
    original = module.forward
    norm1, norm2 = Norm(getattr(module, block.norm1)), Norm(getattr(module, block.norm2))
    named = _names(original)

    def is_same(module: Any) -> bool:
        return getattr(module, block.norm1) is norm1.module and getattr(module, block.norm2) is norm2.module

    def forward(*arguments: Any, **keywords: Any) -> Any:
        x, given = named(arguments, keywords)
        if not (norm1.fits(x) and norm2.fits(x) and is_same(module)):
            return original(*arguments, **keywords)
        scale1, scale2 = (None if name is None else getattr(module, name) for name in block.scales)
        branch = block.attention.run(module, norm1.of(x), given)
        x, normed = norm2.of_sum(x, branch, scale1, block.in_place[0])
        branch = block.mlp.run(module, normed, given)
        if block.in_place[1]:
            branch += x
            return block.result(branch)
        return block.result(x + branch if scale2 is None else torch.addcmul(x, branch, scale2))

    return forward


def _norm_behind(module: nn.Module, block: Block) -> Any:
    """`x += norm1(attention(x)); x += norm2(mlp(x))`."""
    original = module.forward
    norm1, norm2 = Norm(getattr(module, block.norm1)), Norm(getattr(module, block.norm2))
    named = _names(original)

    def is_same(module: Any) -> bool:
        return getattr(module, block.norm1) is norm1.module and getattr(module, block.norm2) is norm2.module

    def forward(*arguments: Any, **keywords: Any) -> Any:
        x, given = named(arguments, keywords)
        if not (norm1.fits(x) and norm2.fits(x) and is_same(module)):
            return original(*arguments, **keywords)
        x = norm1.added_to(x, block.attention.run(module, x, given))
        return block.result(norm2.added_to(x, block.mlp.run(module, x, given)))

    return forward


def _names(forward: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[torch.Tensor, dict[str, Any]]]:
    """Reads a call of `forward`: its rows, and all arguments by name, those that the caller left out, too."""
    parameters = list(inspect.signature(forward).parameters.values())
    names = [parameter.name for parameter in parameters]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    def read(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[torch.Tensor, dict[str, Any]]:
        given = {**defaults, **dict(zip(names, arguments, strict=False)), **keywords}
        return given[names[0]], given

    return read
