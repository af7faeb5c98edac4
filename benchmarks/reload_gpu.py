"""Load new weights into tuned towers with graphs, with vLLM's own reload in both formats, on one GPU.

    python benchmarks/reload_gpu.py --out RESULT.json [--models qwen2_5_vl,...]

Real sizes (Qwen2.5-VL's inner size of 3420 is padded). After each reload every parameter is where it was, none is on
the meta device, and replayed graphs give what an untuned tower with the new weights gives.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from gpu_result import run_models
from manager_gpu import DEVICE, DTYPE, capture_measured, error_of
from towers import Subject
from tuning_gpu import half_step

from scaffold.measure.subject import randomise

MODELS = ("qwen2_5_vl", "qwen3_vl")
WORKLOADS = ("224x224", "1288x728")
ROUNDS = 3


def new_weights(host: Any, seed: int, checkpoint: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Other weights of the vision tower, by the names of the model's parameters, or of a checkpoint."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    for name, parameter in list(host.visual.named_parameters()):
        shape = parameter.shape
        noise = torch.randn(shape, device=DEVICE, generator=generator)
        wide = noise / max(noise[0].numel(), 1) ** 0.5 if len(shape) > 1 else 1 + 0.02 * noise
        value = (0.02 * noise if "bias" in name else wide).to(DTYPE)
        if checkpoint and ".gate_up_proj." in name:
            for part, half in zip(("gate_proj", "up_proj"), value.chunk(2), strict=True):
                yield f"visual.{name.replace('gate_up_proj', part)}", half
        else:
            yield f"visual.{name}", value


def measure(name: str, rounds: int) -> dict[str, Any]:
    from vllm.model_executor.model_loader.reload import layerwise
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    from scaffold.runtime.vllm import EncoderCudaGraphManager

    subject = Subject(name)
    plain, _ = subject.build()
    host, config = subject.build()
    with DEVICE:
        layerwise.record_metadata_for_reloading(host)  # as vLLM does when it has made a model
    calls = {workload: subject.call(subject.workloads[workload], 0) for workload in WORKLOADS}
    config.additional_config = {"encoder_graphs": {"trials": 0, "tuning": "on"}}
    manager, captured = capture_measured(lambda: EncoderCudaGraphManager(config, DEVICE, DTYPE, host))
    assert manager.tuned is not None
    applied = {outcome.name: len(outcome.applied) for outcome in manager.tuned.outcomes if outcome.applied}
    print(name, "tuned:", applied, f"{captured['seconds']:.1f} s", flush=True)
    addresses = {n: p.data_ptr() for n, p in host.named_parameters()}
    shapes = {n: p.shape for n, p in plain.named_parameters()}
    rows = []
    # The runner's own method: it is what tells our manager of new weights.
    runner = SimpleNamespace(
        vllm_config=SimpleNamespace(
            model_config=SimpleNamespace(dtype=DTYPE, quantization=None), load_config=None, lora_config=None
        ),
        get_model=lambda: host,
        **dict.fromkeys(("reset_lora_state", "reset_encoder_cache", "reset_mm_cache"), lambda: None),
    )
    for turn in range(rounds):
        for checkpoint in (True, False):
            seed = 10 * turn + checkpoint
            begin = time.perf_counter()
            if turn or not checkpoint:
                weights = new_weights(plain, seed, checkpoint)
                with torch.no_grad():
                    GPUModelRunner.reload_weights(runner, weights, is_checkpoint_format=checkpoint)
                own = dict(plain.named_parameters())
                for parameter, value in new_weights(plain, seed, checkpoint=False):
                    own[parameter].data.copy_(value)
            else:  # the first turn: nothing is loaded
                randomise(plain, DEVICE)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            errors, rounding = {}, {}
            before = manager.graph_hits
            with torch.inference_mode():
                for workload, inputs in calls.items():
                    want = [t.clone() for t in plain.embed_multimodal(**inputs)]
                    rounding[workload] = error_of(list(plain.embed_multimodal(**half_step(inputs))), want)
                    errors[workload] = error_of(manager.execute(dict(inputs)), want)
            parameters = dict(host.named_parameters())
            rows.append(
                {
                    "model": name,
                    "format": ("checkpoint" if checkpoint else "kernel") if turn or not checkpoint else "none",
                    "seconds": round(seconds, 2),
                    "errors": errors,
                    "rounding": rounding,
                    "replayed": manager.graph_hits - before,
                    "moved": [n for n, p in parameters.items() if p.data_ptr() != addresses[n]],
                    "on_meta": [n for n, p in parameters.items() if p.is_meta],
                    "other_shapes": [n for n, p in parameters.items() if p.shape != shapes[n]],
                }
            )
            print(rows[-1], flush=True)
    wrong = [
        row for row in rows
        if row["moved"] or row["on_meta"] or row["other_shapes"] or row["replayed"] != len(calls)
        or any(not error < 2 * row["rounding"][workload] for workload, error in row["errors"].items())
    ]  # fmt: skip
    manager.clear()
    return {"rows": rows, "applied": applied, "capture": captured, "wrong": len(wrong)}


def main() -> int:
    return run_models(MODELS, measure, ROUNDS)


if __name__ == "__main__":
    sys.exit(main())
