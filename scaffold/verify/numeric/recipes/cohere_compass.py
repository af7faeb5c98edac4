"""Cohere Compass: packed patches, position embeddings from a learned table, rotary positions, deepstack outputs."""

from __future__ import annotations

import sys
from typing import Any

from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, TEMPORAL_PATCH, PackedGrid


class CohereCompass(PackedGrid):
    """One deepstack level doubles the width of an embedding row."""

    module = "cohere_compass"
    host_class = "CohereCompassForConditionalGeneration"
    modalities = ("image",)

    def model_config(self) -> Any:
        module = vars(sys.modules[self.load_class().__module__])
        config = module["CohereCompassConfig"]()
        config.vision_config = module["CohereCompassVisionConfig"](
            depth=3,
            hidden_size=32,
            hidden_act="gelu_pytorch_tanh",
            intermediate_size=48,
            num_heads=2,
            in_channels=CHANNELS,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            temporal_patch_size=TEMPORAL_PATCH,
            out_hidden_size=self.hidden_size,
            num_position_embeddings=64,
            deepstack_visual_indexes=[1],
        )
        return config

    def embeds_width(self) -> int:
        return 2 * self.hidden_size


RECIPE = CohereCompass()
