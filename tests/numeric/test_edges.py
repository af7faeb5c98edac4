"""Sizes at the edges: found by running a resize function, and turned into calls around budgets and slots."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="needs the `cpu` extra")

from scaffold.verify.numeric import edges
from scaffold.verify.numeric.reports import Check, properties_of


def refusing(height: int, width: int, factor: int = 28, min_pixels: int = 4 * 28**2, max_pixels: int = 100 * 28**2):
    """As Qwen2-VL's: too long an image is refused."""
    if max(height, width) > 50 * min(height, width):
        raise ValueError("too long")
    return _resize(height, width, factor, min_pixels, max_pixels)


def cutting(
    num_frames: int,
    height: int,
    width: int,
    temporal_factor: int = 2,
    factor: int = 28,
    min_pixels: int = 16 * 28**2,
    max_pixels: int = 900 * 28**2,
):
    """As ERNIE's: too long an image is cut. With frames, which count as pixels."""
    if max(height, width) > 7 * min(height, width):
        height, width = (min(height, 7 * width), width) if height > width else (height, min(width, 7 * height))
    return _resize(height, width, factor, min_pixels // num_frames, max_pixels // num_frames)


def _resize(height, width, factor, least, most):
    h, w = max(1, round(height / factor)), max(1, round(width / factor))
    while h * w * factor**2 < least:
        h, w = h + 1, w + 1
    while h * w * factor**2 > most and min(h, w) > 1:
        h, w = h - 1, w - 1
    return h * factor, w * factor


@pytest.mark.parametrize(("resize", "ratio", "least"), [(refusing, 50, 4), (cutting, 7, 8)])
def test_a_range_is_found_by_running_the_function(resize, ratio, least):
    found = edges.grid_range(resize)

    assert (found.ratio, found.least) == (ratio, least)
    assert found.resized(1, 1, 1, 64) == (1, 1)
    assert re.fullmatch(r"test_edges.py:\d+", found.source)


def tokens(item):
    t, height, width = item
    return t * height * width // 4


def test_grids_lie_at_around_and_beyond_budgets():
    found = edges.grid_range(refusing)
    around, longest, limited = edges.grid_sessions(("image", "video"), 2, found, "release.py:1")
    by_group: dict[str, list[list[int]]] = {}
    for case in (*around.cases, *longest.cases):
        by_group.setdefault(case.group, []).append([tokens(item) for item in case.items])

    assert around.budgets == (8, 64)
    assert by_group["edge: a budget exactly, as strips and as a square"] == [[8], [8], [64], [64], [64]]
    assert by_group["edge: one token above a budget"] == [[9], [9], [65], [65], [65]]
    assert by_group["edge: as many of one token as slots, and one more"] == [
        [1] * 4, [1] * 5, [61, 1, 1, 1], [1, 1, 1, 62]
    ]  # fmt: skip
    assert by_group["edge: a video of one token"] == [[1]]
    assert by_group["edge: as many frames of one token as a graph holds"] == [[8], [5, 3], [2] * 4]
    assert by_group["edge: one frame more than a graph holds"] == [[9], [5, 4]]
    assert by_group["edge: the longest image, 50 to 1"] == [[50], [50], [1, 25, 24], [1]]
    assert longest.budgets == (50,)
    sources = {case.source for case in (*around.cases, *longest.cases)}
    assert sources == {edges.BUDGETS, found.source, "release.py:1"}
    assert all(case.may_go_eager is case.group.startswith("edge: one frame more") for case in around.cases)
    assert [sum(t for t, _, _ in case.items) for case in limited.cases] == [4, 18, 18, 18, 1], "frames"
    assert (limited.budgets, limited.max_items, limited.max_frames) == ((144,), 9, 3)


def test_a_model_without_videos_gets_none():
    around, longest = edges.grid_sessions(("image",), 2, edges.grid_range(refusing), "")

    assert {case.modality for case in (*around.cases, *longest.cases)} == {"image"}
    assert around.max_frames == 0


@pytest.mark.parametrize("several_paths", [False, True])
def test_tiles_fill_budgets_exactly_and_exceed_them_by_one_token(several_paths):
    found = edges.TileRange("image", (1, 3, 5), "release.py:1")
    whole, short = edges.tile_sessions((found,), lambda count: 4 * count, 4, several_paths=several_paths)

    assert (whole.budgets, short.budgets) == ((4, 20), (4, 19))
    largest, above = [(5,), (1, 5)], [(5,), (1, 5, 1)]
    if several_paths:  # one call an edge
        largest, above = largest[1:], above[1:]
    assert [case.items for case in whole.cases if "largest item" in case.group] == largest
    assert [case.items for case in whole.cases if "slots" in case.group] == [(1,) * 4, (1,) * 5]
    assert [case.items for case in short.cases] == [*above, (3,), (1,)]
    assert {case.may_go_eager for case in (*whole.cases, *short.cases)} == {several_paths}


def test_a_release_without_the_function_is_said():
    class Info:
        pass

    class Host:
        _processor_factory = type("Factory", (), {"info": Info})

    assert edges.function_of(Host, "refusing") is refusing
    with pytest.raises(LookupError, match="Info uses none of smart_resize, other"):
        edges.function_of(Host, "smart_resize", "other")


def test_a_line_of_the_report_is_all_comparisons_of_a_property():
    checks = [
        Check("a: small", "image", True, 0.0, 1e-7, group="small", source="f.py:1"),
        Check("b: small", "image", True, 0.0, 3e-7, group="small", source="f.py:1"),
        Check("a: small", "video", False, 1.0, 0.5, "item 1", group="small"),
        Check("alone", "all", True),
    ]

    assert [" ".join(str(found).split()) for found in properties_of(checks)] == [
        "ok image small 2 compared largest error 3e-07 [f.py:1]",
        "FAIL video small 1 of 1 differ a: small: item 1",
        "ok all alone 1 compared",
    ]
