"""DeepSeek-V4.1: images as in DeepSeek-V4, whose tokens have learned vectors around each of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes.base import TOWER, Item, LanguageModel
from scaffold.verify.numeric.recipes.deepseek_v4 import MERGE, PATCH, DeepseekV4, token_grid


class DeepseekV41(DeepseekV4):
    """A vector starts an image, one ends each row of its tokens, and one the image."""

    module = "deepseek_v41"
    host_class = "DeepseekV41ForCausalLM"
    full = (3, 183)
    budget_of_eight = 96
    stand_ins: Mapping[str, Any] = MappingProxyType(
        {
            "DeepseekV41LLMForCausalLM": LanguageModel,
            "_linear_scale_param_name": lambda *args: "weight_scale",
            "_make_deepseek_v4_vl_weights_mapper": lambda *args: None,
        }
    )

    def load_class(self, host: str | None = None) -> type[nn.Module]:
        return super().load_class(host or f"vllm.models.deepseek_v41.nvidia.vl_model:{self.host_class}")

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
