"""Qwen3-VL: packed patches, interpolated position embeddings, rotary positions, deepstack outputs."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.packed import GRID_TOWER, PackedGrid


class Qwen3VL(PackedGrid):
    """One deepstack level doubles the width of an embedding row."""

    module = "qwen3_vl"
    host_class = "Qwen3VLForConditionalGeneration"

    def model_config(self) -> Any:
        from transformers import Qwen3VLConfig
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

        config = Qwen3VLConfig()
        config.vision_config = Qwen3VLVisionConfig(**self.sizes_of_tower())
        return config

    def sizes_of_tower(self) -> dict[str, Any]:
        return {
            **GRID_TOWER,
            "depth": 3,
            "hidden_size": 32,
            "hidden_act": "gelu_pytorch_tanh",
            "intermediate_size": 48,
            "out_hidden_size": self.hidden_size,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [1],
        }

    def embeds_width(self) -> int:
        return 2 * self.hidden_size


RECIPE = Qwen3VL()
