"""Each value of a draft that `init --yes` makes, changed to another candidate or to a likely slip: never accepted.

What `validate` and the static proofs do not refuse, the automatic recipe must.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from draft_mutants import mutants, outcome

pytestmark = [pytest.mark.trees, pytest.mark.lab]

#: One of each layout, and one with two modalities that share a call.
MODELS = (
    "Cohere2VisionForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Blip2ForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "LightOnOCRForConditionalGeneration",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_other_value_is_accepted(name: str, release_tree: Any, tmp_path: Path) -> None:
    tree = release_tree("0.33.0")
    found = {change: outcome(tree, change, text, tmp_path) for change, text in mutants(tree, name)}
    print(name, *(f"  {end}: {change!r}" for change, end in found.items()), sep="\n")
    assert len(found) >= 3
    assert [change for change, end in found.items() if end == "accepted"] == []


def test_drafts_have_values_to_change(release_tree: Any) -> None:
    changes = [change for name in MODELS for change, _ in mutants(release_tree("0.33.0"), name)]
    assert len(changes) >= 12
    assert any("vision_config" in change for change in changes)
    assert any("flatten: false" in change for change in changes)
