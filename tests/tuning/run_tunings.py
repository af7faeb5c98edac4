"""Tune the real vision classes of one release tree on the CPU, and compare with the untuned ones.

    python tests/tuning/run_tunings.py TREE RECIPE...

Prints one JSON object: for each recipe and type, the error of every tuning alone and of all together, how many modules
each of them changed, why others were left alone, and whether taking them back restored everything bit for bit. Then
what happens to towers that must be left alone (`refusals`), to weights that are loaded again (`reloaded`), and in a
manager that proves its tunings (`served`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import print_checks
from reloading import shrink


def main() -> int:
    return print_checks(check)


def build(recipe, dtype):  # type: ignore[no-untyped-def]
    """A host with the same random weights every time. (vLLM's parameters cannot be deep-copied.)"""
    from scaffold.verify.numeric.recipes.base import process_weights, randomise

    host, _ = recipe.build()
    host.eval().requires_grad_(False)
    randomise(host, 0)
    process_weights(host)
    host.to(dtype)
    if "dtype" in vars(host):
        host.dtype = dtype
    return host


def check(name):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.runtime.tuning import NAMES, attention
    from scaffold.verify.numeric.recipes.found import load_recipe

    attention.processors = lambda device: 4  # one tile of these towers does not fill them, two do
    recipe = load_recipe(name)
    config = recipe.model_config()
    shrink(config.vision_config)
    recipe.model_config = lambda: config
    case = recipe.sessions()[0].cases[2]
    inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(0))
    found = {}
    for dtype in (torch.float32, torch.float64):
        host = build(recipe, dtype)
        given = {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                 for k, v in inputs.items()}  # fmt: skip
        want = [t.clone() for t in host.embed_multimodal(**given)]
        assert want[0].dtype is dtype, want[0].dtype
        before = state(host)
        ways = {one: (one,) for one in NAMES} | {"all": NAMES}
        found[str(dtype)] = {way: attempt(host, names, given, want, before) for way, names in ways.items()}
    found["refusals"] = {kind: refuse(build(recipe, torch.float32), spoil) for kind, spoil in SPOILERS.items()}
    found["served"] = serve(recipe, build(recipe, torch.float32))
    found["reloaded"] = reload(build(recipe, torch.float64), build(recipe, torch.float64), given)
    return found


def _each_linear(host):  # type: ignore[no-untyped-def]
    return [m for m in host.modules() if hasattr(m, "quant_method")]


def _quantised(host):  # type: ignore[no-untyped-def]
    """Every linear layer claims another method than the unquantised one."""

    class Fp8LinearMethod:
        def __init__(self, plain):  # type: ignore[no-untyped-def]
            self.apply = plain.apply

    for module in _each_linear(host):
        module.quant_method = Fp8LinearMethod(module.quant_method)


def _sharded(host):  # type: ignore[no-untyped-def]
    """Shards that gather what they computed, and split what they are given."""
    for module in _each_linear(host):
        module.tp_size, module.gather_output, module.input_is_parallel = 2, True, False


def _with_lora(host):  # type: ignore[no-untyped-def]
    """Every linear layer is wrapped, as vLLM's LoRA manager does."""
    import torch

    class ColumnParallelLinearWithLoRA(torch.nn.Module):
        def __init__(self, base_layer):  # type: ignore[no-untyped-def]
            super().__init__()
            self.base_layer = base_layer

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.base_layer(x)

    for module in list(host.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "quant_method"):
                setattr(module, name, ColumnParallelLinearWithLoRA(child))


def _watched(host):  # type: ignore[no-untyped-def]
    for module in host.modules():
        module.register_forward_hook(lambda *_: None)


def _compiled(host):  # type: ignore[no-untyped-def]
    for name, module in host.named_modules():
        if name and "language_model" not in name:
            module.do_not_compile = False


def _other_source(host):  # type: ignore[no-untyped-def]
    """A fork's subclasses: their forwards do one thing more."""
    for module in host.modules():
        for child in module.children():
            if type(child).__module__.startswith("vllm.model_executor.models") and not child._modules.get("0"):
                cls = type(child)

                class Fork(cls):  # type: ignore[misc,valid-type]
                    def forward(self, *args, **kwargs):  # type: ignore[no-untyped-def]
                        """The same, and its source is another one."""
                        return super().forward(*args, **kwargs)

                child.__class__ = Fork


SPOILERS = {"quantised": _quantised, "sharded": _sharded, "lora": _with_lora, "hooks": _watched, "compiled": _compiled,
            "fork": _other_source}  # fmt: skip


def refuse(other, spoil):  # type: ignore[no-untyped-def]
    """Tunings of a host that was made unfit: which ones still act, and why the others do not."""
    from scaffold.runtime.tuning import tune

    spoil(other)
    before = state(other)
    dry = tune(other, read("list"))
    looked = same(state(other), before)
    tuned = tune(other)
    padded = next(o for o in tuned.outcomes if o.name == "pad-mlp")
    parameters = all(p.shape == q[0].shape for (n, p) in other.named_parameters() for q in [before[0][n]])
    result = {
        "applied": {o.name: len(o.applied) for o in tuned.outcomes},
        "reasons": sorted({why for o in tuned.outcomes for why in o.refused.values()}),
        "pad_reasons": sorted(set(padded.refused.values())),
        "parameters_kept": parameters,
        "untouched": same(state(other), before),
        "dry_changes_nothing": looked,
        "dry_says": {o.name: len(o.applied) for o in dry.outcomes},
    }
    tuned.undo()
    result["restored"] = same(state(other), before)
    for module in other.modules():
        # Activations are shared by all hosts of a process: what a spoiler did to them must not stay.
        module._forward_hooks.clear()
        if not hasattr(type(module), "forward_native"):
            continue
        vars(module).pop("do_not_compile", None)
    return result


def serve(recipe, plain):  # type: ignore[no-untyped-def]
    """A manager with `tuning_check` on emulated graphs, against an untuned host of the same weights."""
    import os

    import torch

    from scaffold.runtime.recording import RecordingBackend
    from scaffold.runtime.tuning import largest_error, mlp
    from scaffold.runtime.vllm import EncoderCudaGraphManager
    from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS
    from scaffold.verify.numeric.recipes.base import configure, process_weights

    class OnCpu(EncoderCudaGraphManager):
        def _make_backend(self):  # type: ignore[no-untyped-def]
            backend = RecordingBackend(bodies=PYTHON_OPERATORS)
            torch.cuda.is_current_stream_capturing = lambda: backend.is_capturing
            return backend

    host, config = recipe.build()
    host.eval().requires_grad_(False)
    host.load_state_dict(plain.state_dict())
    process_weights(host)
    if not hasattr(host, "get_encoder_cudagraph_config"):
        return None  # this release has no port of the model
    session = recipe.sessions()[0]
    configure(config, session, recipe.modalities)
    found = {}
    for tuning in ("off", "on", *(("wrong",) if recipe.module == "qwen2_vl" else ())):
        given = {"calibration_ms": 0, "trials": 0, "tuning": "off" if tuning == "off" else "on", "tuning_check": True}
        os.environ["VITCG_ENCODER_GRAPHS"] = json.dumps(given)
        manager = OnCpu(config, torch.device("cpu"), torch.float32, host)
        wrong = {"QuickGELU": lambda x, width: x} if tuning == "wrong" else {}
        with warned() as warnings, mock.patch.dict(mlp.FusedActivations._KERNELS, wrong):
            manager.capture((0, 0))
        errors = []
        for number, case in enumerate(session.cases):
            if not manager.supports_modality(case.modality):
                continue
            inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(number))
            want = [t.clone() for t in plain.embed_multimodal(**inputs)]
            errors.append(largest_error(manager.execute(dict(inputs)), want))
        found[tuning] = {
            "applied": {o.name: len(o.applied) for o in manager.tuned.outcomes if o.applied},
            "proved": [o.error for o in manager.tuned.outcomes if o.applied],
            "rounding": manager.tuned.rounding,
            "worst": max(errors),
            "calls": len(errors),
            "hits": manager.graph_hits,
            "failed": len(manager.core.report.failed),
            "warnings": warnings,
        }
        manager.tuned.undo()
    return found


@contextlib.contextmanager
def warned():  # type: ignore[no-untyped-def]
    """What the tunings warn of."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):  # type: ignore[no-untyped-def]
            messages.append(record.getMessage())

    handler = Keep(logging.WARNING)
    logger = logging.getLogger("scaffold.runtime.tuning")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def read(given):  # type: ignore[no-untyped-def]
    from scaffold.runtime.tuning import read_choice

    return read_choice(given)


def reload(plain, other, inputs):  # type: ignore[no-untyped-def]
    """Load other weights through the layers' own loaders into an untuned host and a tuned one."""
    import torch

    from scaffold.runtime.tuning import largest_error, tune

    tuned = tune(other)
    addresses = {n: p.data_ptr() for n, p in other.named_parameters()}
    loaded = 0
    shapes = {n: p.shape for n, p in plain.named_parameters()}
    for target in (plain, other):
        generator = torch.Generator().manual_seed(5)
        for name, parameter in target.named_parameters():
            loader, shape = getattr(parameter, "weight_loader", None), shapes[name]
            noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
            if loader is None or "mlp" not in name or "language" in name:
                continue
            layer = target.get_submodule(name.rpartition(".")[0])
            if type(layer).__name__ == "MergedColumnParallelLinear":
                for shard, part in enumerate(noise.chunk(2)):
                    loader(parameter, part, shard)
            else:
                loader(parameter, noise)
            loaded += 1
    want = list(plain.embed_multimodal(**inputs))
    got = list(other.embed_multimodal(**inputs))
    error = largest_error(got, want)
    moved = [n for n, p in other.named_parameters() if p.data_ptr() != addresses[n]]
    tuned.undo()
    again = all(torch.equal(a, b) for a, b in zip(plain.parameters(), other.parameters(), strict=True))
    return {"loaded": loaded, "error": error, "moved": moved, "equal_after_undo": again}


def state(host):  # type: ignore[no-untyped-def]
    """Everything that a tuning may change: parameters, buffers, modules' types, and what instances hold."""
    tensors = {n: (t.clone(), t.stride()) for n, t in (*host.named_parameters(), *host.named_buffers())}
    types = {n: type(m).__name__ for n, m in host.named_modules()}
    held = {n: sorted(k for k in vars(m) if not k.startswith("_")) for n, m in host.named_modules()}
    return tensors, types, held


def same(a, b) -> bool:  # type: ignore[no-untyped-def]
    import torch

    return a[1:] == b[1:] and a[0].keys() == b[0].keys() and all(
        torch.equal(x, y) and p == q for (x, p), (y, q) in ((a[0][n], b[0][n]) for n in a[0])
    )  # fmt: skip


def attempt(host, names, inputs, want, before):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.runtime.tuning import TuningChoice, largest_error, tune

    tuned = tune(host, TuningChoice(tuple(names)))
    got = list(host.embed_multimodal(**inputs))
    changed = not same(state(host), before)
    applied = {o.name: len(o.applied) for o in tuned.outcomes}
    refused = {o.name: sorted(set(o.refused.values())) for o in tuned.outcomes}
    extra = tuned.extra_bytes
    assert not tuned.outcomes or tune(host) is tuned  # a second manager finds it tuned
    tuned.undo()
    assert "_vitcg_tuned" not in vars(host)
    again = list(host.embed_multimodal(**inputs))
    return {
        "error": largest_error(got, want),
        "applied": applied,
        "refused": refused,
        "changed": changed,
        "extra_bytes": extra,
        "restored": same(state(host), before) and all(torch.equal(a, b) for a, b in zip(again, want, strict=True)),
    }


if __name__ == "__main__":
    sys.exit(main())
