"""Cosmos 3 Edge, tiny: rows of patches through SigLIP 2, which gets the longest image as a tensor of one entry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from scaffold.verify.numeric.recipes.base import TOWER
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, PackedGrid


class Cosmos3Edge(PackedGrid):
    """Images only. The processor's sizes are the automatic recipe's business."""

    module = "cosmos3_edge"
    host_class = "Cosmos3EdgeForConditionalGeneration"
    modalities = ("image",)
    patch = (CHANNELS * PATCH * PATCH,)
    has_edges = False

    def model_config(self) -> Any:
        from transformers import PretrainedConfig, Siglip2VisionConfig

        vision = Siglip2VisionConfig(**TOWER, num_patches=64, patch_size=PATCH)
        vision.spatial_merge_size = MERGE
        text = PretrainedConfig(hidden_size=self.hidden_size)
        return SimpleNamespace(vision_config=vision, text_config=text, projector_hidden_size=40)


RECIPE = Cosmos3Edge()
