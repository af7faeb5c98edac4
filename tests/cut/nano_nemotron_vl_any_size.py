"""Nemotron Nano VL with images of any resolution, which are rows of patches without a number of tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from scaffold.verify.numeric.recipes import nano_nemotron_vl
from scaffold.verify.numeric.recipes.base import Case, Item, Session, stacked


class AnySize(type(nano_nemotron_vl.RECIPE)):  # type: ignore[misc]
    """An item is an image's height and width in pixels."""

    modalities = ("image",)

    @cache  # noqa: B019 - one recipe a process
    def model_config(self) -> Any:
        config = super().model_config()
        config.vision_config.args["min_num_patches"] = 4
        return config

    def on_host(self, inputs: Mapping[str, Any]) -> frozenset[str]:
        return frozenset(inputs) - {"pixel_values_flat"}

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {
            "pixel_values_flat": stacked([torch.randn(3, *item, generator=generator) for item in items]),
            "imgs_sizes": list(items),
            "num_tokens_per_image": [self.tokens(modality, item) for item in items],
        }

    def tokens(self, modality: str, item: Item) -> int:
        return int(item[0] // 32 * (item[1] // 32))

    def sessions(self) -> tuple[Session, ...]:
        # The first has the shape of a tile.
        cases = tuple(Case(f"{h}x{w}", "image", ((h, w),)) for h, w in ((64, 64), (32, 96)))
        return (Session("budget 8", (8,), 2, 0, cases),)


RECIPE = AnySize()
