"""A model whose configuration says whether its images are tiles: a port of tiles has no graphs for the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changed_ports import port_of

from scaffold.verify.numeric import NumericOptions, check_numerics_all
from scaffold.workflow import numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

RECIPE = str(Path(__file__).with_name("nano_nemotron_vl_any_size.py"))


def test_nemotron_nano_vl_has_graphs_of_tiles_alone(release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    requests = [
        replace(request, options=NumericOptions(short=True))
        for changes in ({}, {"gates": None})
        for request in numeric_requests(
            port_of("nano_nemotron_vl", changes), tree, recipe=RECIPE, modalities=("image",)
        )
    ]
    gated, without = check_numerics_all(requests)
    found = [check for check in gated.checks if not check.passed]
    assert {(check.code, check.detail) for check in found} == {
        ("VCG657", "the configuration does not list the modality")
    }
    assert gated.failure is None
    raised = [check.detail for check in without.checks if not check.passed]
    assert raised
    assert all("KeyError: 'image_num_patches'" in detail for detail in raised), raised
