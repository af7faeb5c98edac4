"""MiniCPM-OCR, a subclass of MiniCPM-V 4.6 whose configuration has no size of images: units have the tower's positions.

Transformers 5.19 has neither its configuration nor its processor.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from torch import nn

from scaffold.verify.numeric.recipes.base import without_language_model
from scaffold.verify.numeric.recipes.minicpmv4_6 import MiniCPMV46


class MiniCPMOcr(MiniCPMV46):
    """The parent's items and slices, with and without the merger."""

    module = "minicpm_ocr"
    host_class = "MiniCPMOcrForConditionalGeneration"
    rows, longest = 64, (4, 16)

    def model_config(self) -> Any:
        config = super().model_config()
        del config.image_size
        return config

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        # The language model is made in the parent's module.
        with without_language_model(import_module("vllm.model_executor.models.minicpmv4_6"), self.stand_ins):
            return super().build(host_class)


RECIPE = MiniCPMOcr()
