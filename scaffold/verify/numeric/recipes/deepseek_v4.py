"""DeepSeek-V4: images of any size, each of which the model hands to its tower by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session

PATCH = 4
MERGE = 3


def token_grid(item: Item) -> tuple[int, int]:
    """Rows and columns of an image's tokens: sides of patches that `MERGE` does not divide are padded."""
    h, w = item
    return -(-h // MERGE), -(-w // MERGE)


class DeepseekV4(Recipe):
    """An item is its grid `(h, w)` in patches. Sides that the squares of a token do not divide are padded behind the
    layers: an image has more embeddings there than `tokens`, which are what its rows take of a budget."""

    module = "vllm.models.deepseek_v4.common.vl_model"
    host_class = "DeepseekV4ForConditionalGeneration"
    modalities = ("image",)
    min_budget = 64
    #: A grid that fills a budget of 64 tokens, and the budget for eight small images.
    full: Item = (24, 24)
    budget_of_eight = 64

    def model_config(self) -> Any:
        from transformers import DeepseekV4Config

        return DeepseekV4Config(
            hidden_size=self.hidden_size,
            num_hidden_layers=1,
            vision_dim=48,
            vision_inter_dim=64,
            vision_n_layers=2,
            vision_n_heads=2,
            vision_patch_size=PATCH,
            vision_downsample_ratio=MERGE,
            vision_rope_theta=10000.0,
            vision_max_n_token=1024,
            vision_min_pixels=16,
            vision_max_wh_ratio=None,
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        grids = list(map(token_grid, items))
        name, entries = self.token_entries(grids)
        return {
            "patches": torch.randn(sum(h * w for h, w in items), 3, PATCH, PATCH, generator=generator),
            "vit_grid": torch.tensor(items, dtype=torch.int64).reshape(-1, 2),
            "llm_grid": torch.tensor(grids, dtype=torch.int64).reshape(-1, 2),
            name: torch.cat([torch.zeros(0, dtype=torch.int64), *entries]),
        }

    def token_entries(self, grids: Sequence[Item]) -> tuple[str, list[torch.Tensor]]:
        """The input with entries for the tokens of images, and those of each: an order, which follows from its size."""
        return "perm", [torch.randperm(h * w, generator=torch.Generator().manual_seed(w)) for h, w in grids]

    def tokens(self, modality: str, item: Item) -> int:
        h, w = item
        return int(-(-h * w // MERGE**2))

    def sessions(self) -> tuple[Session, ...]:
        cases = (
            *calls.usual(
                "image", (self.full,), (3, 6), ((6, 9), (18, 12), (3, 3)), ((6, 6), (9, 4), (3, 12), (12, 12), (6, 3))
            ),
            Case("one token", "image", ((3, 3),)),
            Case("one patch", "image", ((1, 1),)),
            Case("sides that are no multiples", "image", ((4, 5), (7, 3), (10, 11))),
            Case("one image of such sides", "image", ((11, 7),)),
            Case("images of one size", "image", ((6, 6),) * 3),
            Case("an item above all budgets", "image", ((36, 30),)),
            Case("items above all budgets among others", "image", ((6, 6), (30, 27), (9, 6), (45, 18))),
            Case("long and narrow", "image", ((3, 90), (90, 3))),
        )
        several = calls.one_to_eight(image=((4, 3), (4, 5), (4, 7)))
        return (
            calls.manager((16, 32, 64), 3, cases),
            calls.manager((self.budget_of_eight,), 8, several),
            calls.manager((20, 64), 4, cases),
        )


RECIPE = DeepseekV4()
