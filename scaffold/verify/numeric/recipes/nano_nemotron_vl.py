"""Nemotron Nano VL: tiles of an image, and frames of a video that the model puts between embeddings of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from scaffold.verify.numeric.recipes import internvl
from scaffold.verify.numeric.recipes.base import Item, Session, stacked

#: The name of a tower with these sizes: width, layers, heads, width between the layers of its MLP.
_TOWER, _SIZES = "vit_of_the_lab", (48, 3, 3, 64)


class NanoNemotronVL(type(internvl.RECIPE)):  # type: ignore[misc]
    """An item is its number of tiles (an image) or frames (a video); the captured call gives 4 features for each."""

    module = "nano_nemotron_vl"
    host_class = "NemotronH_Nano_VL_V2"

    SIDE = 64

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
