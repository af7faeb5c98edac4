"""MiniCPM-V: slices of an image of about one area and any shape, whose patches a resampler turns into a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Case, Item, LanguageModel, Recipe, Session, stacked

#: The side of a patch, and the patches along a side of the square of which each slice has about the area.
_PATCH, _SIDE = 2, 4
#: Rows of one unit of a graph: the longest slice with graphs.
_ROWS = _SIDE * (_SIDE + 1)
#: More tokens than any budget: what an item counts that has a longer slice.
_NO_GRAPH = 10**6
_LANGUAGE_MODELS = ("LlamaForCausalLM", "MiniCPMForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class MiniCPMV(Recipe):
    """An item is the slices of an image, each its height and width in patches. `MiniCPMV` makes the class of a version."""

    module = "minicpmv"
    host_class = "MiniCPMV"
    modalities = ("image",)
    #: Attention of the resampler has a head for each 128.
    hidden_size = 128
    min_budget = _ROWS
    stand_ins = dict.fromkeys(_LANGUAGE_MODELS, LanguageModel)  # noqa: RUF012

    def __init__(self, version: float) -> None:
        self.version = version

    def model_config(self) -> Any:
        from transformers import Idefics2Config, PretrainedConfig

        vision = Idefics2Config().vision_config
        vision.update(
            {
                "hidden_size": 48,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 3,
                "image_size": 2 * _SIDE * _PATCH,
                "patch_size": _PATCH,
            }
        )
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
        return {
            "pixel_values": pixels,
            "image_sizes": torch.tensor(sizes),
            "tgt_sizes": stacked([torch.tensor(slices) for slices in items]),
        }

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        return {"image_embeds": torch.randn(len(items), 7, self.hidden_size, generator=generator)}

    def tokens(self, modality: str, item: Item) -> int:
        return _ROWS * len(item) if all(height * width <= _ROWS for height, width in item) else _NO_GRAPH

    def sessions(self) -> tuple[Session, ...]:
        small, square, longest = ((2, 3),), ((4, 4),), ((5, 4),)
        wide, tall, strip = ((3, 6), (4, 4), (4, 4)), ((6, 3), *((5, 4),) * 4), ((1, 16), (2, 8))
        mixes = (
            Case("slices of several shapes", "image", (wide, square)),
            Case("one small slice after large ones", "image", (small,)),
            Case("mixed sizes", "image", (small, tall, strip)),
            Case("mixed sizes, reversed", "image", (strip, tall, small)),
            Case("no padding", "image", (square, ((2, 8), (8, 2)))),
            Case("slices as long as a graph's", "image", (longest, ((2, 10), (4, 5)))),
            Case("more images than one batch", "image", (small, tall, wide, longest, strip, square)),
        )
        above = (
            Case("an image above all budgets", "image", (((4, 4),) * 9,)),
            Case("an image above all budgets among others", "image", (small, ((3, 5),) * 9, wide)),
        )
        longer = (
            Case("a slice longer than a graph's", "image", (((3, 7),), ((4, 4), (2, 12)))),
            Case("longer slices among others", "image", (small, ((4, 4), (2, 12)), square), may_go_eager=True),
        )
        counts = tuple(
            Case(f"{count} images", "image", (small, square) * (count // 2) + (longest,) * (count % 2),
                 group="1 to 8 images")
            for count in range(1, 9)
        )  # fmt: skip
        return (
            Session(f"budgets {_ROWS}, {4 * _ROWS}, {8 * _ROWS}; 4 images",
                    (_ROWS, 4 * _ROWS, 8 * _ROWS), 4, 0, (*mixes, *longer)),
            Session(f"budgets {3 * _ROWS}, {6 * _ROWS + 7}; 2 images",
                    (3 * _ROWS, 6 * _ROWS + 7), 2, 0, (*above, *mixes[1:5])),
            Session(f"budget {8 * _ROWS}; 8 images", (8 * _ROWS,), 8, 0, counts),
        )  # fmt: skip


RECIPE = MiniCPMV(4.5)
