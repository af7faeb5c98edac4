"""Keye: packed patches of images, whose layers ask for the longest of them beside their attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class Keye(PackedGrid):
    """Images only. The learned table has 8 x 8 positions, so that most grids are interpolated."""

    module = "keye"
    host_class = "KeyeForConditionalGeneration"
    modalities = ("image",)

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code

        config = PretrainedConfig(hidden_size=self.hidden_size)
        config.vision_config = PretrainedConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_channels=CHANNELS,
            image_size=8 * PATCH,
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            hidden_act="gelu_pytorch_tanh",
            layer_norm_eps=1e-6,
        )
        return config

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        rows = sum(t * h * w for t, h, w in items)
        pixels = torch.randn(rows, CHANNELS, PATCH, PATCH, generator=generator)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor(items, dtype=torch.int64).reshape(-1, 3)}

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None  # the model refuses them

    def edge_sessions(self) -> tuple[Session, ...]:
        return Recipe.edge_sessions(self)  # the release's function of sizes has no defaults to take a range from

    def many_frames(self) -> Case | None:
        return None


RECIPE = Keye()
