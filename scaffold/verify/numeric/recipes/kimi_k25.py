"""Kimi-K2.5: packed patches through MoonViT in three dimensions; images and chunks of videos are one modality."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.base import Case, Item, Session, one_to_eight
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class KimiK25(PackedGrid):
    """The frames of a chunk become one behind the layers; `tokens` are what its rows take of a budget.

    The learned table has 8 x 8 positions.
    """

    module = "kimi_k25"
    host_class = "KimiK25ForConditionalGeneration"
    modalities: tuple[str, ...] = ("vision_chunk",)
    patch = (CHANNELS, PATCH, PATCH)
    grid = "grid_thws"
    has_edges = False
    takes_embeds = False  # the model takes pixels only

    def model_config(self) -> Any:
        from transformers import Kimi_K25Config

        return Kimi_K25Config(
            vision_config={
                "patch_size": PATCH,
                "pos_emb_height": 8,
                "pos_emb_width": 8,
                "pos_emb_time": 4,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "hidden_size": 48,
                "intermediate_size": 64,
                "merge_kernel_size": (MERGE, MERGE),
                # Before 0.33 the names of the checkpoint's own configuration class.
                "merge_type": "sd2_tpool",
                "video_attn_type": "spatial_temporal",
                "pos_emb_type": "divided_fixed",
                "init_pos_emb_height": 8,
                "init_pos_emb_width": 8,
                "init_pos_emb_time": 4,
                "mm_hidden_size": self.hidden_size,  # columns of the projector's output
                "projector_ln_eps": 1e-5,
            },
            text_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1, "vocab_size": 99},
            media_placeholder_token_id=98,
        )

    def sessions(self) -> tuple[Session, ...]:
        def case(name: str, *items: Item) -> Case:
            return Case(name, self.modalities[0], items)

        cases = (
            case("a budget exactly full", (1, 16, 16)),
            case("one small image after large ones", (1, 4, 6)),
            case("mixed sizes", (1, 4, 6), (1, 12, 8), (1, 2, 2)),
            case("mixed sizes, reversed", (1, 2, 2), (1, 12, 8), (1, 4, 6)),
            case("more items than one batch", (1, 6, 6), (1, 10, 4), (1, 2, 8), (1, 8, 8), (1, 4, 4)),
            case("a chunk of a video", (3, 6, 4)),
            case("images and chunks", (1, 4, 4), (4, 2, 6), (1, 6, 2)),
            case("an image above all budgets", (1, 24, 24)),
            case("a chunk above all budgets among others", (1, 4, 4), (4, 12, 12), (1, 6, 4)),
            case("long and narrow", (1, 2, 60), (1, 60, 2)),
        )
        several = one_to_eight(
            "items", **{self.modalities[0]: tuple((1 + i % 2, 4, 2 + 2 * (i % 3)) for i in range(6))}
        )
        return (
            Session("budgets 16, 32, 64; 3 items", (16, 32, 64), 3, 0, cases),
            Session("budget 64; 8 items", (64,), 8, 0, several),
            Session("budgets 20, 64; 4 items", (20, 64), 4, 0, cases),
        )


RECIPE = KimiK25()
