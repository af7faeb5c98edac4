"""LLaVA-NeXT: a grid of tiles for each image and the whole image as one more, assembled by the model's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric import edges
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TEXT, TOWER, Case, Item, Recipe, Session, stacked


class LlavaNext(Recipe):
    """An item is an image's height and width in pixels. The captured encoder gives 4 features a tile."""

    module = "llava_next"
    host_class = "LlavaNextForConditionalGeneration"
    modalities = ("image",)
    min_budget = 4
    embeds_rows = 7

    SIDE = 28
    #: Grids of tiles, in tiles; the model takes the one that loses least of an image.
    _GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))

    def model_config(self) -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaNextConfig

        vision = CLIPVisionConfig(
            **(TOWER | {"num_hidden_layers": 3}), projection_dim=48, image_size=self.SIDE, patch_size=14
        )
        text = LlamaConfig(**TEXT, hidden_size=self.hidden_size)
        return LlavaNextConfig(vision_config=vision, text_config=text, image_grid_pinpoints=self.pinpoints())

    def pinpoints(self) -> list[list[int]]:
        """The grids in pixels."""
        return [[rows * self.SIDE, columns * self.SIDE] for rows, columns in self._GRIDS]

    def _tiles(self, item: Item) -> int:
        from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

        rows, columns = get_anyres_image_grid_shape(item, self.hf_config.image_grid_pinpoints, self.SIDE)
        return int(rows * columns + 1)

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = [torch.randn(self._tiles(item), 3, self.SIDE, self.SIDE, generator=generator) for item in items]
        return {"pixel_values": stacked(tiles), "image_sizes": torch.tensor(items)}

    def tokens(self, modality: str, item: Item) -> int:
        return 4 * self._tiles(item)

    def sessions(self) -> tuple[Session, ...]:
        low, square, wide, tall = (28, 50), (50, 50), (20, 84), (84, 24)  # 3, 5, 4 and 4 tiles
        mixes = calls.usual("image", (square, low), low, (low, square, wide), (low, square, tall, wide, low, tall))
        padding = Case("equal numbers of tiles, other padding", "image", (wide, tall, (28, 84)))
        return (
            calls.manager((12, 20, 32), 4, (*mixes, padding)),
            calls.manager((12, 16), 2, (*calls.above("image", square, low, low), *mixes[1:4])),
            calls.manager((96,), 8, calls.one_to_eight(image=(low,))),
        )

    def edge_sessions(self) -> tuple[Session, ...]:
        """Sides at which the release takes another grid, and images so thin that little is left of a tile."""
        from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

        source = edges.where(get_anyres_image_grid_shape)
        sizes = ((5, 84), (84, 5), (27, 28), (28, 29), (56, 57), (400, 400), (300, 7))
        cases = tuple(Case(f"an image of {h}x{w}", "image", ((h, w),), group="grids", source=source) for h, w in sizes)
        return (Session("grids", (12, 16, 20), 4, 0, (*cases, Case("all grids", "image", sizes, source=source))),)


RECIPE = LlavaNext()
