"""Granite 4 Vision: tiles, three layers of whose encoder are projected."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes import base

sys.path.insert(0, str(Path(__file__).parent))
from parts import PINPOINTS, SIDE, LanguageModel, Tiles


class Projector(nn.Module):
    """Stands in for a layer's Q-Former, which a cut leaves alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 32)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.linear(features)


class Granite4Vision(Tiles):
    module = "granite4_vision"
    host_class = "Granite4VisionForConditionalGeneration"
    stand_ins = {"WindowQFormerDownsampler": Projector, "Granite4VisionLLMForCausalLM": LanguageModel}  # noqa: RUF012

    def model_config(self) -> Any:
        from transformers import PretrainedConfig, SiglipVisionConfig

        config = PretrainedConfig(
            image_grid_pinpoints=PINPOINTS,
            deepstack_layer_map=[[-4, 9], [2, 3]],
            spatial_vision_layer=-1,
            spatial_target_layers=[12],
            vision_feature_select_strategy="full",
            downsample_rate="1",
        )
        config.vision_config = SiglipVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=3,
            image_size=SIDE,
            patch_size=14,
            vision_use_head=False,
        )
        config.text_config = PretrainedConfig(hidden_size=32)
        return config

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        made = base.engine_config

        def with_cache(*args: Any) -> SimpleNamespace:
            config = made(*args)
            config.cache_config = None
            return config

        base.engine_config = with_cache
        return super().build(host_class)


RECIPE = Granite4Vision()
