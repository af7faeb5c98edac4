"""Gemma 3: square tiles through SigLIP, pooled to a fixed number of tokens, one projection; images only."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from scaffold.verify.numeric import edges
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session


class Gemma3(Recipe):
    """An item is its number of tiles: 1, or more with pan and scan. Each has 8 x 8 patches and gives 4 tokens."""

    module = "gemma3_mm"
    host_class = "Gemma3ForConditionalGeneration"
    modalities = ("image",)
    min_budget = 4

    _IMAGE_SIZE = 56
    _PATCH_SIZE = 7

    def model_config(self) -> Any:
        from transformers import Gemma3Config, Gemma3TextConfig, SiglipVisionConfig

        return Gemma3Config(
            mm_tokens_per_image=4,
            vision_config=SiglipVisionConfig(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=self._IMAGE_SIZE,
                patch_size=self._PATCH_SIZE,
            ),
            text_config=Gemma3TextConfig(hidden_size=self.hidden_size, num_hidden_layers=1, num_attention_heads=2),
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {
            "pixel_values": torch.randn(sum(items), 3, self._IMAGE_SIZE, self._IMAGE_SIZE, generator=generator),
            "num_patches": torch.tensor(items),
        }

    def tokens(self, modality: str, item: Item) -> int:
        return 4 * int(item)

    def sessions(self) -> tuple[Session, ...]:
        # More tiles than items: a graph that is captured for a tile per item has no room for them.
        return calls.counted("image", items=3, more=(Case("a full batch", "image", (1, 1, 1)),))

    def edge_sessions(self) -> tuple[Session, ...]:
        processing = import_module("transformers.models.gemma3.processing_gemma3")
        name = "pan_and_scan_max_num_crops"
        crops = processing.Gemma3ProcessorKwargs._defaults["images_kwargs"][name]
        # The image alone, or with two crops or more: `get_num_crops` of the release's processing information.
        counts = (1, *range(3, crops + 2))
        found = edges.TileRange("image", counts, edges.line_of(processing, name))
        return edges.tile_sessions((found,), lambda count: self.tokens("image", count), self.tokens("image", 1))


RECIPE = Gemma3()
