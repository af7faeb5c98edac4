"""Qwen2-VL: packed patches, rotary positions, one attention sequence a frame."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.packed import GRID_TOWER, PackedGrid


class Qwen2VL(PackedGrid):
    module = "qwen2_vl"
    host_class = "Qwen2VLForConditionalGeneration"

    def model_config(self) -> Any:
        from transformers import Qwen2VLConfig
        from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig

        config = Qwen2VLConfig()
        config.vision_config = Qwen2VLVisionConfig(
            **GRID_TOWER, depth=2, embed_dim=32, hidden_size=self.hidden_size, hidden_act="quick_gelu", mlp_ratio=2
        )
        return config


RECIPE = Qwen2VL()
