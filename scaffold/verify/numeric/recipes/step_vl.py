"""StepVL, a subclass of Step3-VL with a tower of its own: a perception encoder in place of the parent's."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.step3_vl import Step3VL


class StepVL(Step3VL):
    """The parent's items, tiles and tokens: two convolutions of stride 2 halve 10 and 6 patches a side to 3 and 2."""

    module = "step_vl"
    host_class = "StepVLForConditionalGeneration"

    def model_config(self) -> Any:
        from transformers import PretrainedConfig

        config = super().model_config()
        config.vision_config = PretrainedConfig(
            width=32,
            layers=2,
            heads=2,
            output_dim=None,
            mlp_ratio=1.5,
            hidden_act="quick_gelu",
            image_size=self._IMAGE,
            patch_size=self._PATCH,
            use_abs_posemb=True,
            use_cls_token=False,
            use_rope2d=True,
            use_ln_pre=True,
            use_ln_post=True,
            ls_init_value=0.5,
        )
        return config


RECIPE = StepVL()
