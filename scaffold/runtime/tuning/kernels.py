"""Fused element-wise kernels for a captured vision forward, and the torch functions that they must equal.

Each public function runs its Triton kernel on a GPU and its reference anywhere else. The references round where the
modules that they replace round, and the kernels round where the references do. A row is the last dimension of a tensor,
and inputs must be contiguous in it.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

# -- references --------------------------------------------------------------------------------------------------------


def norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, kind: str
) -> torch.Tensor:
    """RMS or layer norm over the last dimension, computed in float32 (float64 stays) and rounded to `x.dtype`.

    `rms` has no mean and no bias, and rounds before it multiplies by the weight, as vLLM's does; the other is `layer`.
    """
    if kind == "layer":
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
    wide = x if x.dtype is torch.float64 else x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    if weight is not None:
        wide = wide.to(weight.dtype) * weight
    return wide.to(x.dtype)


def add_norm_reference(
    x: torch.Tensor,
    branch: torch.Tensor,
    scale: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`r = x + branch * scale` and the norm of `r`: (r, norm(r))."""
    total = x + (branch if scale is None else branch * scale)
    return total, norm_reference(total, weight, bias, eps, kind)


def norm_add_reference(
    x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, kind: str
) -> torch.Tensor:
    """`x + norm(branch)`: the residual of a tower that normalises after its layers."""
    return x + norm_reference(branch, weight, bias, eps, kind)


def silu_and_mul_reference(x: torch.Tensor) -> torch.Tensor:
    """`silu(a) * b` of the two halves of the last dimension."""
    half = x.shape[-1] // 2
    return F.silu(x[..., :half]) * x[..., half:]


def quick_gelu_reference(x: torch.Tensor) -> torch.Tensor:
    """`x * sigmoid(1.702 x)`."""
    return x * torch.sigmoid(1.702 * x)


def rotate_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions of `x`, `[rows, heads, size]`, halves against halves, by `cos` and `sin`, `[rows, size / 2]`.

    Computed in float32 at least and rounded once, as FlashAttention's kernel does.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    first, second = x.to(wide).chunk(2, dim=-1)
    cosine, sine = (t[: x.shape[0]].to(wide).unsqueeze(1) for t in (cos, sin))
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def window_attention_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, scale: float
) -> torch.Tensor:
    """Full attention inside each sequence `offsets[i]:offsets[i + 1]` of packed rows `[rows, heads, size]`."""
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    bounds = offsets.tolist()
    for start, end in pairwise(bounds):
        if end > start:
            query, key, value = (t[start:end].transpose(0, 1).unsqueeze(0) for t in (q, k, v))
            result = F.scaled_dot_product_attention(query, key, value, scale=scale)
            out[start:end] = result[0].transpose(0, 1)
    return out


# -- kernels -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def triton_kernels() -> Any:
    """The module of the kernels, or None where Triton is not installed."""
    if find_spec("triton") is None:
        return None
    from scaffold.runtime.tuning import triton_source

    return triton_source


def runs_triton(x: torch.Tensor) -> bool:
    """Whether the kernels, not the references, run on this tensor."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16, torch.float32) and triton_kernels() is not None


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as `[rows, columns]`, contiguous in a row."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, kind: str
) -> torch.Tensor:
    """The norm of every row in one kernel."""
    if not runs_triton(x):
        return norm_reference(x, weight, bias, eps, kind)
    rows = _rows(x)
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    _launch_norm(None, rows, None, weight, bias, eps, kind, None, out)
    return out.view(x.shape)


def add_norm(
    x: torch.Tensor,
    branch: torch.Tensor,
    scale: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + branch * scale, its norm) in one kernel. Writes to new tensors."""
    if not runs_triton(x):
        return add_norm_reference(x, branch, scale, weight, bias, eps, kind)
    left, right = _rows(x), _rows(branch)
    total = torch.empty(left.shape, dtype=x.dtype, device=x.device)
    out = torch.empty_like(total)
    _launch_norm(left, right, scale, weight, bias, eps, kind, total, out)
    return total.view(x.shape), out.view(x.shape)


def norm_add(
    x: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, kind: str
) -> torch.Tensor:
    """`x + norm(branch)` in one kernel."""
    if not runs_triton(x):
        return norm_add_reference(x, branch, weight, bias, eps, kind)
    left, right = _rows(x), _rows(branch)
    out = torch.empty(left.shape, dtype=x.dtype, device=x.device)
    _launch_norm(left, right, None, weight, bias, eps, kind, None, out, after=True)
    return out.view(x.shape)


def _launch_norm(
    x: torch.Tensor | None,
    branch: torch.Tensor,
    scale: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
    total: torch.Tensor | None,
    out: torch.Tensor,
    after: bool = False,
) -> None:
    count, width = branch.shape
    block = 1 << (width - 1).bit_length()
    triton_kernels().norm_kernel[(count,)](
        x, branch, scale, weight, bias, total, out,
        branch.stride(0) if x is None else x.stride(0), branch.stride(0), width, eps,
        RMS=kind == "rms", AFTER=after, ADD=x is not None, SCALE=scale is not None, WEIGHT=weight is not None,
        BIAS=bias is not None, TOTAL=total is not None, BLOCK=block, num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """`silu(a) * b` of the halves of each row, in one kernel."""
    if not runs_triton(x):
        return silu_and_mul_reference(x)
    return _launch_activation(x, x.shape[-1] // 2, "silu_mul")


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """`x * sigmoid(1.702 x)` in one kernel."""
    if not runs_triton(x):
        return quick_gelu_reference(x)
    return _launch_activation(x, x.shape[-1], "quick_gelu")


def _launch_activation(x: torch.Tensor, width: int, name: str) -> torch.Tensor:
    rows = _rows(x)
    out = torch.empty((rows.shape[0], width), dtype=x.dtype, device=x.device)
    block = 1024
    kernel = getattr(triton_kernels(), f"{name}_kernel")
    kernel[(rows.shape[0], -(-width // block))](rows, out, rows.stride(0), width, BLOCK=block, num_warps=4)
    return out.view(*x.shape[:-1], width)


def rotate_in_place(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate `x`, `[rows, heads, size]` with any row stride, in place."""
    if x.stride(-1) != 1 or not runs_triton(x):
        x.copy_(rotate_reference(x, cos, sin))
        return
    rows, heads, size = x.shape
    half = size // 2
    cos, sin = (t if t.stride(-1) == 1 else t.contiguous() for t in (cos, sin))
    triton_kernels().rotary_kernel[(rows,)](
        x, cos, sin, x.stride(0), x.stride(1), cos.stride(0), sin.stride(0),
        HEADS=heads, HALF=half, HEADS_BLOCK=1 << (heads - 1).bit_length(), HALF_BLOCK=1 << (half - 1).bit_length(),
        num_warps=4,
    )  # fmt: skip


def window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, longest: int, scale: float
) -> torch.Tensor:
    """Attention inside packed sequences of at most `longest` rows each. Rows outside of all sequences are zero.

    One program holds a whole sequence of one head, so it reads nothing twice.
    """
    if not runs_triton(q):
        return window_attention_reference(q, k, v, offsets, scale)
    rows, heads, size = q.shape
    out = torch.zeros((rows, heads, size), dtype=q.dtype, device=q.device)
    block = max(16, 1 << (longest - 1).bit_length())
    lanes = max(16, 1 << (size - 1).bit_length())
    triton_kernels().window_attention_kernel[(offsets.numel() - 1, heads)](
        q, k, v, out, offsets, scale * 1.4426950408889634,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), out.stride(0), out.stride(1),
        SIZE=size, BLOCK=block, LANES=lanes, num_warps=4,
    )  # fmt: skip
    return out
