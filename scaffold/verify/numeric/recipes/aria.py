"""Aria: an image is a unit of 16 features, with a mask of its patches; images of another side run eagerly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TOWER, Case, Item, Recipe, Session


class Aria(Recipe):
    """An item is the side of an image, and the height and width of what is no padding."""

    module = "aria"
    host_class = "AriaForConditionalGeneration"
    modalities = ("image",)
    min_budget = 16

    def model_config(self) -> Any:
        from transformers import AriaConfig, AriaTextConfig
        from transformers.models.idefics3 import Idefics3VisionConfig

        vision = Idefics3VisionConfig(**TOWER, image_size=56, patch_size=14)
        vision.model_type = "idefics3_vision"
        text = AriaTextConfig(hidden_size=self.hidden_size, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
        return AriaConfig(vision_config=vision, text_config=text, projector_patch_to_query_dict={16: 5, 4: 3})

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        side = items[0][0]
        mask = torch.zeros(len(items), side, side, dtype=torch.bool)
        for image, (_, height, width) in zip(mask, items, strict=True):
            image[:height, :width] = True
        return {"pixel_values": torch.randn(len(items), 3, side, side, generator=generator), "pixel_mask": mask}

    def tokens(self, modality: str, item: Item) -> int:
        return 16

    def sessions(self) -> tuple[Session, ...]:
        low, wide, whole = (56, 56, 28), (56, 14, 56), (56, 56, 56)
        cases = (
            Case("mixed masks", "image", (low, whole, wide)),
            Case("one image", "image", ((56, 28, 56),)),
            Case("mixed masks, reversed", "image", (wide, whole, low)),
            Case("another side", "image", ((28, 28, 28), (28, 14, 28)), may_go_eager=True),
            Case("more than one batch", "image", (low, wide) * 4),
        )
        return (
            calls.manager((16, 64), 4, cases),
            calls.manager((128,), 8, cases),
        )


RECIPE = Aria()
