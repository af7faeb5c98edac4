"""DeepSeek-V4.1: images as in DeepSeek-V4, whose tokens have learned vectors around each of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import TOWER, Item
from scaffold.verify.numeric.recipes.deepseek_v4 import MERGE, PATCH, DeepseekV4, token_grid


class DeepseekV41(DeepseekV4):
    """A vector starts an image, one ends each row of its tokens, and one the image."""

    module = "vllm.models.deepseek_v41.nvidia.vl_model"
    host_class = "DeepseekV41ForCausalLM"
    full = (3, 183)
    budget_of_eight = 96

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.deepseek_v41 import DeepseekV41Config

        return DeepseekV41Config(
            text_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1},
            vision_config={
                **TOWER,
                "num_attention_heads": 2,
                "patch_size": PATCH,
                "downsample_ratio": MERGE,
                "max_image_tokens": 1024,
                "min_pixels": 16,
            },
        )

    def token_entries(self, grids: Sequence[Item]) -> tuple[str, list[torch.Tensor]]:
        from vllm.models.deepseek_v41.common.mm_preprocess import image_token_types

        return "types", [image_token_types(h, w) for h, w in grids]

    def tokens(self, modality: str, item: Item) -> int:
        h, w = token_grid(item)
        return h * (w + 1) + 2


RECIPE = DeepseekV41()
