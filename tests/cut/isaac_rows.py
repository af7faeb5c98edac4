"""Isaac, tiny: rows of patches with a grid an item, through SigLIP 2; its class shares items between ranks."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from torch import nn

from scaffold.verify.numeric.recipes.base import Session
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class Isaac(PackedGrid):
    """Images only."""

    module = "isaac"
    host_class = "IsaacForConditionalGeneration"
    modalities = ("image",)
    patch = (CHANNELS * PATCH**2,)
    takes_embeds = has_edges = False

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        # There is no tokenizer to ask for the token of an image.
        sys.modules[self.load_class().__module__]._resolve_vision_token_id = lambda *args: 0  # type: ignore[attr-defined]
        return super().build(host_class)

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.isaac import IsaacConfig, PixelShuffleSiglip2VisionConfig

        vision = PixelShuffleSiglip2VisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_patches=64,
            patch_size=PATCH,
            pixel_shuffle_scale_factor=MERGE,
        )
        return IsaacConfig(
            text_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1, "num_attention_heads": 2},
            vision_config=vision,
            hidden_size=self.hidden_size,
            pixel_shuffle_scale=MERGE,
        )

    def sessions(self) -> tuple[Session, ...]:
        return super().sessions()[:1]


RECIPE = Isaac()
