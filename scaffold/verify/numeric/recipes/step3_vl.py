"""Step3-VL: one global tile per image and a number of local tiles, each with its own resolution and graph."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from scaffold.verify.numeric import edges
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session


class Step3VL(Recipe):
    """An item is its number of local tiles, 0 included: 9 tokens for the image and 4 for each tile.

    The local tile's side of 504 pixels is a constant of the model, so patches are large instead: 10 by 10 of them in an
    image and 6 by 6 in a tile.
    """

    module = "step3_vl"
    host_class = "Step3VLForConditionalGeneration"
    modalities = ("image",)
    min_budget = 9

    _PATCH = 84
    _TILE = 504
    _IMAGE = 840

    def model_config(self) -> Any:
        from transformers import PretrainedConfig
        from vllm.transformers_utils.configs.step3_vl import Step3VisionEncoderConfig

        config = PretrainedConfig(
            understand_projector_stride=2, projector_bias=True, hidden_size=self.hidden_size, image_token_id=5
        )
        config.vision_config = Step3VisionEncoderConfig(
            hidden_size=32,
            intermediate_size=48,
            output_hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=self._IMAGE,
            patch_size=self._PATCH,
        )
        config.text_config = PretrainedConfig(vocab_size=64, hidden_size=self.hidden_size)
        return config

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {
            "pixel_values": torch.randn(len(items), 3, self._IMAGE, self._IMAGE, generator=generator),
            "patch_pixel_values": torch.randn(sum(items), 3, self._TILE, self._TILE, generator=generator),
            "num_patches": torch.tensor(items),
        }

    def tokens(self, modality: str, item: Item) -> int:
        return 9 + 4 * int(item)

    def sessions(self) -> tuple[Session, ...]:
        cases = (
            *calls.usual("image", (2, 1, 2), 1, (0, 3), (1, 0, 2, 3, 0)),
            Case("no local tiles", "image", (0, 0)),
            Case("as many local tiles as fit", "image", (9,)),
            # Only its local tiles exceed a budget; its global tile may still be replayed.
            Case("an image above all budgets", "image", (14,), may_go_eager=True),
            Case("images around one above all budgets", "image", (1, 14, 0), may_go_eager=True),
        )
        # A budget for local tiles alone: every global tile is eager, local tiles are both.
        small = (
            Case("no local tiles", "image", (0,), may_go_eager=True),
            Case("eager on one path, then on both", "image", (0, 2, 3), may_go_eager=True),
        )
        several = calls.one_to_eight(image=(0, 1, 0, 1, 1, 0, 1, 0))
        return (
            calls.manager((18, 48), 3, cases),
            calls.manager((104,), 8, several),
            calls.manager((8,), 1, small),
        )

    def edge_sessions(self) -> tuple[Session, ...]:
        processor = import_module("vllm.transformers_utils.processors.step3_vl")
        patcher = processor.ImagePatcher()
        sides = range(self._TILE // 4, processor.MAX_IMAGE_SIZE + self._TILE, self._TILE // 4)
        counts = {patcher.get_num_patches(width, height)[0] for width in sides for height in sides}
        # Not each of them: a tile has 504 x 504 pixels.
        few = (min(counts), max(counts - {max(counts)}), max(counts))
        found = edges.TileRange("image", few, edges.where(processor.ImagePatcher.get_num_patches))
        tokens = self.tokens("image", 1) - self.tokens("image", 0)
        return edges.tile_sessions((found,), lambda count: self.tokens("image", count), tokens, several_paths=True)


RECIPE = Step3VL()
