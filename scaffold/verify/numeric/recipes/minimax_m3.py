"""MiniMax-M3: packed patches of images, a rotation in three dimensions, and a projector before patches are merged."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.recipes.base import TOWER
from scaffold.verify.numeric.recipes.packed import CHANNELS, MERGE, PATCH, TEMPORAL_PATCH, PackedGrid


class MiniMaxM3(PackedGrid):
    """Images only, as the rows of a graph are."""

    module = "vllm.models.minimax_m3.nvidia.model"
    host_class = "MiniMaxM3SparseForConditionalGeneration"
    modalities = ("image",)
    has_edges = False
    takes_embeds = False  # the model takes pixels only

    def load_class(self, host: str | None = None) -> type[nn.Module]:
        # A fusion of all-reduces asks for compiled operators when it is imported, and is optional. Before 0.27 the
        # release takes another error than this one for a bug.
        sys.modules["vllm.compilation.passes.fusion.allreduce_rms_fusion"] = None  # type: ignore[assignment]
        return super().load_class(host)

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        """Since 0.31 two Triton kernels compute the rotation, with nothing beside them for another device."""
        module = vars(sys.modules[self.load_class().__module__.replace("nvidia.model", "common.vision_tower")])
        if "VitMropeSetup" in module:
            module["VitMropeSetup"].forward = staticmethod(rotations)
        for name, reference in (("vit_mrope_setup", rotations), ("triton_mrope", rotate)):
            if name in module:
                module[name] = reference
        return super().build(host_class)

    def model_config(self) -> Any:
        from transformers import PretrainedConfig

        config = PretrainedConfig(projector_hidden_size=40)
        config.text_config = PretrainedConfig(hidden_size=self.hidden_size)
        config.vision_config = {
            **TOWER,
            "num_attention_heads": 2,
            "num_channels": CHANNELS,
            "patch_size": PATCH,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            "img_token_compression_config": {"spatial_merge_size": MERGE, "temporal_patch_size": TEMPORAL_PATCH},
        }
        return config


def rotations(
    t_rates: torch.Tensor, h_rates: torch.Tensor, w_rates: torch.Tensor, grid: list[list[int]], merge: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the angles of all patches, [3, patches, angles]: a plane holds those of its own axis only."""
    ends = [0]
    for rates in (t_rates, h_rates, w_rates):
        ends.append(ends[-1] + len(rates))
    items = []
    for t, h, w in grid:
        # Patches that are merged follow each other.
        places = torch.cartesian_prod(torch.arange(h), torch.arange(w)).view(h // merge, merge, w // merge, merge, 2)
        places = places.transpose(1, 2).reshape(-1, 2).repeat(t, 1)
        items.append(torch.cat([torch.arange(t).repeat_interleave(h * w)[:, None], places], dim=1))
    positions = torch.cat(items).to(t_rates)
    angles = t_rates.new_full((3, len(positions), ends[-1]), torch.nan)
    for axis, rates in enumerate((t_rates, h_rates, w_rates)):
        angles[axis, :, ends[axis] : ends[axis + 1]] = positions[:, axis, None] * rates
    return angles.cos(), angles.sin()


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    sections: list[int],
    head_size: int,
    rotary_dim: int,
    **form: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate both halves of the first `rotary_dim` columns of each head, in place."""
    assert form == {"mrope_interleaved": False, "is_neox_style": True}, form
    cos, sin = (
        torch.cat([part[axis] for axis, part in enumerate(planes.split(sections, dim=-1))], dim=-1)[:, None]
        for planes in (cos, sin)
    )
    for rows in (q, k):
        heads = rows.view(len(rows), -1, head_size)
        first, second = heads[..., :rotary_dim].chunk(2, dim=-1)
        turned = first * cos - second * sin, second * cos + first * sin
        heads[..., :rotary_dim] = torch.cat(turned, dim=-1)
    return q, k


RECIPE = MiniMaxM3()
