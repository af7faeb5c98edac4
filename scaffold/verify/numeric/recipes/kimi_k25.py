"""Kimi-K2.5: packed patches through MoonViT in three dimensions; images and chunks of videos are one modality."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Session
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
        modality = self.modalities[0]
        many = ((1, 6, 6), (1, 10, 4), (1, 2, 8), (1, 8, 8), (1, 4, 4))
        cases = (
            *calls.usual(modality, ((1, 16, 16),), (1, 4, 6), ((1, 4, 6), (1, 12, 8), (1, 2, 2)), many),
            Case("a chunk of a video", modality, ((3, 6, 4),)),
            Case("images and chunks", modality, ((1, 4, 4), (4, 2, 6), (1, 6, 2))),
            *calls.above(modality, (1, 24, 24), (1, 4, 4), (1, 6, 4), among=(4, 12, 12)),
            Case("long and narrow", modality, ((1, 2, 60), (1, 60, 2))),
        )
        several = calls.one_to_eight(**{modality: tuple((1 + i % 2, 4, 2 + 2 * (i % 3)) for i in range(6))})
        managers = (((16, 32, 64), 3, cases), ((64,), 8, several), ((20, 64), 4, cases))
        return tuple(calls.manager(*one) for one in managers)


RECIPE = KimiK25()
