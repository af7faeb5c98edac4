"""Molmo 2: crops of images and frames of videos, whose patches an index table pools, between embeddings of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Item, Recipe, Session

_SIDE, _PATCH = 28, 14
#: Patches of a crop or frame.
_PATCHES = (_SIDE // _PATCH) ** 2
_WIDTH, _COLUMNS = 48, 32
#: The token that a pooled patch stands for.
_PATCH_TOKEN = 5


class Molmo2(Recipe):
    """An item is its number of crops or frames, and of places where patches are pooled: any of the item's own."""

    module = "molmo2"
    host_class = "Molmo2ForConditionalGeneration"
    modalities = ("image", "video")
    hidden_size = _COLUMNS
    min_budget = _PATCHES

    def model_config(self) -> Any:
        from transformers import PretrainedConfig

        heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16}
        vit = SimpleNamespace(
            hidden_size=_WIDTH,
            intermediate_size=64,
            num_hidden_layers=3,
            hidden_act="gelu_pytorch_tanh",
            layer_norm_eps=1e-6,
            image_default_input_size=(_SIDE, _SIDE),
            image_patch_size=_PATCH,
            image_num_pos=_PATCHES,
            **heads,
        )
        adapter = SimpleNamespace(
            vit_layers=(-1, -3),
            pooling_attention_mask=True,
            hidden_size=_WIDTH,
            hidden_act="silu",
            intermediate_size=64,
            text_hidden_size=_COLUMNS,
            **heads,
        )
        text = PretrainedConfig(hidden_size=_COLUMNS, vocab_size=99)
        config = PretrainedConfig(hidden_size=_COLUMNS, image_patch_id=_PATCH_TOKEN)
        config.vit_config, config.adapter_config, config.text_config = vit, adapter, text
        return config

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        crops, places = zip(*items, strict=True)
        suffix = "" if modality == "image" else "_videos"
        pooling = [self._pooling(count, spots, generator) for count, spots in items]
        # Text comes before the patches and after them, not as much for each item.
        tokens = [
            torch.tensor([1, 2, *[_PATCH_TOKEN] * count, *range(7, 8 + index)]) for index, count in enumerate(places)
        ]
        return {
            f"pixel_values{suffix}": torch.randn(sum(crops), _PATCHES, _PATCH**2 * 3, generator=generator),
            f"{modality}_token_pooling": torch.cat(pooling),
            f"{modality}_num_crops": torch.tensor(crops),
            f"{modality}_num_pooled_patches": torch.tensor(places),
            f"{modality}_num_patches": torch.tensor(crops) * _PATCHES,
            f"{modality}_tokens": torch.cat(tokens),
            f"num_{modality}_tokens": torch.tensor([len(token) for token in tokens]),
        }

    def _pooling(self, crops: int, places: int, generator: torch.Generator) -> torch.Tensor:
        """Four patches for each place, counted within the item; the last place has one, which is not there."""
        table = torch.randint(0, crops * _PATCHES, (places, 4), generator=generator)
        table[-1, -1] = -1
        return table

    def tokens(self, modality: str, item: Item) -> int:
        return _PATCHES * int(item[0])

    def sessions(self) -> tuple[Session, ...]:
        images = calls.usual(
            "image",
            ((5, 6), (3, 4)),
            (1, 1),
            ((2, 3), (4, 7), (1, 2)),
            ((3, 5), (5, 2), (1, 1), (4, 4), (2, 6), (3, 3)),
        )
        videos = calls.usual(
            "video", ((4, 4), (2, 5)), (1, 2), ((3, 2), (1, 1), (4, 9)), ((6, 2), (2, 2), (5, 3), (1, 4))
        )
        above = (calls.above("image", (9, 5), (2, 3), (1, 1))[0], calls.above("video", (9, 4), (2, 3), (1, 1))[1])
        mixed = calls.in_turn(images, videos)
        counts = calls.one_to_eight(**dict.fromkeys(self.modalities, ((1, 2), (2, 1), (1, 3))))
        return (
            calls.manager((8, 20, 32), 4, mixed, None),
            calls.manager((13, 24), 2, (*above, *mixed[2:8]), None),
            calls.manager((64,), 8, counts, None),
        )


RECIPE = Molmo2()
