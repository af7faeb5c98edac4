"""Shipped descriptors have a gate on pruning where a release's own `embed_multimodal` prunes, and nowhere else."""

from __future__ import annotations

import pytest

from scaffold.descriptor import SizedPort, shipped_names
from scaffold.draft.inputs import read_inputs
from scaffold.draft.locate import locate
from scaffold.draft.split import gate_of
from scaffold.protocol import SourceTree
from scaffold.tower.source import Program
from scaffold.workflow import load_port

pytestmark = pytest.mark.trees

GATED = {"cohere_compass", "qwen2_5_vl", "qwen3_vl"}
#: Gates on other things than pruning: on how the processor cuts images, and on data-parallel towers.
OTHER_GATES = {"kimi_k25", "minicpmv", "nano_nemotron_vl"}
FIRST = "0.20.0"
#: From here on GLM-4.1V has the attribute that upstream's port asks, and still nothing that prunes.
SET = "0.24.0"
NEWEST = "0.33.0"
OTHERS = tuple(f"0.{minor}.0" for minor in range(21, 33) if minor != 24)


def prunes(tree: SourceTree, name: str) -> bool:
    """Whether anything that `embed_multimodal` runs asks whether to prune."""
    spec, program = load_port(name), Program(tree)
    model = locate(tree, program, f"{spec.module.replace('.', '/')}.py:{spec.class_name}")
    inputs = read_inputs(tree, program, model)
    assert any(function.name == "embed_multimodal" for _, function in inputs.trace.visited)
    return gate_of(program, model.owner, inputs.trace.visited) is not None


@pytest.mark.parametrize(
    "release", [FIRST, SET, NEWEST, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)]
)
def test_a_gate_stands_where_the_release_prunes(release, release_tree):
    tree = release_tree(release)
    # What a port of the other layouts captures is the encoder alone: the model's own code prunes afterwards.
    ports = {name: load_port(name) for name in shipped_names()}
    there = {name for name, port in ports.items() if (tree.root / f"{port.module.replace('.', '/')}.py").exists()}
    whole = {name for name in there if isinstance(ports[name], SizedPort)}
    assert {name for name in whole if prunes(tree, name)} == GATED & there
    assert {"qwen2_5_vl", "qwen3_vl"} <= there


def test_the_descriptors_with_a_gate():
    assert {name for name in shipped_names() if load_port(name).gate is not None} == GATED | OTHER_GATES


def test_glm_sets_what_it_never_asks(release_tree):
    """What upstream's own port asks before it captures: a graph gives what eager gives, whatever the attribute says."""
    source = release_tree(SET).read("vllm/model_executor/models/glm4_1v.py")
    assert "self.is_multimodal_pruning_enabled = (" in source
    assert not prunes(release_tree(SET), "glm4_1v")
