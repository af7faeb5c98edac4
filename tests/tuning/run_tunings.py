"""Tune the real vision classes of one release tree on the CPU, and compare with the untuned ones.

    python tests/tuning/run_tunings.py TREE RECIPE...

Prints one JSON object: for each recipe and type, the error of every tuning alone and of all together, how many modules
each of them changed, why others were left alone, and whether taking them back restored everything bit for bit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from scaffold.verify.numeric.cpu_imports import patch_vllm, prepare, start_distributed


def main() -> int:
    prepare(Path(sys.argv[1]), None)
    import torch

    from scaffold.verify.numeric.attention import flash_attn_varlen_func

    patch_vllm(flash_attn_varlen_func)
    report: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch:
        from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
            start_distributed(Path(scratch))
            for name in sys.argv[2:]:
                with torch.inference_mode():
                    report[name] = check(name)
    print(json.dumps(report))
    return 0


def check(name):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.runtime.tuning import NAMES
    from scaffold.verify.numeric.recipes.base import load_recipe, randomise

    recipe = load_recipe(name)
    config = recipe.model_config()
    shrink(config.vision_config)
    recipe.model_config = lambda: config
    host, _ = recipe.build()
    host.eval().requires_grad_(False)
    randomise(host, 0)
    for module in host.modules():
        method = getattr(getattr(module, "quant_method", None), "process_weights_after_loading", None)
        if method is not None:
            method(module)
    case = recipe.sessions()[0].cases[2]
    inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(0))
    found = {}
    for dtype in (torch.float32, torch.float64):
        host.to(dtype)
        if "dtype" in vars(host):
            host.dtype = dtype
        given = {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                 for k, v in inputs.items()}  # fmt: skip
        want = [t.clone() for t in host.embed_multimodal(**given)]
        assert want[0].dtype is dtype, want[0].dtype
        before = state(host)
        ways = {one: (one,) for one in NAMES} | {"all": NAMES}
        found[str(dtype)] = {way: attempt(host, names, given, want, before) for way, names in ways.items()}
    return found


def shrink(vision) -> None:  # type: ignore[no-untyped-def]
    """An inner size that is no multiple of 8, as Qwen2.5-VL's 3420 is not."""
    if hasattr(vision, "mlp_ratio"):
        object.__setattr__(vision, "mlp_ratio", 44 / vision.embed_dim)  # the configuration takes whole numbers only
    else:
        vision.intermediate_size = 44


def state(host):  # type: ignore[no-untyped-def]
    """Everything that a tuning may change: parameters, buffers, modules' types, and what instances hold."""
    tensors = {n: (t.clone(), t.stride()) for n, t in (*host.named_parameters(), *host.named_buffers())}
    types = {n: type(m).__name__ for n, m in host.named_modules()}
    held = {n: sorted(k for k in vars(m) if not k.startswith("_") or k == "_vitcg_handover")
            for n, m in host.named_modules()}  # fmt: skip
    return tensors, types, held


def same(a, b) -> bool:  # type: ignore[no-untyped-def]
    import torch

    return a[1:] == b[1:] and a[0].keys() == b[0].keys() and all(
        torch.equal(x, y) and p == q for (x, p), (y, q) in ((a[0][n], b[0][n]) for n in a[0])
    )  # fmt: skip


def attempt(host, names, inputs, want, before):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.runtime.tuning import Choice, largest_error, tune

    tuned = tune(host, Choice(tuple(names)))
    got = list(host.embed_multimodal(**inputs))
    changed = not same(state(host), before)
    applied = {o.name: len(o.applied) for o in tuned.outcomes}
    refused = {o.name: sorted(set(o.refused.values())) for o in tuned.outcomes}
    extra = tuned.extra_bytes
    tuned.undo()
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
