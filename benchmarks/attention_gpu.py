"""Measure attention kernels by the number of rows on one Hopper GPU: FlashAttention 3 and 4, and cuDNN.

    python benchmarks/attention_gpu.py --out RESULT.json
    python benchmarks/pages.py    # the new numbers into the pages

`scaffold.runtime.tuning.flash4` chooses a kernel by a table of rates. A test compares each of its choices with these
numbers. A time is the median of replays of a graph of eight calls, in microseconds, in the second of two passes over
all kernels: the first kernels of a process are slower. Queries, keys and values are strided views of one tensor, as a
projection leaves them.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_result import head, save
from torch.nn.attention import SDPBackend, sdpa_kernel

#: Rows of one sequence. The other table has packed sequences of real models by head size.
ROWS = (64, 144, 256, 576, 1024, 1600, 2116, 3136, 4784, 7744, 10764)
PACKED = {
    64: ([1025], [1025] * 3, [1025] * 7, [1025] * 13, [577] * 9),
    72: ([300, 900, 500, 700], [729] * 4, [4096]),
    80: ([256] * 4, [576] * 8, [1000, 2000, 1784]),
    88: ([577] * 5,),
    96: (),
    112: ([1297] * 4, [2705, *[1297] * 4]),
    128: ([1025] * 7,),
}
HEADS = 16
CALLS = 8
#: Numbers of random sequences, some of them empty, on which each kernel is checked.
RANDOM = (1, 3, 17, 100, 600)
DEVICE = torch.device("cuda")
Call = Callable[[], torch.Tensor]


def graph_of(call: Call, calls: int = CALLS) -> torch.cuda.CUDAGraph:
    """A graph of so many calls. It compiles the kernels first."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def settle(graphs: dict[str, torch.cuda.CUDAGraph], turns: int = 7) -> dict[str, float]:
    """Medians in microseconds of one call, in the second of two passes."""
    times: dict[str, list[float]] = {}
    for _ in range(2):
        times = {name: [] for name in graphs}
        for _ in range(turns):
            for name, graph in graphs.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                times[name].append(begin.elapsed_time(end) / CALLS * 1e3)
    return {name: round(statistics.median(found), 1) for name, found in times.items()}


def reference(parts: Sequence[torch.Tensor], lengths: Sequence[int], scale: float) -> torch.Tensor:
    """Attention inside each sequence, in float32."""
    split = [part.float().split(list(lengths)) for part in parts]
    done = [
        F.scaled_dot_product_attention(*(t.transpose(0, 1)[None] for t in one), scale=scale)[0].transpose(0, 1)
        for one in zip(*split, strict=True)
    ]
    return torch.cat(done)


def measure(size: int, lengths: Sequence[int], tiles: bool = False) -> dict[str, Any]:
    """One row of the result: every kernel on the same packed sequences, or on tiles of one size."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    from scaffold.runtime.tuning import flash4

    rows, longest, scale = sum(lengths), max(lengths), size**-0.5
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE)
    parts = torch.randn(rows, 3, HEADS, size, dtype=torch.bfloat16, device=DEVICE).unbind(1)
    batched = [part.view(len(lengths), longest, HEADS, size) for part in parts] if len(set(lengths)) == 1 else None

    def flash3(splits: int = 0) -> torch.Tensor:
        return flash_attn_varlen_func(
            *parts, longest, offsets, longest, offsets, softmax_scale=scale, fa_version=3, num_splits=splits
        )

    def flash4_of(kernel: flash4.Kernel) -> Call:
        if tiles:
            assert batched is not None
            return lambda: flash4.attend(kernel, *batched, scale).flatten(0, 1)
        return lambda: flash4.attend(kernel, *parts, scale, offsets, longest)

    calls: dict[str, Call] = {"FlashAttention 3": flash3, "FlashAttention 3, unsplit": lambda: flash3(1)}
    for kernel in flash4.KERNELS[size]:
        if kernel.columns:
            calls[f"{kernel.rows}x{kernel.columns}"] = flash4_of(kernel)
    if batched is not None:

        def cudnn() -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                q, k, v = (t.transpose(1, 2) for t in batched)
                return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)

        calls["cuDNN"] = cudnn
    with torch.inference_mode():
        wanted = reference(parts, lengths, scale)
        errors = {n: float((c().reshape(wanted.shape).float() - wanted).abs().max()) for n, c in calls.items()}
        us = settle({name: graph_of(call) for name, call in calls.items()})
    scale_of = float(wanted.abs().max())
    return {
        "head_size": size, "heads": HEADS, "sequences": list(lengths), "tiles": tiles, "us": us,
        "largest_error": max(errors.values()) / scale_of,
    }  # fmt: skip


def check(size: int, sequences: int, seed: int) -> str | None:
    """The fault of a kernel, or None: a wrong result or a stray write. Sequences are random, and some are empty."""
    from scaffold.runtime.tuning import flash4

    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 400, (sequences,), generator=random) * (torch.rand(sequences, generator=random) > 0.3)
    lengths[0] = 700
    found, rows = lengths.tolist(), int(lengths.sum())
    offsets = torch.tensor([0, *itertools.accumulate(found)], dtype=torch.int32, device=DEVICE)
    parts = torch.randn(rows + 130, 3, HEADS, size, dtype=torch.bfloat16, device=DEVICE).unbind(1)
    wanted = reference([part[:rows] for part in parts], found, size**-0.5)
    for kernel in flash4.KERNELS[size]:
        if not kernel.columns:
            continue
        # The kernel gets the middle of a tensor, so that stray writes around it show.
        guarded = torch.full((rows + 1130, HEADS, size), 7.0, dtype=torch.bfloat16, device=DEVICE)
        function = flash4.load()
        assert function is not None
        options = {"tile_mn": (kernel.rows, kernel.columns), "mma_pv_is_rs": kernel.registers, "intra_wg_overlap": True}
        function(*parts, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=700, max_seqlen_k=700,
                 softmax_scale=size**-0.5, out=guarded[500 : rows + 630], **options)  # fmt: skip
        torch.cuda.synchronize()
        where = f"{kernel.rows}x{kernel.columns} for heads of {size} and {sequences} sequences"
        if not bool((guarded[:500] == 7).all() and (guarded[500 + rows :] == 7).all()):
            return f"{where} wrote outside of the sequences"
        if not float((guarded[500 : 500 + rows].float() - wanted).abs().max() / wanted.abs().max()) < 0.02:
            return f"{where} is wrong"
    return None


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--sizes", type=int, nargs="+", default=list(PACKED))
    arguments = options.parse_args()
    import vllm

    total: dict[str, Any] = {**head(torch.cuda.get_device_name(), vllm.__version__), "rows": []}
    total["processors"] = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    cases = itertools.product(arguments.sizes, RANDOM, range(2))
    total["wrong"] = [found for case in cases if (found := check(*case)) is not None]
    print(total["wrong"] or "every kernel is right on random sequences", flush=True)
    for size in arguments.sizes:
        shapes = [([rows], False) for rows in ROWS] + [(lengths, False) for lengths in PACKED[size]]
        shapes += [(lengths, True) for lengths in PACKED[size] if len(set(lengths)) == 1]
        for lengths, tiles in shapes:
            total["rows"].append(measure(size, lengths, tiles))
            print(total["rows"][-1], flush=True)
            save(total, arguments.out)
    wrong = [row for row in total["rows"] if not row["largest_error"] < 0.02]
    print(f"{len(total['rows'])} rows, {len(wrong)} with an error above 0.02 of the largest value")
    return 1 if wrong or total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
