"""Tunings of attention: rotary positions in place, tiles that fill the chip, and short windows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

from scaffold.runtime.tuning import flash4, kernels
from scaffold.runtime.tuning.base import Modules, Tuning, Undo, is_from_vllm
from scaffold.runtime.tuning.forwards import digest, is_untouched

#: Forwards of attention modules, by digest, and whether their projection may be a tensor-parallel shard: all of them
#: make queries, keys and values by one product, rotate the first two, attend, and project.
ATTENTIONS = {
    "f86b39ac056e96a7": True,  # Qwen2.5-VL and Qwen3-VL: each shard holds whole heads of all three
    "c6c7aac0d42a2761": False,  # Qwen2-VL gathers and splits again
}

#: Rows of a window that one program of the window kernel holds.
LONGEST_WINDOW = 64


def backend_of(module: Any) -> str:
    """The name of an attention module's backend."""
    backend = getattr(module, "attn_backend", None)
    return str(getattr(backend, "name", backend))


class InplaceRotary(Tuning):
    """Queries and keys are rotated where the projection wrote them; attention reads them as strided views.

    Without it they are copied out (`contiguous`, `cat`) and then rotated into a third place.
    """

    name = "inplace-rotary"
    summary = "rotate queries and keys where the projection wrote them"
    level = "exact"
    needs_triton = True
    measured = "Qwen2-VL 25.5 to 23.6 ms, Qwen2.5-VL 27.5 to 26.4 ms, Qwen3-VL 18.4 to 17.4 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        return (
            (path, module)
            for path, module in tower.items()
            if isinstance(getattr(module, "apply_rotary_emb", None), nn.Module) and hasattr(module, "qkv")
        )

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        known = ATTENTIONS.get(digest(module) or "")
        if known is None:
            return f"the forward of {type(module).__name__} is not one that this tuning knows"
        if not known and getattr(module, "tp_size", 1) != 1:
            return "it is a tensor-parallel shard"
        rotary = module.apply_rotary_emb
        if not is_from_vllm(rotary, "ApplyRotaryEmb") or not is_untouched(rotary):
            return "its rotary module is not vLLM's own"
        if not getattr(rotary, "is_neox_style", True):
            return "it rotates neighbouring lanes"
        if backend_of(module.attn) != "FLASH_ATTN":
            return f"{backend_of(module.attn)} may not read strided views"
        return None

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        original = module.forward
        takes_lengths = "sequence_lengths" in inspect.signature(original).parameters
        heads, size = module.num_attention_heads_per_partition, module.hidden_size_per_attention_head

        def forward(
            x: torch.Tensor,
            cu_seqlens: torch.Tensor,
            rotary_pos_emb_cos: torch.Tensor | None,
            rotary_pos_emb_sin: torch.Tensor | None,
            max_seqlen: Any = None,
            sequence_lengths: torch.Tensor | None = None,
        ) -> torch.Tensor:
            cos, sin = rotary_pos_emb_cos, rotary_pos_emb_sin
            extra = {"sequence_lengths": sequence_lengths} if takes_lengths else {}
            if x.shape[1] != 1 or cos is None or sin is None or cos.ndim != 2 or 2 * cos.shape[1] != size:
                return original(x, cu_seqlens, cos, sin, max_seqlen, **extra)
            qkv, _ = module.qkv(x)
            rows = qkv.view(-1, 3, heads, size)
            kernels.rotate_in_place(rows[:, :2].flatten(1, 2), cos, sin)
            q, k, v = (part.unsqueeze(0) for part in rows.unbind(1))
            mixed = module.attn(query=q, key=k, value=v, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen, **extra)
            out, _ = module.proj(mixed.reshape(-1, 1, heads * size))
            return out

        undo.set(module, "forward", forward)


class SmallWindows(Tuning):
    """Attention on sequences of at most 64 rows, one program each: a tile of FlashAttention 3 is twice as long."""

    name = "small-windows"
    summary = "attend inside short windows with one program a window and head"
    level = "rounding"
    needs_triton = True
    measured = "Qwen2.5-VL 27.6 to 26.6 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            owner = tower.get(path.rpartition(".")[0])
            # Only inside attention that hands its offsets on: fixed tiles have no windows.
            if is_from_vllm(module, "MMEncoderAttention") and owner is not None and digest(owner) in ATTENTIONS:
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        if backend_of(module) != "FLASH_ATTN":
            return f"the backend is {backend_of(module)}"
        if module.num_kv_heads != module.num_heads:
            return "queries share keys"
        if getattr(module, "fp8_enabled", False):
            return "attention runs in fp8"
        if module.head_size % 16 or module.head_size > 128:
            # Loads of 72 lanes are not whole: slower than FlashAttention.
            return f"a head has {module.head_size} lanes"
        windowed = any(getattr(m, "fullatt_block_indexes", None) for m in tower.values())
        return None if windowed else "the tower has no windows"

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        original = module.forward

        def forward(
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            cu_seqlens: torch.Tensor | None = None,
            max_seqlen: Any = None,
            sequence_lengths: torch.Tensor | None = None,
        ) -> torch.Tensor:
            if not fits_window(query, cu_seqlens, max_seqlen):
                extra = {} if sequence_lengths is None else {"sequence_lengths": sequence_lengths}
                return original(query, key, value, cu_seqlens, max_seqlen, **extra)
            assert cu_seqlens is not None
            q, k, v = (t[0] for t in (query, key, value))
            return kernels.window_attention(q, k, v, cu_seqlens, int(max_seqlen), module.scale).unsqueeze(0)

        undo.set(module, "forward", forward)


class UnsplitAttention(Tuning):
    """Tiles of one size attended to without splitting their keys, where all of them together fill the chip.

    FlashAttention 3 does not know how many sequences a packed call has, assumes one, and prepares to split the keys of
    short ones. For many tiles nothing is split, and a second kernel that would add up the parts runs for nothing.
    """

    name = "unsplit-attention"
    summary = "attend to many tiles of one size without splitting their keys"
    level = "rounding"
    measured = "InternVL 13.0 to 12.7 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            owner = tower.get(path.rpartition(".")[0])
            # Attention that hands offsets on has sequences of any length.
            if is_from_vllm(module, "MMEncoderAttention") and owner is not None and digest(owner) not in ATTENTIONS:
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        if backend_of(module) != "FLASH_ATTN":
            return f"the backend is {backend_of(module)}"
        if getattr(module, "fp8_enabled", False):
            return "attention runs in fp8"
        version = getattr(module, "_fa_version", None)
        return None if version in (None, 3) else f"it is FlashAttention {version}, not 3"

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        original = module.forward
        backend = import_module("vllm.v1.attention.backends.fa_utils")
        version = getattr(module, "_fa_version", None)
        extra = {} if version is None else {"fa_version": version}

        def forward(
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            cu_seqlens: torch.Tensor | None = None,
            max_seqlen: Any = None,
            **others: Any,
        ) -> torch.Tensor:
            tiles, rows = query.shape[:2]
            in_vain = splits_in_vain(tiles, rows, module.num_heads, query.device)
            if cu_seqlens is not None or key.shape[1] != rows or not in_vain:
                return original(query, key, value, cu_seqlens, max_seqlen, **others)
            q = query.reshape(tiles * rows, module.num_heads, module.head_size)
            k, v = (t.reshape(tiles * rows, module.num_kv_heads, module.head_size) for t in (key, value))
            offsets = torch.arange(0, (tiles + 1) * rows, step=rows, dtype=torch.int32, device=query.device)
            out = backend.flash_attn_varlen_func(
                q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=rows, max_seqlen_k=rows,
                dropout_p=0.0, causal=False, softmax_scale=module.scale, num_splits=1, **extra,
            )  # fmt: skip
            return out.reshape(query.shape)

        undo.set(module, "forward", forward)


class FittedAttention(Tuning):
    """Attention by FlashAttention 4, in the tile size that leaves the fewest multiprocessors idle (`flash4`)."""

    name = "fitted-attention"
    summary = "attend with FlashAttention 4, in tiles that fill the chip"
    level = "rounding"
    measured = "InternVL 13.0 to 12.3 ms, Qwen2-VL 25.3 to 24.3 ms, Qwen3-VL 18.4 to 17.9 ms, Step3-VL 67.9 to 64.5 ms"

    def sites(self, tower: Modules) -> Iterator[tuple[str, nn.Module]]:
        for path, module in tower.items():
            if is_from_vllm(module, "MMEncoderAttention") and path.rpartition(".")[0] in tower:
                yield path, module

    def refusal(self, path: str, module: nn.Module, tower: Modules) -> str | None:
        if backend_of(module) != "FLASH_ATTN":
            return f"the backend is {backend_of(module)}"
        if module.num_kv_heads != module.num_heads:
            return "queries share keys"
        if getattr(module, "fp8_enabled", False):
            return "attention runs in fp8"
        version = getattr(module, "_fa_version", None)
        if version != 3:
            return f"it is FlashAttention {version}, not 3"
        if module.dtype not in (torch.bfloat16, torch.float16):
            return f"no kernel was measured for {module.dtype}"
        return flash4.refusal(module.head_size)

    def apply(self, path: str, module: nn.Module, tower: Modules, undo: Undo) -> None:
        original = module.forward
        heads, size, scale = module.num_heads, module.head_size, module.scale
        # Attention in tiles of one size has no offsets. It calls another kernel, a twentieth faster.
        packed = "cu_seqlens" in inspect.signature(tower[path.rpartition(".")[0]].forward).parameters
        flash4.compile_kernels(size, heads, module.dtype, packed)

        def forward(
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            cu_seqlens: torch.Tensor | None = None,
            max_seqlen: Any = None,
            **others: Any,
        ) -> torch.Tensor:
            tiles, rows = query.shape[:2]
            longest = rows if cu_seqlens is None else known_bound(max_seqlen)
            compiled = on_gpu(query) and query.dtype == module.dtype and packed == (cu_seqlens is not None)
            kernel = None
            if compiled and key.shape == query.shape and longest is not None and (tiles == 1 or not packed):
                sequences = tiles if cu_seqlens is None else cu_seqlens.numel() - 1
                kernel = flash4.choose(size, heads, sequences, tiles * rows, longest, processors(query.device))
            if kernel is None:
                return original(query, key, value, cu_seqlens, max_seqlen, **others)
            q, k, v = (t.view(tiles, rows, heads, size) for t in (query, key, value))
            if cu_seqlens is not None:
                q, k, v = q[0], k[0], v[0]
            return flash4.attend(kernel, q, k, v, scale, cu_seqlens, longest or 0).view(query.shape)

        undo.set(module, "forward", forward)


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a kernel can read it."""
    return bool(tensor.is_cuda)


def known_bound(longest: Any) -> int | None:
    """The rows of the longest sequence where the host knows them. Reading them off a GPU would end a capture."""
    if longest is None or (isinstance(longest, torch.Tensor) and longest.device.type != "cpu"):
        return None
    return int(longest)


#: Rows of a query tile of FlashAttention 3: 192 or 128.
_QUERY_ROWS = 192


def splits_in_vain(tiles: int, rows: int, heads: int, device: torch.device) -> bool:
    """Whether one sequence would not fill the chip, and all of them do."""
    programs = heads * -(-rows // _QUERY_ROWS)
    return programs < processors(device) <= tiles * programs


@lru_cache(maxsize=8)
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; none where there is no GPU, so that nothing is split in vain."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0


def fits_window(query: torch.Tensor, offsets: torch.Tensor | None, longest: Any) -> bool:
    """Whether the window kernel may run: packed rows on a GPU, and a bound of the windows that the host knows."""
    if offsets is None or query.ndim != 4 or query.shape[0] != 1 or not kernels.runs_triton(query):
        return False
    return 0 < (known_bound(longest) or 0) <= LONGEST_WINDOW
