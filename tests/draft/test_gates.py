"""Shipped descriptors have a gate where a model needs one: on pruning, on how its processor cuts images, on ranks."""

from __future__ import annotations

import pytest

from scaffold.descriptor import shipped_names
from scaffold.draft.gates import put_gate
from scaffold.draft.locate import locate
from scaffold.draft.sheet import Sheet
from scaffold.workflow import load_port

GATED = {"cohere_compass", "qwen2_5_vl", "qwen3_vl"}
#: Gates on other things than pruning: on how the processor cuts images, and on data-parallel towers.
OTHER_GATES = {"kimi_k25", "minicpmv", "nano_nemotron_vl"}


def test_the_descriptors_with_a_gate():
    assert {name for name in shipped_names() if load_port(name).gate is not None} == GATED | OTHER_GATES


@pytest.mark.trees
@pytest.mark.parametrize(
    ("kind", "asked"), [("flat", "and not batched as at"), ("batched", "and not flat_from_sizes as at")]
)
def test_a_condition_under_which_items_are_cut_otherwise_is_asked_for(kind, asked, release_tree):
    """Nano Nemotron cuts tiles, or gets whole images where its tiler is dynamic; an attribute of the model says so."""
    sheet, key = Sheet({}), "pixel_values_flat"
    sheet.put(f"fields.{key}" if kind == "batched" else f"fields.{key}.sizes", kind)
    put_gate(locate(release_tree("0.33.0"), "NemotronH_Nano_VL_V2"), (key,), sheet)
    [question] = sheet.questions
    assert (question.key, asked in question.what) == ("gates.modalities", True), question.what
    assert [one.value for one in question.candidates] == ["not self.dynamic_resolution"] * (kind == "flat")
