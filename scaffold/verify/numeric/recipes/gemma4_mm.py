"""Gemma 4, tiny: patches of an image with their positions, padded to a fixed number; images only."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, stacked

PATCH = 4
POOL = 2
#: Tokens of an image without padding.
LENGTH = 6


class Gemma4(Recipe):
    """An item is its grid `(h, w)` of tokens, or one with another padding `(h, w, tokens)`.

    A graph computes features of `LENGTH * POOL ** 2` patches for each.
    """

    module = "gemma4_mm"
    host_class = "Gemma4ForConditionalGeneration"
    modalities = ("image",)
    min_budget = LENGTH * POOL**2

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        from vllm.platforms import current_platform

        # The model reads the free memory of its device; before 0.25 it asks the platform.
        torch.accelerator.get_memory_info = lambda *args: (1 << 40, 1 << 40)
        current_platform.mem_get_info = torch.accelerator.get_memory_info
        return super().build(host_class)

    def model_config(self) -> Any:
        from transformers import Gemma4TextConfig, Gemma4VisionConfig

        vision = Gemma4VisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            pooling_kernel_size=POOL,
            patch_size=PATCH,
            position_embedding_size=32,
            standardize=True,
        )
        vision.default_output_length = LENGTH
        text = Gemma4TextConfig(
            hidden_size=self.hidden_size,
            num_hidden_layers=1,
            hidden_size_per_layer_input=0,
            tie_word_embeddings=False,
        )
        return SimpleNamespace(vision_config=vision, text_config=text, audio_config=None)

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        pixels, places = [], []
        for item in items:
            h, w, length = (*item, LENGTH)[:3]
            count, all_of_it = h * w * POOL**2, length * POOL**2
            image = torch.zeros(all_of_it, 3 * PATCH**2)
            image[:count] = torch.rand(count, 3 * PATCH**2, generator=generator)
            place = torch.full((all_of_it, 2), -1, dtype=torch.int64)
            place[:count] = torch.cartesian_prod(torch.arange(h * POOL), torch.arange(w * POOL)).flip(-1)
            pixels.append(image)
            places.append(place)
        return {"pixel_values": stacked(pixels), "pixel_position_ids": stacked(places)}

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None  # the model refuses them

    def tokens(self, modality: str, item: Item) -> int:
        return LENGTH * POOL**2

    def sessions(self) -> tuple[Session, ...]:
        unit = self.min_budget
        sizes: tuple[tuple[str, Any], ...] = (
            ("no padding", ((2, 3), (3, 2))),
            ("one small item after large ones", ((1, 1),)),
            ("mixed sizes", ((1, 2), (2, 3), (2, 2))),
            ("mixed sizes, reversed", ((2, 2), (2, 3), (1, 2))),
            ("more items than one batch", ((1, 5), (2, 1), (3, 2), (1, 1), (2, 2))),
            ("another padding", ((2, 2, 4), (1, 2, 4))),
            ("another padding among others", ((2, 3), (2, 2, 4))),
        )
        cases = tuple(Case(name, "image", items, may_go_eager="another" in name) for name, items in sizes)
        return (
            Session(f"budgets {unit}, {4 * unit}; 3 items", (unit, 4 * unit), 3, 0, cases),
            Session(f"budget {8 * unit}; 8 items", (8 * unit,), 8, 0, cases),
        )


RECIPE = Gemma4()
