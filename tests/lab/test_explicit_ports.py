"""Explicit ports of vLLM 0.33 in the CPU lab, and mistakes in one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from proven import assert_right

from scaffold.verify.numeric import NumericReport, check_numerics_all
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

RELEASE = "0.33.0"
#: Replays of each model at least.
MODELS = {"deepseek_vl2": 60, "llava": 60, "llava_next": 70, "paligemma": 60}

PIXELS, REPLAY = 'tuple(mm_kwargs["pixel_values"]', "\n        return EncoderCudaGraphReplayBuffers"


def check(release_tree: Any, name: str, before: str = "", after: str = "") -> NumericReport:
    """The report of a model's port, perhaps with a fragment of it replaced."""
    [request] = numeric_requests(load_port(name), release_tree(RELEASE))
    path = f"vllm/model_executor/models/{name}.py"
    text = request.overlay[path]
    assert not before or text.count(before.encode()) == 1
    overlay = {**request.overlay, path: text.replace(before.encode(), after.encode(), 1)}
    [report] = check_numerics_all([replace(request, overlay=overlay)])
    return report


@pytest.mark.parametrize("name", MODELS)
def test_a_port_gives_what_the_model_gives(name: str, release_tree: Any) -> None:
    report = check(release_tree, name)
    assert_right(report, MODELS[name])


@pytest.mark.parametrize(
    ("name", "before", "after", "code"),
    [
        # The next replay overwrites what a user has.
        pytest.param("paligemma", "features.clone()", "features", "VCG658", id="no copy"),
        pytest.param("llava_next", "split(num_patches)", "split(num_patches[::-1])", "VCG654", id="other items"),
        pytest.param("llava_next", f"{PIXELS})){REPLAY}", f"{PIXELS}[::-1])){REPLAY}", "VCG650", id="other pixels"),
        # Eager all the time: vLLM's own generation test would not see it.
        pytest.param("llava", 'modalities=["image"]', "modalities=[]", "VCG657", id="turned off"),
        # Right results, and graphs of half the units that their budgets allow.
        pytest.param(
            "llava", "return (\n", "return 2 * (\n", "VCG657", id="tokens of a unit that a graph does not give"
        ),
        pytest.param("llava_next", '{"default": 0}', '{"default": 4}', "VCG660", id="graphs of no pixels"),
    ],
)
def test_a_mistake_in_a_port_is_found(name: str, before: str, after: str, code: str, release_tree: Any) -> None:
    report = check(release_tree, name, before, after)
    assert code in {problem.code for problem in report.diagnostics()}, "\n".join(report.lines())
