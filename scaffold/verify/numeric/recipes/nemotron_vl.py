"""Llama Nemotron Nano VL: tiles through a tower that checkpoints bring as remote code, here vLLM's own RADIO."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes import internvl
from scaffold.verify.numeric.recipes.base import Session

#: The name of a tower with these sizes: width, layers, heads, width between the layers of its MLP.
_TOWER, _SIZES = "vit_of_the_lab", (48, 3, 3, 64)
_HIDDEN = 32


class _Radio(nn.Module):  # type: ignore[misc]
    """The tower of the checkpoints as their own code has it: its result has the features under a name."""

    def __init__(self) -> None:
        from vllm.model_executor.models.radio import RadioModel
        from vllm.transformers_utils.configs.radio import VIT_TIMM_DIM_BY_NAME, RadioConfig

        super().__init__()
        VIT_TIMM_DIM_BY_NAME[_TOWER] = _SIZES
        self.radio_model = RadioModel(RadioConfig(_TOWER, NemotronVL.SIDE, cpe_max_size=128, register_multiple=8))

    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        summary, features = self.radio_model(x)
        return SimpleNamespace(summary=summary, features=features)


class NemotronVL(type(internvl.RECIPE)):  # type: ignore[misc]
    """An item is its number of tiles; each gives 4 tokens."""

    module = "nemotron_vl"
    host_class = "LlamaNemotronVLChatModel"
    modalities = ("image",)
    hidden_size = _HIDDEN
    SIDE = _IMAGE_SIZE = 64
    _PATCH_SIZE = 16
    stand_ins = {  # noqa: RUF012
        "AutoModel": SimpleNamespace(from_config=lambda *args, **kwargs: _Radio()),
    }

    def model_config(self) -> Any:
        from transformers import PretrainedConfig  # the checkpoints bring their own class as remote code

        config = PretrainedConfig(
            force_image_size=self.SIDE,
            downsample_ratio=0.5,
            ps_version="v2",
            vit_hidden_size=_SIZES[0],
            projector_hidden_size=40,
        )
        config.vision_config = PretrainedConfig(patch_size=self._PATCH_SIZE, image_size=self.SIDE)
        config.text_config = PretrainedConfig(hidden_size=_HIDDEN, architectures=["LlamaForCausalLM"])
        return config

    def sessions(self) -> tuple[Session, ...]:
        return tuple(replace(session, max_frames=0) for session in super().sessions())


RECIPE = NemotronVL()
