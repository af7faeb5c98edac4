"""ERNIE-4.5-VL without its resampler: a probe leaves the tower out, and the resampler reads what the tower gives."""

from __future__ import annotations

from typing import Any

from scaffold.verify.numeric.recipes.ernie45_vl import Ernie45VL


class Rows(Ernie45VL):
    def build(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        host, config = super().build(*args, **kwargs)
        host._finish_encoder_output = lambda output, mm_kwargs: output
        return host, config


RECIPE = Rows()
