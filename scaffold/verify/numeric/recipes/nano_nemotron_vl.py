"""Nemotron Nano VL: tiles of an image, and frames of a video that the model puts between embeddings of text."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes import internvl
from scaffold.verify.numeric.recipes.base import Item, LanguageModel, Session, stacked

#: The name of a tower with these sizes: width, layers, heads, width between the layers of its MLP.
_TOWER, _SIZES = "vit_of_the_lab", (48, 3, 3, 64)


class TextEmbeddings(LanguageModel):
    """The language model's first layer, which embeds the text between frames."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(dtype=torch.get_default_dtype())
        self.embed_tokens = nn.Embedding(99, NanoNemotronVL.hidden_size)
        self.model = SimpleNamespace(embed_tokens=self.embed_tokens)

    def embed_input_ids(self, ids: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.embed_tokens(ids)
        return embeddings


class Tokenizer:
    """One token a word. Only the context of an image has the first."""

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return [0 if word == "<image>" else 1 + sum(word.encode()) % 98 for word in text.split()]

    def __call__(self, texts: Sequence[str], **kwargs: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [self.encode(text) for text in texts]}


class NanoNemotronVL(type(internvl.RECIPE)):  # type: ignore[misc]
    """An item is its number of tiles (an image) or frames (a video); the captured call gives 4 features for each."""

    module = "nano_nemotron_vl"
    host_class = "NemotronH_Nano_VL_V2"
    stand_ins: Mapping[str, Any] = {
        "init_vllm_registered_model": TextEmbeddings,
        "cached_tokenizer_from_config": lambda config: Tokenizer(),
    }

    SIDE = 64

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        from scaffold.verify.numeric.automatic.host import leave_out_bfloat16

        module = sys.modules[self.load_class().__module__]
        # The model asks for its tokenizer when it embeds a video, too, and rounds features to bfloat16.
        vars(module).update(self.stand_ins)
        leave_out_bfloat16(self.load_class())
        host, config = super().build(host_class)
        return host, config

    @cache  # noqa: B019 - one recipe a process
    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code
        from vllm.transformers_utils.configs import radio

        radio.VIT_TIMM_DIM_BY_NAME[_TOWER] = _SIZES
        config = PretrainedConfig(
            force_image_size=self.SIDE,
            patch_size=16,
            downsample_ratio=0.5,
            template="",
            ps_version="v2",
            image_tag_type="internvl",
            vit_hidden_size=_SIZES[0],
            projector_hidden_size=40,
            norm_mean=[0.48, 0.46, 0.41],
            norm_std=[0.27, 0.26, 0.28],
            use_thumbnail=True,
        )
        config.vision_config = PretrainedConfig(
            args={"model": _TOWER, "cpe_max_size": 128, "register_multiple": 8, "teachers": []},
            patch_size=16,
            preferred_resolution=[self.SIDE, self.SIDE],
        )
        config.text_config = PretrainedConfig(hidden_size=self.hidden_size, architectures=["NemotronHForCausalLM"])
        return config

    def fields(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        processor = object.__new__(self.load_class()._processor_factory.processor)
        processor.info = SimpleNamespace(is_dynamic_tiler=False, supports_video=True, supports_audio=False)
        fields: Mapping[str, Any] = processor._get_mm_fields_config(inputs, {})
        return fields

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        tiles = torch.randn(sum(items), 3, self.SIDE, self.SIDE, generator=generator)
        if modality == "image":
            return {"pixel_values_flat": tiles, "image_num_patches": torch.tensor(items)}
        return {
            "pixel_values_flat_video": tiles,
            "video_num_patches": torch.tensor(items),
            "frames_indices": stacked([torch.arange(frames) for frames in items]),
            "frame_duration_ms": torch.tensor([500] * len(items)),
        }

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        if modality != "image":
            return None  # the processor has no field for `video_embeds`
        # Before 0.30 the model asks a tensor whether it is true.
        return {"image_embeds": [torch.randn(7, self.hidden_size, generator=generator) for _ in items]}

    def sessions(self) -> tuple[Session, ...]:
        return tuple(replace(session, max_frames=None) for session in super().sessions()[:2])

    def edge_sessions(self) -> tuple[Session, ...]:
        return ()


RECIPE = NanoNemotronVL()
