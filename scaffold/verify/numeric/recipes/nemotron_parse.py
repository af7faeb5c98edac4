"""Nemotron Parse: one image of a fixed size through RADIO, whose features a neck joins by fours, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Item
from scaffold.verify.numeric.recipes.one_image import OneImage

#: The name of a tower with these sizes. Its width is in the neck's code.
_TOWER, _SIZES = "vit_of_the_lab", (1280, 1, 8, 64)


class NemotronParse(OneImage):
    """The neck's code has the widths of tower and decoder, which are those of the checkpoint here."""

    module = "nemotron_parse"
    host_class = "NemotronParseForConditionalGeneration"
    configuration = "PretrainedConfig"  # the checkpoint brings its own class as remote code
    hidden_size = 1024
    embeds_rows = 0  # the model refuses them
    #: Height and width: patches of 16, of which four beside each other are a feature.
    IMAGE = (48, 128)
    FEATURES = 3 * 2 + 1
    min_budget = FEATURES

    def parts(self) -> dict[str, Any]:
        from transformers import BartConfig, PretrainedConfig
        from vllm.transformers_utils.configs import radio

        radio.VIT_TIMM_DIM_BY_NAME[_TOWER] = _SIZES
        teachers = [{"name": name} for name in ("first", "second", "third")]
        arguments = {"model": _TOWER, "cpe_max_size": 128, "cls_token_per_teacher": True, "teachers": teachers}
        decoder = BartConfig(d_model=self.hidden_size, vocab_size=99, tie_word_embeddings=False)
        encoder = PretrainedConfig(patch_size=16, args=arguments)
        return {"image_size": list(self.IMAGE), "encoder": encoder, "decoder": decoder, "tie_word_embeddings": False}

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {"pixel_values": torch.randn(len(items), 3, *self.IMAGE, generator=generator)}


RECIPE = NemotronParse()
