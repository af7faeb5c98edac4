"""The Triton kernels of `scaffold.runtime.tuning.kernels`, which imports them only where Triton is installed.

Triton compiles a kernel at its first launch (0.2 to 1 s each) and keeps it in its cache on disk. Nothing here allocates
or synchronises, so a graph can capture a launch.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _store_fp8(value, row, column, inside, width, fp8_ptr, scales_ptr):
    """A row in FP8 with its scale, such that its largest value is the largest of FP8 (e4m3): 448."""
    scale = tl.maximum(tl.max(tl.abs(value), 0), 1e-12) / 448.0
    tl.store(fp8_ptr + row * width + column, (value / scale).to(tl.float8e4nv), mask=inside)
    tl.store(scales_ptr + row, scale)


@triton.jit
def norm_kernel(
    x_ptr, branch_ptr, scale_ptr, weight_ptr, bias_ptr, total_ptr, out_ptr, fp8_ptr, fp8_scales_ptr,
    x_stride, branch_stride, width, eps,
    RMS: tl.constexpr, AFTER: tl.constexpr, ADD: tl.constexpr, SCALE: tl.constexpr, WEIGHT: tl.constexpr,
    BIAS: tl.constexpr, TOTAL: tl.constexpr, FP8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row per program. `AFTER`: x + norm(branch); else norm(x + branch * scale), with the sum to `total`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(branch_ptr + row * branch_stride + column, mask=inside, other=0.0)
    kind = value.dtype
    value = value.to(tl.float32)
    if ADD:
        residual = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if not AFTER:
            if SCALE:
                factor = tl.load(scale_ptr + column, mask=inside, other=0.0).to(tl.float32)
                value = (value * factor).to(kind).to(tl.float32)
            value = (residual + value).to(kind)
            if TOTAL:
                tl.store(total_ptr + row * width + column, value, mask=inside)
            value = value.to(tl.float32)
    if RMS:
        centred = value
    else:
        mean = tl.sum(value, 0) / width
        centred = tl.where(inside, value - mean, 0.0)
    inverse = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 0) / width + eps)
    result = centred * inverse
    if RMS:
        result = result.to(kind).to(tl.float32)
    if WEIGHT:
        result = result * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        result = result + tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    result = result.to(kind)
    if AFTER:
        result = (residual + result.to(tl.float32)).to(kind)
    tl.store(out_ptr + row * width + column, result, mask=inside)
    if FP8:
        _store_fp8(result.to(tl.float32), row, column, inside, width, fp8_ptr, fp8_scales_ptr)


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, x_stride, columns, width, BLOCK: tl.constexpr):
    """A part of one row per program; zeros from `columns` to `width`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    gate = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    up = tl.load(x_ptr + row * x_stride + columns + column, mask=inside, other=0.0)
    kind = gate.dtype
    gate = gate.to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out_ptr + row * width + column, (gate * up.to(tl.float32)).to(kind), mask=column < width)


@triton.jit
def quick_gelu_kernel(x_ptr, out_ptr, x_stride, columns, width, BLOCK: tl.constexpr):
    """A part of one row per program; zeros from `columns` to `width`.

    It rounds once, where three torch kernels round three times.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + row * x_stride + column, mask=column < columns, other=0.0)
    wide = value.to(tl.float32)
    out = (wide / (1.0 + tl.exp(-1.702 * wide))).to(value.dtype)
    tl.store(out_ptr + row * width + column, out, mask=column < width)


@triton.jit
def _activated(x_ptr, column, width, ACTIVATION: tl.constexpr):
    """The activation of some columns of a row, rounded as the row is; zero behind the last column."""
    inside = column < width
    value = tl.load(x_ptr + column, mask=inside, other=0.0)
    kind = value.dtype
    value = value.to(tl.float32)
    if ACTIVATION == "silu_and_mul":
        value = (value / (1.0 + tl.exp(-value))).to(kind).to(tl.float32)
        value = value * tl.load(x_ptr + width + column, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "quick_gelu":
        value = value / (1.0 + tl.exp(-1.702 * value))
    if ACTIVATION == "gelu":
        value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    if ACTIVATION == "gelu_tanh":
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        value = value / (1.0 + tl.exp(-2.0 * inner))
    return value.to(kind).to(tl.float32)


@triton.jit
def fp8_kernel(
    x_ptr, out_ptr, scales_ptr, x_stride, columns, width, ACTIVATION: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row per program: its activation in FP8, with a scale. Without an activation, the row itself.

    The result has `columns` of them, and zeros up to `width`. A row of several parts is read and computed twice: the
    largest of all comes before the first can be written.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    if PARTS == 1:
        value = _activated(x_ptr + row * x_stride, column, columns, ACTIVATION)
        _store_fp8(value, row, column, column < width, width, out_ptr, scales_ptr)
    else:
        largest = 1e-12
        for part in tl.static_range(PARTS):
            value = _activated(x_ptr + row * x_stride, part * BLOCK + column, columns, ACTIVATION)
            largest = tl.maximum(largest, tl.max(tl.abs(value), 0))
        scale = largest / 448.0
        for part in tl.static_range(PARTS):
            here = part * BLOCK + column
            value = _activated(x_ptr + row * x_stride, here, columns, ACTIVATION)
            tl.store(out_ptr + row * width + here, (value / scale).to(tl.float8e4nv), mask=here < width)
        tl.store(scales_ptr + row, scale)


@triton.jit
def window_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, offsets_ptr, scale, q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One sequence of one head per program. `scale` holds log2(e), so that the softmax can use powers of two."""
    start = tl.load(offsets_ptr + tl.program_id(0)).to(tl.int64)
    length = (tl.load(offsets_ptr + tl.program_id(0) + 1) - start).to(tl.int32)
    if length <= 0:
        return
    head = tl.program_id(1)
    row = tl.arange(0, BLOCK)
    lane = tl.arange(0, LANES)
    inside = (row[:, None] < length) & (lane[None, :] < SIZE)
    index = start + row[:, None]
    q = tl.load(q_ptr + index * q_row + head * q_head + lane[None, :], mask=inside, other=0.0)
    k = tl.load(k_ptr + index * k_row + head * k_head + lane[None, :], mask=inside, other=0.0)
    v = tl.load(v_ptr + index * v_row + head * v_head + lane[None, :], mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(row[None, :] < length, scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    total = tl.sum(weights, 1)
    mixed = tl.dot(weights.to(v.dtype), v, input_precision="ieee") / total[:, None]
    tl.store(out_ptr + index * out_row + head * out_head + lane[None, :], mixed.to(q.dtype), mask=inside)


@triton.jit
def rotary_kernel(
    x_ptr, cos_ptr, sin_ptr, x_row, x_head, cos_row, sin_row,
    HEADS: tl.constexpr, HALF: tl.constexpr, HEADS_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
):  # fmt: skip
    """All heads of one row per program: (x1, x2) becomes (x1 cos - x2 sin, x2 cos + x1 sin), rounded once."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_BLOCK)
    lane = tl.arange(0, HALF_BLOCK)
    inside = (head[:, None] < HEADS) & (lane[None, :] < HALF)
    cos = tl.load(cos_ptr + row * cos_row + lane, mask=lane < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + row * sin_row + lane, mask=lane < HALF, other=0.0).to(tl.float32)[None, :]
    place = x_ptr + row * x_row + head[:, None] * x_head + lane[None, :]
    first = tl.load(place, mask=inside, other=0.0)
    second = tl.load(place + HALF, mask=inside, other=0.0)
    kind = first.dtype
    first = first.to(tl.float32)
    second = second.to(tl.float32)
    tl.store(place, (first * cos - second * sin).to(kind), mask=inside)
    tl.store(place + HALF, (second * cos + first * sin).to(kind), mask=inside)
