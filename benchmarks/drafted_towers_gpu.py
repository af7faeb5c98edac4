"""Measure what the tunings gain in the tower of a model that was drafted, side by side on one GPU.

    python benchmarks/drafted_towers_gpu.py DRAFT.yaml --out RESULT.json [--image 1288x728]
    python benchmarks/pages.py    # the new numbers into the pages

The draft is what `vitcg-scaffold init MODEL --yes` wrote, and its port is measured in the installed vLLM. Two towers
have equal random weights at the sizes of the configuration's class; one is tuned by default. Their exact graphs
interleave. Errors are relative to the largest value of the untuned tower's eager answer. The rounding of a tower is how
far that answer moves when every pixel moves by at most half a step of bfloat16. A further call adds to RESULT.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_result import head, save

# The whole package: `tuning_gpu` puts up with a machine that lacks what ports need.
import scaffold.verify  # noqa: F401

from tuning_gpu import half_step, settle  # isort: skip

ROUNDS = 21


def measure(draft: Path, images: list[str]) -> list[dict[str, Any]]:
    from scaffold.measure.installed import installed_vllm
    from scaffold.workflow import load_port

    port = load_port(draft)
    with installed_vllm(port, False, print):
        from scaffold.measure.subject import Subject
        from scaffold.verify.numeric.real import start_vllm, stop_vllm

        context = start_vllm("FLASH_ATTN")
        subject = Subject(port.name, port.module, port.class_name, tuple(port.modalities))
        try:
            return compare(subject, images)
        finally:
            stop_vllm(context)


def compare(subject: Any, images: list[str]) -> list[dict[str, Any]]:
    from scaffold.measure.exact import exact_call
    from scaffold.runtime.tuning import largest_error, tune

    tuned = subject.build()[0]
    outcomes = tune(tuned).outcomes
    untuned = subject.build()[0]
    rows = []
    for image in images:
        inputs = subject.call([tuple(map(int, image.split("x")))], 0)
        with torch.inference_mode():
            want = [t.clone() for t in untuned.embed_multimodal(**inputs)]
            near = half_step(inputs, torch.bfloat16)
            rounding = largest_error([t.clone() for t in untuned.embed_multimodal(**near)], want)
            error = largest_error([t.clone() for t in tuned.embed_multimodal(**inputs)], want)
        calls = {name: exact_call(host, inputs, 1) for name, host in (("untuned", untuned), ("tuned", tuned))}
        if None in calls.values():
            raise RuntimeError(f"{subject.name} has no exact graph of {image}: the model's own code serves it")
        times = settle(calls, ROUNDS)
        rows.append(
            {
                "model": subject.name,
                "image": image,
                "tokens": sum(map(len, want)),
                "untuned_ms": round(times["untuned"], 3),
                "tuned_ms": round(times["tuned"], 3),
                "error": round(error, 5),
                "rounding": round(rounding, 5),
                "sizes": subject.sizes,
                "applied": {outcome.name: len(outcome.applied) for outcome in outcomes if outcome.applied},
                "rounds": ROUNDS,
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("draft", type=Path)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--image", action="append", default=[])
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    rows = measure(arguments.draft, arguments.image or ["448x448", "1288x728"])
    import vllm

    if arguments.out.exists():
        total = json.loads(arguments.out.read_text(encoding="utf-8"))
    else:
        total = {**head(arguments.machine or torch.cuda.get_device_name(), vllm.__version__), "rows": []}
    total["rows"] += rows
    save(total, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
