"""Run a model that sees and hears as the plugin serves it, on the CPU: `run_both.py TREE FOLDER DESCRIPTOR`.

FOLDER has the package `vitcg_adapters`, and the automatic recipe builds the model of the descriptor. Each call is
compared with the model's own eager answer. Prints what each encoder served, and which managers choices of models give.
"""

from __future__ import annotations

import json
import os
import sys
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
    from scaffold.runtime.vllm.served import ServedManager
    from scaffold.verify.numeric.automatic.recipe import AutomaticRecipe
    from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS
    from scaffold.verify.numeric.recipes.base import configure, process_weights, randomise
    from scaffold.verify.numeric.reports import Automatic
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

    def make_manager(model: object, chosen: str = "") -> Any:
        controls = plugin.read_controls({"VITCG_MODELS": chosen})
        for _ in range(2):  # a runner asks more than once
            plugin.adapt_model(model, "v0_30", controls)
        return plugin.make_manager(controls, config, torch.device("cpu"), torch.float32, model)

    choices: dict[str, str] = {}
    for chosen in ("qwen3_omni_moe_thinker", "nothing"):  # they adapt no part of it
        model = object.__new__(type(host))
        vars(model).update(vars(host))
        choices[chosen] = type(make_manager(model, chosen)).__name__
    manager = make_manager(host)
    announced = manager.get_num_graphs_to_capture()
    manager.capture((0, 0))
    report: dict[str, object] = {"wrong": [], "announced": announced, "captured": manager.is_captured()}
    asked: dict[str, int] = {}
    for number, case in enumerate((*cases, *cases)):
        if not manager.supports_modality(case.modality):
            continue
        inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(number))
        want = [t.clone() for t in host.embed_multimodal(**inputs)]
        got = manager.execute(dict(inputs))
        asked[case.modality] = asked.get(case.modality, 0) + len(case.items)
        if got is None or len(got) != len(want) or not all(map(are_close, got, want)):
            report["wrong"].append(f"{case.name} {case.modality}")  # type: ignore[attr-defined]
    parts = [manager] if isinstance(manager, ServedManager) else [manager.seen, manager.heard]
    for part in parts:
        part.save()
    return report | {
        "asked": asked,
        "choices": choices,
        "parts": [
            {
                "hits": part.stats.hits,
                "misses": part.stats.misses,
                "reasons": dict(part.stats.reasons),
                "reused": part.stats.plans_reused,
                "modalities": list(part.config.modalities),
                "budgets": part.token_budgets,
                "graphs": len(part.core.graphs),
                "failed": len(part.core.report.failed),
                "items": part.max_batch_size,
            }
            for part in parts
        ],
        "total": manager.get_cumulative_stats(),
    }


if __name__ == "__main__":
    sys.exit(main())
