"""Pixtral in Mistral's own format: the encoder takes everything but its rows by keyword, one of them as pairs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from scaffold.verify.numeric.recipes import mistral3
from scaffold.verify.numeric.recipes.base import Item


class Pixtral(type(mistral3.RECIPE)):  # type: ignore[misc]
    module = "pixtral"
    host_class = "PixtralForConditionalGeneration"

    def model_config(self) -> Any:
        vision = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_channels": 3,
            "image_size": 256,
            "patch_size": mistral3.PATCH,
            "rope_theta": 10000.0,
            "image_token_id": 10,
            "spatial_merge_size": mistral3.MERGE,
            "mm_projector_id": "patch_merge",
        }
        return SimpleNamespace(
            vision_config=SimpleNamespace(to_dict=lambda: vision),
            text_config=SimpleNamespace(hidden_size=self.hidden_size),
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {"images": super().make_inputs(modality, items, generator)["pixel_values"]}


RECIPE = Pixtral()
