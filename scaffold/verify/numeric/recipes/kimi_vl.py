"""Kimi-VL: packed patches of images through MoonViT, whose layers find out the longest image by themselves."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.base import TOWER
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class KimiVL(PackedGrid):
    """Images only. The learned table has 8 x 8 positions, so that most grids are interpolated."""

    module = "kimi_vl"
    host_class = "KimiVLForConditionalGeneration"
    modalities = ("image",)
    patch = (CHANNELS, PATCH, PATCH)
    grid, axes = "image_grid_hws", 2
    has_edges = False
    takes_embeds = False  # the model takes pixels only

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.kimi_vl import KimiVLConfig

        return KimiVLConfig(
            vision_config={
                **TOWER,
                "num_attention_heads": 2,
                "patch_size": PATCH,
                "init_pos_emb_height": 8,
                "init_pos_emb_width": 8,
                "merge_kernel_size": (MERGE, MERGE),
            },
            text_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1, "vocab_size": 99},
        )


RECIPE = KimiVL()
