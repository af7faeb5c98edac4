"""Variable-length attention for towers of one's own: each backend with its buffers and how they are padded.

A tower calls `attend(q, k, v)` with `[rows, heads, head_dim]`; sequences are runs of rows. The kernels treat rows that
no sequence covers differently. So each backend declares its buffers, and with them one tested padder: offsets that go
on to the last captured row, or two sections of offsets with zero-filled output.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from scaffold.runtime.adapter import BufferKind, BufferSpec

#: Backends that read lengths on the host in every call, so that no graph can replay them. `choose_attention` knows them
#: by name, to say why it refuses them.
UNCAPTURABLE = {
    "torch_sdpa": "it splits the rows by lengths that it reads on the host; use 'torch', 'flash_attn' or 'flashinfer'",
    "xformers": "its block-diagonal mask is built from host lengths; use 'torch', 'flash_attn' or 'flashinfer'",
    "flex_attention": "its block mask is built per layout on the host; use 'torch', 'flash_attn' or 'flashinfer'",
}


class AttentionBackend(Protocol):
    """One kernel. `values` are buffers by name, among them those of `buffers`."""

    name: str

    def buffers(self, data: str) -> dict[str, BufferSpec]:
        """Buffers and their kinds; `data` is the buffer whose rows the sequences cut."""

    def metadata(self, lengths: Sequence[int], row_size: int) -> dict[str, torch.Tensor]:
        """Host values for sequences of these lengths; `row_size` is heads times head dimension."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
        """Attention within each sequence: `[rows, heads, head_dim]`."""


def _offsets(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@dataclass(frozen=True)
class _Plain:
    """Backends that take plain offsets and the longest sequence. Padded rows are sequences of their own."""

    name: str

    def buffers(self, data: str) -> dict[str, BufferSpec]:
        return {
            "offsets": BufferSpec(BufferKind.CUMULATIVE, rows_of=data, bound="longest"),
            "longest": BufferSpec(BufferKind.BOUND),
        }

    def metadata(self, lengths: Sequence[int], row_size: int) -> dict[str, torch.Tensor]:
        return {"offsets": _offsets(lengths), "longest": torch.tensor(max(lengths), dtype=torch.int32)}


@dataclass(frozen=True)
class TorchAttention(_Plain):
    """torch's own: `varlen_attn` on a GPU (2.10 and later), masked attention elsewhere."""

    name: str = "torch"

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
        offsets, longest = values["offsets"], int(values["longest"])
        half = q.dtype in (torch.float16, torch.bfloat16)
        if q.is_cuda and half and importlib.util.find_spec("torch.nn.attention.varlen") is not None:
            varlen = importlib.import_module("torch.nn.attention.varlen")
            return varlen.varlen_attn(q, k, v, offsets, offsets, longest, longest)
        rows = torch.arange(q.shape[0], dtype=offsets.dtype, device=q.device)
        sequence = torch.bucketize(rows, offsets[1:], right=True)
        mask = sequence[:, None] == sequence[None, :]
        heads_first = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=mask)
        return out.squeeze(0).transpose(0, 1)


@dataclass(frozen=True)
class FlashAttention(_Plain):
    """The `flash-attn` package. Its forward leaves rows unwritten that no sequence covers."""

    name: str = "flash_attn"

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
        flash = importlib.import_module("flash_attn")
        offsets, longest = values["offsets"], int(values["longest"])
        return flash.flash_attn_varlen_func(q, k, v, offsets, offsets, longest, longest)


class FlashInferAttention:
    """cuDNN prefill of `flashinfer-python`. Offsets count elements, in one section for Q, K and O and one for V.

    A padded sequence has length zero, so cuDNN writes nothing for the padded rows: the output starts as zeros.
    """

    name = "flashinfer"
    _WORKSPACE_BYTES = 128 << 20

    def __init__(self) -> None:
        self._workspace: torch.Tensor | None = None

    def buffers(self, data: str) -> dict[str, BufferSpec]:
        return {
            "sections": BufferSpec(BufferKind.TWO_SECTION),
            "lengths": BufferSpec(BufferKind.LENGTHS),
            "longest": BufferSpec(BufferKind.BOUND),
        }

    def metadata(self, lengths: Sequence[int], row_size: int) -> dict[str, torch.Tensor]:
        elements = _offsets(lengths) * row_size
        return {
            "sections": torch.cat([elements, elements]),
            "lengths": torch.tensor(list(lengths), dtype=torch.int32),
            "longest": torch.tensor(max(lengths), dtype=torch.int32),
        }

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
        prefill = importlib.import_module("flashinfer.prefill")
        if self._workspace is None or self._workspace.device != q.device:
            self._workspace = torch.empty(self._WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        sections, lengths, longest = values["sections"], values["lengths"].view(-1, 1, 1, 1), int(values["longest"])
        half = sections.shape[0] // 2
        first, second = (part.view(-1, 1, 1, 1) for part in (sections[:half], sections[half:]))
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, _ = prefill.cudnn_batch_prefill_with_kv_cache(
            q, k, v, q.shape[-1] ** -0.5, self._workspace,
            max_token_per_sequence=longest, max_sequence_kv=longest,
            actual_seq_lens_q=lengths, actual_seq_lens_kv=lengths, causal=False, return_lse=False,
            batch_offsets_q=first, batch_offsets_k=first, batch_offsets_v=second, batch_offsets_o=first,
            out=torch.zeros_like(q),
        )  # fmt: skip
        return out


_BACKENDS = {"torch": TorchAttention, "flash_attn": FlashAttention, "flashinfer": FlashInferAttention}
_PACKAGES = {"flash_attn": "flash-attn", "flashinfer": "flashinfer-python and nvidia-cudnn-frontend"}


def choose_attention(name: str = "auto") -> AttentionBackend:
    """A backend by name. "auto": `flash_attn`, then `flashinfer`, where installed beside a GPU, then torch's own.

    Raises ValueError, with the reason, for a name that cannot be captured or is not known, and ImportError for a
    package that is not installed.
    """
    if name == "auto":
        installed = [n for n in ("flash_attn", "flashinfer") if importlib.util.find_spec(n) is not None]
        name = installed[0] if installed and torch.cuda.is_available() else "torch"
    if name.lower() in UNCAPTURABLE:
        raise ValueError(f"the attention backend {name!r} cannot be captured: {UNCAPTURABLE[name.lower()]}")
    backend = _BACKENDS.get(name)
    if backend is None:
        raise ValueError(f"unknown attention backend {name!r}; there are {', '.join(map(repr, _BACKENDS))}")
    if name in _PACKAGES and importlib.util.find_spec(name) is None:
        raise ImportError(f"the attention backend {name!r} needs {_PACKAGES[name]}")
    made: AttentionBackend = backend()
    return made
