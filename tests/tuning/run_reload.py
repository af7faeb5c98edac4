"""Managers that tune their towers and prove it, then get new weights by the release's own reload, on the CPU.

    python tests/tuning/run_reload.py TREE RECIPE...

Prints one JSON object: for each recipe what was tuned, and the largest difference to an untuned tower in all calls of
the recipe; with a tuning that is wrong, too (`wrong`). Then for each format of new weights the largest difference to an
untuned tower with them, in eager and in replays, the parameters that moved, changed their shape or were left on the
meta device.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import print_checks, recorded
from reloading import kept_buffers, load_parts
from run_tunings import configured, inputs_of, recipe_with


def main() -> int:
    return print_checks(check)


def manager_of(host, config):  # type: ignore[no-untyped-def]
    """A manager on emulated graphs with the default tunings and their check."""
    import torch

    from scaffold.runtime.vllm import EncoderCudaGraphManager

    os.environ["VITCG_ENCODER_GRAPHS"] = json.dumps({"calibration_ms": 0, "trials": 0})
    manager = recorded(EncoderCudaGraphManager)(config, torch.device("cpu"), torch.float32, host)
    manager.capture((0, 0))
    return manager


def check(name):  # type: ignore[no-untyped-def]
    import torch
    from vllm.model_executor.model_loader.reload import layerwise

    from scaffold.runtime.tuning import attention, largest_error, mlp
    from scaffold.verify.numeric.recipes.base import configure

    attention.processors = lambda device: 4  # as in `run_tunings`
    recipe = recipe_with(name)
    plain = configured(recipe, torch.float32)[0]
    host, config = configured(recipe, torch.float32)
    session = recipe.sessions()[0]
    configure(config, session, recipe.modalities)
    layerwise.record_metadata_for_reloading(host)
    found = {}
    if name == "qwen2_vl":
        wrong = {"QuickGELU": lambda x, width: x}
        with warned() as warnings, mock.patch.dict(mlp.FusedActivations._KERNELS, wrong):
            manager = manager_of(host, config)
        found["wrong"] = served(manager, plain, recipe, session) | {"warnings": warnings}
        manager.tuned.undo()
    with warned() as warnings:
        manager = manager_of(host, config)
    found |= served(manager, plain, recipe, session) | {"warnings": warnings}
    inputs = inputs_of(recipe)
    places = {n: p.data_ptr() for n, p in host.named_parameters()}
    shapes = {n: p.shape for n, p in plain.named_parameters()}
    before = [t.clone() for t in manager.execute(dict(inputs))]
    found["first"] = largest_error(before, list(plain.embed_multimodal(**inputs)))
    for seed, (kind, load) in enumerate(FORMATS.items()):
        weights = new_weights(plain, seed)
        with kept_buffers(host):
            load(host, weights, layerwise)
        manager.forget_metadata()  # as `weights` does after the runner's method
        for parameter, value in weights.items():
            plain.get_parameter(parameter).data.copy_(value)
        want = [t.clone() for t in plain.embed_multimodal(**inputs)]
        hits = manager.graph_hits
        parameters = dict(host.named_parameters())
        found[kind] = {
            "replayed": largest_error(manager.execute(dict(inputs)), want),
            "hits": manager.graph_hits - hits,
            "eager": largest_error(list(host.embed_multimodal(**inputs)), want),
            "changed": largest_error(want, before),
            "moved": [n for n, p in parameters.items() if p.data_ptr() != places[n]],
            "on_meta": [n for n, p in parameters.items() if p.is_meta],
            "other_shapes": [n for n, p in parameters.items() if p.shape != shapes[n]],
        }
        before = want
    manager.tuned.undo()
    found["equal_after_undo"] = all(
        torch.equal(p, host.get_parameter(n)) and host.get_parameter(n).is_contiguous()
        for n, p in plain.named_parameters() if "language" not in n
    )  # fmt: skip
    return found


@contextlib.contextmanager
def warned():  # type: ignore[no-untyped-def]
    """What the tunings warn of."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("scaffold.runtime.tuning")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


def served(manager, plain, recipe, session):  # type: ignore[no-untyped-def]
    """What was tuned, and all calls of a session against an untuned host of the same weights."""
    import torch

    from scaffold.runtime.tuning import largest_error

    errors = []
    for number, case in enumerate(session.cases):
        if manager.supports_modality(case.modality):
            inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(number))
            want = [t.clone() for t in plain.embed_multimodal(**inputs)]
            errors.append(largest_error(manager.execute(dict(inputs)), want))
    return {
        "applied": {o.name: len(o.applied) for o in manager.tuned.outcomes if o.applied},
        "proved": [o.error for o in manager.tuned.outcomes if o.applied],
        "rounding": manager.tuned.rounding,
        "worst": max(errors),
        "calls": len(errors),
        "served": manager.graph_hits,
        "failed": len(manager.core.report.failed),
    }


def new_weights(plain, seed):  # type: ignore[no-untyped-def]
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(p.shape, generator=generator) for n, p in plain.named_parameters() if "language" not in n}


def checkpoint_format(host, weights, layerwise):  # type: ignore[no-untyped-def]
    """`reload_weights` of the runner: it begins, loads and ends so."""
    import torch

    layerwise.initialize_layerwise_reload(host)
    load_parts(host, weights.items())
    layerwise.finalize_layerwise_reload(host, SimpleNamespace(dtype=torch.float32))


def kernel_format(host, weights, layerwise):  # type: ignore[no-untyped-def]
    """`reload_weights(is_checkpoint_format=False)`: each parameter is copied into, by the release's code if it is one
    function.
    """
    try:
        from vllm.model_executor.model_loader.reload.inplace import get_parameter_for_reload as parameter_of
    except ImportError:
        parameter_of = type(host).get_parameter  # before 0.33 the runner has these two lines
    for name, value in weights.items():
        parameter_of(host, name).copy_(value)


def discarded(host, weights, layerwise):  # type: ignore[no-untyped-def]
    """Sleep level 2: the memory of the weights comes back with anything in it, and a reload follows."""
    for name in weights:
        host.get_parameter(name).data.fill_(float("nan"))
    checkpoint_format(host, weights, layerwise)


def shards(host, weights, layerwise):  # type: ignore[no-untyped-def]
    """The RDT engine loads a layer's shards into materialised tensors, and ends in the same function for each layer."""
    layerwise.initialize_layerwise_reload(host)
    for module_name, layer in host.named_modules():
        info = layerwise.get_layerwise_info(layer)
        given = {n.rpartition(".")[2]: v for n, v in weights.items() if n.rpartition(".")[0] == module_name}
        if not given:
            layerwise._place_kernel_tensors(layer, info)
        else:
            layerwise.materialize_layer(layer, info)
            for leaf, value in given.items():
                getattr(layer, leaf).data.copy_(value)
            layerwise._copy_and_restore_kernel_tensors(layer, info)
        info.reset()


FORMATS = {
    "checkpoint": checkpoint_format,
    "kernel": kernel_format,
    "loaders": lambda host, weights, layerwise: load_parts(host, weights.items()),
    "discarded": discarded,
    "shards": shards,
    "checkpoint again": checkpoint_format,
}

if __name__ == "__main__":
    sys.exit(main())
