"""Runs what a port adds to vLLM's tests: the functions that a worker gets, around the release's own manager.

The worker is a stand-in with V1's model runner or V2's. The model is the lab's, with dummy weights of vLLM's size, and
the manager has captured emulated graphs. `compare` asks; the rest runs in the process that it starts, `python
comparing.py`, and in a fork of it for each port.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probing import run_jobs

from scaffold.verify.numeric import NumericRequest
from scaffold.verify.numeric.overlay import build_overlay, changed_modules
from scaffold.verify.numeric.runner import _bytecode_cache


def compare(requests: Iterable[NumericRequest], source: str, runner: str) -> list[str]:
    """What each of the ports comes to: `N hits`, or the error of a call. All are of one tree, and have an overlay.

    `source` defines the functions; `runner` is `V1` or `V2`.
    """
    with tempfile.TemporaryDirectory(prefix="vitcg-compare-") as scratch:
        pristine, jobs = Path(scratch, "pristine"), []
        for number, request in enumerate(requests):
            if not jobs:
                build_overlay(request.tree, {}, pristine)
            changed = Path(scratch, str(number))
            build_overlay(request.tree, request.overlay, changed)
            modules = changed_modules(request.overlay)
            jobs.append({"root": str(changed), "changed": modules, "recipe": request.recipe})
        asked: dict[str, Any] = {"root": str(pristine), "bytecode_cache": _bytecode_cache()}
        asked |= {"source": source, "runner": runner, "jobs": jobs}
        done = subprocess.run(
            [sys.executable, __file__], input=json.dumps(asked), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- in the process that runs the tree


def _served(asked: dict[str, Any], job: dict[str, Any]) -> str:
    import torch

    from scaffold.verify.numeric import child, cpu_imports
    from scaffold.verify.numeric.graphs import Lab
    from scaffold.verify.numeric.recipes.base import process_weights
    from scaffold.verify.numeric.recipes.found import requested_recipe
    from scaffold.verify.numeric.session import Bench, ManagerRun, place_inputs

    cpu_imports.switch_tree(Path(asked["root"]), Path(job["root"]))
    request = {"recipe": job["recipe"], "automatic": None}
    silent: Any = types.SimpleNamespace(send=lambda *_, **__: None)
    host, config = child._build(request, child.Stages("both", silent))
    with torch.no_grad():
        for parameter in host.parameters():
            parameter.uniform_(-1e-3, 1e-3)  # vLLM's dummy weights
    process_weights(host)
    recipe = requested_recipe(request)
    lab = Lab([asked["root"], job["root"]])
    lab.place_model(host)
    session = recipe.sessions()[0]
    manager = ManagerRun(Bench(lab, host, config, recipe, recipe.modalities, {}, {}), session).manager
    space = types.SimpleNamespace
    runner = space(vllm_config=space(load_config=space(load_format="dummy")))
    if asked["runner"] == "V1":
        runner.encoder_cudagraph_manager = manager
    else:
        runner.model_state = space(encoder_runner=space(cudagraph_manager=manager))
    worker = space(model_runner=runner)
    functions: dict[str, Any] = {"torch": torch, "Any": Any}
    exec(asked["source"], functions)
    try:
        functions["check_encoder_cudagraph_outputs"](worker)
        for case in session.cases:
            inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(0))
            if manager.supports_modality(case.modality):  # as both runners ask
                with lab.watch(), torch.inference_mode():
                    manager.execute(place_inputs(lab, recipe, inputs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{functions['get_encoder_cudagraph_hits'](worker)} hits"


if __name__ == "__main__":
    run_jobs(_served)
