"""The five core models' vision towers at real sizes with random weights on a GPU, and calls of exact grids and tiles.

Speed does not depend on the values of weights, so nothing comes from a network. The lab's recipes
(`scaffold.verify.numeric.recipes`) build the hosts from a configuration of real sizes. `bench` and `profile` measure
any model, on images that its own processor gets (`scaffold.measure.subject`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from scaffold.measure.subject import CONTEXT, DEVICE, DTYPE, MAX_ITEMS, randomise
from scaffold.verify.numeric.recipes.base import Session, configure, process_weights

#: Grids `(t, h, w)` in patches of 14 pixels; a token is 2 x 2 patches.
GRIDS = {
    "224x224": [(1, 16, 16)],
    "448x448": [(1, 32, 32)],
    "336x504": [(1, 24, 36)],
    "1288x728": [(1, 52, 92)],
    "1932x1092": [(1, 78, 138)],
    "8 x 336x336": [(1, 24, 24)] * 8,
    "64+256+216+1196 tokens": [(1, 16, 16), (1, 32, 32), (1, 24, 36), (1, 52, 92)],
}
TILES = {
    "1 tile": [1],
    "3 tiles": [3],
    "7 tiles": [7],
    "13 tiles": [13],
    "4 x 1 tile": [1] * 4,
    "7+1+13 tiles": [7, 1, 13],
}
CROPS = {
    "no crop": [0],
    "2 crops": [2],
    "4 crops": [4],
    "6 crops": [6],
    "4 x no crop": [0] * 4,
    "0+3+5 crops": [0, 3, 5],
}
#: Matrix products of the towers' MLPs, aligned and not: rows, inner size, columns.
PRODUCTS = [
    *((rows, inner, 1280) for rows in (4784, 1024, 256) for inner in (3420, 3424, 3456, 3584)),
    *((rows, 1280, columns) for rows in (4784, 1024, 256) for columns in (6840, 6848, 6912, 7168)),
    *((rows, 1152, columns) for rows in (4784, 1024) for columns in (4304, 4352, 4608)),
    *((rows, inner, 1152) for rows in (4784, 1024) for inner in (4304, 4352, 4608)),
    (7168, 588, 1024), (7168, 592, 1024), (2704, 588, 1792), (2704, 592, 1792),
]  # fmt: skip


class Subject:
    """One model: how to build it, and its calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recipe = import_module(f"scaffold.verify.numeric.recipes.{name}").RECIPE
        self.workloads: dict[str, list[Any]] = {"internvl": TILES, "step3_vl": CROPS}.get(name, GRIDS)
        self._config: Any = None

    def real_config(self) -> Any:
        """The configuration to build from."""
        if self._config is None:
            self._config = self._make_config(self.recipe.model_config())
        return self._config

    def _make_config(self, config: Any) -> Any:
        if self.name == "qwen2_5_vl":
            from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig

            config.vision_config = Qwen2_5_VLVisionConfig(hidden_size=1280)
        elif self.name == "qwen2_vl":
            from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig

            config.vision_config = Qwen2VLVisionConfig()
        elif self.name == "qwen3_vl":
            from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig

            config.vision_config = Qwen3VLVisionConfig(out_hidden_size=4096)
            # The host reads the language model's width for deepstack inputs.
            config.text_config.hidden_size = 4096
        elif self.name == "internvl":
            vision = config.vision_config
            vision.hidden_size, vision.num_attention_heads, vision.intermediate_size = 1024, 16, 4096
            vision.num_hidden_layers, vision.image_size, vision.patch_size = 24, 448, 14
            config.text_config.hidden_size = 3584
        elif self.name == "step3_vl":
            from vllm.transformers_utils.configs.step3_vl import Step3VisionEncoderConfig

            config.vision_config = Step3VisionEncoderConfig()
            config.hidden_size = config.text_config.hidden_size = 7168
        return config

    def build(self, host_class: str | None = None) -> tuple[Any, Any]:
        """The host (or a subclass of it, `module:class`) with random weights on the GPU, and its configuration."""
        recipe, real = self.recipe, self.real_config()
        recipe.model_config = lambda: real
        torch.set_default_dtype(DTYPE)
        try:
            with DEVICE:
                host, config = recipe.build(host_class)
        finally:
            torch.set_default_dtype(torch.float32)
        config.model_config.dtype = DTYPE
        host = host.to(DEVICE).eval().requires_grad_(False)
        # Step3-VL adds the results of its norms: its 63 layers would amplify a rounding to half of the output.
        randomise(host, DEVICE, norms=0.1 if self.name == "step3_vl" else 1.0)
        process_weights(host)
        configure(config, Session("", (), MAX_ITEMS, None, ()), ("image",), CONTEXT)
        return host, config

    def call(self, items: list[Any], seed: int) -> dict[str, Any]:
        """Random inputs of one call, as the release's runner hands them over."""
        generator = torch.Generator(DEVICE).manual_seed(seed)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device=DEVICE, dtype=DTYPE, generator=generator)

        vision = self.real_config().vision_config
        if self.name == "internvl":
            side = vision.image_size
            return {"pixel_values_flat": noise(sum(items), 3, side, side), "image_num_patches": torch.tensor(items),
                    "image_token_id": torch.tensor([1])}  # fmt: skip
        if self.name == "step3_vl":
            side = vision.image_size
            return {"pixel_values": noise(len(items), 3, side, side),
                    "patch_pixel_values": noise(sum(items), 3, 504, 504),
                    "num_patches": torch.tensor(items)}  # fmt: skip
        rows = sum(t * h * w for t, h, w in items)
        columns = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return {"pixel_values": noise(rows, columns), "image_grid_thw": torch.tensor(items)}
