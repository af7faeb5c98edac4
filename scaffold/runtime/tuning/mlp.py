"""Tunings of two linear layers with an activation between them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from scaffold.runtime.tuning import kernels
from scaffold.runtime.tuning.base import Modules, Tuning, Undo, is_from_vllm, plain_linear
from scaffold.runtime.tuning.forwards import Link, chain_of, is_untouched, only_calls


def mlps(tower: Modules) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose forward is linear, activation, linear."""
    for path, module in tower.items():
        if len(module._modules) == 3 and chain_of(module) is not None and len(chain_of(module) or ()) == 3:
            yield path, module


def parts(module: nn.Module) -> tuple[nn.Module, nn.Module, nn.Module]:
    """First linear layer, activation, second linear layer, in the order of the forward."""
    first, act, second = (getattr(module, step.name) for step in chain_of(module) or ())
    return first, act, second


def aligned_size(size: int) -> int:
    """The columns to pad a matrix to where its rows are not whole loads of 16 bytes (8 of bf16): a multiple of 64 where
    that costs at most 2 %, else of 8.

    On an H200 at 4784 rows: 3420 columns take 213 us, 3424 take 59 us, 3456 take 58 us (`benchmarks/tuning_gpu.py
    --sweep`).
    """
    if size % 8 == 0:
        return size
    padded = -(-size // 64) * 64
    return padded if padded - size <= 0.02 * size else -(-size // 8) * 8


#: Torch cuts tensors of these sizes, in bytes, from segments of 20 MiB that they share.
SHARING = range(2**20 + 1, 10 * 2**20)


def neighbours(path: str, tower: Modules, weight: torch.Tensor) -> list[torch.Tensor]:
    """Weights of the linear layers in a module's block that may share a segment of memory with one of its weights.

    Empty where the weights may sleep: vLLM frees the memory that it gave them, and new memory would stay in use.
    """
    allocator = getattr(sys.modules.get("vllm.device_allocator.cumem"), "CuMemAllocator", None)
    block = path.rpartition(".")[0]
    is_one_of_many = block.rpartition(".")[2].isdigit()
    if getattr(allocator, "instance", None) is not None or weight.nbytes not in SHARING or not is_one_of_many:
        return []
    layers = (layer for at, layer in tower.items() if at.startswith(f"{block}.") and plain_linear(layer) is None)
    found = {
        id(other): other
        for other in (layer.weight for layer in layers)
        if other.nbytes in SHARING and other.is_contiguous() and other.untyped_storage().nbytes() == other.nbytes
        and (other.dtype, other.device, other.is_inference()) == (weight.dtype, weight.device, weight.is_inference())
    }  # fmt: skip
    found.pop(id(weight), None)
    return list(found.values())


def move_together(weights: Sequence[torch.Tensor]) -> None:
    """Move weights into one block, which lives as long as any of them stays there. Their old memory is free then."""
    block = torch.cat([weight.data.flatten() for weight in weights])
    for weight, part in zip(weights, block.split([weight.numel() for weight in weights]), strict=True):
        weight.data = part.view(weight.shape)


class PadMlp(Tuning):
    """Pad the columns of an MLP's second matrix with zeros, and the rows that it multiplies.

    The parameter keeps its shape: it is a view of the padded memory, so that whatever writes weights into it, in any
    format, writes where the kernels read.

    A padded matrix does not fit where the plain one was, and that memory does not go back to the device while another
    weight is in its segment. So the other linear layers of the block move, too, and the old segments hold all of them.
    Before that, tuning took 362 MiB of the device for Qwen2.5-VL beside the graphs, and 34 for Qwen2-VL, which has
    nothing to pad (one H100, 2026-11-27).
    """

    name = "pad-mlp"
    summary = "pad an MLP's inner size with zeros to what matrix kernels load fast"
    level = "rounding"
    measured = "Qwen2.5-VL 27.3 to 24.0 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        return mlps(tower)

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        second = parts(module)[2]
        why = plain_linear(second)
        if why is not None:
            return why
        if not second.weight.is_contiguous():
            return "its weight has another layout already"
        if aligned_size(second.weight.shape[1]) == second.weight.shape[1]:
            return "its inner size is aligned"
        return None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        _, act, second = parts(module)
        weight = second.weight
        width = aligned_size(weight.shape[1])
        others = neighbours(path, tower, weight)
        with torch.inference_mode(weight.is_inference()), torch.no_grad():
            if others:
                move_together([weight, *others])
            matrix = kernels.widened(weight.data, width)
        undo.replace_data(weight, matrix[:, : weight.shape[1]], torch.Tensor.contiguous)
        with torch.inference_mode(weight.is_inference()), torch.no_grad():
            for other in others:
                other.data = other.data.clone()
        method = PaddedMethod(second, matrix)
        if type(second) is nn.Linear:
            undo.set(second, "forward", lambda x: method.apply(second, x, second.bias))
        else:
            undo.set(second, "quant_method", method)
        if isinstance(act, FusedActivation):
            undo.set(act, "width", width)


class PaddedMethod:
    """The method of a linear layer whose weight is a view of a padded matrix."""

    def __init__(self, layer: Any, matrix: torch.Tensor) -> None:
        self.plain = getattr(layer, "quant_method", None)
        self.matrix = matrix

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if layer.weight.data_ptr() != self.matrix.data_ptr():  # somebody gave the parameter other memory
            return F.linear(x[..., : layer.weight.shape[1]], layer.weight, bias)
        return F.linear(kernels.widened(x, self.matrix.shape[1]), self.matrix, bias)


def matrix_of(layer: Any) -> torch.Tensor:
    """The matrix that a linear layer multiplies with: its weight, padded where it is."""
    method = getattr(layer, "quant_method", None)
    while method is not None and not isinstance(method, PaddedMethod):
        method = getattr(method, "plain", None)  # the method of another tuning
    return layer.weight if method is None else method.matrix


class FusedActivation(nn.Module):  # type: ignore[misc]
    """Replaces an activation of one tower. vLLM shares activation objects, so a tuning must not change one itself."""

    def __init__(self, kernel: Callable[[torch.Tensor, int], torch.Tensor], original: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel
        self.original_name = type(original).__name__
        #: The columns of its results, where zeros fill them up.
        self.width = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x, self.width)


class FusedActivations(Tuning):
    """Run SiLU-and-multiply and quick GELU as one kernel each, where vLLM runs two or three."""

    name = "fused-activations"
    summary = "run SiLU-and-multiply and quick GELU as one kernel each"
    level = "rounding"
    needs_triton = True
    measured = "Qwen2.5-VL 27.3 to 26.3 ms, Qwen2-VL 25.4 to 23.4 ms, Step3-VL 67.7 to 63.3 ms"

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
            if not is_untouched(act):
                return "its activation has hooks, or somebody put something in the place of its forward"
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
    measured = "Qwen3-VL 18.3 to 17.8 ms"

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
        if type(act) is not nn.GELU or not is_untouched(act):
            return "its activation is a subclass or has hooks"
        return "its first layer has no bias" if first.bias is None or getattr(first, "skip_bias_add", False) else None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        first, act, second = parts(module)
        steps: list[Link] = chain_of(module) or []
        unpack, original = steps[2].unpack, module.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            if x.dtype is not first.weight.dtype or not (is_untouched(first) and is_untouched(act)):
                return original(x)
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
