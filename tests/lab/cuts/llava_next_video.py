"""LLaVA-NeXT-Video: frames of 4 features each, pooled and projected inside the captured call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Case, Item, Session, stacked

sys.path.insert(0, str(Path(__file__).parent))
from parts import CutRecipe


class LlavaNextVideo(CutRecipe):
    """An item is its number of frames."""

    module = "llava_next_video"
    host_class = "LlavaNextVideoForConditionalGeneration"
    modalities = ("video",)
    min_budget = 4

    def model_config(self) -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaNextVideoConfig

        vision = CLIPVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            projection_dim=48,
            num_hidden_layers=3,
            num_attention_heads=3,
            image_size=16,
            patch_size=4,
        )
        text = LlamaConfig(hidden_size=self.hidden_size, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
        return LlavaNextVideoConfig(
            vision_config=vision, text_config=text, spatial_pool_mode="average", spatial_pool_stride=2
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {"pixel_values_videos": stacked([torch.randn(item, 3, 16, 16, generator=generator) for item in items])}

    def tokens(self, modality: str, item: Item) -> int:
        return 4 * int(item)

    def sessions(self) -> tuple[Session, ...]:
        counts = ((3, 1, 5), (2,), (4, 4), (5, 1, 3), (11, 2, 13))
        cases = tuple(Case(f"frames {items}", "video", items) for items in counts)
        return (
            Session("budgets 8, 16, 32; 4 items", (8, 16, 32), 4, None, cases),
            Session("budget 40; 8 items", (40,), 8, None, cases),
        )


RECIPE = LlavaNextVideo()
