"""Molmo: crops of an image, two layers of whose tower are pooled, and an index table that orders what is pooled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Item, Recipe, Session

_PATCH, _SIDE = 14, 3
#: Patches of a crop, an odd square that the model pads, and places that they are pooled to.
_PATCHES, _PLACES = _SIDE**2, 4
#: The tower's sizes, which the module holds. The model takes its second last layer and its ninth last.
_TOWER = {
    "image_default_input_size": (_SIDE * _PATCH, _SIDE * _PATCH),
    "image_emb_dim": 48,
    "image_num_heads": 3,
    "image_num_key_value_heads": 3,
    "image_num_layers": 9,
    "image_mlp_dim": 64,
    "image_num_pos": 1 + _PATCHES,
}


class Molmo(Recipe):
    """An item is its number of crops. The pooling attends with torch's SDPA, outside of any graph."""

    module = "molmo"
    host_class = "MolmoForCausalLM"
    modalities = ("image",)
    min_budget = _PATCHES

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        names = vars(sys.modules[self.load_class().__module__])
        names["VisionBackboneConfig"] = partial(names["VisionBackboneConfig"], **_TOWER)
        host, config = super().build(host_class)
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        # One query has four keys there. With FlashAttention the release takes the offsets of queries for those of keys,
        # so that the embeddings of an image depend on its neighbours, and nothing could be compared.
        pooling = host.vision_backbone.image_pooling_2d.attn
        pooling.attn_backend, pooling.is_flash_attn_backend = AttentionBackendEnum.TORCH_SDPA, False
        return host, config

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code

        return PretrainedConfig(
            hidden_size=self.hidden_size, intermediate_size=80, embedding_size=99, vocab_size=99, weight_tying=False
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        crops = sum(items)
        images = torch.randn(crops, _PATCHES, 3 * _PATCH**2, generator=generator)
        for item in images.split(list(items)):
            item[2:3] = -1  # a crop of padding alone
        # A patch is of the image, partly of it, or of its padding.
        masks = torch.randint(0, 3, (crops, _PATCHES), generator=generator) / 2
        order = [torch.randperm(count * _PLACES, generator=generator).view(count, _PLACES) for count in items]
        for table in order:
            table[-1, -1] = -1  # a feature that no token stands for
        return {
            "images": images,
            "image_masks": masks,
            "image_input_idx": torch.cat(order),
            "num_crops": torch.tensor(items),
            "img_patch_id": torch.tensor(5),
        }

    def tokens(self, modality: str, item: Item) -> int:
        return _PATCHES * int(item)

    def sessions(self) -> tuple[Session, ...]:
        k = _PATCHES
        mixes = calls.usual("image", (5, 3), 1, (2, 4, 1), (3, 5, 1, 4, 2, 3))
        return (
            calls.manager((2 * k, 5 * k, 8 * k), 4, mixes),
            # The features of crops do not fill the first of these, nor a whole number of crops the second.
            calls.manager((k + 4, 6 * k + 1), 2, (*calls.above("image", 9, 2, 1), *mixes[1:])),
            calls.manager((16 * k,), 8, calls.one_to_eight(image=(1, 2))),
        )


RECIPE = Molmo()
