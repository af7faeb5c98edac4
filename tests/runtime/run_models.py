"""Run our drop-in on the real classes of one release tree, on the CPU, and compare with the model's own eager answer.

    python tests/runtime/run_models.py TREE fa3|cudnn RECIPE[@GENERATION]...

The classes are the tree's own ports, or with a generation (`step3_vl@v0_24`) the shipped adapters, with the edges of
the processors, which ports of a tree do not all survive, and with a watch on what would lie on the GPU. Prints one JSON
object: the items that were replayed and run eager, by reason, and everything wrong.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from unittest.mock import MagicMock, patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import are_close, prepare_release, recorded, vllm_on_cpu

from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS
from scaffold.workflow import load_port


def main() -> int:
    # A replay here is slower than eager. Of paths, each budget is captured: with 32 steps an octave, Step3-VL has 336.
    os.environ["VITCG_ENCODER_GRAPHS"] = '{"calibration_ms": 0, "trials": 0, "steps": 2}'
    prepare_release(Path(sys.argv[1]))
    import torch

    from scaffold.verify.numeric.attention import set_tail

    report: dict[str, object] = {"wrong": []}
    with vllm_on_cpu():
        set_tail(sys.argv[2])
        gc.freeze()  # each session looks for the garbage of its manager, not among a million objects of imports
        for name in sys.argv[3:]:
            model, _, generation = name.partition("@")
            recipe = import_module(f"scaffold.verify.numeric.recipes.{model}").RECIPE
            adapter = f"vitcg_adapters.{generation}.{model}:{load_port(model).architecture}" if generation else None
            with torch.inference_mode():
                report[name] = check(recipe, adapter, report)
    print(json.dumps(report))
    return 1 if report["wrong"] else 0


def check(recipe, adapter, report):  # type: ignore[no-untyped-def]
    """Every session of a recipe: hits, misses by reason, and whether plans were reused."""
    import torch

    from scaffold.runtime.recording import RecordingBackend
    from scaffold.runtime.vllm import EncoderCudaGraphManager
    from scaffold.verify.numeric.graphs import DEVICE, Lab
    from scaffold.verify.numeric.recipes.base import configure, process_weights, randomise
    from scaffold.verify.numeric.recipes.packed import PackedGrid
    from scaffold.verify.numeric.session import place_inputs, sessions_of

    lab = Lab([sys.argv[1], str(Path(__file__).resolve().parents[2])])
    watch = lab.watch if adapter else nullcontext

    class Backend(RecordingBackend):
        """What it hands out is memory of the GPU."""

        def empty(self, nbytes):  # type: ignore[no-untyped-def]
            return lab.place(super().empty(nbytes))

        def capture(self, forward, pool):  # type: ignore[no-untyped-def]
            graph = super().capture(forward, pool)
            replay = graph.replay

            def without_modes():  # type: ignore[no-untyped-def]
                with lab.switched_off():  # the operators are those of the capture, which was watched
                    replay()

            graph.replay = without_modes
            return graph

        def staging(self, nbytes):  # type: ignore[no-untyped-def]
            with lab.unwatched():
                return RecordingBackend.empty(self, nbytes)

    OnCpu = recorded(EncoderCudaGraphManager, lambda: Backend(device=DEVICE, bodies=PYTHON_OPERATORS))

    torch.manual_seed(0)
    host, config = recipe.build(adapter)
    host.eval().requires_grad_(False)
    randomise(host, 0)
    process_weights(host)
    lab.place_model(host)
    totals: dict[str, object] = {"hits": 0, "misses": 0, "reused": 0, "reasons": {}}
    for session in sessions_of(recipe, edges=adapter is not None):
        gc.collect()  # what the manager before recorded: hundreds of MiB, in cycles
        configure(config, session, recipe.modalities)
        with watch():
            manager = OnCpu(config, DEVICE, torch.float32, host)
            manager.capture((0, 0))
        if manager.core.report.failed:
            report["wrong"].append(f"{session.name}: {manager.core.report}")
        kept = []
        for number, case in enumerate((*session.cases, *session.cases)):
            if not manager.supports_modality(case.modality):
                continue
            generator = torch.Generator().manual_seed(number)
            inputs = call = None  # up to 400 MiB each, gone before the next
            inputs = recipe.make_inputs(case.modality, case.items, generator)
            want = [t.clone() for t in host.embed_multimodal(**inputs)]
            call = place_inputs(lab, recipe, inputs) if adapter else dict(inputs)
            try:
                with watch():
                    got = manager.execute(call)
            except Exception as error:
                report["wrong"].append(f"{session.name}: {case.name}: {type(error).__name__}: {error}")
                continue
            kept.append((case, got, want))
            _compare(f"{session.name}: {case.name} {case.modality}", got, want, report)
        for case, got, want in kept:
            _compare(f"{session.name}: {case.name} after all others", got, want, report)
        stats = manager.stats
        totals["hits"] += stats.hits
        totals["misses"] += stats.misses
        totals["reused"] += stats.plans_reused
        for reason, count in stats.reasons.items():
            totals["reasons"][reason] = totals["reasons"].get(reason, 0) + count
        if adapter is None and kept:
            _run_without_graphs(recipe, manager, kept[0][0], report)
        manager.clear()
        del manager, kept
    if isinstance(recipe, PackedGrid) and recipe.modalities[0] == "image":
        make = lambda: OnCpu(config, DEVICE, torch.float32, host)  # noqa: E731
        totals["icons"] = _serve_icons(recipe, config, make, report)
        totals["updates"] = _update_weights(recipe, host, config, make, report)
        if "video" in recipe.modalities:
            totals["sequences"] = _count_sequences(recipe, config, make, report)
        if hasattr(host, "is_multimodal_pruning_enabled"):
            totals["closed"] = _close_gate(recipe, host, config, make)
    report["wrong"] += map(str, lab.hazards())
    return totals


def _start(recipe, config, make, name, frames=0, context=256):  # type: ignore[no-untyped-def]
    """A manager of this session with its graphs, and how many it had announced."""
    from scaffold.verify.numeric.recipes.base import Session, configure

    configure(config, Session(name, (), 8, frames, ()), recipe.modalities, context=context)
    manager = make()
    announced = manager.get_num_graphs_to_capture()
    manager.capture((0, 0))
    return manager, announced


def _serve(name, manager, recipe, modality, items, seed, report):  # type: ignore[no-untyped-def]
    """Compare one call with the model's own eager answer."""
    import torch

    inputs = recipe.make_inputs(modality, items, torch.Generator().manual_seed(seed))
    want = [t.clone() for t in manager.model.embed_multimodal(**inputs)]
    _compare(name, manager.execute(dict(inputs)), want, report)


def _run_without_graphs(recipe, manager, case, report):  # type: ignore[no-untyped-def]
    """No graph is left: each batch runs eager, also where a port has no eager forward (DeepSeek-VL2's of 0.33)."""
    for key in [*manager.core.graphs]:
        if key in manager.core.graphs:
            manager.core.drop(key, "the test drops it")
    replayed = manager.stats.hits
    _serve(f"{case.name} without graphs", manager, recipe, case.modality, case.items, 0, report)
    if manager.stats.hits > replayed:
        report["wrong"].append(f"{case.name} without graphs: it replayed one")


def _serve_icons(recipe, config, make, report):  # type: ignore[no-untyped-def]
    """Icons below the model's smallest budget, as a server has them: the budgets of the graphs that replayed them."""
    manager, _ = _start(recipe, config, make, "icons", context=128)
    smallest = manager.token_budgets[0]
    for number, items in enumerate([((1, 4, 4),), ((1, 4, 4), (1, 4, 6))] * 3):
        _serve(f"icons {items}", manager, recipe, "image", items, number, report)
        if number == 3:
            manager.capture_when_idle()
    return sorted(key.budget for key, stats in manager.stats.keys.items() if key.budget < smallest and stats.replays)


def _update_weights(recipe, host, config, make, report):  # type: ignore[no-untyped-def]
    """Other weights in the parameters' own memory, by every way that vLLM has: the ways that were tried."""
    import torch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    ends: dict[str, Callable[[], None]] = {
        "load_weights": lambda: host.load_weights(iter(())),
        "reset_encoder_cache": lambda: GPUModelRunner.reset_encoder_cache(MagicMock()),
    }
    runner = MagicMock(model=host, **{"get_model.return_value": host})
    ends["reload_weights"] = lambda: GPUModelRunner.reload_weights(runner, iter(()), is_checkpoint_format=False)
    worker = MagicMock(device="cpu", _is_checkpoint_format=False)
    if hasattr(Worker, "update_weights"):
        ends["update_weights"] = lambda: Worker.update_weights(worker, {})
    if hasattr(Worker, "finish_weight_update"):
        ends["finish_weight_update"] = lambda: Worker.finish_weight_update(worker)
    manager, _ = _start(recipe, config, make, "updates")
    call = (manager, recipe, "image", ((1, 4, 6), (1, 6, 4)), 0, report)
    for name, end in ends.items():
        for number in range(2):
            _serve(f"call {number} before {name}", *call)
        for index, parameter in enumerate(host.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
            parameter.data.add_(noise, alpha=0.05)
        with patch("torch.accelerator.synchronize"):
            end()
        _serve(f"after {name}", *call)
    assert manager.stats.misses == 0
    return sorted(ends)


def _count_sequences(recipe, config, make, report):  # type: ignore[no-untyped-def]
    """A server that allows videos: by room, the sequences of the graph of 256 tokens, and all items replayed there."""
    manager, announced = _start(recipe, config, make, "videos allowed", frames=64)
    captured = manager.core.report
    if announced != len(captured.captured) + len(captured.shared):
        report["wrong"].append(f"{announced} graphs announced: {captured.captured}, shared: {captured.shared}")
    for modality, items in (("video", ((8, 4, 4),)), ("image", ((1, 12, 16), (1, 4, 6))), ("video", ((2, 4, 6),))):
        _serve(f"{modality}s with videos allowed", manager, recipe, modality, items, 0, report)
    found = {}
    for key, captured in manager.core.graphs.items():
        room = str(key.axes[-1])
        lengths = [len(v) for name, v in captured.buffers.forward_values().items() if name == "cu_seqlens"]
        replayed = manager.stats.keys[key].items if key in manager.stats.keys else 0
        most, items = found.get(room, (0, 0))
        found[room] = (max(most, *lengths) if key.budget == 256 else most, items + replayed)
    return found


def _close_gate(recipe, host, config, make):  # type: ignore[no-untyped-def]
    """With pruning: graphs announced, graphs captured, whether images are served, and whether `capture` ended."""
    with patch.object(host, "is_multimodal_pruning_enabled", True):
        manager, announced = _start(recipe, config, make, "pruning")
    return [announced, len(manager.core.graphs), manager.supports_modality("image"), manager.is_captured()]


def _compare(name, got, want, report):  # type: ignore[no-untyped-def]
    if len(got) != len(want):
        report["wrong"].append(f"{name}: {len(got)} results for {len(want)} items")
        return
    for index, (a, b) in enumerate(zip(got, want, strict=True)):
        if not are_close(a, b):
            error = float((a - b).abs().max()) if a.shape == b.shape else tuple(a.shape)
            report["wrong"].append(f"{name}: item {index}: {error}")
            return


if __name__ == "__main__":
    sys.exit(main())
