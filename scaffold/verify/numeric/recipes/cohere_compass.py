"""Cohere Compass: Qwen3-VL's tower with position embeddings from a learned table; images only."""

from __future__ import annotations

import sys
from typing import Any

from scaffold.verify.numeric.recipes import qwen3_vl


class CohereCompass(type(qwen3_vl.RECIPE)):  # type: ignore[misc]
    """Qwen3-VL's sizes."""

    module = "cohere_compass"
    host_class = "CohereCompassForConditionalGeneration"
    modalities = ("image",)

    def model_config(self) -> Any:
        module = vars(sys.modules[self.load_class().__module__])
        config = module["CohereCompassConfig"]()
        config.vision_config = module["CohereCompassVisionConfig"](**self.sizes_of_tower())
        return config


RECIPE = CohereCompass()
