"""LFM2-VL: images of any size, large ones as tiles and a thumbnail, all padded to one number of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TOWER, Case, Item, Recipe, Session

PATCH = 4
CHANNELS = 3
MERGE = 2
#: Patches that the processor pads every tile to.
PADDED = 256
TILE = (12, 12)


class Lfm2VL(Recipe):
    """An item is its tiles, each a grid `(h, w)` in patches, which are attention sequences of their own.

    Graphs have offsets for one tile of each image, and for a further tile per 128 patches. The learned table has 8 x 8
    positions, so that most grids are interpolated.
    """

    module = "lfm2_vl"
    host_class = "Lfm2VLForConditionalGeneration"
    modalities = ("image",)
    min_budget = 64

    def model_config(self) -> Any:
        from transformers.models.lfm2_vl.configuration_lfm2_vl import Lfm2VlConfig

        config = Lfm2VlConfig(
            vision_config={
                **TOWER,
                "num_attention_heads": 2,
                "model_type": "siglip2_vision_model",
                "patch_size": PATCH,
                "num_channels": CHANNELS,
                "num_patches": 64,
            },
            text_config={"model_type": "lfm2", "hidden_size": self.hidden_size, "num_hidden_layers": 1},
            downsample_factor=MERGE,
            projector_hidden_size=40,
        )
        config.min_image_tokens = 1  # of the processor, whose images of 64 tokens or more would be slow here
        return config

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = [tile for item in items for tile in item]
        pixels = torch.zeros(len(tiles), PADDED, CHANNELS * PATCH * PATCH)
        for row, (h, w) in zip(pixels, tiles, strict=True):
            row[: h * w] = torch.randn(h * w, row.shape[1], generator=generator)
        return {
            "pixel_values": pixels,
            "spatial_shapes": torch.tensor(tiles, dtype=torch.int64).reshape(-1, 2),
            "num_patches": torch.tensor([len(item) for item in items], dtype=torch.int64),
        }

    def tokens(self, modality: str, item: Item) -> int:
        return sum(int(h * w) for h, w in item) // MERGE**2

    def sessions(self) -> tuple[Session, ...]:
        split = (TILE, TILE, (6, 8))
        cases = [
            Case("a budget exactly full", "image", ((TILE, TILE, TILE, (8, 10)),)),
            Case("one small image after tiles", "image", (((4, 6),),)),
            Case("one token", "image", (((2, 2),),)),
            Case("small images and tiles", "image", (((4, 6),), split, ((2, 8),))),
            Case("small images and tiles, reversed", "image", (((2, 8),), split, ((4, 6),))),
            Case("tiles without a thumbnail", "image", ((TILE, TILE),)),
            Case("more images than one batch", "image", tuple(((4, 2 + 2 * (i % 3)),) for i in range(6))),
            Case("tiles of several images", "image", (split, (TILE, (4, 4)), ((6, 4),))),
            Case("an image above all budgets", "image", ((TILE,) * 6,)),
            Case("one above all budgets among others", "image", (((4, 4),), (TILE,) * 7, split)),
            Case("long and narrow", "image", (((2, 60),), ((60, 2), (4, 10)))),
            Case("as many tiles as there are offsets", "image", (((12, 8),) * 4 + ((16, 8),),)),
            Case("one tile more", "image", (((12, 8),) * 4 + ((8, 8),) * 2,), may_go_eager=True),
            Case("more tiles than its patches have offsets for", "image", (((2, 2),) * 8,), may_go_eager=True),
            Case("such an image among others", "image", (split, ((2, 4),) * 4, ((4, 4),)), may_go_eager=True),
        ]
        several = calls.one_to_eight(image=(((4, 4),), split, ((4, 4),)))
        return (
            calls.manager((16, 64, 128), 3, cases),
            calls.manager((128,), 8, several),
            # A budget with room for all the tiles of an image, and one image a batch: the offsets are full.
            calls.manager((128,), 1, cases),
        )


RECIPE = Lfm2VL()
