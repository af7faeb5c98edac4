"""Cuts of vLLM 0.33 in the CPU lab: units with masks, lists of layers, and frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from proven import assert_right

from scaffold.verify.numeric import NumericReport, check_numerics_all
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

RELEASE = "0.33.0"
CUTS = Path(__file__).with_name("cuts")
#: Replays of each model at least.
MODELS = {
    "aria": 25, "llava_next_video": 15, "granite4_vision": 25, "phi4mm": 6, "nemotron_parse": 60, "molmo": 60,
    "nemotron_vl": 100,
}  # fmt: skip


def check(release_tree: Any, name: str, before: str = "", after: str = "") -> NumericReport:
    """The report of a model's cut, perhaps with a fragment of the port replaced."""
    port, tree = load_port(str(CUTS / f"{name}.yaml")), release_tree(RELEASE)
    own = CUTS / f"{name}.py"
    [request] = numeric_requests(port, tree, recipe=str(own) if own.exists() else None)
    texts = {path: text.decode() for path, text in request.overlay.items()}
    # In the model's own file, or in that of the mixin.
    path, text = next((path, text) for path, text in texts.items() if not before or text.count(before) == 1)
    overlay = {**request.overlay, path: text.replace(before, after, 1).encode()}
    [report] = check_numerics_all([replace(request, overlay=overlay)])
    return report


@pytest.mark.parametrize("name", ["aria", *(pytest.param(name, marks=pytest.mark.slow) for name in [*MODELS][1:])])
def test_a_cut_gives_what_the_model_gives(name: str, release_tree: Any) -> None:
    report = check(release_tree, name)
    assert_right(report, MODELS[name])


@pytest.mark.parametrize(
    ("name", "before", "after", "code"),
    [
        # No unit is known again, so each replay is dropped: right, and of no use.
        ("aria", "shapes == [*self._encoder_cudagraph_units", "shapes != [*self._encoder_cudagraph_units", "VCG657"),
        pytest.param(
            "aria",
            "return dict(zip(self._encoder_cudagraph_units, units))",
            'return {"pixel_values": next(iter(units))}',
            "VCG650",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "granite4_vision",
            "return dict(zip(layers, ",
            "return dict(zip(reversed(layers), ",
            "VCG650",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_in_a_cut_is_found(name: str, before: str, after: str, code: str, release_tree: Any) -> None:
    report = check(release_tree, name, before, after)
    assert code in {diagnostic.code for diagnostic in report.diagnostics()}, "\n".join(report.lines())
