"""What the recipes of this folder share: a stand-in for a language model, and image tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, stacked

#: Grids of tiles, in tiles.
GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
SIDE = 28
LOW, SQUARE, WIDE = (28, 50), (50, 50), (28, 80)  # 3, 5 and 4 tiles


class CutRecipe(Recipe):
    modalities = ("image",)

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None


class Tiles(CutRecipe):
    """An item is an image's height and width; the model makes a grid of tiles of it, 4 features each."""

    min_budget = 4

    @cache  # noqa: B019 - one recipe a process
    def _tiles(self, item: Item) -> int:
        from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

        rows, columns = get_anyres_image_grid_shape(item, self.hf_config.image_grid_pinpoints, SIDE)
        return int(rows * columns + 1)

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = [torch.randn(self._tiles(item), 3, SIDE, SIDE, generator=generator) for item in items]
        return {"pixel_values": stacked(tiles), "image_sizes": torch.tensor(items)}

    def tokens(self, modality: str, item: Item) -> int:
        return 4 * self._tiles(item)

    def cases(self) -> tuple[Case, ...]:
        return (
            Case("mixed", "image", (LOW, SQUARE, WIDE)),
            Case("one small image after large ones", "image", (LOW,)),
            Case("mixed, reversed", "image", (WIDE, SQUARE, LOW)),
            Case("as many tiles each", "image", (SQUARE, SQUARE)),
            Case("more than one batch", "image", (LOW, SQUARE) * 3),
        )

    def sessions(self) -> tuple[Session, ...]:
        return (
            Session("budgets 8, 16, 32; 4 items", (8, 16, 32), 4, None, self.cases()),
            Session("budget 40; 8 items", (40,), 8, None, self.cases()),
        )


PINPOINTS = [[rows * SIDE, columns * SIDE] for rows, columns in GRIDS]
