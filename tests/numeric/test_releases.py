"""The releases' own implementations in the lab: the good ones pass, the known-bad ones fail for the known reason.

This is what makes a verdict about generated code believable. Each entry is a fact about a shipped release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scaffold.verify.numeric import NumericOptions, NumericReport, NumericRequest, check_numerics_all
from scaffold.verify.numeric.reports import Tail

pytestmark = [pytest.mark.trees, pytest.mark.lab]

ALL = NumericOptions(
    image_embeds=True, data_parallel_switch=True, min_budget_above_max=True, frames_above_capacity=True
)
PACKED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")

#: What no release's hand-written code does. InternVL and Step3-VL also shard inside the graph.
MISSED = {"VCG660", "VCG662", "VCG666"}
MISSED_BY_TILES = {"VCG660", "VCG661", "VCG662"}

Key = tuple[str, Tail]
#: release -> (recipe, tail) -> codes of the errors, with every optional check on. Each code of `everything`, and each
#: release in which the lab's own rules change.
SAMPLE: dict[str, dict[Key, set[str]]] = {
    "0.22.0": {
        # Tiles of two kinds are laid out for a full batch and cut for a partial one, without room for all local ones.
        ("step3_vl", "fa2"): {"VCG650", "VCG654", "VCG658", "VCG661", "VCG662"},
        ("qwen2_vl", "fa2"): MISSED | {"VCG665"},
    },
    "0.29.0": {
        # An engine gives this model raw pixels by default, and the port's tower gets them as they are.
        ("qwen2_vl", "fa2"): MISSED | {"VCG665", "VCG669"},
    },
    "0.30.0": {
        ("internvl", "fa3"): MISSED_BY_TILES,
        # Rows that no sequence covers are never written before 0.31, and reach valid rows through whole tiles.
        ("qwen2_vl", "fa3"): MISSED | {"VCG650", "VCG665"},
    },
    "0.33.0": {
        ("internvl", "fa2"): MISSED_BY_TILES,
        # Two sections of offsets are filled as one; on a GPU, too, calls with several images are wrong.
        ("qwen3_vl", "cudnn"): MISSED | {"VCG650", "VCG654"},
        ("qwen2_5_vl", "cudnn"): MISSED,
        # Data-parallel ranks share the projector's weights, and each has images of its own.
        ("mllama4", "fa2"): {"VCG662", "VCG670"},
    },
}


def everything() -> dict[str, dict[Key, set[str]]]:
    """The same for every release that has an implementation of the model."""
    first_port = {"internvl": 23, "qwen2_vl": 22, "qwen2_5_vl": 21, "qwen3_vl": 20, "step3_vl": 22}
    table: dict[str, dict[Key, set[str]]] = {}
    for minor in range(20, 34):
        row = table.setdefault(f"0.{minor}.0", {})
        for recipe, first in first_port.items():
            if minor < first:
                continue
            tails: tuple[Tail, ...] = ("fa2", "fa3") if recipe in PACKED else ("fa2",)
            for tail in tails:
                codes = set(MISSED if recipe in PACKED else MISSED_BY_TILES)
                if recipe == "step3_vl":
                    # Results of images without local tiles are views of the graph's output; a budget below one image is
                    # refused. Its processor has no field for precomputed embeddings.
                    codes -= {"VCG660"}
                    codes |= {"VCG654", "VCG658"} | ({"VCG650"} if minor < 25 else set())
                if recipe in PACKED and tail == "fa3" and minor <= 30:
                    codes |= {"VCG650"}
                if recipe in ("qwen2_vl", "qwen3_vl") or (recipe == "qwen2_5_vl" and minor < 23):
                    codes |= {"VCG665"}  # an image after a video finds its offsets behind its own, zero-filled
                if recipe == "qwen3_vl" and minor < 22:
                    codes |= {"VCG654"}  # floor division: an item that fills a budget does not fit its buffer
                if recipe in ("qwen2_vl", "qwen2_5_vl") and minor in (28, 29):
                    codes |= {"VCG669"}  # the model normalises raw pixels before the tower, and the port does not
                row[recipe, tail] = codes
    return table


@pytest.fixture(scope="module")
def errors(release_tree: Any) -> Callable[[str, dict[Key, set[str]], Key], NumericReport]:
    """All checks of a release from one import."""
    served: dict[tuple[str, frozenset[Key]], dict[Key, NumericReport]] = {}

    def get(release: str, row: dict[Key, set[str]], key: Key) -> NumericReport:
        name = release, frozenset(row)
        if name not in served:
            tree = release_tree(release).root
            requests = [
                NumericRequest(tree, {}, recipe, release=release, tail=tail, options=ALL) for recipe, tail in row
            ]
            served[name] = dict(zip(row, check_numerics_all(requests), strict=True))
        return served[name][key]

    return get


def error_codes(report: NumericReport) -> set[str]:
    return {diagnostic.code for diagnostic in report.diagnostics() if diagnostic.severity == "error"}


def cases(table: dict[str, dict[Key, set[str]]]) -> list[Any]:
    return [
        pytest.param(release, row, key, id=f"{release} {key[0]} {key[1]}")
        for release, row in table.items()
        for key in row
    ]


@pytest.mark.parametrize(("release", "row", "key"), cases(SAMPLE))
def test_a_release_has_exactly_its_known_defects(
    release: str, row: dict[Key, set[str]], key: Key, errors: Callable[..., NumericReport]
) -> None:
    report = errors(release, row, key)
    assert error_codes(report) == row[key], "\n".join(report.lines())
    assert report.hits > 0, "a lab that replays nothing proves nothing"
    assert report.misses > 0 or key[0] == "step3_vl"


@pytest.mark.slow
@pytest.mark.parametrize(("release", "row", "key"), cases(everything()))
def test_every_release_has_exactly_its_known_defects(
    release: str, row: dict[Key, set[str]], key: Key, errors: Callable[..., NumericReport]
) -> None:
    report = errors(release, row, key)
    assert error_codes(report) == row[key], "\n".join(report.lines())


def test_a_tree_that_is_not_ported_is_said_to_be(release_tree: Any) -> None:
    (report,) = check_numerics_all([NumericRequest(release_tree("0.22.0").root, {}, "internvl")])
    assert report.failure is not None
    assert report.failure.code == "VCG667"


def test_a_change_of_a_module_that_everything_imports_is_checked_too(release_tree: Any) -> None:
    tree = release_tree("0.33.0").root
    path = "vllm/model_executor/models/utils.py"
    source = (tree / path).read_text()
    spoiled = source.replace("sliced.clone() if clone else sliced", "sliced")
    assert spoiled != source
    same, worse = check_numerics_all(
        NumericRequest(tree, {path: text.encode()}, "internvl", options=NumericOptions(short=True))
        for text in (source + "\n", spoiled)
    )
    assert same.passed, "\n".join(same.lines())
    assert "VCG658" in error_codes(worse), "\n".join(worse.lines())
