"""Linear layers in FP8. It runs only where a user asks for it: results change by more than rounding."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.base import Modules, Tuning, Undo, is_from_vllm, plain_linear
from scaffold.runtime.tuning.blocks import block_of, known_block
from scaffold.runtime.tuning.forwards import chain_of, is_untouched, reads_only_through
from scaffold.runtime.tuning.mlp import FusedActivation, matrix_of, parts
from scaffold.runtime.tuning.norms import FP8_ROWS

#: From so many rows on, layers multiply in FP8. With 1024 rows on an H200, the towers of Qwen3-VL and InternVL took
#: 1.02 to 1.03 of their time in bfloat16, and Qwen2.5-VL's took 0.88.
LEAST_ROWS = 2048

#: The largest accepted error of a tower, relative to its largest output.
LARGEST_ERROR = 0.25

#: The names of activations in `kernels.ACTIVATIONS` by vLLM's classes.
_ACTIVATIONS = {"SiluAndMul": "silu_and_mul", "QuickGELU": "quick_gelu", "GELU": "gelu", "GELUTanh": "gelu_tanh"}


class Fp8Method:
    """The method of a linear layer: FP8 for many rows, else the layer's own.

    Each row of the weight has a scale, and so has each row of the inputs. The layer keeps its weight: small inputs read
    it, vLLM loads it, and undone it is as it was. `parts` are the parts of its rows that are padded each, to `rows`.
    """

    def __init__(self, layer: Any, parts: int = 1, rows: int = 0) -> None:
        self.plain = layer.quant_method
        self._layer, self._parts, self._rows = layer, parts, rows
        #: Weight, scales and, where its rows are padded, the bias. They stay where they are.
        self.own = self._made()

    @property
    def nbytes(self) -> int:
        """The memory of the FP8 form."""
        return sum(t.nbytes for t in self.own if t is not None)

    def _made(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The FP8 form of the weight, its scales, and the bias."""
        bias = self._layer.bias if self._rows else None
        weight, scales = kernels.to_fp8(self._padded(matrix_of(self._layer).data))
        return weight, scales, None if bias is None else self._padded(bias.data)

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        missing = max(self._rows - rows.shape[0] // self._parts, 0)
        if not missing:
            return rows
        parts = rows.reshape(self._parts, -1, *rows.shape[1:])
        return F.pad(parts, (0, 0) * (rows.ndim - 1) + (0, missing)).flatten(0, 1)

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.dtype is not kernels.FP8 and kernels.count_rows(x) < LEAST_ROWS:
            return self.plain.apply(layer, x, bias)
        weight, scales, padded = self.own
        if bias is not None and padded is not None:
            bias = padded
        return kernels.scaled_product(*kernels.in_fp8(x), weight, scales, bias)

    def read_weight(self) -> None:
        """Make the FP8 form of the layer's weight again, in place: graphs read it where it is."""
        if self._layer.weight.is_meta:  # in the middle of a reload, after which it is called again
            return
        with torch.inference_mode():
            for held, made in zip(self.own, self._made(), strict=True):
                if held is not None and made is not None:
                    held.copy_(made)


class Fp8Activation(FusedActivation):
    """An activation that gives its result in FP8 where it has at least so many rows.

    With `width`, zeros fill each row up to as many columns: kernels load rows whose size is a multiple of 16.
    """

    def __init__(self, original: nn.Module, name: str, least_rows: int, width: int | None = None) -> None:
        super().__init__(lambda x, _: original.forward(x), original)
        self._name, self._least_rows, self._width = name, least_rows, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if kernels.count_rows(x) < self._least_rows:
            return self.kernel(x, 0)
        return kernels.with_scales(*kernels.to_fp8(x, self._name, self._width))


class Fp8Linears(Tuning):
    """Multiply in FP8 in all blocks but the first and the last.

    The norm or the activation before a layer writes its rows in FP8. The projection behind attention stays as it is.
    """

    name = "fp8-linears"
    summary = "multiply in FP8 in all blocks but the first and the last"
    level = "fp8"
    needs_triton = True
    measured = (
        "Qwen2.5-VL 13.3 to 10.2 ms, Step3-VL 54.7 to 46.7 ms, InternVL 10.7 to 9.5 ms, Qwen2-VL 19.8 to 17.5 ms, "
        "Qwen3-VL 15.5 to 14.8 ms"
    )
    largest_error = LARGEST_ERROR

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            layers, _, index = path.rpartition(".")
            blocks = tower.get(layers)
            inner = isinstance(blocks, nn.ModuleList) and 0 < int(index) < len(blocks) - 1
            if inner and block_of(module) is not None:
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        layers = fed_layers(module)
        if not layers:
            return "its attention does not only multiply its rows, or its MLP is not linear, activation, linear"
        padded = matrix_of(layers[-1]).shape[1] != layers[-1].weight.shape[1]
        if padded and _name(parts(getattr(module, known_block(module).mlp.child))[1]) is None:
            return "its activation is not known, and its inner size is padded"
        first = layers[-2] if padded else None  # its FP8 form has the rows that the padded layer takes
        return next((why for layer in layers if (why := _unfit(layer, layer is first)) is not None), None)

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        mlp = getattr(module, known_block(module).mlp.child)
        first, act, second = parts(mlp)
        for layer in fed_layers(module):
            padding = (1 + (_name(act) == "silu_and_mul"), matrix_of(second).shape[1]) if layer is first else ()
            method = Fp8Method(layer, *padding)
            undo.extra_bytes += method.nbytes
            undo.set(layer, "quant_method", method)
            undo.after_load(method.read_weight)
        write_fp8(module, LEAST_ROWS, undo)
        undo.set(mlp, "forward", _forward(mlp))


def write_fp8(module: nn.Module, least_rows: int, undo: Undo, width: int | None = None) -> None:
    """Let the norms and the activation of a block write their rows in FP8, too, where they have so many.

    `width` is the number of columns that the layer behind the activation takes; None for as many as there are.
    """
    block = known_block(module)
    # A tower that normalises behind its layers hands the second sum to whoever is next.
    for name in (block.norm1,) if block.norms_behind else (block.norm1, block.norm2):
        undo.set(getattr(module, name), FP8_ROWS, least_rows)
    mlp = getattr(module, block.mlp.child)
    _, act, second = parts(mlp)
    name_of_act = _name(act)
    if name_of_act is not None and getattr(second, "input_is_parallel", True):
        undo.set(mlp, (chain_of(mlp) or [])[1].name, Fp8Activation(act, name_of_act, least_rows, width))


def _forward(mlp: nn.Module) -> Any:
    """With many rows, the class's own forward: another tuning may have moved the activation out of it."""
    with_few, with_many = mlp.forward, MethodType(type(mlp).forward, mlp)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return (with_few if kernels.count_rows(x) < LEAST_ROWS else with_many)(x)

    return forward


def fed_layers(module: nn.Module) -> list[nn.Module]:
    """The linear layers of a block behind a norm or an activation, which write their results in FP8 at no cost.

    None where its attention is no module, or does more with its rows than to multiply them, or its MLP is not linear,
    activation, linear.

    The layer behind attention stays as it is: to convert its inputs takes as long as its product saves (H200, widths
    of 1024 to 1792), and its rounding would add up with the others'.
    """
    block = known_block(module)
    attention, mlp = getattr(module, block.attention.child), getattr(module, block.mlp.child)
    if not isinstance(attention, nn.Module) or len(chain_of(mlp) or ()) != 3:
        return []
    first, _, second = parts(mlp)
    matrices = {
        name: layer for name, layer in attention.named_children()
        if getattr(getattr(layer, "weight", None), "ndim", 0) == 2 and not is_from_vllm(layer, "RowParallelLinear")
    }  # fmt: skip
    # Rows bring their FP8 form, which nobody may change on the way.
    if not reads_only_through(attention, block.attention.keyword, matrices):
        return []
    return [*matrices.values(), first, second]


def _unfit(layer: Any, pads_rows: bool) -> str | None:
    why = plain_linear(layer)
    if why is not None:
        return why
    weight = matrix_of(layer)
    if not hasattr(layer, "quant_method"):
        return "it is no linear layer of vLLM"
    if weight.dtype is not torch.bfloat16:
        return f"its weights are {str(weight.dtype).removeprefix('torch.')}, and products of FP8 are bfloat16"
    if any(size % 16 for size in weight.shape[pads_rows:]):
        return "its sizes are no multiples of 16"
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) != (9, 0):
        return "FP8 was measured on Hopper GPUs alone"
    return None


def _name(act: nn.Module) -> str | None:
    """The name of an activation in `kernels.ACTIVATIONS`; None for another one."""
    if not is_untouched(act):
        return None
    if type(act) is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(act.approximate)
    if isinstance(act, FusedActivation):
        return _ACTIVATIONS.get(act.original_name)
    return next((name for kind, name in _ACTIVATIONS.items() if is_from_vllm(act, kind)), None)
