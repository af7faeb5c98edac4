"""LLaVA-OneVision 2: packed patches of images, each with its place in time, height and width from the processor."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Item
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class LlavaOnevision2(PackedGrid):
    """Images only. Patches come in squares of those that become a token. No source says the processor's sizes."""

    module = "llava_onevision2"
    host_class = "LlavaOnevision2ForConditionalGeneration"
    modalities = ("image",)
    has_edges = False

    def model_config(self) -> Any:
        vision = SimpleNamespace(
            patch_size=PATCH,
            spatial_merge_size=MERGE,
            num_channels=CHANNELS,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=80,
        )
        return SimpleNamespace(vision_config=vision, text_config=SimpleNamespace(hidden_size=self.hidden_size))

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        positions = [_positions(h, w) for _, h, w in items]
        rows = sum(map(len, positions))
        return {
            "pixel_values": torch.randn(rows, CHANNELS * PATCH * PATCH, generator=generator),
            "image_grid_thw": torch.tensor(items, dtype=torch.int64).reshape(-1, 3),
            "patch_positions": torch.cat([torch.empty(0, 3, dtype=torch.int64), *positions]),
        }


def _positions(h: int, w: int) -> torch.Tensor:
    """(t, h, w) of each patch, in the order of the tokens."""
    grid = torch.cartesian_prod(torch.arange(1), torch.arange(h), torch.arange(w))
    return grid.view(h // MERGE, MERGE, w // MERGE, MERGE, 3).transpose(1, 2).reshape(-1, 3)


RECIPE = LlavaOnevision2()
