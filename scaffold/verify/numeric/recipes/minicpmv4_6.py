"""MiniCPM-V 4.6: slices of an image, whose patches a merger between two layers makes a quarter of, or leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TOWER, Case, Item, Recipe, Session, stacked

#: The side of a patch, and the patches along a side of the square of which each slice has about the area.
_PATCH, _SIDE = 2, 8
#: More tokens than any budget: what an item counts that has a longer slice.
_NO_GRAPH = 10**6
#: Slices by height and width in patches, after which the merger runs or not.
_MERGED, _WHOLE = True, False


class MiniCPMV46(Recipe):
    """An item is whether the merger runs between the layers, and slices of an image or frames of a video."""

    module = "minicpmv4_6"
    host_class = "MiniCPMV4_6ForConditionalGeneration"
    embeds_rows = 7
    #: Rows of one unit of a graph, and a slice of so many.
    rows, longest = _SIDE * (_SIDE + 1), (6, 12)

    @property
    def min_budget(self) -> int:  # type: ignore[override]
        return self.rows

    def model_config(self) -> Any:
        from transformers import MiniCPMV4_6Config

        config = MiniCPMV4_6Config(
            insert_layer_id=0, image_size=_SIDE * _PATCH, patch_size=_PATCH, drop_vision_last_layer=False
        )
        config.vision_config.update(
            {**TOWER, "num_hidden_layers": 3, "image_size": _SIDE * _PATCH, "patch_size": _PATCH}
        )
        config.text_config.hidden_size = self.hidden_size
        return config

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        prefix = "" if modality == "image" else "video_"
        pixels = []
        for _, slices in items:
            longest = max(height * width for height, width in slices)
            own = torch.zeros(len(slices), 3, _PATCH, _PATCH * longest)
            for index, (height, width) in enumerate(slices):
                size = (3, _PATCH, _PATCH * height * width)
                own[index, ..., : size[-1]] = torch.randn(size, generator=generator)
            pixels.append(own)
        return {
            f"{prefix}pixel_values": stacked(pixels),
            f"{prefix}tgt_sizes": stacked([torch.tensor(slices) for _, slices in items]),
            f"{prefix}use_vit_merger": torch.tensor([[merged] for merged, _ in items]),
        }

    def tokens(self, modality: str, item: Item) -> int:
        return self.rows * len(item[1]) if all(height * width <= self.rows for height, width in item[1]) else _NO_GRAPH

    def sessions(self) -> tuple[Session, ...]:
        rows = self.rows
        small, square = (_MERGED, ((4, 4),)), (_MERGED, ((8, 8),))
        wide, tall = (_MERGED, ((4, 12), (8, 8), (8, 8))), (_WHOLE, ((12, 4), (8, 8)))
        strip, fine = (_MERGED, ((4, 16), (4, 8))), (_WHOLE, ((2, 6),))
        clip, long_clip, whole_clip = (_MERGED, ((4, 8),) * 3), (_MERGED, ((8, 8),) * 5), (_WHOLE, ((6, 4),) * 2)
        many = (small, tall, wide, strip, square)
        images = calls.usual("image", (wide, square), small, (small, wide, strip), many)
        several = (clip, long_clip, small, clip, long_clip)
        videos = calls.usual("video", (long_clip, clip), small, (clip, whole_clip, long_clip), several)
        mixes = calls.in_turn(images, videos)
        longer = (_WHOLE, ((8, 8), (4, 20)))
        further = (
            Case("patches that are not merged", "image", (tall,)),
            Case("merged and not merged", "image", (wide, tall, small, fine)),
            Case("videos, merged and not merged", "video", (clip, whole_clip)),
            Case("no padding", "image", (square, (_MERGED, ((8, 8), (4, 16))))),
            Case("a slice as long as a graph's", "image", ((_WHOLE, (self.longest,)),)),
            Case("a slice longer than a graph's", "image", ((_WHOLE, ((8, 10),)), longer)),
            Case("longer slices among others", "image", (small, longer, square), may_go_eager=True),
            Case("frames longer than a graph's", "video", ((_WHOLE, ((8, 10),) * 2),)),
        )
        above = calls.above("image", (_MERGED, ((8, 8),) * 9), small, wide, among=(_MERGED, ((4, 8),) * 9))
        above += (Case("an item above all budgets", "video", ((_MERGED, ((8, 8),) * 9),)),)
        counts = calls.one_to_eight(**dict.fromkeys(self.modalities, (fine, small, square)))
        return (
            calls.manager((rows, 4 * rows, 8 * rows), 4, (*mixes, *further), None),
            calls.manager((3 * rows, 6 * rows + 7), 2, (*above, *mixes[1:8], *further[:2]), None),
            calls.manager((8 * rows,), 8, counts, None),
        )


RECIPE = MiniCPMV46()
