"""Which inputs a release's runner leaves on the host, by model and modality, as JSON: `placement_child.py TREE`."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from release_process import prepare_release

MODELS = ("internvl", "step3_vl", "mllama4", "gemma3_mm", "ernie45_vl", "qwen2_vl", "glm4_1v")


def main() -> None:
    prepare_release(Path(sys.argv[1]))
    import torch

    from scaffold.verify.numeric.recipes.packed import PackedGrid

    found = {}
    for model in MODELS:
        recipe = import_module(f"scaffold.verify.numeric.recipes.{model}").RECIPE
        for modality in recipe.modalities:
            items = ((1, 4, 4), (1, 2, 2)) if isinstance(recipe, PackedGrid) else (2, 1)
            inputs = recipe.make_inputs(modality, items, torch.Generator().manual_seed(0))
            found[f"{model} {modality}"] = sorted(recipe.on_host(inputs))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
