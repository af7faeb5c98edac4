"""Idefics3 and SmolVLM: a grid of tiles and the whole image through Idefics2's tower, four patches a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TEXT, TOWER, Case, Item, Recipe, Session


class Idefics3(Recipe):
    """An item is its tiles, and the part of the last one that is no padding, in patches (height, width).

    The layers give 16 features a tile.
    """

    module = "idefics3"
    host_class = "Idefics3ForConditionalGeneration"
    modalities = ("image",)
    min_budget = 16

    _PATCH = 8
    _SIDE = 4 * _PATCH
    _FEATURES = 16

    def model_config(self) -> Any:
        from transformers import Idefics3Config, LlamaConfig

        return Idefics3Config(
            vision_config={**TOWER, "image_size": self._SIDE, "patch_size": self._PATCH},
            text_config=LlamaConfig(**TEXT, hidden_size=self.hidden_size, pad_token_id=0),
            scale_factor=2,
            tie_word_embeddings=False,
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = sum(tiles for tiles, *_ in items)
        pixels = torch.randn(tiles, 3, self._SIDE, self._SIDE, generator=generator)
        mask = torch.ones(tiles, self._SIDE, self._SIDE, dtype=torch.int64)
        last = -1
        for count, height, width in items:
            last += count
            mask[last, height * self._PATCH :] = 0
            mask[last, :, width * self._PATCH :] = 0
            pixels[last] *= mask[last]
        counts = torch.tensor([count for count, *_ in items])
        return {"pixel_values": pixels, "pixel_attention_mask": mask, "num_patches": counts}

    def tokens(self, modality: str, item: Item) -> int:
        return self._FEATURES * int(item[0])

    def sessions(self) -> tuple[Session, ...]:
        one, whole, wide, tall = (1, 4, 4), (5, 4, 4), (3, 2, 4), (4, 4, 1)
        mixes = calls.usual("image", (wide, one), one, (one, whole, wide), (one, whole, tall, wide, one, tall))
        padding = Case("equal numbers of tiles, other padding", "image", (wide, (3, 4, 3), (3, 1, 1)))
        above = calls.above("image", (9, 4, 4), one, one, among=(9, 4, 2))
        return (
            calls.manager((16, 64, 112), 4, (*mixes, padding)),
            calls.manager((64, 90), 2, (*above, *mixes[1:4])),
            calls.manager((128,), 8, calls.one_to_eight(image=(one,))),
        )


RECIPE = Idefics3()
