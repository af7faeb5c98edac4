"""ERNIE-4.5-VL: packed patches with computed rotary positions, and a resampler that joins tokens of space and time."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class Ernie45VL(PackedGrid):
    """Images only: two frames of a video are one token."""

    module = "ernie45_vl"
    host_class = "Ernie4_5_VLMoeForConditionalGeneration"
    modalities = ("image",)
    patch = (CHANNELS * PATCH * PATCH,)
    takes_embeds = False  # the model takes pixels only

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the releases read fields of the checkpoints' own class

        config = PretrainedConfig(
            hidden_size=self.hidden_size,
            pixel_hidden_size=32,
            spatial_conv_size=MERGE,
            temporal_conv_size=2,
            use_temporal_conv=True,
            rms_norm_eps=1e-5,
        )
        config.vision_config = PretrainedConfig(
            depth=2,
            embed_dim=32,
            hidden_size=32,
            hidden_act="quick_gelu",
            mlp_ratio=2,
            num_heads=2,
            in_channels=CHANNELS,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
        )
        return config


RECIPE = Ernie45VL()
