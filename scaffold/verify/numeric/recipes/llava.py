"""LLaVA: one tile per image through CLIP without its class token, one projector; images only."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from scaffold.verify.numeric.recipes.one_image import OneImage


class Llava(OneImage):
    module = "llava"
    host_class = "LlavaForConditionalGeneration"

    def configuration(self) -> type[Any]:
        from transformers import LlavaConfig

        found: type[Any] = LlavaConfig
        return found

    def parts(self) -> dict[str, Any]:
        from transformers import CLIPVisionConfig, LlamaConfig

        vision = CLIPVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            projection_dim=48,
            num_hidden_layers=3,
            num_attention_heads=3,
            image_size=self.SIDE,
            patch_size=14,
        )
        text = LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            vocab_size=99,
        )
        return {"vision_config": vision, "text_config": text}

    def fields(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        # A function chooses the processor, by the tower.
        cls = sys.modules[self.load_class().__module__].LlavaMultiModalProcessor
        fields: Mapping[str, Any] = object.__new__(cls)._get_mm_fields_config(inputs, {})
        return fields


RECIPE = Llava()
