"""DeepSeek-VL2: a whole image and a grid of its crops through timm's SigLIP, put together with newlines; needs timm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session


class DeepseekVL2(Recipe):
    """An item is its grid of crops (width, height). The captured tower gives 9 features a tile."""

    module = "deepseek_vl2"
    host_class = "DeepseekVLV2ForCausalLM"
    modalities = ("image",)
    min_budget = 9
    embeds_rows = 7

    #: Three patches: the projector, which joins two by two, pads them to four.
    _SIDE = 42
    _FEATURES = 9

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        """With timm's own class of towers, but not of 400 million parameters."""
        timm: Any = import_module("timm")
        small = partial(timm.create_model, embed_dim=48, depth=2, num_heads=3, img_size=self._SIDE)
        with mock.patch.object(timm, "create_model", small):
            return super().build(host_class)

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.deepseek_vl2 import DeepseekVLV2Config

        return DeepseekVLV2Config(
            tile_tag="2D",
            vision_config={"image_size": self._SIDE, "patch_size": 14, "width": 48, "layers": 2, "heads": 3},
            projector_config={"input_dim": 48, "n_embed": self.hidden_size},
            language_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1, "vocab_size": 99},
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = sum(width * height + 1 for width, height in items)
        pixels = torch.randn(tiles, 3, self._SIDE, self._SIDE, generator=generator)
        return {"pixel_values": pixels, "images_spatial_crop": torch.tensor(items, dtype=torch.int64)}

    def tokens(self, modality: str, item: Item) -> int:
        width, height = item
        return self._FEATURES * int(width * height + 1)

    def sessions(self) -> tuple[Session, ...]:
        small, wide, tall, square = (1, 1), (3, 1), (1, 3), (2, 2)  # 2, 4, 4 and 5 tiles
        many = (small, square, tall, wide, small, tall)
        mixes = calls.usual("image", (square, small), small, (small, square, wide), many)
        above = calls.above("image", (3, 3), small, small)
        return (
            calls.manager(
                (18, 45, 63), 4, (*mixes, Case("equal numbers of tiles, other grids", "image", (wide, tall, wide)))
            ),
            calls.manager((36, 50), 2, (*above, *mixes[1:4])),
            calls.manager((144,), 8, calls.one_to_eight(image=(small,))),
        )


RECIPE = DeepseekVL2()
