"""Finds configurations that no encoder graph can serve. Every image then runs eager, and the counters tell why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scaffold.runtime.vllm.model import attention_backend
from scaffold.runtime.vllm.settings import SOUND

#: Attention backends whose variable-length path reads lengths on the host in every call.
UNCAPTURABLE_BACKENDS = ("TORCH_SDPA",)


@dataclass(frozen=True, slots=True)
class Refusal:
    """`reason` is its name in the statistics, `why` a sentence with the way out. `tunable`: the tower may be tuned."""

    reason: str
    why: str
    tunable: bool = True


def refusal_of(vllm_config: Any, model: Any, modalities: Sequence[str]) -> Refusal | None:
    """Why this model can have no graphs with this configuration; None if it can.

    `modalities` are those that the model says have graphs.
    """
    sound = list(modalities) == [SOUND]
    missing = left_out(model, sound=sound)
    if missing is not None:
        limit = "sounds" if sound else "images"
        return Refusal("no-tower", f"vLLM left {missing} out of this model (a limit of 0 {limit})", tunable=False)
    if not modalities:
        return Refusal("no-modality", "with this configuration the model itself turns graphs off for every modality")
    lora = getattr(vllm_config, "lora_config", None)
    if getattr(lora, "enable_tower_connector_lora", False):
        return Refusal(
            "lora",
            "LoRA is enabled for the vision tower (enable_tower_connector_lora): vLLM maps adapters to images in the "
            "order of the batch, and a graph holds neither that mapping nor that order",
            tunable=False,
        )
    backend = attention_backend(model)
    if backend in UNCAPTURABLE_BACKENDS:
        return Refusal(
            "attention-backend",
            f"the attention backend {backend} reads sequence lengths on the host and cannot be captured; choose "
            "FLASH_ATTN, FLASHINFER or TRITON_ATTN with mm_encoder_attn_backend",
        )
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    if any(getattr(module, "_fp8_dynamic_scale", False) for module in modules):
        return Refusal(
            "fp8-dynamic-scale",
            "FP8 attention in the tower finds its scales on the host (mm_encoder_attn_dtype without "
            "mm_encoder_fp8_scale_path) and cannot be captured; give a file of scales",
        )
    return None


def left_out(model: Any, *, sound: bool = False) -> str | None:
    """The name of a tower that vLLM left out: limits of 0, text only, or a later pipeline stage. None if all are there.

    Without its language model (an instance that only encodes), or without ears, a model encodes images as ever, and
    `sound` without eyes.
    """
    others = ("language_model", "vision_tower" if sound else "audio_tower")
    for name, module in model.named_modules() if isinstance(model, torch.nn.Module) else ():
        if type(module).__name__ == "StageMissingLayer" and module.stage_name not in others:
            return str(name)
    return None
