"""EmbeddingGemma 2: the images of Gemma 4."""

from __future__ import annotations

from scaffold.verify.numeric.recipes.gemma4_mm import Gemma4


class EmbeddingGemma2(Gemma4):
    module = "embedding_gemma2"
    host_class = "EmbeddingGemma2Model"
    modalities = ("image",)


RECIPE = EmbeddingGemma2()
