"""Tunings of convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from scaffold.runtime.tuning.base import Modules, Tuning, Undo, is_from_vllm


class ChannelsLast(Tuning):
    """Keep a convolution's weight in the layout that cuDNN's kernels read: otherwise every call transposes it."""

    name = "channels-last"
    summary = "keep the weights of convolutions in the layout that cuDNN reads"
    level = "rounding"
    measured = "Step3-VL 67.5 to 65.7 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            if isinstance(module, nn.Conv2d) or type(module).__name__ == "Conv2dLayer":
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        if type(module) is not nn.Conv2d and not is_from_vllm(module, "Conv2dLayer"):
            return f"{type(module).__name__} is a subclass"
        if getattr(module, "enable_linear", False) or tuple(module.kernel_size) == tuple(module.stride):
            return "it runs as a matrix product"
        weight = module.weight
        if weight.ndim != 4 or not weight.is_floating_point():
            return "its weight is not four-dimensional floating point"
        if not weight.is_contiguous():
            return "its weight has another layout already"
        return "it is depthwise or grouped" if module.groups != 1 else None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        weight = module.weight
        undo.replace_data(weight, weight.data.contiguous(memory_format=torch.channels_last), torch.Tensor.contiguous)
