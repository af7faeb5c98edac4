"""Keye-VL 1.5: Keye's tower under another projector."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

from torch import nn

from scaffold.verify.numeric.recipes.base import without_language_model
from scaffold.verify.numeric.recipes.keye import Keye


class KeyeVL15(Keye):
    """Images only, as Keye."""

    module = "keye_vl1_5"
    host_class = "KeyeVL1_5ForConditionalGeneration"

    def build(self, host_class: str | None = None) -> tuple[nn.Module, SimpleNamespace]:
        """The class's parts are made in the module of its base."""
        with without_language_model(import_module("vllm.model_executor.models.keye"), self.stand_ins):
            return super().build(host_class)


RECIPE = KeyeVL15()
