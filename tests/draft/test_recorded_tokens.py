"""The tokens of a unit in a recorded draft: the one expression that gives as many rows as a run gave."""

from __future__ import annotations

import pytest

from scaffold.draft.numbers import tokens_of_unit
from scaffold.draft.sheet import Sheet

PATCH = "self.config.vision_config.patch_size"
SIZES = {"self.config.vision_config.image_size": 448, PATCH: 14}  # 32 patches a side


def tokens(rows: int, **more: object) -> str | None:
    sheet = Sheet({})
    sheet.put("let.side", "self.config.vision_config.image_size")
    numbers = {**SIZES, **{f"self.{name.replace('__', '.')}": value for name, value in more.items()}}
    return tokens_of_unit(numbers, rows, sheet)


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        (1024, {}, f"(side // {PATCH}) ** 2"),
        (1025, {}, f"(side // {PATCH}) ** 2 + 1"),
        (258, {}, f"(side // {PATCH} // 2) ** 2 + 2"),
        (1, {}, "1"),
        (256, {"num_image_token": 256}, "self.num_image_token"),
        (256, {"config__downsample_factor": 2}, f"(side // {PATCH} // self.config.downsample_factor) ** 2"),
        (121, {"projector__downsample_ratio": 3}, f"ceil_div(side // {PATCH}, self.projector.downsample_ratio) ** 2"),
        (100, {"config__pixel_shuffle_factor": 3}, f"(side // {PATCH} // self.config.pixel_shuffle_factor) ** 2"),
        # The model itself holds the same number as a part of it: the shorter path.
        (
            64,
            {"a__b__scale_factor": 4, "config__scale_factor": 4},
            f"(side // {PATCH} // self.config.scale_factor) ** 2",
        ),
    ],
)
def test_rows_choose_the_expression(rows: int, more: dict[str, object], said: str) -> None:
    assert tokens(rows, **more) == said


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        (256, {}),  # nothing says why there are fewer
        (1024, {"config__scale_factor": 1}),  # a factor of 1 may be another one in a checkpoint
        (256, {"config__scale_factor": 2, "config__downsample_factor": 2}),  # one of two
        (256, {"config__downsample_ratio": 0.5}),  # a ratio that is no number of patches
        (256, {"num_image_token": 64}),  # the model says another number
    ],
)
def test_what_the_rows_do_not_decide_is_left_out(rows: int, more: dict[str, object]) -> None:
    assert tokens(rows, **more) is None


def test_without_a_side_nothing_is_said() -> None:
    assert tokens_of_unit(SIZES, 1024, Sheet({})) is None
