"""Gemma 4, tiny: patches of an image or a frame with their positions, padded to a fixed number."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, stacked

PATCH = 4
POOL = 2
#: Tokens of an image without padding. It is one of the numbers that the processor takes.
LENGTH = 140
#: Tokens of a frame without padding: the model's own, whatever its configuration.
FRAME = 70


class Gemma4(Recipe):
    """An item is its grid `(h, w)` of tokens, or one with another padding `(h, w, tokens)`.

    A video is its frames `(frames, h, w)`, or with another padding `(frames, h, w, tokens)`. Tokens of an image are
    its features before they are pooled, as a port counts them that has graphs of images alone. Others count fewer.
    """

    module = "gemma4_mm"
    host_class = "Gemma4ForConditionalGeneration"
    modalities: tuple[str, ...] = ("image", "video")
    min_budget = LENGTH

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
            position_embedding_size=64,
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
        if modality == "video":
            frames = [_unit((*frame, FRAME)[:3], generator) for count, *frame in items for _ in range(count)]
            pixels, places = zip(*frames, strict=True)
            return {
                "pixel_values_videos": torch.stack(pixels),
                "pixel_position_ids_videos": torch.stack(places),
                "video_frame_counts": torch.tensor([count for count, *_ in items]),
            }
        pixels, places = zip(*(_unit((*item, LENGTH)[:3], generator) for item in items), strict=True)
        return {"pixel_values": stacked(pixels), "pixel_position_ids": stacked(places)}

    def tokens(self, modality: str, item: Item) -> int:
        return int(item[0]) * FRAME if modality == "video" else LENGTH * POOL**2

    def sessions(self) -> tuple[Session, ...]:
        unit = LENGTH * POOL**2
        many = ((1, 5), (9, 15), (3, 2), (1, 1), (2, 2))
        images = (
            *calls.usual("image", ((10, 14), (14, 10)), (1, 1), ((1, 2), (10, 14), (2, 2)), many),
            Case("another padding", "image", ((7, 10, 70), (1, 2, 70)), may_go_eager=True),
            Case("another padding among others", "image", ((10, 14), (2, 2, 70)), may_go_eager=True),
        )
        clips = ((3, 7, 10), (2, 8, 8), (4, 1, 9), (1, 2, 2), (2, 6, 10))
        videos = (
            *calls.usual("video", ((2, 7, 10), (1, 10, 7)), (1, 1, 1), ((1, 2, 3), (4, 7, 10), (2, 5, 5)), clips),
            Case("one video with more features than budget", "video", ((30, 7, 9),)),
            *calls.above("video", (65, 2, 3), (1, 7, 10), (2, 4, 4)),
            Case("another padding", "video", ((2, 10, 14, 140), (1, 3, 3, 140)), may_go_eager=True),
        )
        cases = calls.in_turn(images, videos)
        return calls.manager((unit, 4 * unit), 3, cases, None), calls.manager((8 * unit,), 8, cases, None)


def _unit(size: Item, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches of an image of h x w tokens, and their places; both padded to the third number of tokens."""
    h, w, length = size
    count, whole = h * w * POOL**2, length * POOL**2
    pixels = torch.zeros(whole, 3 * PATCH**2)
    pixels[:count] = torch.rand(count, 3 * PATCH**2, generator=generator)
    places = torch.full((whole, 2), -1, dtype=torch.int64)
    places[:count] = torch.cartesian_prod(torch.arange(h * POOL), torch.arange(w * POOL)).flip(-1)
    return pixels, places


RECIPE = Gemma4()
