"""Qwen2.5-VL: packed patches with window attention in all but some blocks, and a permutation into windows."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.packed import GRID_TOWER, MERGE, PATCH, PackedGrid


class Qwen25VL(PackedGrid):
    """Windows are 2 x 2 merged tokens, so that small grids already have several, some of them cut off."""

    module = "qwen2_5_vl"
    host_class = "Qwen2_5_VLForConditionalGeneration"

    def model_config(self) -> Any:
        from transformers import Qwen2_5_VLConfig
        from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

        config = Qwen2_5_VLConfig()
        config.vision_config = Qwen2_5_VLVisionConfig(
            **GRID_TOWER,
            depth=3,
            hidden_size=32,
            hidden_act="silu",
            intermediate_size=48,
            tokens_per_second=2,
            window_size=2 * MERGE * PATCH,
            out_hidden_size=self.hidden_size,
            fullatt_block_indexes=[1],
        )
        return config


RECIPE = Qwen25VL()
