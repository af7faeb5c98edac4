"""Fused element-wise kernels for a captured vision forward, and the torch functions that they must equal.

Each public function runs its Triton kernel on a GPU and its reference anywhere else. The references round where the
modules that they replace round, and the kernels round where the references do. A row is the last dimension of a tensor,
and inputs must be contiguous in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

#: Four bits of exponent and three of mantissa: the type of FP8 that matrix kernels take, and its largest value.
FP8, FP8_LARGEST = torch.float8_e4m3fn, 448.0

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


def fp8_reference(x: torch.Tensor, activation: str = "", width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The activation of every row in FP8, `[..., width]`, and the rows' scales in float32, `[rows, 1]`."""
    value = ACTIVATIONS[activation](x).float()
    if width is not None:
        value = F.pad(value, (0, width - value.shape[-1]))
    scales = value.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / FP8_LARGEST
    return (value / scales).to(FP8), scales.reshape(-1, 1)


def scaled_product_reference(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x @ weight.T + bias` of rows in FP8 with a scale each, added up in float32 and rounded to bfloat16."""
    wide = F.linear(x.float() * x_scales, weight.float() * scales, None if bias is None else bias.float())
    return wide.bfloat16()


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


#: Activations that a kernel computes on the way to FP8, by the names that it knows them by.
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "silu_and_mul": silu_and_mul_reference,
    "quick_gelu": quick_gelu_reference,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}

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


def count_rows(x: torch.Tensor) -> int:
    """The number of rows of `x`."""
    return int(x.numel() // x.shape[-1])


def _rows(x: torch.Tensor) -> torch.Tensor:
    """`x` as `[rows, columns]`, contiguous in a row."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
    fp8: bool = False,
) -> torch.Tensor:
    """The norm of every row in one kernel. With `fp8`, the result brings its FP8 form (`in_fp8`)."""
    if not runs_triton(x):
        return _bring_fp8(norm_reference(x, weight, bias, eps, kind), fp8)
    rows = _rows(x)
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    found = _launch_norm(None, rows, None, weight, bias, eps, kind, None, out, fp8=fp8)
    return _bring(out.view(x.shape), found)


def add_norm(
    x: torch.Tensor,
    branch: torch.Tensor,
    scale: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
    fp8: bool = False,
    in_place: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + branch * scale, its norm) in one kernel. With `fp8`, the norm brings its FP8 form.

    `in_place` writes the sum over `branch`, which then has no scale; else both results are new tensors.
    """
    if not (runs_triton(x) and _are_alike(x, branch, scale)) or (in_place and not branch.is_contiguous()):
        if in_place:
            branch += x
            return branch, _bring_fp8(norm_reference(branch, weight, bias, eps, kind), fp8)
        total, out = add_norm_reference(x, branch, scale, weight, bias, eps, kind)
        return total, _bring_fp8(out, fp8)
    left, right = _rows(x), _rows(branch)
    total = right if in_place else torch.empty(left.shape, dtype=x.dtype, device=x.device)
    out = torch.empty(left.shape, dtype=x.dtype, device=x.device)
    found = _launch_norm(left, right, scale, weight, bias, eps, kind, total, out, fp8=fp8)
    return branch if in_place else total.view(x.shape), _bring(out.view(x.shape), found)


def norm_add(
    x: torch.Tensor,
    branch: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    kind: str,
    fp8: bool = False,
) -> torch.Tensor:
    """`x + norm(branch)` in one kernel. With `fp8`, the sum brings its FP8 form."""
    if not (runs_triton(x) and _are_alike(x, branch)):
        return _bring_fp8(norm_add_reference(x, branch, weight, bias, eps, kind), fp8)
    left, right = _rows(x), _rows(branch)
    out = torch.empty(left.shape, dtype=x.dtype, device=x.device)
    found = _launch_norm(left, right, None, weight, bias, eps, kind, None, out, after=True, fp8=fp8)
    return _bring(out.view(x.shape), found)


def _are_alike(x: torch.Tensor, branch: torch.Tensor, scale: torch.Tensor | None = None) -> bool:
    """Whether a sum neither broadcasts nor converts, but for a scale of each column: a kernel reads all terms alike."""
    if branch.shape != x.shape or (scale is not None and scale.shape != x.shape[-1:]):
        return False
    return all(t is None or t.dtype is x.dtype for t in (branch, scale))


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
    fp8: bool = False,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Launch the norm kernel. With `fp8`, returns the FP8 form of `out`."""
    count, width = branch.shape
    block = 1 << (width - 1).bit_length()
    found = _empty_fp8(out, width) if fp8 else None
    in_fp8, scales = found or (None, None)
    triton_kernels().norm_kernel[(count,)](
        x, branch, scale, weight, bias, total, out, in_fp8, scales,
        branch.stride(0) if x is None else x.stride(0), branch.stride(0), width, eps,
        RMS=kind == "rms", AFTER=after, ADD=x is not None, SCALE=scale is not None, WEIGHT=weight is not None,
        BIAS=bias is not None, TOTAL=total is not None, FP8=fp8, BLOCK=block, num_warps=max(1, min(16, block // 512)),
    )  # fmt: skip
    return found


def silu_and_mul(x: torch.Tensor, width: int = 0) -> torch.Tensor:
    """`silu(a) * b` of the halves of each row, in one kernel. Zeros are behind the last column, up to `width`."""
    if not runs_triton(x):
        return widened(silu_and_mul_reference(x), width)
    return _launch_activation(x, x.shape[-1] // 2, width, "silu_mul")


def quick_gelu(x: torch.Tensor, width: int = 0) -> torch.Tensor:
    """`x * sigmoid(1.702 x)` in one kernel. Zeros are behind the last column, up to `width`."""
    if not runs_triton(x):
        return widened(quick_gelu_reference(x), width)
    return _launch_activation(x, x.shape[-1], width, "quick_gelu")


def widened(x: torch.Tensor, width: int) -> torch.Tensor:
    """`x` with zeros behind the last column, up to `width`."""
    missing = width - x.shape[-1]
    return F.pad(x, (0, missing)) if missing > 0 else x


def _launch_activation(x: torch.Tensor, columns: int, width: int, name: str) -> torch.Tensor:
    rows, width = _rows(x), max(columns, width)
    out = torch.empty((rows.shape[0], width), dtype=x.dtype, device=x.device)
    block = 1024
    kernel = getattr(triton_kernels(), f"{name}_kernel")
    kernel[(rows.shape[0], -(-width // block))](rows, out, rows.stride(0), columns, width, BLOCK=block, num_warps=4)
    return out.view(*x.shape[:-1], width)


def _empty_fp8(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the FP8 form of the rows of `x`, and for their scales."""
    in_fp8 = torch.empty((*x.shape[:-1], width), dtype=FP8, device=x.device)
    return in_fp8, torch.empty((in_fp8.numel() // width, 1), dtype=torch.float32, device=x.device)


def to_fp8(x: torch.Tensor, activation: str = "", width: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The activation of every row in FP8, `[..., width]`, and the rows' scales, `[rows, 1]`, in one kernel.

    Zeros are behind the last column of the activation, up to `width`.
    """
    if not runs_triton(x):
        return fp8_reference(x, activation, width)
    rows = _rows(x)
    columns = rows.shape[-1] // 2 if activation == "silu_and_mul" else rows.shape[-1]
    width = columns if width is None else width
    in_fp8, scales = _empty_fp8(x, width)
    # A power of two that is hardly larger than the row, or parts of it: most lanes are to have a column.
    block = 1 << (width - 1).bit_length()
    block = block if block <= 2048 or width > 0.8 * block else 1024
    triton_kernels().fp8_kernel[(rows.shape[0],)](
        rows, in_fp8, scales, rows.stride(0), columns, width, ACTIVATION=activation, PARTS=-(-width // block),
        BLOCK=block, num_warps=max(4, min(8, block // 512)),
    )  # fmt: skip
    return in_fp8, scales


def _bring(x: torch.Tensor, found: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    """`x`, with its FP8 form for whoever takes it next. A view or a copy of `x` has none."""
    if found is not None:
        in_fp8, scales = found
        x._vitcg_fp8 = in_fp8.view(x.shape), scales
    return x


def _bring_fp8(x: torch.Tensor, fp8: bool) -> torch.Tensor:
    """`x`; with `fp8`, it brings its FP8 form."""
    return _bring(x, fp8_reference(x) if fp8 else None)


def with_scales(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Rows in FP8 that bring their scales to the next layer."""
    rows._vitcg_scales = scales
    return rows


def brought_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The FP8 form of every row and their scales, if `x` is in FP8 or brings them."""
    if x.dtype is FP8:
        return x, x._vitcg_scales
    found: tuple[torch.Tensor, torch.Tensor] | None = getattr(x, "_vitcg_fp8", None)
    return found


def in_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The FP8 form of every row and their scales: what `x` is or brings, else made of it."""
    found = brought_fp8(x)
    return to_fp8(x) if found is None else found


def scaled_product(
    x: torch.Tensor, x_scales: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x @ weight.T + bias` in bfloat16; `x` and `weight` are FP8 with a scale each row, `[rows, 1]`."""
    rows = x.reshape(-1, x.shape[-1])
    if not x.is_cuda:
        out = scaled_product_reference(rows, x_scales, weight, scales, bias)
    else:
        out = torch._scaled_mm(
            rows, weight.t(), scale_a=x_scales, scale_b=scales.t(), bias=bias, out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )  # fmt: skip
    return out.view(*x.shape[:-1], weight.shape[0])


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
