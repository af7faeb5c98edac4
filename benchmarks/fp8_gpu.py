"""Measure vision towers that multiply in FP8 against the same towers tuned without, side by side on one GPU.

    python benchmarks/fp8_gpu.py --out RESULT.json [--models qwen2_5_vl,...]
    python benchmarks/pages.py    # the new numbers into the pages

Three towers of each model have equal random weights at real sizes: as vLLM makes it, tuned, and tuned with
`fp8-linears`. For every workload it measures the exact graphs of the last two, and the largest error of each against
the first one's eager answer, relative to its largest value. For one workload it also measures the error after each
block: the length of the difference relative to the length of the untuned output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from gpu_result import run_models
from manager_gpu import error_of, exact_call
from tuning_gpu import LARGE, MODELS, settle, subject_of


def measure(name: str, rounds: int) -> dict[str, Any]:
    from scaffold.runtime.tuning import DEFAULT, NAMES, TuningChoice, tune

    subject = subject_of(name)
    rounds = rounds // 2 if name == "step3_vl" else rounds  # each of its calls takes ten times as long
    towers = {way: subject.build()[0] for way in ("untuned", "tuned", "fp8")}
    done = {way: tune(towers[way], TuningChoice(names)) for way, names in (("tuned", DEFAULT), ("fp8", NAMES))}
    outcome = done["fp8"].outcomes[-1]
    print(subject.name, outcome, flush=True)
    if not outcome.applied:
        raise RuntimeError(f"nothing runs in FP8: {outcome.refused}")
    rows = []
    large = LARGE.get(subject.name, "1288x728")
    for seed, (workload, items) in enumerate(subject.workloads.items()):
        inputs = subject.call(items, seed)
        specs = towers["untuned"].get_encoder_cudagraph_item_specs(inputs)
        with torch.inference_mode():
            want = [t.clone() for t in towers["untuned"].embed_multimodal(**inputs)]
            got = {way: list(towers[way].embed_multimodal(**inputs)) for way in done}
        times = settle({way: exact_call(towers[way], inputs, len(specs)) for way in done}, rounds)
        rows.append(
            {
                "model": subject.name,
                "workload": workload,
                "tokens": sum(int(spec.output_tokens) for spec in specs),
                "tuned_ms": round(times["tuned"], 3),
                "fp8_ms": round(times["fp8"], 3),
                "tuned_error": error_of(got["tuned"], want),
                "fp8_error": error_of(got["fp8"], want),
                "fp8_distance": distance(torch.cat(got["fp8"]), torch.cat(want)),
                "rounds": rounds,
            }
        )
        print(rows[-1], flush=True)
    inputs = subject.call(subject.workloads[large], 0)
    after = {way: outputs_of_blocks(tower, inputs) for way, tower in towers.items()}
    layers = {
        way: [distance(one, plain) for one, plain in zip(after[way], after["untuned"], strict=True)] for way in done
    }
    print(layers, flush=True)
    extra = {way: round(tuned.extra_bytes / 2**20, 1) for way, tuned in done.items()}
    return {"rows": rows, "layers": {"workload": large, **layers}, "blocks": len(outcome.applied), "extra_mb": extra}


def distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """The length of the difference, relative to the length of `want`."""
    return round(float((got.double() - want.double()).norm() / want.double().norm()), 5)


def outputs_of_blocks(tower: Any, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """The output of each block of a tower for a call."""
    from scaffold.runtime.tuning.blocks import block_of
    from scaffold.runtime.tuning.tower import tower_modules

    found: list[torch.Tensor] = []
    blocks = [module for module in tower_modules(tower).values() if block_of(module) is not None]

    def watched(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(*args: Any, **kwargs: Any) -> torch.Tensor:
            found.append(forward(*args, **kwargs).clone())
            return found[-1]

        return run

    # vLLM calls the forwards of blocks that it may compile past their hooks.
    with ExitStack() as stack, torch.inference_mode():
        for block in blocks:
            stack.enter_context(mock.patch.object(block, "forward", watched(block.forward)))
        tower.embed_multimodal(**inputs)
    return found


def main() -> int:
    return run_models(MODELS, measure, rounds=11)


if __name__ == "__main__":
    sys.exit(main())
