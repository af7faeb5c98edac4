"""EmbeddingGemma 2: the images of Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaffold.verify.numeric.recipes.base import ConfiguredModel, LanguageModel
from scaffold.verify.numeric.recipes.gemma4_mm import Gemma4


class _Pooler:
    for_embedding = LanguageModel


class EmbeddingGemma2(Gemma4):
    module = "embedding_gemma2"
    host_class = "EmbeddingGemma2Model"
    modalities = ("image",)
    stand_ins: Mapping[str, Any] = {"EmbeddingGemma2TextModel": ConfiguredModel, "DispatchPooler": _Pooler}


RECIPE = EmbeddingGemma2()
