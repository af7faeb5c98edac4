"""PaliGemma: one tile per image through SigLIP, one projection, and a scale; images only."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.one_image import OneImage


class PaliGemma(OneImage):
    module = "paligemma"
    host_class = "PaliGemmaForConditionalGeneration"
    takes_embeds = False  # the release's processor does not hand them over

    def configuration(self) -> type[Any]:
        from transformers import PaliGemmaConfig

        found: type[Any] = PaliGemmaConfig
        return found

    def parts(self) -> dict[str, Any]:
        from transformers import GemmaConfig, SiglipVisionConfig

        vision = SiglipVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=3,
            image_size=self.SIDE,
            patch_size=14,
            projection_dim=self.hidden_size,
        )
        text = GemmaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            vocab_size=99,
        )
        return {"vision_config": vision, "text_config": text, "projection_dim": self.hidden_size}


RECIPE = PaliGemma()
