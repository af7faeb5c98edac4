"""InternVL: fixed-size tiles, dense attention, one pixel buffer shared by images and videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, blank_host, multimodal_config


class InternVL(Recipe):
    """An item is its number of tiles (an image) or frames (a video); each gives 4 tokens."""

    module = "internvl"
    host_class = "InternVLChatModel"
    min_budget = 4

    _IMAGE_SIZE = 56
    _PATCH_SIZE = 14

    def build(self) -> nn.Module:
        from transformers import PretrainedConfig

        vision = PretrainedConfig(
            hidden_size=32,
            num_attention_heads=2,
            intermediate_size=48,
            num_hidden_layers=2,
            num_channels=3,
            image_size=self._IMAGE_SIZE,
            patch_size=self._PATCH_SIZE,
            qkv_bias=True,
            qk_normalization=False,
            hidden_act="gelu",
            norm_type="layer_norm",
            layer_norm_eps=1e-6,
            initializer_factor=1.0,
        )
        text = PretrainedConfig(hidden_size=self.hidden_size, architectures=["Qwen2ForCausalLM"])
        config = PretrainedConfig(select_layer=-1, downsample_ratio=0.5, ps_version="v2", force_image_size=None)
        config.vision_config, config.text_config = vision, text

        host = blank_host(self.load_class())
        host.config = config
        host.multimodal_config = multimodal_config(self.modalities)
        host.use_data_parallel = False
        host.patch_size = self._PATCH_SIZE
        host.patch_tokens = (self._IMAGE_SIZE // self._PATCH_SIZE) ** 2
        host.downsample_ratio = config.downsample_ratio
        host.num_image_token = int(host.patch_tokens * config.downsample_ratio**2)
        host.ps_version = config.ps_version
        host.llm_arch_name, host.is_mono, host.visual_token_mask = "Qwen2ForCausalLM", False, None
        host.img_context_token_id = host.video_context_token_id = None
        mono = {"is_mono": False} if "is_mono" in host._init_vision_model.__code__.co_varnames else {}
        host.vision_model = host._init_vision_model(config, quant_config=None, prefix="vision_model", **mono)
        host.mlp1 = host._init_mlp1(config)
        return host

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = torch.randn(sum(items), 3, self._IMAGE_SIZE, self._IMAGE_SIZE, generator=generator)
        if modality == "image":
            return {"pixel_values_flat": tiles, "image_num_patches": torch.tensor(items), "image_token_id": _token(1)}
        return {"pixel_values_flat_video": tiles, "video_num_patches": torch.tensor(items), "video_token_id": _token(2)}

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        if modality != "image":
            return None  # no release's `embed_multimodal` reads `video_embeds` of this model
        return {"image_embeds": torch.randn(len(items), 4 * items[0], self.hidden_size, generator=generator)}

    def tokens(self, modality: str, item: Item) -> int:
        return 4 * int(item)

    def frames(self, modality: str, item: Item) -> int:
        return int(item) if modality == "video" else 1

    def sessions(self) -> tuple[Session, ...]:
        mixes = []
        for modality in ("image", "video"):
            mixes += [
                Case("every budget full", modality, (3, 2, 3)),
                Case("one small item after large ones", modality, (1,)),
                Case("mixed sizes", modality, (1, 5, 2)),
                Case("mixed sizes, reversed", modality, (2, 5, 1)),
                Case("more items than one batch", modality, (3, 1, 4, 1, 5, 2, 6, 1)),
                Case("an item above all budgets", modality, (9,)),
                Case("an item above all budgets among others", modality, (2, 11, 1)),
                Case("several above all budgets", modality, (12, 1, 9)),
            ]
        counts = [
            Case(f"{count} items", modality, (1,) * count) for count in range(1, 9) for modality in ("image", "video")
        ]
        return (
            Session("budgets 8, 16, 32; 4 items; 7 frames", (8, 16, 32), 4, 7, tuple(mixes)),
            Session("budget 32; 8 items; default frames", (32,), 8, None, tuple(counts)),
            Session(
                "budgets 6, 18; 3 items; no video", (6, 18), 3, 0, tuple(c for c in mixes if c.modality == "image")
            ),
        )


def _token(value: int) -> torch.Tensor:
    return torch.tensor([value])


RECIPE = InternVL()
