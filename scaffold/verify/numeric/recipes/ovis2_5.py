"""Ovis 2.5, tiny: rows of patches through SigLIP 2, whose layers attend to all patches of an image; images only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import TOWER, Item, stacked
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class Ovis2_5(PackedGrid):
    """The embeddings of an item stand between two indicators, which no graph computes."""

    module = "ovis2_5"
    host_class = "Ovis2_5"
    modalities = ("image",)
    has_edges = False  # the release's function of sizes is a method of its processor
    takes_embeds = False  # the model takes none

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code

        vision = PretrainedConfig(
            **TOWER,
            model_type="siglip2_navit",
            num_channels=CHANNELS,
            num_patches=-1,
            image_size=8 * PATCH,
            patch_size=PATCH,
            temporal_patch_size=1,
            hidden_stride=MERGE,
            window_size=4 * PATCH,
            fullatt_block_indexes=None,
            preserve_original_pe=True,
            use_rope=True,
            hidden_act="gelu_pytorch_tanh",
            layer_norm_eps=1e-6,
            attention_dropout=0.0,
        )
        text = PretrainedConfig(hidden_size=self.hidden_size)
        return PretrainedConfig(hidden_size=self.hidden_size, visual_vocab_size=40, vit_config=vision, text_config=text)

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        pixels = [torch.randn(t * h * w, CHANNELS * PATCH * PATCH, generator=generator) for t, h, w in items]
        return {
            "pixel_values": stacked(pixels),
            "grids": torch.tensor(items, dtype=torch.int64).reshape(-1, 1, 3),
            "indicator_tokens": stacked([self._indicators(item) for item in items]),
        }

    def _indicators(self, item: Item) -> torch.Tensor:
        """The model reads one more for an item of one token, which the processor never makes."""
        return torch.arange(36, 39 if self.tokens("image", item) == 1 else 38)


RECIPE = Ovis2_5()
