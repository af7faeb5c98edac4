"""Subclasses of packed models that run no `__init__` of their base: what a port reads of the model, they have too."""

from __future__ import annotations

from typing import Any

import pytest
from proven import assert_right

from scaffold.workflow import load_port, prove_numerics

pytestmark = [pytest.mark.trees, pytest.mark.lab]

#: OpenCUA has Qwen2.5-VL's tower under another name.
OPENCUA = """\
from scaffold.verify.numeric.recipes import qwen2_5_vl


class OpenCUA(type(qwen2_5_vl.RECIPE)):
    module = "opencua"
    host_class = "OpenCUAForConditionalGeneration"


RECIPE = OpenCUA()
"""


@pytest.mark.parametrize(
    "release", ["0.20.0", "0.33.0", *(pytest.param(f"0.{minor}.0", marks=pytest.mark.slow) for minor in range(21, 33))]
)
def test_a_subclass_with_an_init_of_its_own_inherits_a_right_port(
    release: str, release_tree: Any, tmp_path: Any
) -> None:
    """The number of frames is asked from its configuration (`get_max_frames_per_video`)."""
    recipe = tmp_path / "opencua.py"
    recipe.write_text(OPENCUA)

    (report,) = prove_numerics(load_port("qwen2_5_vl"), release_tree(release), recipe=str(recipe))

    assert_right(report, 51)
