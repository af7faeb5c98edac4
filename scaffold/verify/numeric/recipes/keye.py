"""Keye: packed patches of images, whose layers ask for the longest of them beside their attention."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.base import TOWER
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class Keye(PackedGrid):
    """Images only. The learned table has 8 x 8 positions, so that most grids are interpolated."""

    module = "keye"
    host_class = "KeyeForConditionalGeneration"
    modalities = ("image",)
    patch = (CHANNELS, PATCH, PATCH)
    has_edges = False  # the release's function of sizes has no defaults to take a range from
    takes_embeds = False  # the model refuses them

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code

        config = PretrainedConfig(hidden_size=self.hidden_size)
        config.vision_config = PretrainedConfig(
            **(TOWER | {"num_attention_heads": 2}),
            num_channels=CHANNELS,
            image_size=8 * PATCH,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            hidden_act="gelu_pytorch_tanh",
            layer_norm_eps=1e-6,
        )
        return config


RECIPE = Keye()
