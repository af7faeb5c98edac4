"""Unlimited-OCR: DeepSeek-OCR's encoders, from its module, under a class of their own."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import nn

from scaffold.verify.numeric.recipes.base import without_language_model
from scaffold.verify.numeric.recipes.deepseek_ocr import DeepseekOCR


class UnlimitedOCR(DeepseekOCR):
    """Its constructor is that of its base, in the module of that one."""

    module = "unlimited_ocr"
    host_class = "UnlimitedOCRForCausalLM"

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        base: Any = import_module("vllm.model_executor.models.deepseek_ocr")
        with without_language_model(base, self.stand_ins):
            return super().build(host_class)


RECIPE = UnlimitedOCR()
