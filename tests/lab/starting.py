"""What an engine's start does with one model of a tree, in a process of its own: `python starting.py ROOT MODEL KIND`.

`KIND` is a tower of LLaVA, or `module:Class`, whose object is made without `__init__`. The answer is one line of JSON:
what vLLM's own question says, what it logs, and how many graphs its own manager captures then.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from typing import Any


def main(root: str, model: str, kind: str) -> dict[str, Any]:
    from scaffold.verify.numeric import attention, child, session

    child._import_shared({"root": root, "bytecode_cache": ""})
    attention.set_tail("fa3")
    from vllm.model_executor.models import interfaces

    said: list[str] = []
    interfaces.logger.warning_once = lambda text, *values: said.append(text % values)
    from scaffold.verify.numeric.graphs import Lab
    from scaffold.verify.numeric.recipes.base import process_weights
    from scaffold.verify.numeric.recipes.found import requested_recipe

    request = {"recipe": model, "automatic": None, "class_name": ""}
    recipe = requested_recipe(request)
    if ":" in kind:
        module, name = kind.split(":")
        owner = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)
        return {"has_graphs": interfaces.supports_encoder_cudagraph(owner.__new__(owner)), "said": said}
    if kind == "pixtral":
        from transformers import PixtralVisionConfig

        parts = recipe.parts()  # type: ignore[attr-defined]
        tower = PixtralVisionConfig(
            hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_attention_heads=3, head_dim=16,
            image_size=28, patch_size=14,
        )  # fmt: skip
        recipe.parts = lambda: parts | {"vision_config": tower}  # type: ignore[attr-defined]
    silent: Any = types.SimpleNamespace(send=lambda *_, **__: None)
    host, config = child._build(request, child.Stages("both", silent))
    answer = {"has_graphs": interfaces.supports_encoder_cudagraph(host), "said": said, "captured": 0}
    if answer["has_graphs"]:
        process_weights(host)
        sessions = session.sessions_of(recipe, False)
        bench = session.Bench(Lab([root]), host, config, recipe, recipe.modalities, {}, {})
        bench.lab.place_model(host)
        manager = bench.manager_run(session.fitted(bench, sessions, True)[0]).manager
        answer["captured"] = sum(map(len, manager.budget_graphs.values()))
    return answer


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    out.write(json.dumps(main(*sys.argv[1:])) + "\n")
