"""LLaVA-OneVision: images are grids of tiles, videos frames that are pooled, and both come to the same call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Case, Item

sys.path.insert(0, str(Path(__file__).parent))
from parts import PINPOINTS, SIDE, Tiles


class LlavaOnevision(Tiles):
    """A video is its number of frames. Those of a call have as many each: upstream gives others a third axis."""

    module = "llava_onevision"
    host_class = "LlavaOnevisionForConditionalGeneration"
    modalities = ("image", "video")

    def model_config(self) -> Any:
        from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig

        vision = SiglipVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=3,
            image_size=SIDE,
            patch_size=14,
            vision_use_head=False,
        )
        text = Qwen2Config(hidden_size=self.hidden_size, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
        return LlavaOnevisionConfig(
            vision_config=vision,
            text_config=text,
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
            image_grid_pinpoints=PINPOINTS,
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        if modality == "image":
            return super().make_inputs(modality, items, generator)
        return {"pixel_values_videos": torch.randn(len(items), items[0], 3, SIDE, SIDE, generator=generator)}

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        if modality == "video":
            return None
        return {"image_embeds": torch.randn(len(items), 7, self.hidden_size, generator=generator)}

    def tokens(self, modality: str, item: Item) -> int:
        return super().tokens(modality, item) if modality == "image" else 4 * item

    def cases(self) -> tuple[Case, ...]:
        videos = ((3, 3, 3), (2,), (4, 4), (11, 11))
        counts = (Case(f"{len(frames)} videos of {frames[0]} frames", "video", frames) for frames in videos)
        return (*super().cases(), *counts)


RECIPE = LlavaOnevision()
