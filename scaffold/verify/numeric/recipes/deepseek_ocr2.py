"""DeepSeek-OCR 2: whole images and their crops through SAM and a Qwen2 decoder that is an encoder here."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from scaffold.verify.numeric.recipes.deepseek_ocr import DeepseekOCR, small_sam


class DeepseekOCR2(DeepseekOCR):
    """The decoder has queries for 16 x 16 features of a whole image and 12 x 12 of a crop."""

    module = "deepseek_ocr2"
    host_class = "DeepseekOCR2ForCausalLM"

    crop = 768
    columns = 1
    other = None

    @property
    def stand_ins(self) -> dict[str, Any]:  # type: ignore[override]
        encoder: Any = import_module("vllm.model_executor.models.deepencoder2")
        decoder = partial(
            encoder.build_qwen2_decoder_as_encoder,
            decoder_layer=2,
            hidden_dimension=self.width,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
        )
        return {
            "ImageEncoderViT": lambda **given: small_sam(last_conv_output=self.width),
            "build_qwen2_decoder_as_encoder": decoder,
        }


RECIPE = DeepseekOCR2()
