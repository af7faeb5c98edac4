"""LLaVA: one tile per image through CLIP without its class token, one projector; images only."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from scaffold.verify.numeric.recipes.base import TEXT, TOWER
from scaffold.verify.numeric.recipes.one_image import OneImage


class Llava(OneImage):
    module = "llava"
    host_class = "LlavaForConditionalGeneration"
    configuration = "LlavaConfig"

    def parts(self) -> dict[str, Any]:
        from transformers import CLIPVisionConfig, LlamaConfig

        vision = CLIPVisionConfig(
            **(TOWER | {"num_hidden_layers": 3}), projection_dim=48, image_size=self.SIDE, patch_size=14
        )
        text = LlamaConfig(**TEXT, hidden_size=self.hidden_size)
        return {"vision_config": vision, "text_config": text}

    def fields(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        # A function chooses the processor, by the tower.
        cls = sys.modules[self.load_class().__module__].LlavaMultiModalProcessor
        fields: Mapping[str, Any] = object.__new__(cls)._get_mm_fields_config(inputs, {})
        return fields


RECIPE = Llava()
