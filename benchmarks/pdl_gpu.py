"""Measure what programmatic dependent launch gains for the small kernels of a tower, inside of CUDA graphs on one GPU.

    python benchmarks/pdl_gpu.py --out RESULT.json

A kernel that is launched so may begin before the one in front of it has ended, and waits where it needs its results.
A graph holds many RMS norms of rows, one behind the other, or each in front of a matrix product, as towers have
them. Needs torch and Triton, no vLLM.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import triton
import triton.language as tl
from attention_gpu import Call, graph_of, settle
from gpu_result import head, save
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ROWS, WIDTH = (256, 1024, 4784), 1280
STEPS = 16
ALONE, PRODUCT = "a norm behind a norm", "a norm in front of a product"


@triton.jit
def norm(values, weight, out, width: tl.constexpr, block: tl.constexpr, dependent: tl.constexpr):  # type: ignore[no-untyped-def]
    row, columns = tl.program_id(0), tl.arange(0, block)
    inside = columns < width
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if dependent:
        gdc_wait()
    x = tl.load(values + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    if dependent:
        gdc_launch_dependents()
    x *= tl.rsqrt(tl.sum(x * x) / width + 1e-6) * scale
    tl.store(out + row * width + columns, x.to(tl.bfloat16), mask=inside)


def steps(kind: str, rows: int, dependent: bool) -> Call:
    """A call that runs some norms one after the other."""
    first = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    second, weight = torch.empty_like(first), torch.ones(WIDTH, device="cuda", dtype=torch.bfloat16)
    matrix = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
    block = triton.next_power_of_2(WIDTH)

    def run() -> torch.Tensor:
        given, made = first, second
        for _ in range(STEPS):
            norm[(rows,)](given, weight, made, WIDTH, block, dependent, launch_pdl=dependent)
            if kind == PRODUCT:
                torch.mm(made, matrix, out=given)
            else:
                given, made = made, given
        return given

    return run


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    out = options.parse_args().out
    total = {**head(torch.cuda.get_device_name(), ""), "steps": STEPS, "rows": []}
    for kind in (ALONE, PRODUCT):
        for rows in ROWS:
            times = settle({way: graph_of(steps(kind, rows, way == "dependent")) for way in ("plain", "dependent")})
            row = {"kind": kind, "rows": rows, **{f"{way}_us": round(us / STEPS, 2) for way, us in times.items()}}
            print(row, flush=True)
            total["rows"].append(row)
            save(total, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
