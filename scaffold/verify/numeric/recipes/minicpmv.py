"""MiniCPM-V: slices of about one area and any shape, whose patches a resampler turns into a few tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch

from scaffold.verify.numeric.host import LanguageModel
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TOWER, Case, Item, Recipe, Session, stacked

#: The side of a patch, and the patches along a side of the square of which each slice has about the area.
_PATCH, _SIDE = 2, 4
#: Rows of one unit of a graph: the longest slice with graphs.
_ROWS = _SIDE * (_SIDE + 1)
#: More tokens than any budget: what an item counts that has a longer slice.
_NO_GRAPH = 10**6
_LANGUAGE_MODELS = ("LlamaForCausalLM", "MiniCPMForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class MiniCPMV(Recipe):
    """An item is the slices of an image, or the frames of a video, each by height and width in patches.

    The host is what makes an object of a version's class.
    """

    module = "minicpmv"
    host_class = "MiniCPMV"
    port_class = "MiniCPMVBaseModel"
    #: Attention of the resampler has a head for each 128.
    hidden_size = 128
    min_budget = _ROWS
    embeds_rows = 7
    stand_ins = dict.fromkeys(_LANGUAGE_MODELS, LanguageModel)

    no_embeds = MappingProxyType({"video": "up to 0.29 the model does not find them"})

    def __init__(self, version: float) -> None:
        self.version = version

    def model_config(self) -> Any:
        from transformers import Idefics2Config, PretrainedConfig

        vision = Idefics2Config().vision_config
        vision.update({**TOWER, "image_size": 2 * _SIDE * _PATCH, "patch_size": _PATCH})
        config = PretrainedConfig(
            version=self.version,
            hidden_size=self.hidden_size,
            vocab_size=99,
            image_size=_SIDE * _PATCH,
            query_num=4,
            drop_vision_last_layer=False,
        )
        config.vision_config = vision
        return config

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        pixels = [
            [torch.randn(3, _PATCH, _PATCH * height * width, generator=generator) for height, width in slices]
            for slices in items
        ]
        sizes = [(_PATCH * slices[0][1], _PATCH * slices[0][0]) for slices in items]
        prefix = "" if modality == "image" else "video_"
        return {
            f"{prefix}pixel_values": pixels,
            f"{prefix}image_sizes": torch.tensor(sizes),
            f"{prefix}tgt_sizes": stacked([torch.tensor(slices) for slices in items]),
        }

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        module = sys.modules[self.load_class().__module__]
        if modality == "video" and not hasattr(module, "_image_kwargs_from_video"):
            return None
        return super().embeds_inputs(modality, items, generator)

    def tokens(self, modality: str, item: Item) -> int:
        return _ROWS * len(item) if all(height * width <= _ROWS for height, width in item) else _NO_GRAPH

    def sessions(self) -> tuple[Session, ...]:
        small, square, longest = ((2, 3),), ((4, 4),), ((5, 4),)
        wide, tall, strip = ((3, 6), (4, 4), (4, 4)), ((6, 3), *((5, 4),) * 4), ((1, 16), (2, 8))
        clip, long_clip, short = ((3, 5),) * 3, ((4, 4),) * 5, ((1, 3),)
        many = (small, tall, wide, longest, strip, square)
        images = calls.usual("image", (wide, square), small, (small, tall, strip), many)
        several = (clip, long_clip, short, clip, long_clip)
        videos = calls.usual("video", (long_clip, clip), ((2, 2),), (clip, short, long_clip), several)
        mixes = calls.in_turn(images, videos)
        further = (
            Case("no padding", "image", (square, ((2, 8), (8, 2)))),
            Case("slices as long as a graph's", "image", (longest, ((2, 10), (4, 5)))),
            Case("a slice longer than a graph's", "image", (((3, 7),), ((4, 4), (2, 12)))),
            Case("longer slices among others", "image", (small, ((4, 4), (2, 12)), square), may_go_eager=True),
            Case("frames longer than a graph's", "video", (((6, 4),) * 2,)),
        )
        above = calls.above("image", ((4, 4),) * 9, small, wide, among=((3, 5),) * 9)
        above += (Case("an item above all budgets", "video", (((4, 4),) * 9,)),)
        counts = calls.one_to_eight(**dict.fromkeys(self.modalities, (longest, small, square)))
        return (
            calls.manager((_ROWS, 4 * _ROWS, 8 * _ROWS), 4, (*mixes, *further), None),
            calls.manager((3 * _ROWS, 6 * _ROWS + 7), 2, (*above, *mixes[1:8]), None),
            calls.manager((8 * _ROWS,), 8, counts, None),
        )


RECIPE = MiniCPMV(2.6)
