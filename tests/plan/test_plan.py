"""A plan as a whole: which files, which notes, which facts; what is refused before anything is rendered."""

from __future__ import annotations

import dataclasses

import pytest

from scaffold.descriptor import shipped_names
from scaffold.descriptor.expressions import parse_expression
from scaffold.descriptor.spec import AdapterSpec, HookSpec, PadSpec, RequirementSpec
from scaffold.diagnostics import DiagnosticError, Exit
from scaffold.plan import Plan, plan_changes
from scaffold.plan.paths import refusal
from scaffold.plan.unread import unread_fields
from scaffold.protocol import GENERATIONS, SourceTree, known_profile, read_protocol
from scaffold.workflow import load_spec, prepare_port

pytestmark = pytest.mark.trees

MODELS = "vllm/model_executor/models"


def plan(tree: SourceTree, spec: AdapterSpec, *, replace: bool = False) -> Plan:
    return plan_changes(spec, tree, read_protocol(tree), replace=replace)


def test_places_that_a_descriptor_does_not_name_are_left_out(release_tree):
    spec = dataclasses.replace(load_spec("internvl"), tests=(), docs_models=(), examples=())

    planned = plan(release_tree("0.22.0"), spec)

    assert [file.path for file in planned.files] == [f"{MODELS}/internvl.py"]
    assert [fact.name for fact in planned.facts] == ["protocol", "model"]
    assert planned.files[0].class_name == "InternVLChatModel"


def test_installed_tree_has_the_model_class_only(release_tree):
    tree = dataclasses.replace(release_tree("0.22.0"), installed=True)

    planned = plan(tree, load_spec("internvl"))

    assert [file.path for file in planned.files] == [f"{MODELS}/internvl.py"]
    (note,) = [note for note in planned.notes if note.code == "VCG426"]
    assert "an installed package has no tests" in note.message


def test_subclasses_are_named_unless_they_opt_out(release_tree):
    spec = load_spec("internvl")
    tree = release_tree("0.22.0")

    (note,) = plan(tree, spec).notes
    assert (note.code, note.exit) == ("VCG428", Exit.OK)
    names = ("H2OVLChatModel", "NVLM_D_Model", "QianfanOCRForConditionalGeneration")
    for name in names:
        assert f"{name} ({MODELS}/" in note.message
    (rest,) = plan(tree, dataclasses.replace(spec, optout=names[:2])).notes
    assert names[2] in rest.message
    assert names[0] not in rest.message
    assert plan(tree, dataclasses.replace(spec, optout=names)).notes == ()


def test_unknown_example_is_noted(release_tree):
    spec = dataclasses.replace(load_spec("internvl"), examples=("of_tomorrow",))

    planned = plan(release_tree("0.22.0"), spec)

    assert [note.code for note in planned.notes] == ["VCG428", "VCG427"]
    assert planned.files[-1].edits == ()


def test_tower_in_a_file_of_its_own_is_a_file_of_the_plan(release_tree, tmp_path, monkeypatch):
    """The split of a tower that another module defines is planned there."""
    from scaffold.edit.operations import ReplaceMethod
    from scaffold.plan import planner

    real = planner.plan_tower
    path = f"{MODELS}/qwen2_5_vl.py"
    elsewhere = f"{MODELS}/qwen2_vl.py"

    def split_elsewhere(*arguments: object) -> object:
        tower = real(*arguments)
        edit = ReplaceMethod("Tower", "forward", "def forward(self): ...\n")
        return dataclasses.replace(tower, edits={**tower.edits, elsewhere: (edit,)})

    monkeypatch.setattr(planner, "plan_tower", split_elsewhere)

    planned = plan(release_tree("0.20.0"), load_spec("qwen2_5_vl"))

    assert [file.path for file in planned.files][:2] == [path, elsewhere]
    assert planned.files[1].reason == "split the tower of Qwen2_5_VLForConditionalGeneration"
    assert planned.files[1].class_name is None


@pytest.mark.parametrize("release", ["0.20.0", "0.22.0"])
def test_split_port_is_proven(release_tree, release):
    """A pristine tower and a split one: both ports pass every static proof."""
    port = prepare_port(load_spec("qwen2_5_vl"), release_tree(release), replace=True)

    assert port.changed[0].path == f"{MODELS}/qwen2_5_vl.py"
    assert (port.plan.split is None) is (release == "0.22.0")


def test_layout_without_a_template(release_tree):
    spec = dataclasses.replace(load_spec("internvl"), layout="padded")

    with pytest.raises(DiagnosticError) as caught:
        plan(release_tree("0.22.0"), spec)

    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, caught.value.exit) == ("VCG439", Exit.TARGET)
    assert "no template for the layout `padded`" in diagnostic.message
    assert diagnostic.span == spec.span("layout")


INTERNVL = load_spec("internvl")
ONE = parse_expression("1")
BUFFER = INTERNVL.buffers[0]
IMAGE, VIDEO = INTERNVL.modalities

#: field that no template reads -> a descriptor with it
UNREAD = {
    "hooks.assemble": {"hooks": (HookSpec("assemble", "H5", "assemble.py", ""),)},
    "requires": {"requires": (RequirementSpec(ONE, "no"),)},
    "sizes.also": {"more_columns": (("more", ("n",)),)},
    "item.eager_if": {"item": dataclasses.replace(INTERNVL.item, eager_if=ONE)},
    "modalities.video.only_if": {"modalities": (IMAGE, dataclasses.replace(VIDEO, only_if=ONE))},
    f"buffers.{BUFFER.name}.pad": {"buffers": (dataclasses.replace(BUFFER, pad=PadSpec("fill", 1)),)},
    f"buffers.{BUFFER.name}.residency": {"buffers": (dataclasses.replace(BUFFER, residency="host"),)},
    f"buffers.{BUFFER.name}.capture": {
        "spans": {**INTERNVL.spans, f"buffers.{BUFFER.name}.capture": INTERNVL.span("layout")}
    },
}


@pytest.mark.parametrize("field", UNREAD)
def test_no_field_is_left_out_in_silence(release_tree, field):
    spec = dataclasses.replace(INTERNVL, **UNREAD[field])

    with pytest.raises(DiagnosticError) as caught:
        plan(release_tree("0.22.0"), spec)

    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, caught.value.exit) == ("VCG442", Exit.TARGET)
    assert diagnostic.message == f"nothing is generated from `{field}` yet"


@pytest.mark.parametrize("model", shipped_names())
def test_all_of_a_shipped_descriptor_is_read(model):
    """Stand-alone adapters are generated from these without `plan_changes`."""
    assert list(unread_fields(load_spec(model))) == []


STEP3 = load_spec("step3_vl")
GLOBAL, LOCAL = STEP3.paths


def with_paths(*paths: object, **changes: object) -> AdapterSpec:
    return dataclasses.replace(STEP3, paths=paths or STEP3.paths, **changes)


#: descriptor -> the field that the two-path layout cannot take
REFUSED = {
    "one path": (with_paths(GLOBAL), "paths"),
    "first path more than once": (with_paths(LOCAL, GLOBAL), "paths"),
    "first path may be absent": (with_paths(dataclasses.replace(GLOBAL, zero_ok=True), LOCAL), "paths"),
    "count": (with_paths(GLOBAL, dataclasses.replace(LOCAL, count=parse_expression("n + 1"))), "paths.local"),
    "never absent": (with_paths(GLOBAL, dataclasses.replace(LOCAL, zero_ok=False)), "paths.local"),
    "order": (with_paths(assemble=STEP3.assemble[:1]), "post.assemble"),
    "separators": (
        with_paths(assemble=(STEP3.assemble[0], dataclasses.replace(STEP3.assemble[1], grid=(ONE, ONE)))),
        "post.assemble",
    ),
    "budget": (with_paths(budget=dataclasses.replace(STEP3.budget, min=ONE)), "budget.min"),
    "capture": (with_paths(GLOBAL, dataclasses.replace(LOCAL, capture=ONE)), "paths.local.capture"),
    "call": (with_paths(dataclasses.replace(GLOBAL, call=STEP3.forward.call), LOCAL), "paths.global.call"),
    "helper": (with_paths(GLOBAL, dataclasses.replace(LOCAL, rows=LOCAL.tokens)), "paths.local"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_paths_that_do_not_fit(release_tree, name):
    spec, field = REFUSED[name]

    found = refusal(spec, known_profile(GENERATIONS[-1]).dialect)
    assert found is not None
    assert found[0] == field
    with pytest.raises(DiagnosticError) as caught:
        plan(release_tree("0.22.0"), spec)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "VCG437"
    assert diagnostic.span == spec.span(field)


def test_names_of_paths_matter_where_the_release_fixes_them():
    renamed = with_paths(
        dataclasses.replace(GLOBAL, name="whole"),
        LOCAL,
        assemble=tuple(
            dataclasses.replace(part, path="whole") if part.path == "global" else part for part in STEP3.assemble
        ),
    )
    dialects = {generation.name: known_profile(generation).dialect for generation in GENERATIONS}

    refused = {name for name, dialect in dialects.items() if refusal(renamed, dialect) is not None}

    assert refused == {name for name, dialect in dialects.items() if dialect.paths.value == "dual"} != set()
