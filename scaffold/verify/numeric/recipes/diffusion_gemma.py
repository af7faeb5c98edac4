"""DiffusionGemma: the images of Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaffold.verify.numeric.recipes.base import LanguageModel
from scaffold.verify.numeric.recipes.gemma4_mm import Gemma4


class DiffusionGemma(Gemma4):
    module = "diffusion_gemma"
    host_class = "DiffusionGemmaForConditionalGeneration"
    modalities = ("image",)
    stand_ins: Mapping[str, Any] = dict.fromkeys(
        ("Gemma4Model", "ParallelLMHead", "LogitsProcessor", "DiffusionGemmaSelfConditioning"), LanguageModel
    )


RECIPE = DiffusionGemma()
