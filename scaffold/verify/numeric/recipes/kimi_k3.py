"""Kimi-K3: the tower of Kimi-K2.5 with other norms, and a projector that norms last; images only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaffold.verify.numeric.recipes.base import Case, Session
from scaffold.verify.numeric.recipes.kimi_k25 import KimiK25
from scaffold.verify.numeric.recipes.packed import MERGE, PATCH


class KimiK3(KimiK25):
    """Its model code is that of NVIDIA's GPUs. Its processor makes images alone, of one frame each."""

    module = "vllm.models.kimi_k3.nvidia.model"
    host_class = "KimiK3ForConditionalGeneration"
    modalities = ("image",)

    def model_config(self) -> Any:
        from vllm.transformers_utils.configs.kimi_k3 import KimiK3Config

        return KimiK3Config(
            vision_config={
                "patch_size": PATCH,
                "init_pos_emb_height": 8,
                "init_pos_emb_width": 8,
                "vt_num_attention_heads": 2,
                "vt_num_hidden_layers": 2,
                "vt_hidden_size": 48,
                "vt_intermediate_size": 64,
                "qkv_hidden_size": 32,
                "merge_kernel_size": (MERGE, MERGE),
            },
            text_config={"hidden_size": self.hidden_size},
        )

    def sessions(self) -> tuple[Session, ...]:
        def images(case: Case) -> Case:
            return replace(case, items=tuple((1, h, w) for _, h, w in case.items))

        return tuple(replace(one, cases=tuple(map(images, one.cases))) for one in super().sessions())


RECIPE = KimiK3()
