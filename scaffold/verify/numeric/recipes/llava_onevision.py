"""LLaVA-OneVision: images are grids of tiles, videos frames that are pooled, and both come to the same encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls, llava_next
from scaffold.verify.numeric.recipes.base import TOWER, Case, Item, Session


class LlavaOnevision(type(llava_next.RECIPE)):  # type: ignore[misc]
    """A video is its number of frames. Those of a call have as many each: upstream gives others a third axis."""

    module = "llava_onevision"
    host_class = "LlavaOnevisionForConditionalGeneration"
    modalities = ("image", "video")

    def model_config(self) -> Any:
        from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig

        vision = SiglipVisionConfig(
            **(TOWER | {"num_hidden_layers": 3}), image_size=self.SIDE, patch_size=14, vision_use_head=False
        )
        text = Qwen2Config(hidden_size=self.hidden_size, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
        return LlavaOnevisionConfig(
            vision_config=vision,
            text_config=text,
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
            image_grid_pinpoints=self.pinpoints(),
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        if modality == "video":
            frames = torch.randn(len(items), items[0], 3, self.SIDE, self.SIDE, generator=generator)
            return {"pixel_values_videos": frames}
        made: dict[str, Any] = super().make_inputs(modality, items, generator)
        return made

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None if modality == "video" else super().embeds_inputs(modality, items, generator)

    def tokens(self, modality: str, item: Item) -> int:
        return int(4 * item if modality == "video" else super().tokens(modality, item))

    def sessions(self) -> tuple[Session, ...]:
        """Videos between the images, so that each finds the other's tiles in the buffers."""
        videos = [
            Case(f"{len(frames)} videos of {frames[0]} frames", "video", frames)
            for frames in ((3, 3, 3), (2,), (4, 4), (1, 1, 1, 1, 1), (25,), (11, 11))
        ]
        images = super().sessions()
        return tuple(replace(one, max_frames=None, cases=calls.in_turn(one.cases, videos)) for one in images)


RECIPE = LlavaOnevision()
