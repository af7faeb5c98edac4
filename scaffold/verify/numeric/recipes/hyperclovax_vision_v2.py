"""HyperCLOVA X: Qwen2.5-VL's tower with a projector behind it, which precomputed embeddings go through, too."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from torch import nn

from scaffold.verify.numeric.recipes.base import Recipe, Session
from scaffold.verify.numeric.recipes.qwen2_5_vl import Qwen25VL


class HyperClovaX(Qwen25VL):
    """Qwen2.5-VL's sizes. Rows before the projector have a width of their own. No source says the processor's sizes."""

    module = "hyperclovax_vision_v2"
    host_class = "HCXVisionV2ForCausalLM"

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        """Without the context of an engine's run, which the tower does not ask for."""
        module: Any = sys.modules[self.load_class().__module__]
        module.set_forward_context = lambda *args: nullcontext()
        return super().build(host_class)

    def model_config(self) -> Any:
        from transformers import PretrainedConfig

        vision_config = super().model_config().vision_config
        vision_config.out_hidden_size = self.embeds_width()
        text_config = PretrainedConfig(hidden_size=self.hidden_size, model_type="hyperclovax")
        return PretrainedConfig(vision_config=vision_config, text_config=text_config)

    def embeds_width(self) -> int:
        return 40

    def edge_sessions(self) -> tuple[Session, ...]:
        return Recipe.edge_sessions(self)


RECIPE = HyperClovaX()
