"""A plan as a whole: which files, which notes, which facts; what is refused before anything is rendered."""

from __future__ import annotations

import dataclasses

import pytest
from changed_ports import document_of, port_of

from scaffold.descriptor import AnyPort
from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.plan import Plan, plan_changes
from scaffold.plan.methods import refusal
from scaffold.protocol import GENERATIONS, SourceTree, known_profile, read_protocol
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

MODELS = "vllm/model_executor/models"


def plan(tree: SourceTree, spec: AnyPort, *, replace: bool = False) -> Plan:
    return plan_changes(spec, tree, read_protocol(tree), replace=replace)


def test_places_that_a_descriptor_does_not_name_are_left_out(release_tree):
    spec = port_of("internvl", {"integration": None})

    planned = plan(release_tree("0.22.0"), spec)

    assert [file.path for file in planned.files] == [f"{MODELS}/internvl.py", f"{MODELS}/intern_vit.py"]
    assert [fact.name for fact in planned.facts] == ["protocol", "model", *["gets use_data_parallel"] * 3]
    assert planned.files[0].class_name == "InternVLChatModel"


def test_installed_tree_has_the_model_class_only(release_tree):
    tree = dataclasses.replace(release_tree("0.22.0"), installed=True)

    planned = plan(tree, load_port("internvl"))

    assert [file.path for file in planned.files] == [f"{MODELS}/internvl.py", f"{MODELS}/intern_vit.py"]
    (note,) = [note for note in planned.notes if note.code == "VCG426"]
    assert "a package without its repository has no tests" in note.message


def test_subclasses_are_named_unless_they_opt_out(release_tree):
    spec = load_port("internvl")
    tree = release_tree("0.22.0")

    (note,) = plan(tree, spec).notes
    assert (note.code, note.exit) == ("VCG428", Exit.OK)
    names = ("H2OVLChatModel", "NVLM_D_Model", "QianfanOCRForConditionalGeneration")
    for name in names:
        assert f"{name} ({MODELS}/" in note.message
    (rest,) = plan(tree, port_of("internvl", {"model.optout": list(names[:2])})).notes
    assert names[2] in rest.message
    assert names[0] not in rest.message
    assert plan(tree, port_of("internvl", {"model.optout": list(names)})).notes == ()


def test_tower_in_a_file_of_its_own_is_a_file_of_the_plan(release_tree, tmp_path, monkeypatch):
    """The split of a tower that another module defines is planned there."""
    from scaffold.edit.operations import ReplaceMethod
    from scaffold.plan import planner

    real = planner.plan_tower
    path = f"{MODELS}/qwen2_5_vl.py"
    elsewhere = f"{MODELS}/qwen2_vl.py"

    def split_elsewhere(*arguments: object, **named: object) -> object:
        tower = real(*arguments, **named)
        edit = ReplaceMethod("Tower", "forward", "def forward(self): ...\n")
        return dataclasses.replace(tower, edits={**tower.edits, elsewhere: (edit,)})

    monkeypatch.setattr(planner, "plan_tower", split_elsewhere)

    planned = plan(release_tree("0.20.0"), load_port("qwen2_5_vl"))

    files = {file.path: file for file in planned.files}
    assert next(iter(files)) == path
    assert files[elsewhere].reason == "split the tower of Qwen2_5_VLForConditionalGeneration"
    assert files[elsewhere].class_name is None
    kept = "keep in `__init__` what is read by the port of Qwen2_5_VLForConditionalGeneration"
    assert files[f"{MODELS}/opencua.py"].reason == kept


@pytest.mark.parametrize("release", ["0.20.0", "0.22.0"])
def test_split_port_is_proven(release_tree, release):
    """A pristine tower and a split one: both ports pass every static proof."""
    port = prepare_port(load_port("qwen2_5_vl"), release_tree(release), replace=True)

    assert port.changed[0].path == f"{MODELS}/qwen2_5_vl.py"
    assert (port.plan.split is None) is (release == "0.22.0")


def test_names_of_paths_matter_where_the_release_fixes_them(release_tree):
    paths = document_of("step3_vl")["paths"]
    renamed = port_of("step3_vl", {"paths": {"whole": paths["global"], "local": paths["local"]},
                                   "post.assemble": ["local", "whole"]})  # fmt: skip
    dialects = {generation.name: known_profile(generation).dialect for generation in GENERATIONS}

    refused = {name for name, dialect in dialects.items() if refusal(renamed, dialect) is not None}

    assert refused == {name for name, dialect in dialects.items() if dialect.paths.value == "dual"} != set()
    with pytest.raises(DiagnosticError) as caught:
        plan(release_tree("0.24.0"), renamed)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, caught.value.exit) == ("VCG437", Exit.TARGET)
    assert diagnostic.span == renamed.span("paths")
