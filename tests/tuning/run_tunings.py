"""Tune the real vision classes of one release tree on the CPU, and compare with the untuned ones.

    python tests/tuning/run_tunings.py TREE RECIPE...

Prints one JSON object: for each recipe and type, the error of every tuning alone and of all together, how many modules
each of them changed, why others were left alone, and whether taking them back restored everything bit for bit. Then
what happens to towers that must be left alone (`refusals`). `run_layers.py` has quantised layers and LoRA's,
`run_reload.py` has managers and new weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import print_checks
from reloading import shrink


def main() -> int:
    return print_checks(check)


def build(recipe, dtype):  # type: ignore[no-untyped-def]
    return configured(recipe, dtype)[0]


def configured(recipe, dtype):  # type: ignore[no-untyped-def]
    """A host with the same random weights every time, and its configuration. (vLLM's parameters cannot be copied.)"""
    from scaffold.verify.numeric.recipes.base import process_weights, randomise

    host, config = recipe.build()
    host.eval().requires_grad_(False)
    randomise(host, 0)
    process_weights(host)
    host.to(dtype)
    if "dtype" in vars(host):
        host.dtype = dtype
    return host, config


def map_floats(inputs, change):  # type: ignore[no-untyped-def]
    """A model's inputs, with another value for each tensor of floating-point numbers."""
    import torch

    return {
        name: change(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def recipe_with(name, change=shrink):  # type: ignore[no-untyped-def]
    """The recipe of a model whose tower has other sizes: those that a tuning widens, unless told otherwise."""
    from scaffold.verify.numeric.recipes.found import load_recipe

    recipe = load_recipe(name)
    config = recipe.model_config()
    change(config.vision_config)
    recipe.model_config = lambda: config
    return recipe


def inputs_of(recipe):  # type: ignore[no-untyped-def]
    """One call."""
    import torch

    case = recipe.sessions()[0].cases[2]
    return recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(0))


def check(name):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.runtime.tuning import NAMES, attention

    attention.processors = lambda device: 4  # one tile of these towers does not fill them, two do
    recipe = recipe_with(name)
    inputs = inputs_of(recipe)
    found = {}
    for dtype in (torch.float32, torch.float64):
        host = build(recipe, dtype)
        given = map_floats(inputs, lambda value, dtype=dtype: value.to(dtype))
        want = [t.clone() for t in host.embed_multimodal(**given)]
        assert want[0].dtype is dtype, want[0].dtype
        before = state(host)
        ways = {one: (one,) for one in NAMES} | {"all": NAMES}
        found[str(dtype)] = {way: attempt(host, names, given, want, before) for way, names in ways.items()}
    found["refusals"] = {kind: refuse(build(recipe, torch.float32), spoil) for kind, spoil in SPOILERS.items()}
    return found


def _sharded(host):  # type: ignore[no-untyped-def]
    """Shards that gather what they computed, and split what they are given."""
    for module in host.modules():
        if hasattr(module, "quant_method"):
            module.tp_size, module.gather_output, module.input_is_parallel = 2, True, False


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


SPOILERS = {"sharded": _sharded, "hooks": _watched, "compiled": _compiled, "fork": _other_source}


def refuse(other, spoil):  # type: ignore[no-untyped-def]
    """Tunings of a host that was made unfit: which ones still act, and why the others do not."""
    from scaffold.runtime.tuning import read_choice, tune

    spoil(other)
    before = state(other)
    dry = tune(other, read_choice("list"))
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
