"""Tune towers that several ranks share, through vLLM's own distributed layer (gloo), with real classes.

    python tests/tuning/run_sharded.py TREE RANKS RECIPE...

With `mm_encoder_tp_mode="weights"` every rank holds other shards of the weights, with `data` the whole tower. Each
rank prints one JSON object: for each mode and recipe how far the tuned tower is from the untuned one, what was tuned,
why the rest was not, whether taking it back restored everything, how many linear layers were shards, and how far they
are from each other after other weights were loaded through the layers' own loaders (`reloaded`).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks
from release_process import prepare_release


def main() -> int:
    prepare_release(Path(sys.argv[1]))
    return ranks.run(lambda: worker(int(sys.argv[2]), sys.argv[3:]), int(sys.argv[2]), seconds=400)


def worker(size: int, names: list[str]) -> int:
    import torch

    from scaffold.verify.numeric.cpu_imports import patch_vllm

    patch_vllm()
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    rank = ranks.rank()
    current = VllmConfig(device_config=DeviceConfig(device="cpu"))
    report: dict[str, dict[str, object]] = {}
    with set_current_vllm_config(current), torch.inference_mode():
        ranks.join(size)
        for mode in ("weights", "data"):
            report[mode] = {name: check(name, mode, rank) for name in names}
    ranks.say({"rank": rank, **report})
    return 0


def check(name, mode, rank):  # type: ignore[no-untyped-def]
    import torch
    from run_tunings import inputs_of, map_floats, recipe_with, same, state

    from scaffold.runtime.tuning import attention, largest_error, moved, tune
    from scaffold.verify.numeric.host import ENCODER_MODE

    attention.processors = lambda device: 2
    recipe = recipe_with(name)
    ENCODER_MODE.set(mode)
    try:
        host, other = (build(recipe, rank) for _ in range(2))
    finally:
        del recipe.model_config
    inputs = inputs_of(recipe)
    want = [t.clone() for t in host.embed_multimodal(**inputs)]
    before = state(host)

    def prove(step):  # type: ignore[no-untyped-def]
        return host.embed_multimodal(**map_floats(inputs, lambda value: moved(value, step)))

    tuned = tune(host, prove=prove)
    error = largest_error(list(host.embed_multimodal(**inputs)), want)
    tuned.undo()
    again = list(host.embed_multimodal(**inputs))
    restored = same(state(host), before) and all(map(torch.equal, again, want))
    tune(other)
    loaded = sum(load(one) for one in (host, other))
    fresh = list(host.embed_multimodal(**inputs))
    return {
        "error": error,
        "applied": {o.name: len(o.applied) for o in tuned.outcomes if o.applied},
        "refused": {o.name: sorted(set(o.refused.values())) for o in tuned.outcomes if o.refused},
        "restored": restored,
        "proved": [o.error for o in tuned.outcomes if o.applied],
        "shards": len(shards_of(host)),
        "sum": float(want[0].double().sum()),
        "loaded": loaded,
        "reloaded": largest_error(list(other.embed_multimodal(**inputs)), fresh),
        "changed": largest_error(fresh, want),
    }


def shards_of(host):  # type: ignore[no-untyped-def]
    return [m for m in host.modules() if getattr(m, "tp_size", 1) > 1 and hasattr(m, "quant_method")]


def build(recipe, rank):  # type: ignore[no-untyped-def]
    """A host whose shards have weights of this rank, and all else the same ones everywhere."""
    import torch

    from scaffold.verify.numeric.recipes import base

    host, _ = recipe.build()
    host.eval().requires_grad_(False)
    base.randomise(host, 0)
    generator = torch.Generator().manual_seed(1 + rank)
    for shard in shards_of(host):
        shard.weight.copy_(torch.randn(shard.weight.shape, generator=generator) * 1.5 / shard.weight.shape[1] ** 0.5)
    base.process_weights(host)
    return host


def load(host):  # type: ignore[no-untyped-def]
    """Load other weights of the MLPs, whole as in a checkpoint: each loader takes the part of its rank."""
    import torch

    generator, count = torch.Generator().manual_seed(9), 0
    for path, module in host.named_modules():
        kind = type(module).__name__
        parallel = kind in ("MergedColumnParallelLinear", "ColumnParallelLinear", "RowParallelLinear")
        if "mlp" not in path.split(".") or not parallel:
            continue
        sizes = module.output_sizes if kind == "MergedColumnParallelLinear" else [module.output_size]
        for shard, size in enumerate(sizes):
            whole = torch.randn(size, module.input_size, generator=generator) / module.input_size**0.5
            module.weight.weight_loader(module.weight, whole, *([shard] if len(sizes) > 1 else []))
            count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
