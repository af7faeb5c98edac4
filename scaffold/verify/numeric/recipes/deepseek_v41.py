"""DeepSeek-V4.1: images as in DeepSeek-V4, whose tokens have learned vectors around each of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes.base import Case, Item, LanguageModel, Recipe, Session

PATCH = 4
MERGE = 3


def _grid(item: Item) -> tuple[int, int]:
    """Rows and columns of an image's tokens: sides of patches that `MERGE` does not divide are padded."""
    h, w = item
    return -(-h // MERGE), -(-w // MERGE)


class DeepseekV41(Recipe):
    """An item is its grid `(h, w)` in patches. A vector starts an image, one ends each row of its tokens, and one the
    image."""

    module = "deepseek_v41"
    host_class = "DeepseekV41ForCausalLM"
    modalities = ("image",)
    min_budget = 64
    stand_ins: Mapping[str, Any] = MappingProxyType(
        {
            "DeepseekV41LLMForCausalLM": LanguageModel,
            "_linear_scale_param_name": lambda *args: "weight_scale",
            "_make_deepseek_v4_vl_weights_mapper": lambda *args: None,
        }
    )

    def load_class(self, host: str | None = None) -> type[nn.Module]:
        return super().load_class(host or f"vllm.models.deepseek_v41.nvidia.vl_model:{self.host_class}")

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.deepseek_v41 import DeepseekV41Config

        return DeepseekV41Config(
            text_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1},
            vision_config={
                "hidden_size": 48,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "patch_size": PATCH,
                "downsample_ratio": MERGE,
                "max_image_tokens": 1024,
                "min_pixels": 16,
            },
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        from vllm.models.deepseek_v41.common.mm_preprocess import image_token_types

        grids = list(map(_grid, items))
        types = [image_token_types(h, w) for h, w in grids]
        return {
            "patches": torch.randn(sum(h * w for h, w in items), 3, PATCH, PATCH, generator=generator),
            "vit_grid": torch.tensor(items, dtype=torch.int64).reshape(-1, 2),
            "llm_grid": torch.tensor(grids, dtype=torch.int64).reshape(-1, 2),
            "types": torch.cat([torch.zeros(0, dtype=torch.int64), *types]),
        }

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return None  # the model takes pixels only

    def tokens(self, modality: str, item: Item) -> int:
        h, w = _grid(item)
        return h * (w + 1) + 2

    def sessions(self) -> tuple[Session, ...]:
        def case(name: str, *items: Item, group: str = "") -> Case:
            return Case(name, "image", items, group=group)

        cases = (
            case("a budget exactly full", (3, 183)),
            case("one small image after a large one", (3, 6)),
            case("one token", (3, 3)),
            case("one patch", (1, 1)),
            case("mixed sizes", (6, 9), (18, 12), (3, 3)),
            case("mixed sizes, reversed", (3, 3), (18, 12), (6, 9)),
            case("sides that are no multiples", (4, 5), (7, 3), (10, 11)),
            case("one image of such sides", (11, 7)),
            case("images of one size", (6, 6), (6, 6), (6, 6)),
            case("more images than one batch", (6, 6), (9, 4), (3, 12), (12, 12), (6, 3)),
            case("an image above all budgets", (36, 30)),
            case("images above all budgets among others", (6, 6), (30, 27), (9, 6), (45, 18)),
            case("long and narrow", (3, 90), (90, 3)),
        )
        counts = tuple(
            case(f"{count} images", *((4, 3 + 2 * (i % 3)) for i in range(count)), group="1 to 8 images")
            for count in range(1, 9)
        )
        return (
            Session("budgets 16, 32, 64; 3 images", (16, 32, 64), 3, 0, cases),
            Session("budget 96; 8 images", (96,), 8, 0, counts),
            Session("budgets 20, 64; 4 images", (20, 64), 4, 0, cases),
        )


RECIPE = DeepseekV41()
