"""Runs a tower on a GPU under torch's profiler, and measures the machine's rates. Needs CUDA and vLLM."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scaffold.measure import Items
from scaffold.measure.exact import Graph, captured_forwards
from scaffold.measure.profiles import AttentionCall, Ceilings, KernelRecord, Recording
from scaffold.measure.subject import DEVICE, Subject, has_videos
from scaffold.measure.trace import MODULE_RANGE, read_trace
from scaffold.verify.numeric.real import start_vllm, stop_vllm

#: Attributes of a host outside its vision encoder.
_LANGUAGE = ("language_model",)
#: Sizes by which the rates of a machine are measured: the side of a square matrix, and the bytes of a copy.
CEILING_SIDE = 8192
CEILING_BYTES = 1 << 32


def measure_ceilings(device: torch.device) -> Ceilings:
    """The rate of a large bf16 matrix product on random data, and the bandwidth of a large copy."""
    side = CEILING_SIDE
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = median_ms(lambda: torch.mm(a, b))
    source = torch.empty(CEILING_BYTES, dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    copy = median_ms(lambda: target.copy_(source))
    return Ceilings(2 * side**3 / product / 1e9, 2 * source.numel() / copy / 1e9)


def median_ms(action: Callable[[], Any], rounds: int = 10) -> float:
    """Milliseconds on the device, after three calls that do not count."""
    for _ in range(3):
        action()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return statistics.median(times)


@contextmanager
def module_ranges(host: torch.nn.Module, describe: bool) -> Iterator[list[AttentionCall]]:
    """Open a profiler range around every call of a vision module; `describe` collects the attention calls.

    Describing reads offsets back from the device, so use it in an untimed run. The calls of all modules are watched,
    not the modules: a tuning leaves a module with hooks alone, and the tower would run as it is without tunings.
    """
    numbers = itertools.count()
    calls: list[AttentionCall] = []
    paths = {module: path for path, module in host.named_modules() if path and path.split(".")[0] not in _LANGUAGE}
    plain = torch.nn.Module.__call__

    def watched(module: torch.nn.Module, *positional: Any, **named: Any) -> Any:
        path = paths.get(module)
        if path is None:
            return plain(module, *positional, **named)
        kind = type(module).__name__
        if describe and kind == "MMEncoderAttention":
            calls.append(_attention_call(path, module, positional, named))
        with torch.profiler.record_function(f"{MODULE_RANGE}{next(numbers)}:{path}:{kind}"):
            return plain(module, *positional, **named)

    torch.nn.Module.__call__ = watched
    try:
        yield calls
    finally:
        torch.nn.Module.__call__ = plain


def _attention_call(path: str, module: Any, positional: Any, named: dict[str, Any]) -> AttentionCall:
    query = positional[0] if positional else named["query"]
    offsets = named.get("cu_seqlens")
    batch, rows = query.shape[:2]
    if offsets is None:
        lengths = [rows] * batch
    else:
        bounds = offsets.tolist()
        lengths = [end - start for start, end in itertools.pairwise(bounds) if end > start]
    return AttentionCall(path, tuple(lengths), module.num_heads, module.head_size)


def record(forward: Callable[[], Any], host: torch.nn.Module) -> tuple[tuple[KernelRecord, ...], list[AttentionCall]]:
    """Kernel records and attention calls of one eager forward after two warm-ups."""
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode():
        for _ in range(2):
            forward()
        torch.cuda.synchronize()
        with module_ranges(host, describe=True) as calls:
            forward()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
            with module_ranges(host, describe=False):
                forward()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return read_trace(events), calls


def profile_tower(host: Any, model: str, inputs: dict[str, Any], workload: str, ceilings: Ceilings) -> Recording:
    """The recording of one call of a built tower, all paths together."""
    specs = host.get_encoder_cudagraph_item_specs(inputs)
    kernels: list[KernelRecord] = []
    attention: list[AttentionCall] = []
    total_ms = 0.0
    for forward in captured_forwards(host, inputs, len(specs)).values():
        found, calls = record(forward, host)
        base = 1 + max((k.call for k in kernels), default=-1)
        kernels += [replace(k, call=k.call + base) if k.call >= 0 else k for k in found]
        attention += calls
        total_ms += median_ms(Graph(forward).replay)
    import vllm

    versions = {"vllm": vllm.__version__, "torch": torch.__version__, "device": torch.cuda.get_device_name()}
    tokens = sum(int(spec.output_tokens) for spec in specs)
    return Recording(model, workload, tokens, ceilings, tuple(kernels), tuple(attention), total_ms, versions)


def run_profile(
    subject: Subject,
    workloads: Mapping[str, Items],
    sizes: Sequence[int],
    tuned: bool,
    backend: str,
    note: Callable[[str], None],
) -> list[Recording]:
    """Recordings of one model, one a workload and one a size in output tokens, and with `tuned` a second one
    of each, of the tuned tower.

    Raises `NoSubject` if the model cannot be built, or does not take a workload.
    """
    context = start_vllm(backend)
    try:
        ceilings = measure_ceilings(DEVICE)
        note(f"matrix products {ceilings.tflops:.0f} TFLOP/s, copies {ceilings.tbytes:.2f} TB/s")
        host, _ = subject.build(videos=any(map(has_videos, workloads.values())))
        note(f"sizes of {subject.sizes}")
        calls = [subject.call(images, 0) for images in (*workloads.values(), *map(subject.sizes_of, sizes))]
        recordings = []
        for passing in ("", "tuned") if tuned else ("",):
            if passing:
                from scaffold.runtime.tuning import tune

                for outcome in tune(host).outcomes:
                    note(str(outcome))
            for inputs in calls:
                recording = profile_tower(host, subject.name, inputs, passing, ceilings)
                note(f"{recording.tokens} tokens {passing}: {recording.graph_ms:.2f} ms as a graph")
                recordings.append(recording)
        return recordings
    finally:
        stop_vllm(context)
