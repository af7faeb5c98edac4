"""Models whose image is one tile of a fixed size, and gives a fixed number of features: what their recipes share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session


class OneImage(Recipe):
    """An item is an image's side in pixels: `SIDE`, or another one, which no graph was captured for."""

    #: The model's class of configurations, in transformers.
    configuration: str
    modalities = ("image",)
    SIDE = 28
    #: Features of an image of `SIDE`.
    FEATURES = 4
    min_budget = FEATURES
    embeds_rows = 7

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """`vision_config` and `text_config`, with `hidden_size`."""

    def model_config(self) -> Any:
        import transformers

        return getattr(transformers, self.configuration)(**self.parts())

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {"pixel_values": torch.randn(len(items), 3, self.SIDE, self.SIDE, generator=generator)}

    def tokens(self, modality: str, item: Item) -> int:
        return self.FEATURES

    def sessions(self) -> tuple[Session, ...]:
        k = self.FEATURES
        counts = {"a full batch": 3, "one image after several": 1, "two images": 2, "more images than one batch": 7}
        mixes = [Case(name, "image", (self.SIDE,) * count) for name, count in counts.items()]
        return (
            calls.manager((k, 2 * k, 3 * k), 3, mixes),
            # The features of an image do not fill the first of these, nor a whole number of them the second.
            calls.manager((k + 1, 2 * k + 3), 2, mixes),
            calls.manager((8 * k,), 8, calls.one_to_eight(image=(self.SIDE,))),
        )
