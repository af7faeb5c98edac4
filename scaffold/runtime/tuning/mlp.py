"""Tunings of two linear layers with an activation between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.base import Modules, Tuning, Undo, has_hooks, is_from_vllm, plain_linear
from scaffold.runtime.tuning.forwards import Link, chain_of, only_calls

#: Element-wise activations: a column of zeros after the first layer meets a column of zeros in the second.
_ELEMENTWISE = {
    "GELU", "GELUTanh", "QuickGELU", "NewGELU", "FastGELU", "SiLU", "ReLU", "ReLUSquaredActivation", "Tanh", "Sigmoid",
    "FusedActivation",
}  # fmt: skip
#: Activations of the two halves of a row: `act(a) * b`.
_GATED = {"SiluAndMul", "GeluAndMul"}


def mlps(tower: Modules) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose forward is linear, activation, linear."""
    for path, module in tower.items():
        if len(module._modules) == 3 and chain_of(module) is not None and len(chain_of(module) or ()) == 3:
            yield path, module


def parts(module: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module]:
    """First linear layer, activation, second linear layer, in the order of the forward."""
    first, act, second = (getattr(module, step.name) for step in chain_of(module) or ())
    return first, act, second


def _is_gated(act: nn.Module) -> bool:
    return (act.original_name if isinstance(act, FusedActivation) else type(act).__name__) in _GATED


def aligned_size(size: int) -> int:
    """The inner size to pad to: a multiple of 128 or 64 where that costs at most 2 %, else of 8 (16 bytes of bf16).

    On an H200 at 4784 rows: 3420 columns take 213 us, 3424 take 59 us, 3456 take 58 us; 4304 take 68 us, 4352 take
    66 us (21 and 18 us at 1024 rows); `benchmarks/tuning_gpu.py --sweep`. Sizes that are a multiple of 64 stay.
    """
    if size % 64 == 0:
        return size
    for multiple in (128, 64):
        padded = -(-size // multiple) * multiple
        if padded - size <= 0.02 * size:
            return padded
    return -(-size // 8) * 8


class PadMlp(Tuning):
    """Pad the inner size of an MLP: zero rows in the first matrix, and zero columns in the second one to match them."""

    name = "pad-mlp"
    summary = "pad an MLP's inner size with zeros to what matrix kernels load fast"
    level = "rounding"
    measured = "Qwen2.5-VL 27.3 to 22.3 ms, Qwen3-VL 18.2 to 18.1 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        return mlps(tower)

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        first, act, second = parts(module)
        for layer in (first, second):
            why = plain_linear(layer)
            if why is not None:
                return why
        kind = act.original_name if isinstance(act, FusedActivation) else type(act).__name__
        if kind not in _ELEMENTWISE | _GATED:
            return f"the activation {kind} may mix columns"
        size = second.weight.shape[1]
        if first.weight.shape[0] != size * (2 if kind in _GATED else 1):
            return "the sizes of its layers do not fit together"
        if aligned_size(size) == size:
            return "its inner size is aligned"
        return None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        first, act, second = parts(module)
        size = second.weight.shape[1]
        padded, halves = aligned_size(size), 2 if _is_gated(act) else 1
        _pad(first.weight, _Rows(halves, size, padded), undo)
        if first.bias is not None:
            _pad(first.bias, _Rows(halves, size, padded), undo)
        _pad(second.weight, _Columns(size, padded), undo)


class _Rows:
    """Zero rows after each of `halves` parts of the first dimension."""

    def __init__(self, halves: int, size: int, padded: int) -> None:
        self.halves, self.size, self.padded = halves, size, padded

    def pad(self, plain: torch.Tensor) -> torch.Tensor:
        parts = plain.reshape(self.halves, self.size, *plain.shape[1:])
        full = plain.new_zeros((self.halves, self.padded, *plain.shape[1:]))
        full[:, : self.size] = parts
        return full.view(self.halves * self.padded, *plain.shape[1:])

    def cut(self, full: torch.Tensor) -> torch.Tensor:
        parts = full.view(self.halves, self.padded, *full.shape[1:])[:, : self.size]
        return parts.reshape(self.halves * self.size, *full.shape[1:]).contiguous()


class _Columns:
    """Zero columns after the last one."""

    def __init__(self, size: int, padded: int) -> None:
        self.size, self.padded = size, padded

    def pad(self, plain: torch.Tensor) -> torch.Tensor:
        return F.pad(plain, (0, self.padded - self.size))

    def cut(self, full: torch.Tensor) -> torch.Tensor:
        return full[:, : self.size].contiguous()


def _pad(parameter: Any, layout: _Rows | _Columns, undo: Undo) -> None:
    undo.replace_data(parameter, layout.pad(parameter.data), layout.cut)
    loader = getattr(parameter, "weight_loader", None)
    if loader is None:
        return

    def load(target: Any, *arguments: Any, **keywords: Any) -> Any:
        """Load weights in the plain layout that the layer's own loader knows, then copy them into the padded memory.

        The memory stays where it is, so graphs see the new weights.
        """
        full = target.data
        target.data = layout.cut(full)
        try:
            return loader(target, *arguments, **keywords)
        finally:
            full.copy_(layout.pad(target.data))
            target.data = full

    # vLLM's own parameter classes have a property of this name.
    undo.set(parameter, "_weight_loader" if "_weight_loader" in vars(parameter) else "weight_loader", load)


class FusedActivation(nn.Module):  # type: ignore[misc]
    """Replaces an activation of one tower. vLLM shares activation objects, so a tuning must not change one itself."""

    def __init__(self, kernel: Callable[[torch.Tensor], torch.Tensor], original: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel
        self.original_name = type(original).__name__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x)


class FusedActivations(Tuning):
    """Run SiLU-and-multiply and quick GELU as one kernel each, where vLLM runs two or three."""

    name = "fused-activations"
    summary = "run SiLU-and-multiply and quick GELU as one kernel each"
    level = "rounding"
    needs_triton = True
    measured = "Qwen2.5-VL 27.3 to 26.3 ms, Qwen2-VL 25.2 to 23.1 ms, Step3-VL 68.1 to 63.9 ms"

    _KERNELS = {"SiluAndMul": kernels.silu_and_mul, "QuickGELU": kernels.quick_gelu}  # noqa: RUF012

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            if any(type(child).__name__ in self._KERNELS for child in module.children()):
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        for name, act in self._activations(module):
            kind = type(act).__name__
            if not is_from_vllm(act, kind):
                return f"{kind} is not vLLM's"
            if has_hooks(act):
                return "its activation has hooks"
            if not only_calls(module, name):
                return f"{type(module).__name__} does more with {name} than to call it"
            if any(getattr(child, "_input_quant_key", None) is not None for child in module.children()):
                return "vLLM converts its result in one kernel with it"
        return None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        for name, act in self._activations(module):
            undo.set(module, name, FusedActivation(self._KERNELS[type(act).__name__], act))

    def _activations(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        return [(name, child) for name, child in module.named_children() if type(child).__name__ in self._KERNELS]


class GeluEpilogue(Tuning):
    """Compute GELU (tanh) in the epilogue of the first matrix product, which computes exactly that approximation."""

    name = "gelu-epilogue"
    summary = "compute GELU (tanh) in the epilogue of the matrix product before it"
    level = "rounding"
    measured = "Qwen3-VL 18.2 to 17.7 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in mlps(tower):
            act = parts(module)[1]
            if isinstance(act, nn.GELU) and act.approximate == "tanh":
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        first, act, _ = parts(module)
        why = plain_linear(first)
        if why is not None:
            return why
        if type(act) is not nn.GELU or has_hooks(act):
            return "its activation is a subclass or has hooks"
        return "its first layer has no bias" if first.bias is None or getattr(first, "skip_bias_add", False) else None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        first, _, second = parts(module)
        steps: list[Link] = chain_of(module) or []
        unpack = steps[2].unpack

        def forward(x: torch.Tensor) -> torch.Tensor:
            hidden = linear_gelu(x, first.weight, first.bias)
            out = second(hidden)
            return out[0] if unpack else out

        undo.set(module, "forward", forward)


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`gelu(x @ weight.T + bias)`, tanh approximation, in cuBLASLt's epilogue. Torch's fused GELU on a CPU uses erf."""
    if not x.is_cuda:
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")
    rows = x.reshape(-1, x.shape[-1])
    out = torch._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return out.view(*x.shape[:-1], weight.shape[0])
