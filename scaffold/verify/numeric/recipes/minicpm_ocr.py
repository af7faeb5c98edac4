"""MiniCPM-OCR, a subclass of MiniCPM-V 4.6 whose configuration has no size of images: units have the tower's positions.

Transformers 5.19 has neither its configuration nor its processor.
"""

from __future__ import annotations

from typing import Any

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


RECIPE = MiniCPMOcr()
