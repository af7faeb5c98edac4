"""The common parts of the three packed-grid models: rows of patches, a grid per item, one sequence per frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric import edges
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session

PATCH = 4
CHANNELS = 3
TEMPORAL_PATCH = 2
MERGE = 2
#: Tiny sizes of a tower, by the names of Qwen2-VL's configuration.
GRID_TOWER = {
    "num_heads": 2,
    "in_channels": CHANNELS,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": TEMPORAL_PATCH,
}


class PackedGrid(Recipe):
    """An item is its grid `(t, h, w)` in patches; `t` is 1 for an image. It gives `t * h * w / 4` tokens."""

    min_budget = 64
    #: The axes of a patch behind that of the rows, the name of the grids, and how many of their last numbers it has.
    patch: tuple[int, ...] = (CHANNELS * TEMPORAL_PATCH * PATCH * PATCH,)
    grid, axes = "{modality}_grid_thw", 3
    #: Whether the model takes precomputed embeddings, and the release has a function of sizes with its defaults.
    takes_embeds = has_edges = True

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        rows = sum(t * h * w for t, h, w in items)
        patches = torch.randn(rows, *self.patch, generator=generator)
        suffix = "_videos" if modality == "video" else ""
        grids = _grids(items)[:, -self.axes :].contiguous()
        inputs = {f"pixel_values{suffix}": patches, self.grid.format(modality=modality): grids}
        if modality == "video":
            inputs["second_per_grid_ts"] = torch.ones(len(items))
        return inputs

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        if not self.takes_embeds:
            return None
        rows = sum(self.tokens(modality, item) for item in items)
        embeds = torch.randn(rows, self.embeds_width(), generator=generator)
        return {f"{modality}_embeds": embeds, f"{modality}_grid_thw": _grids(items)}

    def embeds_width(self) -> int:
        """Columns of one embedding row."""
        return self.hidden_size

    def tokens(self, modality: str, item: Item) -> int:
        t, h, w = item
        return int(t * (h // MERGE) * (w // MERGE))

    def sessions(self) -> tuple[Session, ...]:
        many = ((1, 6, 6), (1, 10, 4), (1, 2, 8), (1, 8, 8), (1, 4, 4))
        image = (
            *calls.usual("image", ((1, 16, 16),), (1, 4, 6), ((1, 4, 6), (1, 12, 8), (1, 2, 2)), many),
            Case("an item above all budgets", "image", ((1, 24, 24),)),
            Case("items above all budgets among others", "image", ((1, 4, 4), (1, 20, 18), (1, 6, 4), (1, 30, 12))),
            Case("long and narrow", "image", ((1, 2, 60), (1, 60, 2))),
        )
        many = ((2, 4, 4), (3, 4, 4), (1, 6, 4), (2, 6, 6), (5, 2, 4))
        video = (
            *calls.usual("video", ((4, 8, 8),), (1, 4, 4), ((2, 4, 6), (3, 6, 4), (1, 8, 4)), many),
            Case("an item above all budgets", "video", ((4, 12, 12),)),
            Case("more frames than any other", "video", ((6, 4, 4),)),
        )
        several = calls.one_to_eight(image=((1, 4, 2), (1, 4, 4), (1, 4, 6)), video=((2, 4, 2), (2, 4, 4), (2, 4, 6)))
        return (
            calls.manager((16, 32, 64), 3, calls.in_turn(image, video), 10),
            calls.manager((64,), 8, several, None),
            calls.manager((20, 64), 4, image),
            # Nine sequences or more: FlashInfer's offsets have room for sixteen, and those of a batch for eight.
            calls.manager((128,), 2, image + video, 12),
        )

    def edge_sessions(self) -> tuple[Session, ...]:
        if not self.has_edges:
            return ()
        host = self.load_class()
        resize = edges.function_of(host, "image_smart_resize", "smart_resize")
        frames = edges.where(edges.info_of(host)._get_vision_info) if "video" in self.modalities else ""
        return edges.grid_sessions(self.modalities, MERGE, edges.grid_range(resize), frames)

    def many_frames(self) -> Case | None:
        if "video" not in self.modalities:
            return None
        return Case("more frames than the capacity", "video", ((20, 2, 2), (2, 4, 4)), may_go_eager=True)


def _grids(items: Sequence[Item]) -> torch.Tensor:
    """One row per item; three columns also where there is none."""
    return torch.tensor(items, dtype=torch.int64).reshape(-1, 3)
