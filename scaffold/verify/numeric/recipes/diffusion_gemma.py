"""DiffusionGemma: the images of Gemma 4."""

from __future__ import annotations

from scaffold.verify.numeric.recipes.gemma4_mm import Gemma4


class DiffusionGemma(Gemma4):
    module = "diffusion_gemma"
    host_class = "DiffusionGemmaForConditionalGeneration"
    modalities = ("image",)


RECIPE = DiffusionGemma()
