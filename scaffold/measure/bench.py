"""One model's encoder on a GPU, four ways side by side: eager, exact graphs, vLLM's manager, ours. Needs CUDA and vLLM.

`exact` is a CUDA graph of exactly that input: no padding and no host work, the practical limit. Calls rotate over sizes
and ways, so that no manager finds its buffers filled by the same size and no way always runs on a hot chip. The
benchmark compares every result with eager first. It marks a wrong result as wrong, however fast it was.
"""

from __future__ import annotations

import datetime
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from scaffold.measure import Items
from scaffold.measure.benchreport import Benchmark, BenchRow
from scaffold.measure.exact import exact_call
from scaffold.measure.subject import DEVICE, DTYPE, NoSubject, Subject, has_videos
from scaffold.verify.numeric.real import start_vllm, stop_vllm

#: Untimed calls at the start. Our manager has captured its graphs and finished its trials after them.
WARM_CALLS = 12
#: All ways share one tower, which must be the same for all of them: benchmarks/tuning_gpu.py measures tuned towers.
OUR_SETTINGS = {"encoder_graphs": {"tuning": "off"}}
#: Largest difference to eager, relative to its largest value, that is rounding in bf16 and not a wrong row.
ROUNDING = 0.05


def run_bench(
    subject: Subject,
    workloads: Mapping[str, Items],
    sizes: Sequence[int],
    rounds: int,
    backend: str,
    note: Callable[[str], None],
) -> Benchmark:
    """One row per workload, and per size in output tokens.

    A workload that the processor does not take is left out with a note. Raises `NoSubject` if the model cannot be
    built, or takes none of them.
    """
    context = start_vllm(backend)
    try:
        rows = _measure(subject, workloads, sizes, rounds, note)
    finally:
        stop_vllm(context)
    import vllm

    versions = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "python": sys.version.split()[0],
    }
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Benchmark(subject.name, torch.cuda.get_device_name(), versions, today, tuple(rows), subject.sizes)


def _measure(
    subject: Subject,
    workloads: Mapping[str, Items],
    sizes: Sequence[int],
    rounds: int,
    note: Callable[[str], None],
) -> list[BenchRow]:
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager as Theirs

    from scaffold.runtime.vllm import EncoderCudaGraphManager as Ours

    host, config = subject.build(videos=any(map(has_videos, workloads.values())))
    note(f"sizes of {subject.sizes}")
    config.additional_config = OUR_SETTINGS
    calls = _calls(subject, {**workloads, **{f"{size} tokens": subject.sizes_of(size) for size in sizes}}, note)
    with torch.inference_mode():
        for inputs in calls.values():
            host.embed_multimodal(**inputs)
        want = {label: [t.clone() for t in host.embed_multimodal(**inputs)] for label, inputs in calls.items()}
    tokens = {label: sum(len(item) for item in items) for label, items in want.items()}
    managers = {}
    for kind, make in (("vllm", Theirs), ("ours", Ours)):
        managers[kind], seconds = captured(partial(make, config, DEVICE, DTYPE, host))
        note(f"{kind}: captured in {seconds:.2f} s")
    errors: dict[tuple[str, str], float] = {}
    for _ in range(2):  # in the second round, other sizes have filled the buffers
        for label, inputs in calls.items():
            for kind, manager in managers.items():
                found = error_of(manager.execute(dict(inputs)), want[label])
                errors[label, kind] = max(errors.get((label, kind), 0.0), found)
    note("compared " + ", ".join(f"{label} {kind} {error:.3g}" for (label, kind), error in errors.items()))
    ways: dict[str, dict[str, Callable[[], Any]]] = {}
    for label, inputs in calls.items():
        ways[label] = {kind: partial(manager.execute, inputs) for kind, manager in managers.items()}
        ways[label]["eager"] = partial(host.embed_multimodal, **inputs)
        exact = exact_call(host, inputs, len(want[label]))
        if exact is not None:
            ways[label]["exact"] = exact
    note(f"times {len(ways)} workloads, {rounds} rounds")
    samples = _interleave(ways, rounds, managers["ours"].capture_when_idle)
    return [
        BenchRow(
            workload=label,
            tokens=tokens[label],
            exact_ms=statistics.median(samples[label, "exact"]) if (label, "exact") in samples else None,
            **{f"{kind}_ms": statistics.median(samples[label, kind]) for kind in ("eager", "vllm", "ours")},
            vllm_right=errors[label, "vllm"] < ROUNDING,
            ours_right=errors[label, "ours"] < ROUNDING,
        )
        for label in calls
    ]


def _calls(subject: Subject, workloads: Mapping[str, Items], note: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """The inputs of each workload that the processor takes."""
    calls: dict[str, dict[str, Any]] = {}
    refused: list[NoSubject] = []
    for seed, (label, images) in enumerate(workloads.items()):
        try:
            calls[label] = subject.call(images, seed)
        except NoSubject as error:
            note(f"left out {label}: {error}")
            refused.append(error)
    if not calls:
        raise refused[0]
    return calls


def captured(make: Callable[[], Any]) -> tuple[Any, float]:
    """A manager with its graphs, and the seconds of its capture."""
    from vllm.distributed.parallel_state import graph_capture

    manager = make()
    begin = time.perf_counter()
    with graph_capture(device=DEVICE):
        manager.capture(torch.cuda.graph_pool_handle())
    torch.cuda.synchronize()
    return manager, time.perf_counter() - begin


def _interleave(
    ways: Mapping[str, Mapping[str, Callable[[], Any]]], rounds: int, when_idle: Callable[[], object]
) -> dict[tuple[str, str], list[float]]:
    """Milliseconds of every way of every size. Each round runs them in another order."""
    shuffle = random.Random(0).shuffle
    samples: dict[tuple[str, str], list[float]] = {}
    with torch.inference_mode():
        for _ in range(WARM_CALLS):
            for actions in ways.values():
                for action in actions.values():
                    torch.cuda.synchronize()  # our manager compares replay and eager on an idle device only
                    action()
            when_idle()
        for _ in range(rounds):
            for label, actions in ways.items():
                order = [*actions]
                shuffle(order)
                for kind in order:
                    samples.setdefault((label, kind), []).append(once(actions[kind]))
    return samples


def once(action: Callable[[], Any]) -> float:
    """Milliseconds of a whole call, between two waits for the device."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def error_of(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Largest difference relative to the largest value; infinite for NaN, another shape, a missing or constant item."""
    if len(got) != len(want):
        return float("inf")
    worst = 0.0
    for result, oracle in zip(got, want, strict=True):
        constant = float(oracle.float().std()) < 1e-3  # would make every comparison pass
        if result.shape != oracle.shape or constant or not bool(torch.isfinite(result).all()):
            return float("inf")
        worst = max(worst, float((result.float() - oracle.float()).abs().max() / oracle.float().abs().max()))
    return worst
