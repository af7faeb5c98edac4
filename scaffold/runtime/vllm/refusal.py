"""Finds configurations that no encoder graph can serve. Every image then runs eager, and the counters tell why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scaffold.runtime.tuning.tower import tower_modules
from scaffold.runtime.vllm.model import attention_backend
from scaffold.runtime.vllm.settings import SOUND

#: Attention backends whose variable-length path reads lengths on the host in every call.
UNCAPTURABLE_BACKENDS = ("TORCH_SDPA",)

#: vLLM's linear layers whose weights are split over ranks, unless a model says `disable_tp`; others derive from them.
_SHARDED_LINEARS = {"ColumnParallelLinear", "RowParallelLinear"}


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
    shared = shared_layer(model, sound=sound) if shards_items(vllm_config) else None
    if shared is not None:
        return Refusal(
            "shared-layer",
            f"ranks share the layer {shared}, so none can encode items of its own, as mm_encoder_tp_mode=data asks; "
            "mm_encoder_tp_mode=weights has graphs",
        )
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    if any(getattr(module, "_fp8_dynamic_scale", False) for module in modules):
        return Refusal(
            "fp8-dynamic-scale",
            "FP8 attention in the tower finds its scales on the host (mm_encoder_attn_dtype without "
            "mm_encoder_fp8_scale_path) and cannot be captured; give a file of scales",
        )
    return None


def shards_items(vllm_config: Any) -> bool:
    """Whether each rank encodes items of its own (`mm_encoder_tp_mode=data`)."""
    multimodal = getattr(getattr(vllm_config, "model_config", None), "multimodal_config", None)
    return (
        getattr(multimodal, "mm_encoder_tp_mode", None) == "data"
        and vllm_config.parallel_config.tensor_parallel_size > 1
    )


def shared_layer(model: Any, *, sound: bool = False) -> str | None:
    """The first layer between an item and its embeddings whose weights lie on several ranks, None if none does.

    vLLM makes a tower whole on each rank where items are shared, but not every projector behind one: Llama 4's gathers
    columns, and Isaac's adds up rows, of whatever the ranks compute at that moment.
    """
    for name, module in tower_modules(model, sound).items():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        is_head = name.partition(".")[0] == "score"  # vLLM's name for what a classifier puts behind the language model
        if kinds & _SHARDED_LINEARS and module.tp_size > 1 and not is_head:
            return name
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
