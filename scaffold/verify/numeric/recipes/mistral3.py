"""Mistral 3: images of any size as patches behind each other through Pixtral's tower; images only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, stacked

PATCH = 4
MERGE = 2


class Mistral3(Recipe):
    """An item is its grid of patches `(h, w)`, and pixels below that make no patch; four patches are a token.

    This class takes no precomputed embeddings, though its processor has a field for them.
    """

    module = "mistral3"
    host_class = "Mistral3ForConditionalGeneration"
    modalities = ("image",)
    min_budget = 64

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        """Before 0.31 with what releases import of transformers for places of patches, which is there no more."""
        module = vars(sys.modules[self.load_class().__module__.replace("mistral3", "pixtral")])
        if "PixtralRotaryEmbedding" in module and not issubclass(module["PixtralRotaryEmbedding"], nn.Module):
            module |= {"PixtralRotaryEmbedding": _Rotary, "position_ids_in_meshgrid": _numbers}
        return super().build(host_class)

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
        return {"pixel_values": stacked(pixels)}

    def tokens(self, modality: str, item: Item) -> int:
        return int(item[0] * item[1] // MERGE**2)

    def sessions(self) -> tuple[Session, ...]:
        many = ((6, 6), (10, 4), (2, 8), (8, 8), (4, 4))
        cases = (
            *calls.usual("image", ((16, 16),), (2, 2), ((4, 6), (12, 8), (2, 4)), many),
            Case("equal sizes", "image", ((6, 4), (6, 4))),
            # The port counts other rows than the model makes: what a graph gave is dropped.
            Case("pixels of no patch", "image", ((4, 6, 2), (2, 4)), may_go_eager=True),
            Case("an item above all budgets", "image", ((24, 24),)),
            Case("items above all budgets among others", "image", ((4, 4), (20, 18), (6, 4), (30, 12))),
        )
        # Nine items or more: FlashInfer's offsets have room for sixteen, and those of a batch for eight.
        managers = (((16, 32, 64), 3, cases), ((64,), 12, cases[1:7]), ((20, 64), 4, cases))
        return tuple(calls.manager(*one) for one in managers)


class _Rotary(nn.Module):  # type: ignore[misc]
    """Half of a head's angles turn with the row of a patch, half with its column."""

    def __init__(self, config: Any, device: torch.device) -> None:
        super().__init__()
        size = config.hidden_size // config.num_attention_heads
        rates = 10000.0 ** -(torch.arange(0, size, 2, dtype=torch.float, device=device) / size)
        self.columns = config.image_size // config.patch_size
        self.register_buffer("rates", rates.view(-1, 2).T.contiguous(), persistent=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = positions // self.columns, positions % self.columns
        axes = [place[:, None] * rates for place, rates in zip(places, self.rates, strict=True)]
        angles = torch.cat(axes + axes, dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _numbers(patches: Sequence[torch.Tensor], max_width: int) -> torch.Tensor:
    """A number for the place of each patch of images [..., h, w]."""
    return torch.cat([torch.cartesian_prod(*map(torch.arange, image.shape[-2:])) for image in patches]) @ torch.tensor(
        [max_width, 1]
    )


def _whole(item: Item) -> tuple[int, int, int]:
    h, w, more = (*item, 0)[:3]
    return h, w, more


RECIPE = Mistral3()
