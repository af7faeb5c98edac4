"""SmolVLM: Idefics3's class with a processor of its own."""

from __future__ import annotations

from scaffold.verify.numeric.recipes import idefics3


class SmolVLM(type(idefics3.RECIPE)):  # type: ignore[misc]
    """Idefics3's sizes."""

    module = "smolvlm"
    host_class = "SmolVLMForConditionalGeneration"


RECIPE = SmolVLM()
