"""Mistral 3: images of any size as patches behind each other through Pixtral's tower; images only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session

PATCH = 4
MERGE = 2


#: The port counts other rows than the model makes: what a graph gave is dropped.
_NO_PATCH = "pixels of no patch"


class Mistral3(Recipe):
    """An item is its grid of patches `(h, w)`, and pixels below that make no patch; four patches are a token."""

    module = "mistral3"
    host_class = "Mistral3ForConditionalGeneration"
    modalities = ("image",)
    min_budget = 64

    def model_config(self) -> Any:
        from transformers import Mistral3Config, MistralConfig, PixtralVisionConfig

        return Mistral3Config(
            vision_config=PixtralVisionConfig(
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=256,
                patch_size=PATCH,
            ),
            text_config=MistralConfig(hidden_size=self.hidden_size, num_hidden_layers=1, num_attention_heads=2),
            spatial_merge_size=MERGE,
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        pixels = [torch.randn(3, h * PATCH + more, w * PATCH, generator=generator) for h, w, more in map(_whole, items)]
        same = len(set(items)) == 1
        return {"pixel_values": torch.stack(pixels) if same else pixels}

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None  # this class takes none, though its processor has a field for them

    def tokens(self, modality: str, item: Item) -> int:
        return int(item[0] * item[1] // MERGE**2)

    def sessions(self) -> tuple[Session, ...]:
        sizes = (
            ("a budget exactly full", (16, 16)),
            ("one small item after large ones", (2, 2)),
            ("mixed sizes", (4, 6), (12, 8), (2, 4)),
            ("mixed sizes, reversed", (2, 4), (12, 8), (4, 6)),
            ("equal sizes", (6, 4), (6, 4)),
            (_NO_PATCH, (4, 6, 2), (2, 4)),
            ("more items than one batch", (6, 6), (10, 4), (2, 8), (8, 8), (4, 4)),
            ("an item above all budgets", (24, 24)),
            ("items above all budgets among others", (4, 4), (20, 18), (6, 4), (30, 12)),
        )
        cases = tuple(
            Case(name, "image", items, may_go_eager=name == _NO_PATCH)  # type: ignore[arg-type]
            for name, *items in sizes
        )
        return (
            Session("budgets 16, 32, 64; 3 items", (16, 32, 64), 3, 0, cases),
            Session("budget 64; 8 items", (64,), 8, 0, (*cases[4:7], *cases[1:4])),
            Session("budgets 20, 64; 4 items", (20, 64), 4, 0, cases),
        )


def _whole(item: Item) -> tuple[int, int, int]:
    h, w, more = (*item, 0)[:3]
    return h, w, more


RECIPE = Mistral3()
