"""FlashAttention 4 on Hopper: which of its kernels is fastest for how many rows, and how it is called.

vLLM's CUDA builds carry FlashAttention 4 and its compiler, and use them on newer chips only. Its kernels take any tile
size, while FlashAttention 3 has one per head size. A chip works in waves: each multiprocessor takes one tile of one
head at a time. 16 heads of 1024 rows are 96 tiles of 192 rows, which leave a quarter of an H200 idle, and 128 tiles
of 128 rows, which do not.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

_MODULE = "vllm.vllm_flash_attn.cute.interface"
_OPTIONS = {"tile_mn", "mma_pv_is_rs", "intra_wg_overlap", "out"}
#: The oldest release whose kernels were measured.
_MEASURED_FROM = (0, 33)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and its speed on an H200, fitted to `benchmarks/results/attention_h200.json`."""

    #: Queries of a tile.
    rows: int
    #: Keys of a step; 0 for FlashAttention 3, which chooses by itself.
    columns: int
    #: Whether probabilities stay in registers between the two products.
    registers: bool
    #: Time of a call without its waves.
    start_us: float
    #: Time of a wave for each key.
    key_ns: float

    def microseconds(self, rows: int, longest: int, heads: int, processors: int) -> float:
        """Estimated time for packed sequences of `rows` in all, most of them as long as the longest."""
        full, rest = divmod(rows, longest)
        tiles = full * -(-longest // self.rows) + -(-rest // self.rows)
        return self.start_us + -(-tiles * heads // processors) * longest * self.key_ns / 1000


#: By head size. FlashAttention 3 stands where it is the fastest for some number of rows.
KERNELS = {
    64: (
        Kernel(64, 128, True, 4.0, 7.4),
        Kernel(128, 128, True, 4.75, 10.6),
        Kernel(192, 128, True, 5.75, 12.1),
    ),
    72: (
        Kernel(64, 128, True, 4.75, 12.5),
        Kernel(128, 128, False, 6.25, 12.5),
        Kernel(192, 144, False, 7.25, 14.4),
    ),
    80: (
        Kernel(64, 128, True, 4.5, 8.75),
        Kernel(128, 128, True, 5.5, 10.8),
        Kernel(192, 144, False, 6.25, 14.0),
    ),
    88: (
        Kernel(64, 128, True, 3.75, 12.8),
        Kernel(128, 128, True, 5.25, 13.2),
        Kernel(192, 144, False, 7.0, 16.4),
        Kernel(192, 0, False, 8.5, 16.0),
    ),
    96: (
        Kernel(64, 128, True, 4.0, 8.1),
        Kernel(128, 128, True, 4.75, 11.3),
        Kernel(192, 144, False, 6.0, 15.0),
    ),
    112: (
        Kernel(64, 128, True, 4.0, 10.7),
        Kernel(128, 128, True, 5.0, 13.3),
        Kernel(192, 112, False, 7.5, 17.0),
        Kernel(128, 0, False, 8.75, 11.9),
    ),
    128: (
        Kernel(64, 128, True, 4.0, 9.8),
        Kernel(128, 128, True, 5.0, 13.1),
        Kernel(192, 96, False, 5.75, 18.9),
        Kernel(128, 0, False, 8.75, 11.9),
    ),
}  # fmt: skip


#: Sequences of a call. Above, FlashAttention 4 runs two more kernels, which `compile_kernels` does not make.
MOST_SEQUENCES = 256


@lru_cache(maxsize=4096)
def choose(size: int, heads: int, sequences: int, rows: int, longest: int, processors: int) -> Kernel | None:
    """The fastest kernel for packed sequences; None for FlashAttention 3 as vLLM calls it."""
    if not 0 < longest <= rows or sequences > MOST_SEQUENCES or size not in KERNELS:
        return None
    best = min(KERNELS[size], key=lambda kernel: kernel.microseconds(rows, longest, heads, processors))
    return best if best.columns else None


def refusal(head_size: int) -> str | None:
    """Why FlashAttention 4 cannot stand in for FlashAttention 3 here; None if it can."""
    if head_size not in KERNELS:
        return f"no kernel was measured for heads of {head_size} lanes"
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        return "the device is no Hopper GPU"
    vllm = import_module("vllm")
    numbers = re.match(r"(\d+)\.(\d+)", getattr(vllm, "__version__", ""))
    if numbers is None or (int(numbers[1]), int(numbers[2])) < _MEASURED_FROM:
        return f"it was measured from vLLM {'.'.join(map(str, _MEASURED_FROM))} on only"
    missing = [name for name in ("cutlass", "quack") if find_spec(name) is None]
    if missing:
        return f"FlashAttention 4 needs {' and '.join(missing)}, which this installation lacks"
    function = load()
    if function is None:
        return "this installation has no FlashAttention 4"
    lacking = _OPTIONS - set(inspect.signature(function).parameters)
    return f"its FlashAttention 4 takes no {', '.join(sorted(lacking))}" if lacking else None


@lru_cache(maxsize=1)
def load() -> Callable[..., Any] | None:
    """FlashAttention 4's forward, None without one. Compiled kernels are kept in the user's cache folder.

    A kernel takes 1.4 s to compile. The folder that FlashAttention would use by itself belongs to everybody.
    """
    if _MODULE not in sys.modules and "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED" not in os.environ:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(os.environ.get("VITCG_CACHE_DIR") or Path(cache) / "vitcg-scaffold") / "attention"
        os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"] = "1"
        os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(folder))
    try:
        return getattr(import_module(_MODULE), "_flash_attn_fwd", None)
    except ImportError:
        return None


def attend(
    kernel: Kernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    offsets: torch.Tensor | None = None,
    longest: int = 0,
) -> torch.Tensor:
    """Attention of `[sequences, rows, heads, size]`, or of packed `[rows, heads, size]` with offsets.

    Packed rows outside of all sequences are zero in a capture, as vLLM leaves them.
    """
    function = load()
    assert function is not None
    extra: dict[str, Any] = {}
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if offsets is not None:
        if torch.cuda.is_current_stream_capturing():
            out.zero_()
        # Another kernel would be compiled for sequences within one tile. The bound may be too large.
        bound = max(longest, kernel.rows + 1)
        extra = {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": bound, "max_seqlen_k": bound}
    function(
        q, k, v, softmax_scale=scale, out=out, tile_mn=(kernel.rows, kernel.columns),
        mma_pv_is_rs=kernel.registers, intra_wg_overlap=True, **extra,
    )  # fmt: skip
    return out


@lru_cache(maxsize=16)
def compile_kernels(size: int, heads: int, dtype: torch.dtype, packed: bool) -> None:
    """Compile or load all kernels of a head size for packed sequences, or for tiles of one size."""
    rows = 2 * max(kernel.rows for kernel in KERNELS[size])
    q, k, v = torch.zeros((rows, 3, heads, size), dtype=dtype, device="cuda").unbind(1)
    offsets = torch.tensor([0, rows], dtype=torch.int32, device="cuda")
    for kernel in KERNELS[size]:
        if kernel.columns and packed:
            attend(kernel, q, k, v, 1.0, offsets, rows)
        elif kernel.columns:
            attend(kernel, q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), 1.0)
