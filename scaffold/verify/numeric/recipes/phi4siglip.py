"""Phi-4-reasoning-vision: images of any size through SigLIP 2, all of a batch padded to one number of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session

PATCH = 4
CHANNELS = 3
#: Patches that the processor pads every image to.
PADDED = 160


class Phi4Siglip(Recipe):
    """An item is a grid `(h, w)` in patches, each of which is a token.

    The learned table has 8 x 8 positions, so that most grids are interpolated. The model reads the last of the hidden
    states, whose number its constructor makes one less than the configuration's.
    """

    module = "phi4siglip"
    host_class = "Phi4ForCausalLMV"
    modalities = ("image",)
    min_budget = 64

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code

        vision = {
            "patch_size": PATCH,
            "num_channels": CHANNELS,
            "num_patches": 64,
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
        }
        return PretrainedConfig(
            vision_config=vision,
            mm_hidden_size=48,
            hidden_size=self.hidden_size,
            vocab_size=100300,
            min_num_patches=1,
            max_num_patches=PADDED,
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        pixels = torch.zeros(len(items), PADDED, CHANNELS * PATCH * PATCH)
        mask = torch.zeros(len(items), PADDED, dtype=torch.int64)
        for row, filled, (h, w) in zip(pixels, mask, items, strict=True):
            row[: h * w] = torch.randn(h * w, row.shape[1], generator=generator)
            filled[: h * w] = 1
        return {
            "pixel_values": pixels,
            "pixel_attention_mask": mask,
            "spatial_shapes": torch.tensor(items, dtype=torch.int64).reshape(-1, 2),
        }

    def tokens(self, modality: str, item: Item) -> int:
        h, w = item
        return int(h * w)

    def sessions(self) -> tuple[Session, ...]:
        cases = (
            *calls.usual(
                "image", ((8, 8), (4, 16)), (3, 5), ((4, 6), (7, 5), (2, 9)), [(4, 2 + 2 * (i % 3)) for i in range(6)]
            ),
            Case("one token", "image", ((1, 1),)),
            Case("an image as long as the padding", "image", ((10, 16),)),
            Case("one above all budgets among others", "image", ((4, 4), (12, 12), (3, 3))),
            Case("long and narrow", "image", ((2, 60), (60, 2))),
        )
        several = calls.one_to_eight(image=((3, 4), (4, 4)))
        return calls.manager((16, 64, 128), 3, cases), calls.manager((128,), 8, several)


RECIPE = Phi4Siglip()
