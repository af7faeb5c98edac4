"""Models whose image is one tile of a fixed size, and gives a fixed number of features: what their recipes share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from scaffold.verify.numeric.recipes.base import Case, Item, Recipe, Session, one_to_eight


class OneImage(Recipe):
    """An item is an image's side in pixels: `SIDE`, or another one, which no graph was captured for."""

    modalities = ("image",)
    SIDE = 28
    #: Features of an image of `SIDE`.
    FEATURES = 4
    min_budget = FEATURES
    takes_embeds = True

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """`vision_config` and `text_config`, with `hidden_size`."""

    @abstractmethod
    def configuration(self) -> type[Any]:
        """The model's class of configurations."""

    @cache  # noqa: B019 - one recipe a process
    def model_config(self) -> Any:
        return self.configuration()(**self.parts())

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        return {"pixel_values": torch.randn(len(items), 3, self.SIDE, self.SIDE, generator=generator)}

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        if not self.takes_embeds:
            return None
        return {"image_embeds": torch.randn(len(items), 7, self.hidden_size, generator=generator)}

    def tokens(self, modality: str, item: Item) -> int:
        return self.FEATURES

    def sessions(self) -> tuple[Session, ...]:
        def images(name: str, count: int) -> Case:
            return Case(name, "image", (self.SIDE,) * count)

        k = self.FEATURES
        mixes = (
            images("a full batch", 3),
            images("one image after several", 1),
            images("two images", 2),
            images("more images than one batch", 7),
        )
        several = one_to_eight("images", image=(self.SIDE,))
        return (
            Session(f"budgets {k}, {2 * k}, {3 * k}; 3 images", (k, 2 * k, 3 * k), 3, 0, mixes),
            # The features of an image do not fill the first of these, nor a whole number of them the second.
            Session(f"budgets {k + 1}, {2 * k + 3}; 2 images", (k + 1, 2 * k + 3), 2, 0, mixes),
            Session(f"budget {8 * k}; 8 images", (8 * k,), 8, 0, several),
        )
