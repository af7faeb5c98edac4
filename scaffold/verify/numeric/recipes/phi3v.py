"""Phi-3-V: tiles of an image and the whole image as one more, padded to a fixed number; images only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session

#: Written in the model's code: the side of a tile, and the features of one and their width.
SIDE, FEATURES, WIDTH = 336, 576, 1024


class Phi3V(Recipe):
    """An item is its grid of tiles. The processor pads all images to as many tiles, which the model encodes, too."""

    module = "phi3v"
    host_class = "Phi3VForCausalLM"
    modalities = ("image",)
    min_budget = FEATURES
    embeds_rows = 7

    #: Tiles of every image, the whole one among them.
    _TILES = 4

    @property
    def stand_ins(self) -> dict[str, Any]:  # type: ignore[override]
        """The tower's configuration is a constant of the module; its width is one of the model's code."""
        from transformers import CLIPVisionConfig

        small = CLIPVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=64,
            projection_dim=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=SIDE,
            patch_size=14,
        )
        return {"CLIP_VIT_LARGE_PATCH14_336_CONFIG": small}

    def model_config(self) -> Any:
        from transformers import PretrainedConfig

        return PretrainedConfig(
            hidden_size=self.hidden_size,
            vocab_size=99,
            img_processor={"image_dim_out": WIDTH, "num_img_tokens": 144},
            embd_layer={"use_hd_transform": True, "with_learnable_separator": True, "hd_transform_order": "sub_glb"},
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        pixels = torch.zeros(len(items), self._TILES, 3, SIDE, SIDE)
        for image, (rows, columns) in zip(pixels, items, strict=True):
            used = image[: rows * columns + 1]
            used.copy_(torch.randn(used.shape, generator=generator))
        sizes = [(rows * SIDE, columns * SIDE) for rows, columns in items]
        return {"pixel_values": pixels, "image_sizes": torch.tensor(sizes)}

    def tokens(self, modality: str, item: Item) -> int:
        return FEATURES * self._TILES

    def sessions(self) -> tuple[Session, ...]:
        one = FEATURES * self._TILES
        cases = (
            Case("several grids", "image", ((1, 3), (1, 1))),
            Case("one small image after large ones", "image", ((1, 1),)),
            Case("several grids, reversed", "image", ((2, 1), (3, 1))),
            Case("more images than one batch", "image", ((1, 2), (3, 1), (1, 1))),
        )
        return (
            calls.manager((one, 2 * one), 2, cases),
            # No whole number of images, and not one.
            calls.manager((one + FEATURES,), 2, cases[:2]),
            calls.manager((FEATURES,), 2, cases[:2]),
        )


RECIPE = Phi3V()
