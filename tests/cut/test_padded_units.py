"""Units that are shorter than a graph's, and methods that only subclasses implement: MiniCPM-V."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from changed_ports import port_of

from scaffold.diagnostics import DiagnosticError
from scaffold.plan.cut import plan_way
from scaffold.protocol import SourceTree, find_model
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

MODELS = "vllm/model_executor/models"
MODEL, OMNI, TOWER = (f"{MODELS}/{name}.py" for name in ("minicpmv", "minicpmo", "idefics2_vision_model"))
FILES = (
    MODEL,
    OMNI,
    TOWER,
    f"{MODELS}/interfaces.py",
    "vllm/v1/worker/encoder_cudagraph.py",
    "vllm/v1/worker/encoder_cudagraph_defs.py",
)
#: A release before upstream's own port, and one with it.
PRISTINE, PORTED = "0.28.0", "0.33.0"
VERSIONS = ("MiniCPMV2_5", "MiniCPMV2_6", "MiniCPMV4_0", "MiniCPMV4_5")


def way_of(tree: SourceTree, changes: dict[str, Any] | None = None) -> Any:
    port = port_of("minicpmv", changes)
    return plan_way(port, tree, find_model(tree, port.module, port.class_name))


def messages(tree: SourceTree, changes: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    with pytest.raises(DiagnosticError) as caught:
        way_of(tree, changes)
    return [(problem.code, problem.message) for problem in caught.value.diagnostics]


def replaced(tree: SourceTree, path: str, *changes: tuple[str, str]) -> SourceTree:
    """The copied tree with other text in one file."""
    text = tree.read(path)
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    tree.path(path).write_text(text)
    return tree.reread()


@pytest.mark.parametrize("release", ["0.22.0", PRISTINE, PORTED])
def test_the_way_leads_through_every_subclass(release: str, release_tree: Any) -> None:
    way = way_of(release_tree(release))
    found = {(station.class_name, station.function): len(station.sites) for station in way.stations}
    encoders = {(version, "get_vision_hidden_states"): 0 for version in (*VERSIONS, "MiniCPMV2_0", "MiniCPMVBaseModel")}
    # What MiniCPM-o has of a base beside MiniCPM-V calls `super()`, and hands the parameter on.
    bases = {
        ("MiniCPMVBaseModel", "_process_multimodal_inputs"): 0,
        ("MiniCPMOBaseModel", "_process_multimodal_inputs"): 0,
    }
    inside = {("MiniCPMVBaseModel", "embed_multimodal"): 0, ("MiniCPMVBaseModel", "_process_vision_input"): 0}
    assert found == {**encoders, **bases, **inside, ("Idefics2VisionTransformer", "forward"): 1}
    # `MiniCPMO` makes objects of other classes, and `MiniCPMV` implements nothing.
    assert {name for _, name in way.heirs} == {*VERSIONS, "MiniCPMO2_6", "MiniCPMO4_5"}
    assert [name for name, _ in way.without] == ["MiniCPMV2_0"]
    handed = {station.class_name for station in way.stations if station.forwards}
    assert handed == {*VERSIONS, "MiniCPMVBaseModel", "MiniCPMOBaseModel"}


@pytest.mark.parametrize("release", [PRISTINE, PORTED])
def test_a_second_run_finds_nothing_to_do(release: str, release_tree: Any, ported: Any) -> None:
    port = port_of("minicpmv")
    tree = ported(port, prepare_port(port, release_tree(release), replace=True), release)
    assert not prepare_port(port, tree).changed
    assert not prepare_port(port, tree, replace=True).changed


def test_a_subclass_without_the_encoder_must_opt_out(release_tree: Any) -> None:
    first, second = messages(release_tree(PRISTINE), {"model.optout": None})
    assert first[0] == "VCG443"
    assert second == ("VCG444", "MiniCPMV2_0 would inherit a port that it has no encoder for")


def test_an_encoder_that_no_subclass_calls_is_refused_once(release_tree: Any) -> None:
    [problem] = messages(release_tree(PRISTINE), {"forward.call": "self.vpm.other(pixels, attention_mask=mask)"})
    assert problem[0] == "VCG443"
    assert "does not lead to `self.vpm.other(" in problem[1]


def test_a_method_that_leads_there_in_some_subclasses_alone_is_refused(copied_tree: Any) -> None:
    """It would hand the parameter to a method of the others that takes none."""
    tree = replaced(
        copied_tree(PRISTINE, *FILES),
        MODEL,
        (
            "image_features_flat = self.get_vision_hidden_states(image_input)",
            "image_features_flat = self.get_vision_hidden_states(image_input) or self.encode_again(image_input)",
        ),
        (
            "        assert self.version == (2, 6)\n",
            "        assert self.version == (2, 6)\n\n"
            "    def encode_again(self, data):\n        return self.get_vision_hidden_states(data)\n",
        ),
    )
    assert messages(tree) == [("VCG443", "`_process_vision_input` leads to the encoder in one place only")]


def test_a_method_of_another_base_of_a_subclass_is_seen(copied_tree: Any) -> None:
    path = f"{MODELS}/llava_next.py"
    tree = copied_tree(PORTED, path, *FILES[3:])
    tree.path(path).write_text(
        f"{tree.read(path)}\n\nclass Other:\n    def _process_image_pixels(self, inputs):\n        return inputs\n"
        "\n\nclass Heir(Other, LlavaNextForConditionalGeneration):\n    pass\n"
    )
    tree, port = tree.reread(), port_of("llava_next")
    with pytest.raises(DiagnosticError) as caught:
        plan_way(port, tree, find_model(tree, port.module, port.class_name))
    [problem] = caught.value.diagnostics
    assert (problem.code, "Other overrides" in problem.message) == ("VCG444", True)


def test_a_port_of_one_version_would_break_the_others(release_tree: Any) -> None:
    """A method of their base would hand them a parameter that they do not take."""
    found = messages(release_tree(PRISTINE), {"model.class": "MiniCPMV2_6", "model.optout": None})
    assert {code for code, _ in found} == {"VCG444"}
    assert {message.partition(" overrides ")[0] for _, message in found} == {
        *("MiniCPMV2_0", "MiniCPMV2_5", "MiniCPMV4_0", "MiniCPMV4_5"),
        *("MiniCPMVBaseModel", "MiniCPMOBaseModel"),
    }


# -- an implementation in subclasses ----------------------------------------------------------------------------------

UPSTREAM = "_MiniCPMVEncoderCudaGraphMixin"


def test_an_implementation_of_subclasses_overrides_the_port_unless_it_is_replaced(release_tree: Any) -> None:
    prepared = prepare_port(port_of("minicpmv"), release_tree(PORTED))
    [note] = [note for note in prepared.plan.notes if "overrides the port" in note.message]
    assert (note.code, UPSTREAM in note.message) == ("VCG428", True)
    after = next(change.after for change in prepared.changed if change.path == MODEL)
    assert after is not None
    assert "_mcpmv_pack_flat_pixels" in after.decode()


def test_an_implementation_of_subclasses_is_taken_out(release_tree: Any) -> None:
    prepared = prepare_port(port_of("minicpmv"), release_tree(PORTED), replace=True)
    assert not [note for note in prepared.plan.notes if "overrides the port" in note.message]
    after = next(change.after for change in prepared.changed if change.path == MODEL)
    assert after is not None
    assert b"_mcpmv_" not in after
    assert b"_CUDAGRAPH_" not in after  # names of inputs, and a set of them
    classes = {node.name: node for node in ast.parse(after).body if isinstance(node, ast.ClassDef)}
    assert not [node for node in classes[UPSTREAM].body if isinstance(node, ast.FunctionDef)]
    methods = {node.name for node in classes["MiniCPMVBaseModel"].body if isinstance(node, ast.FunctionDef)}
    assert "get_encoder_cudagraph_config" in methods
