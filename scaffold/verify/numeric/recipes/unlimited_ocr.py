"""Unlimited-OCR: DeepSeek-OCR's encoders, from its module, under a class of their own."""

from __future__ import annotations

from scaffold.verify.numeric.recipes.deepseek_ocr import DeepseekOCR


class UnlimitedOCR(DeepseekOCR):
    """Its constructor is that of its base, in the module of that one."""

    module = "unlimited_ocr"
    host_class = "UnlimitedOCRForCausalLM"


RECIPE = UnlimitedOCR()
