"""Measure tuned vision towers against untuned ones, side by side in one run on one GPU.

    python benchmarks/tuning_gpu.py --out RESULT.json [--models qwen2_5_vl,...] [--profiles PROFILES.json]
    python benchmarks/pages.py    # the new numbers into the pages, and the picture of kernel times

It builds each model twice with equal random weights at real sizes. One tower stays as vLLM makes it, and the manager
tunes the other. For every workload it measures:

* The untuned and the tuned exact graph (captured for exactly that input).
* The whole `execute()` call of our manager on the tuned tower.
* The floor: matrix products and attention at the rates of this run.
* The largest error of `execute()` against the untuned tower's eager answer, relative to its largest value.

`rounding` is the change of the untuned tower's output when each pixel changes by at most half a bfloat16 step.

For one workload of each model it also measures every tuning alone, and each Triton kernel against its reference.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_result import ByModel
from manager_gpu import (
    DEVICE,
    DTYPE,
    GRIDS,
    WARM_CALLS,
    Subject,
    budgets_of,
    capture_measured,
    error_of,
    exact_call,
    in_turns,
    start_vllm,
)
from towers import PRODUCTS

MODELS = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "internvl", "step3_vl")

#: Workloads of a model of packed rows, besides those of the other benchmarks.
MORE = {"1988x1988": [(1, 142, 142)]}

#: The workload of each model for single tunings.
LARGE = {"internvl": "7 tiles", "step3_vl": "4 crops"}


def subject_of(name: str) -> Subject:
    """A model with its workloads."""
    subject = Subject(name)
    if subject.workloads is GRIDS:
        subject.workloads = {**GRIDS, **MORE}
    return subject


def settle(actions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Medians of interleaved calls, after three that do not count."""
    return in_turns(actions, rounds, warm=3)


def half_step(inputs: dict[str, Any], dtype: torch.dtype = DTYPE) -> dict[str, Any]:
    """The inputs with every pixel changed by at most half a step of a type, bfloat16 unless given."""
    from scaffold.runtime.tuning import moved

    step = torch.finfo(dtype).eps
    floats = {n: v for n, v in inputs.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return {**inputs, **{name: moved(value, step) for name, value in floats.items()}}


def measure(subject: Subject, rounds: int, ceilings: Any, profiles: list[Any]) -> dict[str, Any]:
    from scaffold.measure.analyse import analyse
    from scaffold.measure.runs import profile_tower
    from scaffold.runtime.tuning import DEFAULT, NAMES, TuningChoice, tune
    from scaffold.runtime.vllm import EncoderCudaGraphManager

    plain, _ = subject.build()
    host, config = subject.build()
    # A manager's adapter reads the configuration of its host: each host has its own.
    calls = {name: subject.call(items, seed) for seed, (name, items) in enumerate(subject.workloads.items())}
    with torch.inference_mode():
        want = {name: [t.clone() for t in plain.embed_multimodal(**inputs)] for name, inputs in calls.items()}
        again = [t.clone() for t in host.embed_multimodal(**next(iter(calls.values())))]
        moved = {name: list(plain.embed_multimodal(**half_step(inputs))) for name, inputs in calls.items()}
    if error_of(again, next(iter(want.values()))) != 0.0:
        raise RuntimeError("the two towers differ before anything is tuned")
    specs = {name: plain.get_encoder_cudagraph_item_specs(inputs) for name, inputs in calls.items()}
    tokens = {name: sum(int(s.output_tokens) for s in found) for name, found in specs.items()}

    # Single tunings, before the manager takes its defaults, which `all` has, too.
    large = LARGE.get(subject.name, "1288x728")
    count = len(specs[large])
    untuned = exact_call(plain, calls[large], count)
    singles = {}
    for name in (*NAMES, "all"):
        tuned = tune(host, TuningChoice(DEFAULT if name == "all" else (name,)))
        changed = sum(len(outcome.applied) for outcome in tuned.outcomes)
        if changed:
            graph = exact_call(host, calls[large], count)
            with torch.inference_mode():
                error = error_of(list(host.embed_multimodal(**calls[large])), want[large])
            times = settle({"untuned": untuned, "tuned": graph}, max(rounds // 2, 5))
            singles[name] = {
                "modules": changed,
                "ms": round(times["tuned"], 3),
                "untuned_ms": round(times["untuned"], 3),
                "error": error,
                "extra_mb": round(tuned.extra_bytes / 2**20, 2),
            }
            del graph
        tuned.undo()
        print(subject.name, large, name, singles.get(name, "nothing to tune"), flush=True)
    with torch.inference_mode():
        restored = error_of(list(host.embed_multimodal(**calls[large])), want[large])
    if restored != 0.0:
        raise RuntimeError(f"taking the tunings back left an error of {restored}")

    floors, own = {}, []
    for name, items in subject.workloads.items():
        recording = profile_tower(plain, subject.name, subject.call(items, 0), name, ceilings)
        floors[name] = analyse(recording).floor_ms
        if name == large:
            own.append(recording)

    begin = time.perf_counter()
    config.additional_config = {"encoder_graphs": {"tuning_check": True, "tuning": "on"}}
    manager, captured = capture_measured(lambda: EncoderCudaGraphManager(config, DEVICE, DTYPE, host))
    captured["seconds with tuning and its check"] = time.perf_counter() - begin
    assert manager.tuned is not None
    print(subject.name, captured, *manager.tuned.outcomes, sep="\n  ", flush=True)
    own.append(
        profile_tower(host, subject.name, subject.call(subject.workloads[large], 0), f"{large}, tuned", ceilings)
    )
    profiles += own
    errors: dict[str, float] = {}
    for _ in range(max(WARM_CALLS)):  # the manager captures graphs between turns, and tries a padded size both ways
        for name, inputs in calls.items():
            errors[name] = max(errors.get(name, 0.0), error_of(manager.execute(dict(inputs)), want[name]))
        manager.capture_when_idle()
    rows = []
    for name, inputs in calls.items():
        times = settle(
            {
                "untuned exact": exact_call(plain, inputs, len(specs[name])),
                "tuned exact": exact_call(host, inputs, len(specs[name])),
                "tuned execute": lambda i=inputs: manager.execute(i),  # type: ignore[misc]
                "untuned eager": lambda i=inputs: plain.embed_multimodal(**i),  # type: ignore[misc]
            },
            rounds,
        )
        rows.append(
            {
                "model": subject.name,
                "workload": name,
                "tokens": tokens[name],
                "untuned_exact_ms": round(times["untuned exact"], 3),
                "tuned_exact_ms": round(times["tuned exact"], 3),
                "tuned_execute_ms": round(times["tuned execute"], 3),
                "untuned_eager_ms": round(times["untuned eager"], 3),
                "floor_ms": round(floors[name], 3),
                "max_relative_error": errors[name],
                "rounding": error_of(moved[name], want[name]),
                "extra_mb": round(manager.tuned.extra_bytes / 2**20, 2),
                "rounds": rounds,
                "budgets": budgets_of(manager, inputs),
            }
        )
        print(rows[-1], flush=True)
    result = {
        "rows": rows,
        "single": {"workload": large, "tokens": tokens[large], "tunings": singles},
        "extra_mb": manager.tuned.extra_bytes / 2**20,
        "tuned": [str(outcome) for outcome in manager.tuned.outcomes],
        "profiles": [class_times(recording) for recording in own],
        "capture": captured,
    }
    manager.clear()
    return result


def class_times(recording: Any) -> dict[str, Any]:
    """The totals of a recording by class: milliseconds, launches, and the floor, or None."""
    from scaffold.measure.analyse import analyse

    totals = [[t.kind.value, round(t.ms, 3), t.launches, t.floor_ms and round(t.floor_ms, 3)]
              for t in analyse(recording).totals]  # fmt: skip
    return {"workload": recording.workload, "tokens": recording.tokens, "graph_ms": round(recording.graph_ms, 3),
            "classes": totals}  # fmt: skip


def check_kernels(
    rows: int = 37, widths: tuple[int, ...] = (1280, 1152, 1000, 88), most_heads: int = 16
) -> dict[str, float]:
    """The largest error of each Triton kernel against its reference in float64, relative to the largest value."""
    from scaffold.runtime.tuning import kernels

    generator = torch.Generator(DEVICE).manual_seed(1)
    worst: dict[str, float] = {}

    def compare(name: str, got: Any, reference: Any, dtype: torch.dtype) -> None:
        pairs = zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, reference)), strict=True)
        error = max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)
        key = f"{name} {str(dtype).removeprefix('torch.')}"
        worst[key] = max(worst.get(key, 0.0), float("inf") if math.isnan(error) else error)

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for width in widths:

            def noise(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.randn(*shape, device=DEVICE, dtype=dtype, generator=generator)

            x, branch = noise(rows, 1, width), noise(rows, 1, width)
            weight, bias, scale = noise(width), noise(width), noise(width)
            for kind, b in (("rms", None), ("layer", bias)):
                wide = [None if t is None else t.double() for t in (weight, b)]
                compare(f"{kind} norm", kernels.norm(x, weight, b, 1e-6, kind),
                        kernels.norm_reference(x.double(), *wide, 1e-6, kind), dtype)  # fmt: skip
                for s in (None, scale):
                    compare(f"{kind} add_norm", kernels.add_norm(x, branch, s, weight, b, 1e-6, kind),
                            kernels.add_norm_reference(x.double(), branch.double(), None if s is None else s.double(),
                                                       *wide, 1e-6, kind), dtype)  # fmt: skip
                compare(f"{kind} norm_add", kernels.norm_add(x, branch, weight, b, 1e-6, kind),
                        kernels.norm_add_reference(x.double(), branch.double(), *wide, 1e-6, kind), dtype)  # fmt: skip
            double = noise(rows, 1, 2 * width)
            compare("silu_and_mul", kernels.silu_and_mul(double),
                    kernels.silu_and_mul_reference(double.double()), dtype)  # fmt: skip
            compare("quick_gelu", kernels.quick_gelu(double), kernels.quick_gelu_reference(double.double()), dtype)
            for activation, reference in kernels.ACTIVATIONS.items():
                compare(
                    f"fp8 {activation}",
                    *dequantised(kernels.to_fp8(double, activation), reference(double.double())),
                    dtype,
                )
            brought = kernels.in_fp8(kernels.add_norm(x, branch, None, weight, bias, 1e-6, "layer", fp8=True)[1])
            normed = kernels.add_norm_reference(
                x.double(), branch.double(), None, weight.double(), bias.double(), 1e-6, "layer"
            )
            compare("fp8 add_norm", *dequantised(brought, normed[1]), dtype)
        for heads, size in ((most_heads, 80), (3, 72), (most_heads, 64)):
            qkv = noise(130, 3, heads, size)
            cos, sin = noise(130, size // 2), noise(130, size // 2)
            wanted = kernels.rotate_reference(qkv[:, :2].flatten(1, 2).double(), cos.double(), sin.double())
            left = qkv[:, 2].clone()
            rotated = qkv[:, :2].flatten(1, 2)
            kernels.rotate_in_place(rotated, cos, sin)
            compare("rotary", rotated, wanted, dtype)
            assert torch.equal(qkv[:, 2], left), "the rotation wrote into the values"
            offsets = torch.tensor([0, 64, 64, 100, 101, 129, 129], device=DEVICE, dtype=torch.int32)
            if size % 16 == 0:
                q, k, v = noise(130, 3, heads, size).unbind(1)
                got = kernels.window_attention(q, k, v, offsets, 64, size**-0.5)
                reference = kernels.window_attention_reference(
                    q.double(), k.double(), v.double(), offsets, size**-0.5
                )  # fmt: skip
                compare("window_attention", got, reference, dtype)
                assert not bool(got[129:].any()), "a row outside of all windows is not zero"
    inputs, weight, bias = noise(50, 1152), noise(4352, 1152) / 34, noise(4352)
    from scaffold.runtime.tuning.mlp import linear_gelu

    for dtype in (torch.bfloat16, torch.float16):
        x, w, b = (t.to(dtype) for t in (inputs, weight, bias))
        wanted = F.gelu(F.linear(x.double(), w.double(), b.double()), approximate="tanh")
        compare("linear_gelu", linear_gelu(x, w, b), wanted, dtype)
    return worst


def dequantised(found: tuple[torch.Tensor, torch.Tensor], wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in FP8 as numbers, without the difference that rounding to FP8 explains, and the wanted numbers.

    A number has four significant bits, so it is off by at most one part in 16, or by half the smallest number.
    """
    rows, scales = found
    scales = scales.view(*rows.shape[:-1], 1).double()
    got, room = rows.double() * scales, wanted.abs() / 16 + scales * 2**-10
    return wanted + (got - got.clamp(wanted - room, wanted + room)), wanted


def sweep() -> dict[str, list[float]]:
    """Matrix products at the sizes of the towers' MLPs, aligned and not: microseconds and TFLOP/s.

    Eight weights in turn, in one graph, so that none of them is in the cache.
    """
    from scaffold.measure.exact import Graph
    from scaffold.measure.runs import median_ms

    found = {}
    for rows, inner, columns in PRODUCTS:
        x = torch.randn(rows, inner, device=DEVICE, dtype=DTYPE)
        weights = [torch.randn(columns, inner, device=DEVICE, dtype=DTYPE) / inner**0.5 for _ in range(8)]
        bias = torch.randn(columns, device=DEVICE, dtype=DTYPE)
        graph = Graph(lambda x=x, weights=weights, bias=bias: [F.linear(x, weight, bias) for weight in weights])
        us = median_ms(graph.replay, 7) / len(weights) * 1e3
        found[f"{rows} x {inner} x {columns}"] = [round(us, 1), round(2 * rows * inner * columns / us / 1e6)]
    return found


#: The largest allowed difference of a kernel to float64: a few roundings of its type.
KERNEL_BOUNDS = {"bfloat16": 1.2e-2, "float16": 1.5e-3, "float32": 2e-6}


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--profiles", type=Path, help="keep the recordings in this file")
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--backend", default="FLASH_ATTN")
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--machine", default="")
    options.add_argument(
        "--sweep", action="store_true", help="measure matrix products at aligned sizes and others, too"
    )
    arguments = options.parse_args()
    context = start_vllm(arguments.backend)
    from scaffold.measure.runs import measure_ceilings

    kernels = check_kernels()
    wrong = {name: e for name, e in kernels.items() if not e <= KERNEL_BOUNDS[name.rsplit(" ", 1)[1]]}
    print("kernels against float64:", kernels, "above the bound:", wrong, flush=True)
    ceilings = measure_ceilings(DEVICE)
    total = ByModel(
        arguments.out,
        arguments.machine,
        backend=arguments.backend,
        ceilings={"tflops": round(ceilings.tflops, 1), "tbytes": round(ceilings.tbytes, 3)},
        kernels=kernels,
        sweep=sweep() if arguments.sweep else None,
    )
    total.failed = len(wrong)
    profiles: list[Any] = []
    for name in sorted(arguments.models.split(","), key=MODELS.index):
        # A call of Step3-VL takes ten times as long as the others', and wanders less.
        rounds = arguments.rounds // 2 if name == "step3_vl" else arguments.rounds
        result = total.add(name, partial(measure, subject_of(name), rounds, ceilings, profiles))
        if result is None:
            continue
        rows = result["rows"]
        total.failed += sum(not row["max_relative_error"] < 0.05 for row in rows)
        profiles.sort(key=lambda recording: MODELS.index(recording.model))
        if arguments.profiles is not None:
            arguments.profiles.write_text(json.dumps([p.to_json() for p in profiles]) + "\n", encoding="utf-8")
        ratios = [row["tuned_execute_ms"] / row["untuned_exact_ms"] for row in rows]
        mean = statistics.geometric_mean(ratios)
        print(f"{name}: execute / untuned exact {mean:.3f}, worst {max(ratios):.3f}", flush=True)
    context.__exit__(None, None, None)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
