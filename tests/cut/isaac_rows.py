"""Isaac, tiny: rows of patches with a grid an item, through SigLIP 2; its class shares items between ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session

PATCH = 4
MERGE = 2


class Isaac(Recipe):
    """An item is its grid of patches `(h, w)`; four of them are a token."""

    module = "isaac"
    host_class = "IsaacForConditionalGeneration"
    modalities = ("image",)
    min_budget = 64

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        # There is no tokenizer to ask for the token of an image.
        sys.modules[self.load_class().__module__]._resolve_vision_token_id = lambda *args: 0  # type: ignore[attr-defined]
        host, config = super().build(host_class)
        # The model asks its language model where it lies.
        host.language_model.weight = nn.Parameter(torch.zeros(1, 1))
        return host, config

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.isaac import IsaacConfig, PixelShuffleSiglip2VisionConfig

        vision = PixelShuffleSiglip2VisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_patches=64,
            patch_size=PATCH,
            pixel_shuffle_scale_factor=MERGE,
        )
        return IsaacConfig(
            text_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1, "num_attention_heads": 2},
            vision_config=vision,
            hidden_size=self.hidden_size,
            pixel_shuffle_scale=MERGE,
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        rows = sum(h * w for h, w in items)
        return {
            "pixel_values": torch.randn(rows, 3 * PATCH**2, generator=generator),
            "image_grid_thw": torch.tensor([[1, h, w] for h, w in items]),
        }

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None  # the model takes none

    def tokens(self, modality: str, item: Item) -> int:
        h, w = item
        return int(h * w // MERGE**2)

    def sessions(self) -> tuple[Session, ...]:
        sizes = (
            ("a budget exactly full", (16, 16)),
            ("one small item after large ones", (2, 2)),
            ("mixed sizes", (4, 6), (12, 8), (2, 4)),
            ("mixed sizes, reversed", (2, 4), (12, 8), (4, 6)),
            ("more items than one batch", (6, 6), (10, 4), (2, 8), (8, 8), (4, 4)),
            ("an item above all budgets", (24, 24)),
            ("items above all budgets among others", (4, 4), (20, 18), (6, 4), (30, 12)),
        )
        cases = tuple(Case(name, "image", items) for name, *items in sizes)  # type: ignore[arg-type]
        return (Session("budgets 16, 32, 64; 3 items", (16, 32, 64), 3, 0, cases),)


RECIPE = Isaac()
