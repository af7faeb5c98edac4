"""What the recipes of this folder share: stand-ins for what a host makes beside its tower, and its own image tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, _LanguageModel

LanguageModel = _LanguageModel

#: Grids of tiles, in tiles.
GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
SIDE = 28
LOW, SQUARE, WIDE = (28, 50), (50, 50), (28, 80)  # 3, 5 and 4 tiles


class CutRecipe(Recipe):
    """A recipe whose host's module has further names to stand in for: `stand_ins`."""

    modalities = ("image",)
    stand_ins: dict[str, Any] = {}  # noqa: RUF012 - one recipe a process

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        module = import_module(f"vllm.model_executor.models.{self.module}")
        for name, value in self.stand_ins.items():
            assert hasattr(module, name)
            setattr(module, name, value)
        return super().build(host_class)

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None


def stacked(items: list[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
    """As vLLM batches an input: one tensor where all items are of one shape."""
    return torch.stack(items) if len({item.shape for item in items}) == 1 else items


class Tiles(CutRecipe):
    """An item is an image's height and width; the model makes a grid of tiles of it, 4 features each."""

    min_budget = 4

    @cache  # noqa: B019 - one recipe a process
    def _tiles(self, item: Item) -> int:
        from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

        rows, columns = get_anyres_image_grid_shape(item, self.model_config().image_grid_pinpoints, SIDE)
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
