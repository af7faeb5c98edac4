"""Tune the real vision classes of a model that no tuning was written for, on the CPU, and compare with the untuned one.

    python tests/tuning/run_others.py TREE MODULE CLASS

The automatic recipe builds the model small. Prints one JSON object: the error of the tuned tower, how far the untuned
one moves when its pixels do by half a step, what was tuned, what failed, and whether taking it back restored the
answers bit for bit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import prepare_release, vllm_on_cpu


def main() -> int:
    prepare_release(Path(sys.argv[1]))
    with vllm_on_cpu():
        found = check(*sys.argv[2:])
    print(json.dumps(found))
    return 0


def check(module, class_name):  # type: ignore[no-untyped-def]
    import torch

    from scaffold.runtime.tuning import DEFAULT, TuningChoice, largest_error, moved, tune
    from scaffold.verify.numeric.automatic.recipe import AutomaticRecipe
    from scaffold.verify.numeric.recipes.base import process_weights, randomise
    from scaffold.verify.numeric.reports import Automatic

    recipe = AutomaticRecipe(Automatic(module, class_name, modalities=("image",)))
    host, _ = recipe.build()
    host.eval().requires_grad_(False)
    randomise(host, 0)
    process_weights(host)
    case = max(recipe.sessions()[0].cases[:4], key=lambda case: len(case.items))
    inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(0))

    def run(step=0.0):  # type: ignore[no-untyped-def]
        def copied(value):  # type: ignore[no-untyped-def]
            if isinstance(value, torch.Tensor):  # models may write to their inputs
                return moved(value.clone(), step if value.is_floating_point() else 0.0)
            return type(value)(map(copied, value)) if isinstance(value, (list, tuple)) else value

        with torch.inference_mode():
            return [t.clone() for t in host.embed_multimodal(**{name: copied(value) for name, value in inputs.items()})]

    want = run()
    rounding = largest_error(run(torch.finfo(torch.float32).eps), want)
    tuned = tune(host, TuningChoice(DEFAULT))
    found = {
        "error": largest_error(run(), want),
        "rounding": rounding,
        "applied": {outcome.name: len(outcome.applied) for outcome in tuned.outcomes if outcome.applied},
        "failed": [why for outcome in tuned.outcomes for why in outcome.refused.values() if "Error: " in why],
        "spread": float(want[0].std()),
    }
    tuned.undo()
    found["restored"] = all(map(torch.equal, run(), want))
    return found


if __name__ == "__main__":
    sys.exit(main())
