"""PaliGemma: one tile per image through SigLIP, one projection, and a scale; images only."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.base import TEXT, TOWER
from scaffold.verify.numeric.recipes.one_image import OneImage


class PaliGemma(OneImage):
    module = "paligemma"
    host_class = "PaliGemmaForConditionalGeneration"
    configuration = "PaliGemmaConfig"

    def parts(self) -> dict[str, Any]:
        from transformers import GemmaConfig, SiglipVisionConfig

        vision = SiglipVisionConfig(**TOWER, image_size=self.SIDE, patch_size=14, projection_dim=self.hidden_size)
        text = GemmaConfig(**TEXT, hidden_size=self.hidden_size, num_key_value_heads=1, head_dim=16)
        return {"vision_config": vision, "text_config": text, "projection_dim": self.hidden_size}


RECIPE = PaliGemma()
