"""InternVL: fixed-size tiles, dense attention, one pixel buffer shared by images and videos."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from scaffold.verify.numeric import edges
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Item, Recipe, Session


class InternVL(Recipe):
    """An item is its number of tiles (an image) or frames (a video); each gives 4 tokens."""

    module = "internvl"
    host_class = "InternVLChatModel"
    min_budget = 4

    _IMAGE_SIZE = 56
    _PATCH_SIZE = 14

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code

        config = PretrainedConfig(select_layer=-1, downsample_ratio=0.5, ps_version="v2", force_image_size=None)
        config.vision_config = PretrainedConfig(
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
        config.text_config = PretrainedConfig(hidden_size=self.hidden_size, architectures=["Qwen2ForCausalLM"])
        return config

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

    def sessions(self) -> tuple[Session, ...]:
        return calls.counted("image", "video", frames=7)

    def edge_sessions(self) -> tuple[Session, ...]:
        processor = import_module("vllm.transformers_utils.processors.internvl")
        ratios = processor.get_internvl_target_ratios(1, _MOST_CROPS)
        counts = {
            processor.calculate_internvl_targets(
                orig_width=columns * self._IMAGE_SIZE,
                orig_height=rows * self._IMAGE_SIZE,
                target_ratios=ratios,
                image_size=self._IMAGE_SIZE,
                use_thumbnail=True,
            )[0]
            for columns, rows in ratios
        }
        most = max(counts)
        found = (
            edges.TileRange("image", tuple(sorted(counts)), edges.where(processor.calculate_internvl_targets)),
            edges.TileRange("video", (1, most - 1, most), edges.where(processor.video_to_pixel_values_internvl)),
        )
        return edges.tile_sessions(found, lambda count: self.tokens("image", count), self.tokens("image", 1))


#: `max_dynamic_patch` of the checkpoints' configurations: crops of an image, beside its thumbnail.
_MOST_CROPS = 12


def _token(value: int) -> torch.Tensor:
    return torch.tensor([value])


RECIPE = InternVL()
