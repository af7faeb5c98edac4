"""Run a model that sees and hears as the plugin serves it, on the CPU: `run_both.py TREE FOLDER DESCRIPTOR MODE`.

FOLDER has the package `vitcg_adapters`, and the automatic recipe builds the model of the descriptor. Each call is
compared with the eager answer of a model of the release's own class. Prints what each encoder served, and which
managers choices of models give. The mode `adapters` is served by managers of vLLM.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, sys.argv[2])

from release_process import are_close, prepare_release, vllm_on_cpu


def main() -> int:
    os.environ["VITCG_ENCODER_GRAPHS"] = json.dumps(
        {
            "calibration_ms": 0,
            "trials": 0,
            "steps": 1,
            "stats": f"{sys.argv[2]}/stats.json",
            "audio": {"steps": 2},
        }
    )
    prepare_release(Path(sys.argv[1]))
    import torch

    from scaffold.verify.numeric.attention import set_tail

    with vllm_on_cpu(), torch.inference_mode():
        set_tail("fa3")
        report = check()
    print(json.dumps(report))
    return 1 if report["wrong"] else 0


def check() -> dict[str, object]:
    """What the manager serves of images, videos and sound in turn, and everything wrong."""
    import torch

    from scaffold import plugin
    from scaffold.runtime.recording import RecordingBackend
    from scaffold.runtime.vllm.encoders import BothManagers
    from scaffold.runtime.vllm.served import ServedManager
    from scaffold.verify.numeric.automatic.recipe import AutomaticRecipe
    from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS
    from scaffold.verify.numeric.graphs import DEVICE, Lab
    from scaffold.verify.numeric.recipes.base import configure, process_weights, randomise
    from scaffold.verify.numeric.reports import Automatic
    from scaffold.verify.numeric.session import place_inputs
    from scaffold.workflow import load_port

    backends: list[RecordingBackend] = []

    def make_backend(self: object) -> RecordingBackend:
        backends.append(RecordingBackend(bodies=PYTHON_OPERATORS))
        return backends[-1]

    torch.cuda.is_current_stream_capturing = lambda: any(backend.is_capturing for backend in backends)

    ServedManager._make_backend = make_backend  # type: ignore[method-assign]
    port = load_port(sys.argv[3])
    recipe = AutomaticRecipe(Automatic(port.module, port.class_name, modalities=("image", "video", "audio")))
    host, config = recipe.build()
    randomise(host, 0)
    process_weights(host)
    cases = recipe.sessions()[0].cases[::4]  # there they come in turn
    configure(config, None, recipe.modalities, context=512)
    config.compilation_config.encoder_cudagraph_token_budgets = []
    config.compilation_config.encoder_cudagraph_max_vision_items_per_batch = 0

    mode, lab = sys.argv[4], Lab([sys.argv[1]])
    ours = mode != "adapters"
    watched, device = (nullcontext, torch.device("cpu")) if ours else (lab.watch, DEVICE)

    def make_manager(model: object, chosen: str = "") -> Any:
        controls = plugin.read_controls({"VITCG_MODELS": chosen, "VITCG_MODE": mode})
        for _ in range(2):  # a runner asks more than once
            plugin.adapt_model(model, "v0_30", controls)
        return plugin.make_manager(controls, config, device, torch.float32, model)

    def again() -> Any:
        """The model, of the release's own class."""
        model = object.__new__(type(host))
        vars(model).update(vars(host))
        return model

    pristine, choices = again(), dict[str, str]()
    for chosen in ("qwen3_omni_moe_thinker", "nothing"):  # they adapt no part of it
        choices[chosen] = type(make_manager(again(), chosen)).__name__
    lab.place_model(host)
    with watched():
        manager = make_manager(host)
        announced = manager.get_num_graphs_to_capture()
        manager.capture((0, 0))
    report: dict[str, object] = {"wrong": [], "announced": announced, "captured": manager.is_captured()}
    asked: dict[str, int] = {}
    for number, case in enumerate((*cases, *cases)):
        if not manager.supports_modality(case.modality):
            continue
        inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(number))
        want = [t.clone() for t in pristine.embed_multimodal(**inputs)]
        with watched():
            got = manager.execute(dict(inputs) if ours else place_inputs(lab, recipe, inputs))
        asked[case.modality] = asked.get(case.modality, 0) + len(case.items)
        if got is None or len(got) != len(want) or not all(map(are_close, got, want)):
            report["wrong"].append(f"{case.name} {case.modality}")  # type: ignore[attr-defined]
    both = isinstance(manager, BothManagers)
    parts = [manager.seen, manager.heard] if both else [manager]
    if ours:
        for part in parts:
            part.save()
    return report | {
        "hazards": [str(one) for one in lab.hazards()],
        "asked": asked,
        "choices": choices,
        "parts": [
            {
                "manager": type(part).__name__,
                "hits": part.graph_hits,
                "misses": part.graph_misses,
                "modalities": list(part.config.modalities),
                "budgets": part.token_budgets,
                "items": part.max_batch_size,
                **(_of_ours(part) if ours else {}),
            }
            for part in parts
        ],
        "total": manager.get_cumulative_stats(),
    }


def _of_ours(part: Any) -> dict[str, object]:
    return {
        "reasons": dict(part.stats.reasons),
        "reused": part.stats.plans_reused,
        "graphs": len(part.core.graphs),
        "failed": len(part.core.report.failed),
    }


if __name__ == "__main__":
    sys.exit(main())
