"""SmolVLM: Idefics3's class with a processor of its own."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

from torch import nn

from scaffold.verify.numeric.recipes import idefics3
from scaffold.verify.numeric.recipes.base import without_language_model


class SmolVLM(type(idefics3.RECIPE)):  # type: ignore[misc]
    """Idefics3's sizes."""

    module = "smolvlm"
    host_class = "SmolVLMForConditionalGeneration"

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        with without_language_model(import_module("vllm.model_executor.models.idefics3"), self.stand_ins):
            built: tuple[nn.Module, SimpleNamespace] = super().build(host_class)
        return built


RECIPE = SmolVLM()
