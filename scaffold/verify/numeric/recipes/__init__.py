"""One module per model: how to build its real vision classes tiny, and which inputs tell a right port from a wrong one.

A recipe knows the model, never the protocol: budgets, items and oracles are the session's business. Recipe modules
import torch and vLLM inside their methods, so that a parent without either can list `RECIPES`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

RECIPES = (
    "aria",
    "internvl",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "step3_vl",
    "step_vl",
    "step3p7",
    "mllama4",
    "gemma3_mm",
    "glm4_1v",
    "ernie45_vl",
    "llava",
    "llava_next",
    "llava_onevision",
    "mistral3",
    "molmo",
    "molmo2",
    "paligemma",
    "phi3v",
    "phi4mm",
    "phi4siglip",
    "pixtral",
    "cohere_compass",
    "deepseek_vl2",
    "deepseek_ocr",
    "deepseek_ocr2",
    "deepseek_v4",
    "deepseek_v41",
    "unlimited_ocr",
    "minicpmv",
    "minicpmv4_6",
    "minicpm_ocr",
    "minimax_m3",
    "idefics3",
    "smolvlm",
    "kimi_vl",
    "kimi_k25",
    "kimi_k3",
    "muse_glimmer",
    "kanana_v",
    "keye",
    "llava_onevision2",
    "lfm2_vl",
    "cosmos3_edge",
    "ovis2_5",
    "gemma4_mm",
    "diffusion_gemma",
    "embedding_gemma2",
    "nano_nemotron_vl",
    "nemotron_parse",
    "nemotron_vl",
)

#: Says on a command line that the lab builds the model by itself (`scaffold.verify.numeric.automatic`).
AUTOMATIC = "automatic"

#: ARCHITECTURE.json: the values of a checkpoint's `config.json` that its tower needs.
KNOWN = Path(__file__).parents[1] / "known"


def recipe_of(name: str, module: str, class_name: str) -> str | None:
    """The shipped recipe for a descriptor, by its own name, else by the model's module or a package around it.

    A module may have several models. A recipe builds one, and says nothing about a port of another: None then.
    """
    named = (name, *reversed(module.split(".")))
    return next((one for one in named if one in RECIPES and class_name in classes_of(one)), None)


@cache
def classes_of(recipe: str) -> frozenset[str]:
    """The classes whose ports a shipped recipe proves: read in its source, since it imports torch."""
    tree = ast.parse(Path(__file__).with_name(f"{recipe}.py").read_text(encoding="utf-8"))
    return frozenset(
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if {target.id for target in node.targets if isinstance(target, ast.Name)} & {"host_class", "port_class"}
    )


def known_configuration(architectures: Iterable[str]) -> str:
    """The file with a checkpoint's values for the first architecture that has one; no text where there is none.

    Neither vLLM nor transformers holds these values, and without them the automatic recipe builds no model.
    """
    files = (KNOWN / f"{name}.json" for name in architectures)
    return next((str(file) for file in files if file.is_file()), "")


def is_recipe(reference: str) -> bool:
    """Whether this is a shipped recipe's name, or a Python file, which has to hold a `RECIPE`."""
    return reference in RECIPES or (reference.endswith(".py") and Path(reference).is_file())
