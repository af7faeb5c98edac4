"""Measure vision towers whose checkpoint brings FP8 weights: untuned, tuned without `fp8-inputs`, and tuned with it.

    python benchmarks/fp8_checkpoint_gpu.py --out RESULT.json [--models qwen2_5_vl,...]
    python benchmarks/pages.py    # the new numbers into the pages

Three towers of each model at real sizes have the weights that compressed-tensors' FP8 with dynamic inputs makes of the
same random ones: a scale for each row of a weight, and for each row of the inputs. vLLM's own kernels multiply. The
exact graphs of the three run side by side, and with them that of the tuned tower with the same weights in bfloat16.
Errors are relative to the largest value of the untuned FP8 tower's eager answer. The rounding of a tower is how far the
answer of the untuned one moves when every pixel moves by at most half a step of bfloat16. For each width of the towers
it also measures one conversion of many rows: vLLM's of a default engine, vLLM's operator, and ours. Step3-VL is not
among the models: it gives its tower no quantisation, whatever the checkpoint says.
"""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from attention_gpu import graph_of
from gpu_result import run_models
from manager_gpu import Subject, error_of, exact_call
from towers import DEVICE, DTYPE
from tuning_gpu import MODELS, half_step, settle, subject_of

#: The models whose towers take the quantisation of their checkpoint.
QUANTISED = tuple(name for name in MODELS if name != "step3_vl")


def fp8_config() -> Any:
    """compressed-tensors: FP8 weights with a scale a row, and inputs converted row by row when they come."""
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    number = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**number, "strategy": "channel", "dynamic": False},
        "input_activations": {**number, "strategy": "token", "dynamic": True},
    }
    given = {"format": "float-quantized", "config_groups": {"group_0": group}, "ignore": []}
    return CompressedTensorsConfig.from_config(given)


def build(subject: Subject) -> Any:
    """The subject's tower with its weights in FP8."""
    from vllm.config import get_current_vllm_config
    from vllm.config.multimodal import MultiModalConfig

    from scaffold.runtime.tuning import kernels
    from scaffold.verify.numeric.recipes import base
    from scaffold.verify.numeric.recipes.base import process_weights

    plain = dict(subject.build()[0].named_parameters())
    quantisation, original = fp8_config(), base.engine_config
    quantisation.packed_modules_mapping = getattr(subject.recipe.load_class(), "packed_modules_mapping", {})

    def configured(*arguments: Any) -> Any:
        config = original(*arguments)
        config.quant_config = quantisation
        return config

    current = get_current_vllm_config()
    current.model_config = SimpleNamespace(dtype=DTYPE, multimodal_config=MultiModalConfig(), is_diffusion=False)
    torch.set_default_dtype(DTYPE)
    try:
        with DEVICE, mock.patch.object(base, "engine_config", configured):
            host = subject.recipe.build()[0]
    finally:
        torch.set_default_dtype(torch.float32)
        current.model_config = None
    host = host.to(DEVICE).eval().requires_grad_(False)
    for name, parameter in host.named_parameters():
        if name.endswith("weight_scale"):
            continue
        if parameter.dtype is kernels.FP8:
            weight, scales = kernels.to_fp8(plain[name])
            parameter.data.copy_(weight)
            host.get_parameter(f"{name}_scale").data.copy_(scales)
        else:
            parameter.data.copy_(plain[name])
    process_weights(host)
    return host


def measure(name: str, rounds: int) -> dict[str, Any]:
    from scaffold.runtime.tuning import DEFAULT, TuningChoice, tune

    subject = subject_of(name)
    untuned, without, tuned = (build(subject) for _ in range(3))
    tune(without, TuningChoice(tuple(name for name in DEFAULT if name != "fp8-inputs")))
    outcomes = {outcome.name: outcome for outcome in tune(tuned, TuningChoice(DEFAULT)).outcomes}
    for outcome in outcomes.values():
        print(subject.name, outcome, flush=True)
    if not outcomes["fp8-inputs"].applied:
        raise RuntimeError(f"no inputs come in FP8: {outcomes['fp8-inputs'].refused}")
    bf16 = subject.build()[0]
    tune(bf16, TuningChoice(DEFAULT))
    towers = {"untuned": untuned, "without": without, "tuned": tuned, "bf16": bf16}
    rows = []
    for seed, (workload, items) in enumerate(subject.workloads.items()):
        inputs = subject.call(items, seed)
        with torch.inference_mode():
            rounded = [t.clone() for t in untuned.embed_multimodal(**half_step(inputs))]
            answers = {way: [t.clone() for t in tower.embed_multimodal(**inputs)] for way, tower in towers.items()}
        count = len(answers["untuned"])
        times = settle({way: exact_call(tower, inputs, count) for way, tower in towers.items()}, rounds)
        rows.append(
            {
                "model": subject.name,
                "workload": workload,
                "tokens": sum(len(answer) for answer in answers["untuned"]),
                **{f"{way}_ms": round(ms, 3) for way, ms in times.items()},
                "rounding": error_of(rounded, answers["untuned"]),
                "without_error": error_of(answers["without"], answers["untuned"]),
                "tuned_error": error_of(answers["tuned"], answers["untuned"]),
                "inputs_error": error_of(answers["tuned"], answers["without"]),
                "bf16_error": error_of(answers["bf16"], answers["untuned"]),
                "rounds": rounds,
            }
        )
        print(rows[-1], flush=True)
    applied = {name: len(outcome.applied) for name, outcome in outcomes.items()}
    return {"rows": rows, "applied": applied, "conversions": conversions(tuned, rounds)}


#: The rows of one conversion that is measured alone, and its calls in a graph.
ROWS, REPEATS = 4784, 50


def conversions(host: Any, rounds: int) -> list[dict[str, Any]]:
    """One conversion of `ROWS` rows in microseconds, for each size of the inputs of a tower's FP8 layers."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
    from vllm.model_executor.layers.quantization.utils.quant_utils import GroupShape

    from scaffold.runtime.tuning import kernels
    from scaffold.runtime.tuning.tower import tower_modules

    engine = QuantFP8(static=False, group_shape=GroupShape.PER_TOKEN)
    layers = [module for module in tower_modules(host).values() if hasattr(module, "scheme")]
    found = []
    for width in sorted({layer.input_size for layer in layers}):
        x = torch.randn(ROWS, width, device=DEVICE, dtype=DTYPE)
        ways = {
            "engine": partial(engine, x, None, None),
            "operator": partial(ops.scaled_fp8_quant, x, use_per_token_if_dynamic=True),
            "ours": partial(kernels.to_fp8, x),
        }
        with torch.inference_mode():
            graphs = {way: graph_of(call, REPEATS) for way, call in ways.items()}
        times = settle({way: graph.replay for way, graph in graphs.items()}, rounds)
        found.append({"width": width, **{f"{way}_us": round(1000 * ms / REPEATS, 2) for way, ms in times.items()}})
        print(found[-1], flush=True)
    return found


def main() -> int:
    return run_models(QUANTISED, measure, rounds=11)


if __name__ == "__main__":
    sys.exit(main())
