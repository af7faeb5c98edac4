"""Llama 4: fixed-size tiles of one size, dense attention with rotary positions, a pixel shuffle; images only."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from scaffold.verify.numeric import edges
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session


class Llama4(Recipe):
    """An item is its number of tiles, of 4 x 4 patches each; the shuffle makes 4 tokens of them."""

    module = "mllama4"
    host_class = "Llama4ForConditionalGeneration"
    modalities = ("image",)
    min_budget = 4

    _IMAGE_SIZE = 56
    _PATCH_SIZE = 14

    def model_config(self) -> Any:
        from transformers import Llama4Config, Llama4VisionConfig
        from transformers.models.llama4.configuration_llama4 import Llama4TextConfig

        return Llama4Config(
            vision_config=Llama4VisionConfig(
                hidden_size=32,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_channels=3,
                image_size=self._IMAGE_SIZE,
                patch_size=self._PATCH_SIZE,
                pixel_shuffle_ratio=0.5,
                projector_input_dim=24,
                projector_output_dim=24,
                vision_output_dim=24,
            ),
            text_config=Llama4TextConfig(hidden_size=self.hidden_size, num_hidden_layers=1, num_attention_heads=2),
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = torch.randn(sum(items), 3, self._IMAGE_SIZE, self._IMAGE_SIZE, generator=generator)
        return {
            "pixel_values": tiles,
            "patches_per_image": torch.tensor(items),
            "aspect_ratios": torch.tensor([(1, count) for count in items]),
        }

    def tokens(self, modality: str, item: Item) -> int:
        return 4 * int(item)

    def sessions(self) -> tuple[Session, ...]:
        # The processor cuts an image into as many as 16 tiles, and adds a small copy of the whole.
        return calls.counted("image", more=(Case("as many tiles as there may be", "image", (17,)),))

    def edge_sessions(self) -> tuple[Session, ...]:
        from transformers.image_utils import SizeDict

        host = self.load_class()
        module = import_module(host.__module__)
        processor = import_module(module.find_supported_resolutions.__module__)
        most = next(
            value.max_patches
            for value in vars(processor).values()
            if isinstance(getattr(value, "max_patches", 0), int) and hasattr(value, "max_patches")
        )
        side = SizeDict(height=self._IMAGE_SIZE, width=self._IMAGE_SIZE)
        sizes = module.find_supported_resolutions(max_num_chunks=most, patch_size=side)
        tiles = {int(height) // self._IMAGE_SIZE * int(width) // self._IMAGE_SIZE for height, width in sizes}
        # More than one tile comes with a small copy of the whole image.
        counts = tuple(sorted(count if count == 1 else count + 1 for count in tiles))
        found = edges.TileRange("image", counts, edges.where(module.find_supported_resolutions))
        return edges.tile_sessions((found,), lambda count: self.tokens("image", count), self.tokens("image", 1))


RECIPE = Llama4()
