"""GLM-4.1V: packed patches, position embeddings that are sampled from a learned table, rotary positions."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from scaffold.verify.numeric.recipes.base import Case, Session
from scaffold.verify.numeric.recipes.packed import GRID_TOWER, PATCH, PackedGrid


class Glm4v(PackedGrid):
    """The learned table has 4 x 4 positions, so that most grids are interpolated.

    Before 0.24 the eager embeddings of videos depend on the videos beside them: frame i of a batch gets the size of the
    video i, modulo their number. No implementation that batches in another order can give the same, so there the videos
    of a batch have one size. Since then each item is embedded by itself.
    """

    module = "glm4_1v"
    host_class = "Glm4vForConditionalGeneration"

    def model_config(self) -> Any:
        from transformers import Glm4vConfig
        from transformers.models.glm4v.configuration_glm4v import Glm4vVisionConfig

        config = Glm4vConfig()
        config.vision_config = Glm4vVisionConfig(
            **GRID_TOWER,
            depth=2,
            hidden_size=32,
            hidden_act="silu",
            image_size=4 * PATCH,
            out_hidden_size=self.hidden_size,
            intermediate_size=48,
        )
        return config

    def sessions(self) -> tuple[Session, ...]:
        return self._comparable(super().sessions())

    def edge_sessions(self) -> tuple[Session, ...]:
        return self._comparable(super().edge_sessions())

    def _comparable(self, sessions: tuple[Session, ...]) -> tuple[Session, ...]:
        if self._items_are_independent():
            return sessions
        return tuple(replace(session, cases=tuple(map(_of_one_size, session.cases))) for session in sessions)

    def many_frames(self) -> Case | None:
        case = super().many_frames()
        return case if case is None or self._items_are_independent() else _of_one_size(case)

    def _items_are_independent(self) -> bool:
        """Whether the release interpolates the position embeddings item by item. A port does not change the answer."""
        tower = vars(sys.modules[self.load_class().__module__])["Glm4vVisionTransformer"]
        return hasattr(tower, "pos_embeds_interpolate")


def _of_one_size(case: Case) -> Case:
    """The case with videos of the first one's size. Videos keep their number of frames, images stay as they are."""
    if case.modality != "video":
        return case
    _, height, width = case.items[0]
    return replace(case, items=tuple((frames, height, width) for frames, _, _ in case.items))


RECIPE = Glm4v()
