"""Measure vision towers whose blocks `torch.compile` made fast against tuned ones, side by side on one GPU.

    python benchmarks/compile_gpu.py --out RESULT.json [--models qwen2_5_vl,...]

Three towers of each model have equal random weights at real sizes: as vLLM makes it, with every block compiled for the
sizes of one workload (`max-autotune-no-cudagraphs`, static shapes), and tuned. It measures the exact graph of each.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from gpu_result import ByModel
from manager_gpu import Subject, error_of, exact_call, start_vllm
from tuning_gpu import LARGE, MODELS, settle, subject_of

MODE = "max-autotune-no-cudagraphs"


def measure(subject: Subject, rounds: int) -> dict[str, Any]:
    from scaffold.runtime.tuning import TuningChoice, tune
    from scaffold.runtime.tuning.blocks import block_of
    from scaffold.runtime.tuning.tower import vision_modules

    towers = {name: subject.build()[0] for name in ("untuned", "compiled", "tuned")}
    tune(towers["tuned"], TuningChoice())
    name = LARGE.get(subject.name, "1288x728")
    inputs = subject.call(subject.workloads[name], 0)
    blocks = [module for module in vision_modules(towers["compiled"]).values() if block_of(module) is not None]
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=False, mode=MODE)
    with torch.inference_mode():
        want = [t.clone() for t in towers["untuned"].embed_multimodal(**inputs)]
        begin = time.perf_counter()
        errors = {way: error_of(list(towers[way].embed_multimodal(**inputs)), want) for way in ("compiled", "tuned")}
        seconds = time.perf_counter() - begin
    specs = towers["untuned"].get_encoder_cudagraph_item_specs(inputs)
    times = settle({way: exact_call(tower, inputs, len(specs)) for way, tower in towers.items()}, rounds)
    row = {
        "model": subject.name,
        "workload": name,
        "tokens": sum(int(spec.output_tokens) for spec in specs),
        **{f"{way}_ms": round(ms, 3) for way, ms in times.items()},
        **{f"{way}_error": error for way, error in errors.items()},
        "rounds": rounds,
    }
    print(row, flush=True)
    return {"rows": [row], "blocks": len(blocks), "seconds of the first call": round(seconds, 1)}


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--rounds", type=int, default=11)
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    context = start_vllm("FLASH_ATTN")
    torch._dynamo.config.recompile_limit = 256
    total = ByModel(arguments.out, arguments.machine, backend="FLASH_ATTN", mode=MODE)
    for name in sorted(arguments.models.split(","), key=MODELS.index):
        total.add(name, partial(measure, subject_of(name), arguments.rounds))
    context.__exit__(None, None, None)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
