"""One module a model: how to build its real vision classes tiny, and which inputs tell a right port from a wrong one.

A recipe knows the model, never the protocol: budgets, items and oracles are the session's business. Recipe modules
import torch and vLLM inside their methods, so that `RECIPES` can be listed by a parent without either.
"""

from __future__ import annotations

RECIPES = (
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
)
