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
from reach import recorded

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
    recording = recorded(tree, name, None)
    found = {change: outcome(tree, change, text, tmp_path) for change, text in mutants(tree, name, recording)}
    print(name, *(f"  {end}: {change!r}" for change, end in found.items()), sep="\n")
    assert len(found) >= 3
    assert [change for change, end in found.items() if end == "accepted"] == []
