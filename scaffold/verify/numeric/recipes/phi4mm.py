"""Phi-4-multimodal: crops of 256 features with a mask, as many for each image of a batch as the largest has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.host import LanguageModel
from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import TOWER, Case, Item, Recipe, Session, stacked


def small_tower(layer_idx: int = -1, **kwargs: Any) -> nn.Module:
    from transformers import SiglipVisionConfig
    from vllm.model_executor.models.idefics2_vision_model import Idefics2VisionTransformer

    config = SiglipVisionConfig(**(TOWER | {"num_hidden_layers": 1}), image_size=448, patch_size=14)
    return Idefics2VisionTransformer(config=config, require_post_norm=False, num_hidden_layers_override=1)


class Phi4MM(Recipe):
    """An item is a grid of crops, and the height and width in patches of what is no padding in it."""

    module = "phi4mm"
    host_class = "Phi4MMForCausalLM"
    modalities = ("image",)
    min_budget = 256
    stand_ins = {"get_navit_vision_model": small_tower, "AudioEmbedding": LanguageModel}  # noqa: RUF012

    def model_config(self) -> Any:
        from transformers import PretrainedConfig

        return PretrainedConfig(
            hidden_size=self.hidden_size,
            vocab_size=99,
            tie_word_embeddings=False,
            img_processor={"layer_idx": 0},
            embd_layer={"audio_embd_layer": {"embedding_cls": "audio"}},
            _name_or_path="",
        )

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        pixels, masks, counts = [], [], []
        for rows, columns, height, width in items:
            pixels.append(torch.randn(rows * columns + 1, 3, 448, 448, generator=generator))
            whole = torch.zeros(rows * 32, columns * 32)
            whole[:height, :width] = 1
            crops = whole.view(rows, 32, columns, 32).transpose(1, 2).reshape(-1, 32, 32)
            masks.append(torch.cat([torch.ones(1, 32, 32), crops]))
            counts.append(int(masks[-1][:, ::2, ::2].sum()) + 16 + (height + 1) // 2 + 1)
        sizes = torch.tensor([(rows * 448, columns * 448) for rows, columns, *_ in items])
        return {
            "input_image_embeds": stacked(pixels),
            "image_sizes": sizes,
            "image_attention_mask": stacked(masks),
            "num_img_tokens": counts,
        }

    def tokens(self, modality: str, item: Item) -> int:
        return 256 * int(item[0] * item[1] + 1)

    def sessions(self) -> tuple[Session, ...]:
        small, wide = (1, 1, 32, 30), (1, 2, 32, 50)
        cases = (
            Case("one image", "image", (wide,)),
            Case("as many crops each", "image", (wide, (2, 1, 64, 32), (1, 2, 30, 64))),
            Case("padded", "image", (small, wide)),
            Case("padded, reversed", "image", (wide, small)),
        )
        return (calls.manager((768, 1536), 4, cases),)


RECIPE = Phi4MM()
