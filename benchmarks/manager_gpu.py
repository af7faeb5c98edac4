"""Measure our manager, vLLM's own manager, eager execution and exact graphs side by side, in one run on one GPU.

    python benchmarks/manager_gpu.py --out RESULT.json [--models qwen2_5_vl,...] [--backend FLASH_ATTN]

It needs a vLLM (0.33) whose towers run on this GPU, and nothing from a network: the real vision classes get random
weights at real sizes (speed does not depend on values). Correctness comes first. Every workload runs through our
manager twice, the second time after all others, and must equal the model's own eager embedding; a wrong result ends the
run.

`exact` is a CUDA graph captured for exactly that input and replayed: no padding and no host work, the practical limit.
Calls rotate over all workloads, so that no manager finds its buffers filled by the same sizes. The ways of one workload
come in a random order each turn. The run measures `exact` and eager twice under two names: the difference of two
medians of the same thing is the noise of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import random
import statistics
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from gpu_result import ByModel  # noqa: E402


def load_recipes() -> None:
    """Import the recipes without the proof stage around them, which needs packages that a bare GPU host lacks."""
    for name in ("scaffold.verify", "scaffold.verify.numeric"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
        sys.modules.setdefault(name, package)


load_recipes()
from towers import GRIDS, Subject  # noqa: E402

from scaffold.measure.bench import captured, error_of, once  # noqa: E402
from scaffold.measure.exact import exact_call  # noqa: E402
from scaffold.measure.subject import DEVICE, DTYPE  # noqa: E402
from scaffold.verify.numeric.real import start_vllm  # noqa: E402

MANY_STEPS = 7
#: Untimed calls of our managers, fewest and most. The managers have captured their graphs and finished trials after
#: them.
WARM_CALLS = (6, 24)


VIDEOS = {
    "8 frames 448x448": [(4, 32, 32)],
    "16 frames 336x504": [(8, 24, 36)],
    "32 frames 224x224": [(16, 16, 16)],
    "2 x 8 frames 336x336": [(4, 24, 24)] * 2,
}


#: Images below the smallest budget that a model of packed rows names: 4 tokens each.
ICONS = {"56x56": [(1, 4, 4)], "3 x 56x56": [(1, 4, 4)] * 3}


class VideoSubject(Subject):
    """A model of packed rows with videos instead of images. `t` of a grid is two frames."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.workloads = VIDEOS

    def build(self) -> tuple[Any, Any]:
        host, config = super().build()
        config.model_config.multimodal_config.limits["video"] = 2
        config.compilation_config.encoder_cudagraph_max_frames_per_batch = 64
        return host, config

    def call(self, items: list[Any], seed: int) -> dict[str, Any]:
        images = super().call(items, seed)
        return {"pixel_values_videos": images["pixel_values"], "video_grid_thw": images["image_grid_thw"],
                "second_per_grid_ts": torch.ones(len(items))}  # fmt: skip


def subject_of(label: str) -> Subject:
    """A model by name, or its videos (`qwen2_5_vl:video`)."""
    name, _, modality = label.partition(":")
    if modality == "video":
        return VideoSubject(name)
    subject = Subject(name)
    if subject.workloads is GRIDS:
        subject.workloads = {**ICONS, **GRIDS}
    return subject


# -- measuring ---------------------------------------------------------------------------------------------------------


def settle() -> tuple[int, int]:
    """Bytes in use on the device and bytes reserved by torch, with nothing cached."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free, torch.cuda.memory_reserved()


def capture_measured(make: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """A captured manager, with seconds and mebibytes of its capture."""
    before = settle()
    manager, seconds = captured(make)
    after = settle()
    return manager, {
        "seconds": seconds,
        "device_mb": (after[0] - before[0]) / 2**20,
        "reserved_mb": (after[1] - before[1]) / 2**20,
    }


def in_turns(
    actions: Mapping[Any, Callable[[], Any]],
    turns: int,
    warm: int,
    after_turn: Callable[[int], object] = lambda turn: None,
    skip: Callable[[Any, int], bool] = lambda key, turn: False,
) -> dict[Any, float]:
    """Medians of interleaved calls in milliseconds, in another order each turn. The first `warm` turns do not count.

    The previous call decides the clock: a dense graph leaves the chip hot, the gaps of eager let it cool.
    """
    samples: dict[Any, list[float]] = {key: [] for key in actions}
    order, shuffle = list(actions), random.Random(0).shuffle
    with torch.inference_mode():
        for turn in range(warm + turns):
            shuffle(order)
            for key in order:
                if skip(key, turn):
                    continue
                ms = once(actions[key])
                if turn >= warm:
                    samples[key].append(ms)
            after_turn(turn)
    return {key: statistics.median(found) for key, found in samples.items()}


@contextlib.contextmanager
def without_replay(manager: Any, ours: bool) -> Any:
    """Let a manager do everything but the replays."""
    changed = []
    if ours:
        for kept in {id(c): c for c in manager.core.graphs.values()}.values():
            changed.append((kept.graph, "replay", kept.graph.replay))
            kept.graph.replay = lambda: None
    else:
        for graphs in manager.budget_graphs.values():
            for meta in graphs.values():
                changed.append((meta, "graph", meta.graph))
                meta.graph = types.SimpleNamespace(replay=lambda: None)
    try:
        yield
    finally:
        for owner, name, value in reversed(changed):
            setattr(owner, name, value)


def runs_of(manager: Any, inputs: dict[str, Any]) -> list[Any]:
    """Our manager's plan for a call: every path of every batch."""
    plan = manager.core._plans.get(manager.core.adapter.signature(inputs))
    return [run for step in (plan.steps if plan else []) for run in step.runs]


def budgets_of(manager: Any, inputs: dict[str, Any]) -> list[str]:
    """The graph of each run of a call, or why there is none."""
    return [
        run.reason if run.captured is None else str(run.captured.key) + " (eager is faster)" * run.eager
        for run in runs_of(manager, inputs)
    ]


def on_trial(manager: Any) -> int:
    """The number of sizes that still run both ways in turn."""
    plans = manager.core._plans.values()
    return sum(run.trial is not None for plan in plans for step in plan.steps for run in step.runs)


def measure(label: str, backend: str, rounds: int, check: bool) -> dict[str, Any]:
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager as Theirs

    from scaffold.runtime import Trace, check_graphs
    from scaffold.runtime.selfcheck import poison_pool
    from scaffold.runtime.vllm import EncoderCudaGraphManager as Ours

    subject = subject_of(label)
    host, config = subject.build()
    calls = {name: subject.call(items, seed) for seed, (name, items) in enumerate(subject.workloads.items())}
    with torch.inference_mode():
        for _ in range(2):
            want = {name: [t.clone() for t in host.embed_multimodal(**inputs)] for name, inputs in calls.items()}
    specs = {name: host.get_encoder_cudagraph_item_specs(inputs) for name, inputs in calls.items()}
    tokens = {name: sum(int(s.output_tokens) for s in found) for name, found in specs.items()}

    def make(kind: Any, **settings: Any) -> Callable[[], Any]:
        def build() -> Any:
            # All managers and the exact graphs share one tower, which must be the same for all of them.
            config.additional_config = {"encoder_graphs": {"tuning": "off", **settings}}
            return kind(config, DEVICE, DTYPE, host)

        return build

    trace = Trace()
    for found in specs.values():
        for path in host.get_encoder_cudagraph_config().paths:
            trace.add(path, sum(int(s.get_path_output_tokens(path)) for s in found))
    trace_file = Path(tempfile.mkdtemp()) / "trace.json"
    trace.save(trace_file)

    theirs, their_capture = capture_measured(make(Theirs))
    # The memory of a default manager with many budgets captured, as after much traffic.
    full, full_capture = capture_measured(make(Ours, start_steps=MANY_STEPS))
    full_report = full.core.report
    full.clear()
    del full
    ours, our_capture = capture_measured(make(Ours))
    fitted, fitted_capture = capture_measured(make(Ours, trace=str(trace_file)))
    report = ours.core.report
    started_with = len(report.captured)
    print(subject.name, backend, "vllm", their_capture, "ours", our_capture, "fitted", fitted_capture)
    print(report)

    # Correctness: run every workload twice, the second time after filling all memory of the graphs with NaN. Then check
    # the first results again.
    errors: dict[str, float] = {}
    for manager in (ours, fitted):
        kept = {}
        for turn in range(2):
            for name, inputs in calls.items():
                if turn == 1:
                    poison_pool(manager.core)
                got = manager.execute(dict(inputs))
                errors[name] = max(errors.get(name, 0.0), error_of(got, want[name]))
                kept[name] = got
        for name, got in kept.items():
            errors[name] = max(errors[name], error_of(got, want[name]))
    spread = {name: round(float(torch.cat(list(out)).float().std()), 4) for name, out in want.items()}
    print("errors", errors, "standard deviation of the outputs", spread)
    # Rounding of bfloat16 in another order of addition; a wrong row is off by the size of the values.
    wrong: dict[str, Any] = {name: value for name, value in errors.items() if not value < 0.05}
    degenerate = {name: value for name, value in spread.items() if not value > 1e-3}
    if degenerate:
        raise RuntimeError(f"outputs that are all alike prove nothing: {degenerate}")
    their_errors = {}
    for name, inputs in calls.items():
        their_errors[name] = error_of(theirs.execute(dict(inputs)), want[name])
    if check:
        findings = check_graphs(ours.core)
        bad = [f for f in findings if not f.ok]
        print(f"self-check with poisoned memory: {len(findings)} graphs, {len(bad)} differ", bad[:4])

    exact = {name: exact_call(host, inputs, len(specs[name])) for name, inputs in calls.items()}
    samples: dict[tuple[str, str], list[float]] = {}
    shuffle = random.Random(0).shuffle
    with torch.inference_mode():
        for turn in range(WARM_CALLS[1]):
            for manager, inputs in itertools.product((ours, fitted), calls.values()):
                torch.cuda.synchronize()  # a trial waits for an idle device
                manager.execute(inputs)
            for manager in (ours, fitted):
                manager.capture_when_idle()
            if turn + 1 >= WARM_CALLS[0] and not any(on_trial(manager) for manager in (ours, fitted)):
                break
        for turn in range(rounds + 1):
            for name, inputs in calls.items():
                actions: dict[str, Callable[[], Any]] = {
                    "exact": exact[name],
                    "ours": lambda i=inputs: ours.execute(i),  # type: ignore[misc]
                    "fitted": lambda i=inputs: fitted.execute(i),  # type: ignore[misc]
                    "eager": lambda i=inputs: host.embed_multimodal(**i),  # type: ignore[misc]
                    "exact again": exact[name],
                    "eager again": lambda i=inputs: host.embed_multimodal(**i),  # type: ignore[misc]
                }
                if turn % 2 == 0:  # its ratios are far from 1, and its calls take long
                    actions["vllm"] = lambda i=inputs: theirs.execute(i)  # type: ignore[misc]
                # The previous call decides the clock: a large kernel heats the chip, the gaps of eager let it cool.
                order = [*actions]
                shuffle(order)
                for kind in order:
                    ms = once(actions[kind])
                    if turn >= 1:
                        samples.setdefault((name, kind), []).append(ms)
        # Host work of calls that replay: where eager is faster, a call is all host work.
        replayed = [inputs for name, inputs in calls.items() if not any(r.eager for r in runs_of(ours, inputs))]
        host_ms = {}
        for kind, manager in (("ours", ours), ("vllm", theirs)):
            with without_replay(manager, kind == "ours"):
                spent = [once(lambda i=inputs: manager.execute(i)) for _ in range(rounds) for inputs in replayed]  # type: ignore[misc] # noqa: B023
            host_ms[kind] = statistics.median(spent) if spent else float("nan")
    rows = []
    for name, inputs in calls.items():
        median = {kind: statistics.median(taken) for (workload, kind), taken in samples.items() if workload == name}
        used, fitted_used = (budgets_of(manager, inputs) for manager in (ours, fitted))
        runs = [run for manager in (ours, fitted) for run in runs_of(manager, inputs)]
        missed = [run.reason for run in runs if run.captured is None]
        if missed:
            # No workload is larger than the largest budget, so only a measured choice may run one eager.
            wrong[name] = f"not replayed: {', '.join(missed)}"
        rows.append(
            {
                "model": label,
                "backend": backend,
                "workload": name,
                "tokens": tokens[name],
                "eager_ms": round(median["eager"], 3),
                "vllm_ms": round(median["vllm"], 3),
                "ours_ms": round(median["ours"], 3),
                "ours_fitted_ms": round(median["fitted"], 3),
                "exact_ms": round(median["exact"], 3),
                "eager_again_ms": round(median["eager again"], 3),
                "exact_again_ms": round(median["exact again"], 3),
                "ours_budgets": used,
                "fitted_budgets": fitted_used,
                "ours_error": errors[name],
                "vllm_error": their_errors[name],
            }
        )
    count = {
        "vllm": sum(len(g) for g in theirs.budget_graphs.values()),
        "ours": len(full_report.captured),
        "fitted": len(fitted.core.report.captured),
    }
    # All of the capture but the first graph: warm-up, laying out the pool and the other graphs.
    each = (full_report.seconds - full_report.first_seconds) / max(len(full_report.captured) - 1, 1)
    result = {
        "rows": rows,
        "summary": ratio_table(rows),
        "graph_memory_mb": {"vllm": their_capture["device_mb"], "ours": full_capture["device_mb"]},
        "reserved_mb": {"vllm": their_capture["reserved_mb"], "ours": full_capture["reserved_mb"]},
        "start_memory_mb": {"vllm": their_capture["device_mb"], "ours": our_capture["device_mb"]},
        "ladder": {path: len(ladder) for path, ladder in ours._ladders().items()},
        "graphs": {"at start": started_with, "after the calls": len(report.captured)},
        "arena_mb": report.arena_bytes / 2**20,
        "budgets": count,
        "capture_s": {
            "vllm": their_capture["seconds"], "ours": our_capture["seconds"], "fitted": fitted_capture["seconds"],
            f"ours, {MANY_STEPS} steps an octave": full_capture["seconds"],
        },
        "capture_ms_per_graph": {"vllm": their_capture["seconds"] / count["vllm"] * 1e3, "ours": each * 1e3},
        "host_ms": host_ms,
        "crossover": {p: {"replay_ms": c.replay.points, "launch_ms": c.launch_ms, "extra_ms": c.extra_ms}
                      for p, c in ours.core.crossover.items()},
        "on_trial": {"ours": on_trial(ours), "fitted": on_trial(fitted)},
        "wrong": wrong,
    }  # fmt: skip
    ours.clear(), fitted.clear(), theirs.clear()
    return result


def ratio_table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and extremes over the rows of one model."""
    summary = {}
    for kind in ("vllm", "ours", "ours_fitted"):
        ratios = [row[f"{kind}_ms"] / row["exact_ms"] for row in rows]
        summary[f"{kind}/exact"] = round(statistics.geometric_mean(ratios), 4)
        summary[f"{kind}/exact worst"] = round(max(ratios), 4)
    # An eager call of a small input takes the host's time, which varies more, and no replay comes near it.
    pairs = [(row[f"{kind}_ms"], row[f"{kind}_again_ms"]) for row in rows for kind in ("eager", "exact")
             if row["eager_ms"] < 2 * row["exact_ms"]]  # fmt: skip
    noise = max((abs(first / second - 1) for first, second in pairs), default=0.0)
    summary["noise"] = round(noise, 4)
    for kind in ("ours", "ours_fitted"):
        # Slower than both medians of eager, by more than the noise of two medians of the same thing.
        over = {row["workload"]: row[f"{kind}_ms"] / max(row["eager_ms"], row["eager_again_ms"]) for row in rows}
        summary[f"{kind}/eager worst"] = round(max(over.values()), 4)
        summary[f"{kind} slower than eager"] = [name for name, ratio in over.items() if ratio > 1 + noise]
    return summary


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--models", default="qwen2_5_vl,qwen2_vl,qwen3_vl,internvl,step3_vl")
    options.add_argument("--backend", default="FLASH_ATTN")
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    context = start_vllm(arguments.backend)
    total = ByModel(arguments.out, arguments.machine)
    for name in arguments.models.split(","):
        # A call of Step3-VL takes ten times as long as the others', and wanders less.
        rounds = arguments.rounds // 2 if name == "step3_vl" else arguments.rounds
        result = total.add(name, partial(measure, name, arguments.backend, rounds, check=name == "qwen2_5_vl"))
        if result is None:
            continue
        total.failed += bool(result["wrong"])
        for row in result["rows"]:
            print(
                f"{row['workload']:>24} {row['tokens']:>5} eager {row['eager_ms']:>8} vllm {row['vllm_ms']:>8} "
                f"ours {row['ours_ms']:>8} fitted {row['ours_fitted_ms']:>8} exact {row['exact_ms']:>8} "
                f"{row['ours_budgets']} err {row['ours_error']:.4f} vllm err {row['vllm_error']:.4f}"
            )
        print(name, {k: v for k, v in result.items() if k not in ("crossover", "rows")}, flush=True)
    context.__exit__(None, None, None)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
