"""Inputs of linear layers that a checkpoint brings in FP8: converted in one kernel, or written so by what is before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.base import Modules, Tuning, Undo, is_wrapped_for_lora
from scaffold.runtime.tuning.blocks import block_of, known_block
from scaffold.runtime.tuning.forwards import digest, is_untouched
from scaffold.runtime.tuning.fp8 import fed_layers, write_fp8
from scaffold.runtime.tuning.mlp import parts

#: Digests of `apply_weights` of vLLM's FP8 kernels: one scale for each row of the inputs, then `apply_scaled_mm`.
APPLY_WEIGHTS = {
    "c6e70bbce231b507",  # 0.20 to 0.23
    "575ea17a40e702f0",  # from 0.24 on
}


class Fp8Inputs(Tuning):
    """Convert the inputs of FP8 layers row by row in one kernel; in known blocks, norms and activations do it.

    vLLM's own kernels multiply. A row's scale is that of vLLM, but for rows with nothing larger than 1 / 512: vLLM's
    scale has a least value.

    vLLM compiles its conversion for any number of rows. With 4784 rows it takes 2.6 to 6.8 times as long
    (`benchmarks/fp8_checkpoint_gpu.py`).
    """

    name = "fp8-inputs"
    summary = "convert the inputs of FP8 layers in one kernel, or in that of the norm or the activation before them"
    level = "rounding"
    needs_triton = True
    measured = (
        "Qwen2.5-VL 19.4 to 13.7 ms, Qwen2-VL 23.6 to 18.3 ms, Qwen3-VL 19.7 to 15.5 ms, InternVL 14.5 to 10.0 ms"
    )

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            if _kernel(module) is not None:
                yield path, module
        for path, module in tower.items():
            layers = fed_layers(module) if block_of(module) is not None else ()
            if any(_kernel(layer) is not None for layer in layers):
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        if _kernel(module) is not None:
            return _unfit(module)
        return next((why for layer in fed_layers(module) if (why := _unfit(layer)) is not None), None)

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        kernel = _kernel(module)
        if kernel is not None:
            undo.set(kernel, "apply_weights", _apply_weights(kernel))
            return
        second = parts(getattr(module, known_block(module).mlp.child))[2]
        write_fp8(module, 1, undo, width=second.weight.shape[0])


def _apply_weights(kernel: Any) -> Any:
    def apply_weights(layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        # [inputs, outputs]; vLLM pads either size where its kernel asks for it.
        weight, weight_scale, *_ = kernel._get_layer_params(layer)
        rows, scales = kernels.brought_fp8(x) or kernels.to_fp8(x, width=weight.shape[0])
        return kernel.apply_scaled_mm(
            A=rows.view(-1, rows.shape[-1]), B=weight, out_dtype=kernel.config.out_dtype, As=scales, Bs=weight_scale,
            bias=bias, output_shape=[*rows.shape[:-1], weight.shape[1]],
        )  # fmt: skip

    return apply_weights


def _kernel(layer: Any) -> Any:
    """vLLM's kernel of an FP8 layer; None if it has none. compressed-tensors keeps it in a scheme."""
    method = getattr(layer, "scheme", None) or getattr(layer, "quant_method", None)
    return getattr(method, "fp8_linear", None)


def _unfit(layer: Any) -> str | None:
    kernel = _kernel(layer)
    if kernel is None:
        return "LoRA wraps it" if is_wrapped_for_lora(layer) else "it has no FP8 weights"
    if digest(kernel, "apply_weights") not in APPLY_WEIGHTS:
        return f"{type(kernel).__name__} converts its inputs in a way of its own"
    scale = kernel.config.activation_quant_key.scale
    if scale.static or not scale.group_shape.is_per_token():
        return "its inputs have no scale for each row"
    if getattr(layer, "input_scale_ub", None) is not None:
        return "the scales of its inputs have a bound"
    if kernel.config.out_dtype is None:
        return "the type of its results is that of its inputs"
    if not is_untouched(layer):
        return "it has hooks"
    weight = layer.weight
    if weight.is_cuda and torch.cuda.get_device_capability(weight.device) != (9, 0):
        return "FP8 was measured on Hopper GPUs alone"
    return None
