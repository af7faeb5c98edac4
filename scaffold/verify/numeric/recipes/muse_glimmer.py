"""Muse Glimmer: packed patches of images, whose layers attend to the whole image or to windows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaffold.verify.numeric.recipes.base import Case, Session
from scaffold.verify.numeric.recipes.packed import MERGE, PATCH, TEMPORAL_PATCH, PackedGrid

#: Patches on a side of a window.
WINDOW = 16


class MuseGlimmer(PackedGrid):
    """Images only, as the rows of a graph are. One of several windows is the model's own."""

    module = "muse_glimmer"
    host_class = "MuseGlimmerForCausalLM"
    modalities = ("image",)
    has_edges = False
    takes_embeds = False  # the model takes pixels only

    def model_config(self) -> Any:
        from transformers import MuseGlimmerConfig

        width = 48
        return MuseGlimmerConfig(
            vision_config={
                "hidden_size": width,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "layer_types": ["full_attention", "sliding_attention"],
                "patch_size": PATCH,
                "patch_temporal": TEMPORAL_PATCH,
                "merge_size": MERGE,
                "pos_emb_height": WINDOW,
                "pos_emb_width": WINDOW,
            },
            text_config={"hidden_size": self.hidden_size, "num_hidden_layers": 1, "vocab_size": 99},
            out_hidden_size=width * MERGE**2,
            projector_hidden_size=40,
        )

    def sessions(self) -> tuple[Session, ...]:
        return tuple(
            replace(session, cases=tuple(map(_judged, session.cases)), max_frames=0) for session in super().sessions()
        )


def _judged(case: Case) -> Case:
    """A batch with an image of several windows goes to the model's own code."""
    windows = any(h > WINDOW or w > WINDOW for _, h, w in case.items)
    return replace(case, may_go_eager=case.may_go_eager or windows)


RECIPE = MuseGlimmer()
