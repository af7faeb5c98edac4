"""Tune towers whose linear layers are vLLM's quantised ones, or wrapped for LoRA, with the installed wheel's kernels.

    python tests/tuning/run_layers.py RECIPE...

Prints one JSON object: for each of `KINDS` and each recipe how far the tuned tower is from the untuned one, how far the
untuned one moves when its pixels do by half a step, what was tuned, why the rest was not, whether every parameter was
left as it was, and which classes held the weights.
"""

from __future__ import annotations

import copy
import json
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import vllm_on_cpu


def quantised(form, bits, kind, weights, **more):  # type: ignore[no-untyped-def]
    """Makes a configuration of compressed-tensors, which is changed while it is used."""
    number = {"num_bits": bits, "type": kind, "symmetric": True}
    groups = {"targets": ["Linear"], "weights": {**number, **weights, "dynamic": False}}
    groups |= {name: {**number, **values} for name, values in more.items()}

    def make():  # type: ignore[no-untyped-def]
        from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors

        given = {"format": form, "config_groups": {"group_0": groups}, "ignore": []}
        return compressed_tensors.CompressedTensorsConfig.from_config(copy.deepcopy(given))

    return make


#: Weights with a scale a row, and activations quantised row by row when they come.
ROWS = {"weights": {"strategy": "channel"}, "input_activations": {"strategy": "token", "dynamic": True}}
FP8 = quantised("float-quantized", 8, "float", **ROWS)
#: `plain` layers are not quantised, but the wheel packs their weights for its own matrix kernels after loading. In
#: `fp8` the kernel is the wheel's choice for this processor; in `fp8-rows` it is one that GPUs have, too. The wheel has
#: no kernel for int4 where the processor has no AVX-512.
KINDS = {
    "plain": lambda: None,
    "int8": quantised("int-quantized", 8, "int", **ROWS),
    "fp8": FP8,
    "fp8-rows": FP8,
    # Packed into integers, and activations as they are.
    "int4": quantised("pack-quantized", 4, "int", {"strategy": "group", "group_size": 32}),
    "lora": lambda: None,
}
#: Step3-VL gives its tower no quantisation, whatever the checkpoint says.
PLAIN = ("plain", "lora")


def main() -> int:
    # The same kernels on every processor: with AMX, int8 layers of 0.32 take two-dimensional inputs only, and 4-bit
    # ones quantise their inputs, too.
    torch.cpu._is_amx_tile_supported = lambda: False
    from vllm.config.multimodal import MultiModalConfig

    report: dict[str, dict[str, object]] = {}
    with vllm_on_cpu() as current, torch.inference_mode():
        # Quantised layers ask `model_config` for the type of their inputs, all layers whether the tower is replicated.
        for kind in KINDS:
            if kind == "int4" and not hasattr(torch.ops._C, "cpu_gemm_wna16"):
                continue
            # The kernels of fp8 and int4 give nothing wider.
            dtype = torch.bfloat16 if kind in ("fp8", "fp8-rows", "int4") else torch.float32
            torch.set_default_dtype(dtype)
            current.model_config = SimpleNamespace(dtype=dtype, multimodal_config=MultiModalConfig())
            report[kind] = {name: check(name, kind) for name in sys.argv[1:] if name != "step3_vl" or kind in PLAIN}
    print(json.dumps(report))
    return 0


def check(name, kind):  # type: ignore[no-untyped-def]
    from run_tunings import inputs_of, map_floats, recipe_with, same, shrink, state

    from scaffold.runtime.tuning import NAMES, TuningChoice, attention, largest_error, moved, tune

    attention.processors = lambda device: 4
    # The kernel of int4 takes multiples of 32 only.
    recipe = recipe_with(name, partial(shrink, inner=96) if kind == "int4" else shrink)
    host = build(recipe, kind)
    if kind == "lora":
        wrap(host)
    dtype = torch.get_default_dtype()
    inputs = map_floats(inputs_of(recipe), lambda value: value.to(dtype))
    near = map_floats(inputs, lambda value: moved(value, torch.finfo(value.dtype).eps))
    if kind == "lora":
        plain = [t.clone() for t in host.embed_multimodal(**inputs)]
        activate(host)
    with conversions() as untuned:
        want = [t.clone() for t in host.embed_multimodal(**inputs)]
    rounding = largest_error(list(host.embed_multimodal(**near)), want)
    before = state(host)
    tuned = tune(host, TuningChoice(NAMES))
    with conversions() as converted:
        got = list(host.embed_multimodal(**inputs))
    weights = {n: p.clone() for n, p in host.named_parameters()}
    found = {
        "error": largest_error(got, want),
        "rounding": rounding,
        "applied": {o.name: len(o.applied) for o in tuned.outcomes if o.applied},
        "refused": {o.name: sorted(set(o.refused.values())) for o in tuned.outcomes if o.refused},
        "weights_kept": all(w.shape == before[0][n][0].shape and torch.equal(w, before[0][n][0])
                            for n, w in weights.items()),
        "layers": sorted(set(kinds_of(host))),
        "spread": float(want[0].std()),
        "conversions": [len(untuned), len(converted)],
    }  # fmt: skip
    if kind == "lora":
        found["adapter_matters"] = largest_error(want, plain)
    tuned.undo()
    again = list(host.embed_multimodal(**inputs))
    found["restored"] = same(state(host), before) and all(map(torch.equal, again, want))
    return found


def vision(host):  # type: ignore[no-untyped-def]
    return [(n, m) for n, m in host.named_modules() if n and not n.startswith("language_model")]


def kinds_of(host):  # type: ignore[no-untyped-def]
    """Classes of what computes the linear layers of MLPs, with the type of their weights."""
    for name, module in vision(host):
        if "mlp" in name.split(".") and hasattr(module, "quant_method"):
            method = getattr(module, "scheme", None) or module.quant_method
            yield f"{type(method).__name__} {str(next(iter(module.parameters())).dtype).removeprefix('torch.')}"
        if type(module).__name__.endswith("WithLoRA"):
            yield type(module).__name__


@contextmanager
def conversions():  # type: ignore[no-untyped-def]
    """The calls in which vLLM converts the inputs of a layer to FP8 in a step of its own."""
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8

    calls: list[object] = []
    original = QuantFP8.forward

    def forward(self, *arguments, **keywords):  # type: ignore[no-untyped-def]
        calls.append(self)
        return original(self, *arguments, **keywords)

    with mock.patch.object(QuantFP8, "forward", forward):
        yield calls


@contextmanager
def fp8_kernel(name):  # type: ignore[no-untyped-def]
    """vLLM's choice of FP8 kernels, or the one of this name."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    if name is None:
        yield
        return
    with mock.patch.dict(linear._POSSIBLE_FP8_KERNELS, {PlatformEnum.CPU: [getattr(linear, name)]}):
        yield


#: The scale of weights that fill their type's range, times what makes their products as large as their inputs.
LARGEST = {"int8": 1 / 74, "fp8": 1 / 1.0, "fp8-rows": 1 / 1.0, "int4": 1 / 4.6}


def build(recipe, kind):  # type: ignore[no-untyped-def]
    """A host with random weights of the types that its layers asked for."""
    from scaffold.verify.numeric.recipes import base

    quantisation = KINDS[kind]()
    original = base.engine_config

    def configured(*arguments):  # type: ignore[no-untyped-def]
        config = original(*arguments)
        config.quant_config = quantisation
        return config

    if quantisation is not None:  # as vLLM's model loader does
        quantisation.packed_modules_mapping = getattr(recipe.load_class(), "packed_modules_mapping", {})
    base.engine_config = configured
    try:
        with fp8_kernel("ChannelWiseTorchFP8ScaledMMLinearKernel" if kind == "fp8-rows" else None):
            host, _ = recipe.build()
    finally:
        base.engine_config = original
    host.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in host.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("weight_shape"):
            continue
        if "scale" in name:
            owner = host.get_submodule(name.rpartition(".")[0])
            parameter.data.fill_(LARGEST[kind] * 1.5 / owner.input_size**0.5)
        elif parameter.dtype in (torch.int8, torch.int32):
            bits = torch.iinfo(parameter.dtype)
            parameter.data.copy_(torch.randint(bits.min, bits.max, parameter.shape, generator=generator,
                                               dtype=torch.int64))  # fmt: skip
        elif parameter.ndim >= 2:
            fan_in = parameter[0].numel()
            parameter.data.copy_((noise * (1.5 / fan_in**0.5)).to(parameter.dtype))
        else:
            parameter.data.copy_(1.0 + 0.2 * noise if "norm" in name and "weight" in name else 0.5 * noise)
    base.process_weights(host)
    return host


def wrap(host):  # type: ignore[no-untyped-def]
    """Every linear layer of the tower in vLLM's own LoRA layer, as its LoRA manager does."""
    from vllm.config.lora import LoRAConfig
    from vllm.lora.utils import from_layer, replace_submodule
    from vllm.model_executor.layers.linear import LinearBase

    config = LoRAConfig(max_lora_rank=8, max_loras=1, lora_dtype=torch.float32)
    host._adapters = Adapters()
    for name, module in vision(host):
        if isinstance(module, LinearBase):
            packed = [name.rpartition(".")[2]] * (2 if "gate_up" in name else 3 if "qkv" in name else 1)
            wrapped = from_layer(module, 1, config, packed, None)
            assert wrapped is not module, f"vLLM has no LoRA layer for {name}"
            replace_submodule(host, name, wrapped)
            wrapped.set_mapping(host._adapters)


class Adapters:
    """vLLM's own arithmetic of adapters, for whatever number of rows a layer has: all of them use the same one."""

    active = False

    def add_lora_linear(self, y, x, *arguments, **keywords):  # type: ignore[no-untyped-def]
        from vllm.lora.layers import LoRAMapping
        from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

        if not self.active:
            return None
        rows = x.shape[0]
        punica = PunicaWrapperCPU(rows, 1, torch.device("cpu"))
        punica.update_metadata(LoRAMapping((1,) * rows, (1,), is_prefill=True), [1], 1, 64)
        return punica.add_lora_linear(y, x, *arguments, **keywords)


def activate(host):  # type: ignore[no-untyped-def]
    """An adapter with weights of its own, active for every row."""
    generator = torch.Generator().manual_seed(3)
    for _, module in vision(host):
        if type(module).__name__.endswith("WithLoRA"):
            for stacked in (*module.lora_a_stacked, *module.lora_b_stacked):
                stacked.copy_(0.3 * torch.randn(stacked.shape, generator=generator))
    host._adapters.active = True


if __name__ == "__main__":
    sys.exit(main())
