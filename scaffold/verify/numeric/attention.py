"""References for the variable-length kernels of FlashAttention, cuDNN and vLLM, exact about what they leave undefined.

Rows are packed; sequence i is rows `cu_seqlens[i]` to `cu_seqlens[i + 1]`. Beyond the formula, real kernels do this:

* a row that no sequence covers is not written: it keeps what the output tensor held;
* a row of a sequence beyond `max_seqlen` is not written (the launch grid is sized from it);
* a sequence of negative or zero length writes nothing;
* `fa2`: key/value rows after the end of a sequence are zero-filled in the last tile, so they cannot matter;
* `fa3` (and FA4): the last tile is loaded whole. The kernel masks its scores, but multiplies its value rows by a
  probability of zero, and 0 * NaN is NaN. Rows after the end of the tensor are zero-filled.

cuDNN's prefill, which FlashInfer calls, takes the length of each sequence and the offset of its first element in each
tensor. Rows of no sequence are not written here either. vLLM's own Triton prefill, which towers with sliding windows
call, takes the first row and the length of each sequence, and masks the rows after its end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

#: Key/value rows of one tile of the FA3 forward kernels (128 to 224, by head size); the smallest is taken.
TILE_ROWS = 128

_LIBRARY = torch.library.Library("vitcg_lab", "DEF")
_LIBRARY.define(
    "varlen_attention_(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, int max_seqlen, float scale, Tensor(a!) out)"
    " -> ()"
)
_LIBRARY.define(
    "prefill_attention_(Tensor q, Tensor k, Tensor v, Tensor lengths, Tensor offsets, Tensor offsets_v, int max_seqlen,"
    " float scale, Tensor(a!) out) -> ()"
)
_LIBRARY.define(
    "window_attention_(Tensor q, Tensor k, Tensor v, Tensor starts, Tensor lengths, int max_seqlen, float scale,"
    " int back, int ahead, Tensor? bias, Tensor(a!) out) -> ()"
)


class Counters:
    """The kernel's observations. `sequences` and `negative_lengths` count over all layers and replays; `cut` is the
    last one that is longer than the bound: its rows and the bound; `apart` the first rows of queries and of values of
    the last one that takes them from different places."""

    sequences = 0
    negative_lengths = 0
    cut: tuple[int, int] | None = None
    apart: tuple[int, int] | None = None
    whole_tiles = False
    cudnn = False


def set_tail(tail: str) -> None:
    """Choose the kernel, and with it what rows after the end of a sequence do: `fa2`, `fa3` or `cudnn`."""
    Counters.whole_tiles, Counters.cudnn = tail == "fa3", tail == "cudnn"
    Counters.sequences = Counters.negative_lengths = 0
    Counters.cut = Counters.apart = None


def _rows_written(length: int, max_seqlen: int) -> int:
    """The rows of a sequence that a kernel writes: none of one without rows. Counts what was seen."""
    Counters.negative_lengths += length < 0
    Counters.sequences += length > 0
    if length > max_seqlen:
        Counters.cut = length, max_seqlen
    return max(min(length, max_seqlen), 0)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = None,
    out: torch.Tensor | None = None,
    **unused: Any,
) -> torch.Tensor:
    """Attention over packed rows `[rows, heads, head_size]`, with the signature that the releases call."""
    if causal or cu_seqlens_k is None or (window_size is not None and tuple(window_size) != (-1, -1)):
        raise NotImplementedError("vision towers use full attention over packed sequences")
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    torch.ops.vitcg_lab.varlen_attention_(q, k, v, cu_seqlens_q, int(max_seqlen_q), float(scale), out)
    return out


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of one sequence, each `[rows, heads, head_size]`."""
    queries, keys, values = (_all_heads(x, queries).transpose(0, 1) for x in (queries, keys, values))
    scores = torch.matmul(queries, keys.transpose(1, 2)) * scale
    return torch.matmul(torch.softmax(scores, dim=-1), values).transpose(0, 1)


def _all_heads(values: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Keys or values for each head of the queries; several may share one."""
    times = queries.shape[1] // values.shape[1]
    return values if times == 1 else values.repeat_interleave(times, dim=1)


def _varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    scale: float,
    out: torch.Tensor,
) -> None:
    offsets = cu_seqlens.tolist()
    rows = q.shape[0]
    for start, end in pairwise(offsets):
        length = end - start
        if not (written := _rows_written(length, max_seqlen)):
            continue
        if start < 0 or end > rows:
            raise IndexError(f"attention sequence [{start}, {end}) reaches outside the {rows} rows of the tensor")
        # Keys beyond max_seqlen are read all the same: kernels loop over the keys by the sequence's own length.
        result = _attend(q[start : start + written], k[start:end], v[start:end], scale)
        if Counters.whole_tiles:
            tail = v[end : min(start + -(-length // TILE_ROWS) * TILE_ROWS, rows)]
            result = result + (tail * 0.0).sum(dim=0)
        out[start : start + written] = result.to(out.dtype)


_LIBRARY.impl("varlen_attention_", _varlen_attention, "CPU")


def cudnn_batch_prefill_with_kv_cache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    scale: float,
    workspace_buffer: torch.Tensor,
    *,
    max_token_per_sequence: int,
    max_sequence_kv: int,
    actual_seq_lens_q: torch.Tensor,
    actual_seq_lens_kv: torch.Tensor,
    causal: bool,
    return_lse: bool,
    batch_offsets_q: torch.Tensor,
    batch_offsets_o: torch.Tensor,
    batch_offsets_k: torch.Tensor,
    batch_offsets_v: torch.Tensor,
    out: torch.Tensor | None = None,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """FlashInfer's function of this name, in the form that the releases call: attention within each packed sequence."""
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if causal or return_lse or max_sequence_kv != max_token_per_sequence:
        raise NotImplementedError("vision towers use full attention over packed sequences")
    torch.ops.vitcg_lab.prefill_attention_(
        q, k_cache, v_cache, actual_seq_lens_q, batch_offsets_q, batch_offsets_v, max_token_per_sequence, scale, out
    )
    return out, None


def _prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    offsets: torch.Tensor,
    offsets_v: torch.Tensor,
    max_seqlen: int,
    scale: float,
    out: torch.Tensor,
) -> None:
    row = q.shape[1] * q.shape[2]
    # One offset a sequence is used; the last of an array of cumulative ones is where the next would begin.
    for length, first, first_v in zip(
        lengths.flatten().tolist(), offsets.flatten().tolist(), offsets_v.flatten().tolist(), strict=False
    ):
        if not (written := _rows_written(length, max_seqlen)):
            continue
        start, start_v, rows = first // row, first_v // v.stride(0), q.shape[0]
        if start != start_v:
            Counters.apart = start, start_v
        if first % row or first_v % v.stride(0) or max(start, start_v) + length > rows:
            raise IndexError(f"{length} rows from the elements {first} and {first_v} are no sequence of {rows} rows")
        members = slice(start, start + written)
        out[members] = _attend(q[members], k[members], v[start_v : start_v + written], scale).to(out.dtype)


_LIBRARY.impl("prefill_attention_", _prefill_attention, "CPU")


def context_attention_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    b_start_loc: torch.Tensor,
    b_seq_len: torch.Tensor,
    max_input_len: int,
    is_causal: bool = True,
    softmax_scale: float | None = None,
    sliding_window_q: int | None = None,
    sliding_window_k: int | None = None,
    sinks: torch.Tensor | None = None,
    sinks_bias_key0: bool = False,
) -> None:
    """vLLM's function of this name, for the calls of towers: sliding windows, a bias on the first key."""
    if is_causal or (sinks is not None and not sinks_bias_key0):
        raise NotImplementedError("vision towers are not causal, and have no sink besides the first key")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    torch.ops.vitcg_lab.window_attention_(
        q,
        k,
        v,
        b_start_loc,
        b_seq_len,
        int(max_input_len),
        scale,
        sliding_window_q or 0,
        sliding_window_k or 0,
        sinks,
        o,
    )


def _window_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    max_seqlen: int,
    scale: float,
    back: int,
    ahead: int,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if not (written := _rows_written(length, max_seqlen)):
            continue
        if start < 0 or start + length > q.shape[0]:
            raise IndexError(f"attention sequence [{start}, {start + length}) reaches outside the {q.shape[0]} rows")
        rows = slice(start, start + length)
        queries, keys, values = (_all_heads(x[rows], q).transpose(0, 1) for x in (q, k, v))
        scores = torch.matmul(queries, keys.transpose(1, 2)) * scale
        if bias is not None:
            scores[:, :, 0] += bias[:, None]
        apart = torch.arange(length)[:, None] - torch.arange(length)  # of a row of queries and a row of keys
        hidden = (apart > (back or length)) | (-apart > (ahead or length))
        probabilities = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        result = torch.matmul(probabilities, values).transpose(0, 1)
        out[start : start + written] = result[:written].to(out.dtype)


_LIBRARY.impl("window_attention_", _window_attention, "CPU")
