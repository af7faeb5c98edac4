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

from scaffold.measure.benchreport import Benchmark, BenchRow
from scaffold.measure.runs import captured_forward
from scaffold.measure.towers import DEVICE, DTYPE, Subject
from scaffold.verify.numeric.real import start_vllm

#: Untimed calls at the start. Our manager has captured its graphs and finished its trials after them.
WARM_CALLS = 12
#: All ways share one tower, which must be the same for all of them: benchmarks/tuning_gpu.py measures tuned towers.
OUR_SETTINGS = {"encoder_graphs": {"tuning": "off"}}
#: Largest difference to eager, relative to its largest value, that is rounding in bf16 and not a wrong row.
ROUNDING = 0.05


def run_bench(
    name: str,
    configuration: Mapping[str, Any] | None,
    sizes: Sequence[int],
    rounds: int,
    backend: str,
    note: Callable[[str], None],
) -> Benchmark:
    """One row per size in output tokens; without sizes, the model's usual mix of single items and batches.

    It measures the installed tree's own implementation, or the stand-alone adapter if there is none. Raises ValueError
    if the model cannot be built from the configuration.
    """
    context = start_vllm(backend)
    try:
        rows = _measure(Subject(name, configuration), sizes, rounds, note)
    finally:
        context.__exit__(None, None, None)
    import vllm

    versions = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "python": sys.version.split()[0],
    }
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Benchmark(name, torch.cuda.get_device_name(), versions, today, tuple(rows))


def _measure(subject: Subject, sizes: Sequence[int], rounds: int, note: Callable[[str], None]) -> list[BenchRow]:
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager as Theirs

    from scaffold.runtime.vllm import EncoderCudaGraphManager as Ours

    adapter = None if hasattr(subject.recipe.load_class(), "get_encoder_cudagraph_config") else _adapter(subject)
    note(f"measures {adapter or 'the implementation of the installed vLLM'}")
    host, config = subject.build(adapter)
    config.additional_config = OUR_SETTINGS
    workloads = {f"{size} tokens": subject.items_of(size) for size in sizes} or subject.workloads
    calls = {label: subject.call(items, seed) for seed, (label, items) in enumerate(workloads.items())}
    with torch.inference_mode():
        for inputs in calls.values():
            host.embed_multimodal(**inputs)
        want = {label: [t.clone() for t in host.embed_multimodal(**inputs)] for label, inputs in calls.items()}
    tokens = {label: sum(len(item) for item in items) for label, items in want.items()}
    managers = {}
    for kind, make in (("vllm", Theirs), ("ours", Ours)):
        managers[kind], seconds = _captured(partial(make, config, DEVICE, DTYPE, host))
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
        ways[label]["exact"] = exact_replay(subject, host, inputs, len(want[label]))
    note(f"times {len(ways)} sizes, {rounds} rounds")
    samples = _interleave(ways, rounds, managers["ours"].capture_when_idle)
    return [
        BenchRow(
            workload=label,
            tokens=tokens[label],
            **{f"{kind}_ms": statistics.median(samples[label, kind]) for kind in ways[label]},
            vllm_right=errors[label, "vllm"] < ROUNDING,
            ours_right=errors[label, "ours"] < ROUNDING,
        )
        for label in calls
    ]


def _adapter(subject: Subject) -> str:
    """`module:class` of the stand-alone adapter for the installed release. Raises ValueError where there is none."""
    from vitcg_adapters import ADAPTERS, adapter_path
    from vllm import __version__

    from scaffold.plugin import generation_of

    generation = generation_of(__version__) or ""
    # By the module: the class may have another name than its architecture.
    known = {module: architecture for architecture, module in ADAPTERS.get(generation, {}).items()}
    found = adapter_path(generation, known.get(subject.recipe.module, ""))
    if found is None:
        raise ValueError(f"vLLM {__version__} has no encoder graphs for this model, and there is no adapter")
    return str(found)


def _captured(make: Callable[[], Any]) -> tuple[Any, float]:
    """A manager with its graphs, and the seconds of its capture."""
    from vllm.distributed.parallel_state import graph_capture

    manager = make()
    begin = time.perf_counter()
    with graph_capture(device=DEVICE):
        manager.capture(torch.cuda.graph_pool_handle())
    torch.cuda.synchronize()
    return manager, time.perf_counter() - begin


def exact_replay(subject: Subject, host: Any, inputs: dict[str, Any], items: int) -> Callable[[], None]:
    """Replays graphs of exactly these inputs, one for each path that has work."""
    graphs: list[Any] = []
    kept: list[Any] = []
    for path in subject.paths:
        if path == "local" and not len(inputs["patch_pixel_values"]):
            continue
        forward = captured_forward(host, inputs, items, path)
        with torch.inference_mode():
            for _ in range(2):
                forward()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = forward()
        graphs.append(graph)
        # The inputs (the values in the forward) and the output must live as long as the graph: free memory goes back to
        # the device when a manager captures on demand.
        kept += [forward, output]

    def replay(alive: list[Any] = kept) -> None:
        for graph in graphs:
            graph.replay()

    return replay


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
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    actions[kind]()
                    torch.cuda.synchronize()
                    samples.setdefault((label, kind), []).append((time.perf_counter() - begin) * 1e3)
    return samples


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
