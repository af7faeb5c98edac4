"""Subclasses of a ported class: who is named, who is warned about, and how one is kept out."""

from __future__ import annotations

import ast
import textwrap
from typing import NoReturn

import pytest
from changed_ports import port_of

from scaffold.descriptor import AnyPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError, Severity
from scaffold.draft import draft_descriptor
from scaffold.edit import apply_edits
from scaffold.plan import Plan, plan_changes
from scaffold.protocol import SourceTree, read_protocol
from scaffold.tower.source import Program
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

MODELS = "vllm/model_executor/models"
OCR = f"{MODELS}/glm_ocr.py"


def plan(tree: SourceTree, model: str, *optout: str, replace: bool = False) -> Plan:
    port = port_of(model, {"model.optout": list(optout)} if optout else {})
    return plan_changes(port, tree, read_protocol(tree), replace=replace)


def config_of(source: str, class_name: str) -> str:
    """The method that the manager asks first."""
    owner = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    (method,) = (node for node in owner.body if getattr(node, "name", "") == "get_encoder_cudagraph_config")
    return textwrap.dedent(ast.unparse(method))


@pytest.mark.parametrize(("release", "replace"), [("0.23.0", False), ("0.33.0", True)])
def test_a_subclass_that_opts_out_says_so_before_a_capture(release_tree, release, replace):
    """GLM-OCR's tower deletes what the metadata method of its base reads (catalogue B1)."""
    port = prepare_port(load_port("glm4_1v"), release_tree(release), replace=replace)
    (after,) = (change.after.decode() for change in port.changed if change.path == OCR and change.after)
    names: dict[str, object] = {"NoReturn": NoReturn}
    exec(config_of(after, "GlmOcrForConditionalGeneration"), names)

    with pytest.raises(NotImplementedError, match=r"^Ocr has another vision tower .* disable cudagraph_mm_encoder"):
        names["get_encoder_cudagraph_config"](type("Ocr", (), {})())
    assert "GlmOcr" not in "".join(note.message for note in port.notes)


def test_a_subclass_in_the_file_of_the_model_is_part_of_its_edits(release_tree):
    tree = release_tree("0.23.0")
    (model,) = (
        file
        for file in plan(tree, "glm4_1v", "Glm4vMoeForConditionalGeneration").files
        if file.path == f"{MODELS}/glm4_1v.py"
    )
    after = apply_edits(tree.read(model.path), model.edits, path=model.path).text

    assert "raise NotImplementedError" in config_of(after, "Glm4vMoeForConditionalGeneration")
    assert "EncoderCudaGraphConfig(" in config_of(after, "Glm4vForConditionalGeneration")


def test_a_subclass_that_the_release_does_not_have_is_left_out(release_tree):
    planned = plan(release_tree("0.23.0"), "glm4_1v", "OfTomorrow")

    assert OCR not in [file.path for file in planned.files]
    (note,) = [note for note in planned.notes if "OfTomorrow" in note.message]
    assert (note.code, note.severity, note.span) == ("VCG428", Severity.INFO, planned.port.span("model.optout.0"))


def test_a_hand_written_answer_of_a_subclass_goes_with_replace_only(release_tree):
    tree = release_tree("0.33.0")
    heir = "Glm5NextForConditionalGeneration"

    planned = plan(tree, "glm4_1v", heir, replace=True)
    (file,) = (file for file in planned.files if file.path.endswith("glm5next/common/model.py"))
    after = apply_edits(tree.read(file.path), file.edits, path=file.path).text

    assert "raise NotImplementedError" in config_of(after, heir)
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of("glm4_1v", {"model.optout": [heir]}), tree)
    assert caught.value.diagnostics[0].code == "VCG520"


def test_a_tower_of_its_own_is_warned_about(release_tree):
    """EXAONE-4.5's is another class; OpenCUA's is the ported one, imported under another name."""
    notes = [note for note in plan(release_tree("0.33.0"), "qwen2_5_vl", replace=True).notes if note.code == "VCG428"]

    (exaone,) = (note for note in notes if note.severity is Severity.WARNING)
    assert "Exaone4_5_ForConditionalGeneration" in exaone.message
    assert "EXAONE4_5_VisionTransformer instead of Qwen2_5_VisionTransformer" in exaone.message
    (same,) = (note for note in notes if note.severity is Severity.INFO)
    assert "OpenCUAForConditionalGeneration" in same.message


def test_towers_of_tiles_are_not_compared(release_tree):
    """The port of tiles calls the model's own methods: it asks no tower for metadata."""
    notes = [note for note in plan(release_tree("0.33.0"), "step3_vl", replace=True).notes if note.code == "VCG428"]

    assert [note.severity for note in notes] == [Severity.INFO]
    assert "StepVLForConditionalGeneration" in notes[0].message


# --- a class whose base has a port ------------------------------------------------------------------------------------

MOE, BASE = "Qwen3VLMoeForConditionalGeneration", "Qwen3VLForConditionalGeneration"
ANSWERS = {"buffers": "[pos_embeds, rotary_pos_emb_cos, rotary_pos_emb_sin]", "budget.min": "64"}


def heir(tree: SourceTree) -> AnyPort:
    """The drafted port of a class that inherits upstream's; its tower is imported from its base's module."""
    return load_descriptor_text(draft_descriptor(tree, MOE, ANSWERS).text, "qwen3_vl_moe.yaml")


def test_a_port_of_the_base_is_not_overridden_unasked(release_tree):
    tree = release_tree("0.33.0")
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(heir(tree), tree)

    (problem,) = caught.value.diagnostics
    assert problem.code == "VCG520"
    assert problem.message == f"{MOE} inherits an implementation of SupportsEncoderCudaGraph from {BASE}"
    assert problem.span is not None
    assert problem.span.file.endswith("qwen3_vl_moe.py")
    assert problem.help is not None
    assert problem.help.startswith(
        f"nothing is to be done: the port of {BASE} ({MODELS}/qwen3_vl.py) serves {MOE}, too"
    )
    assert "add --replace to give it methods of its own" in problem.help


def test_a_class_gets_methods_of_its_own_with_replace(release_tree):
    tree = release_tree("0.33.0")
    changes = prepare_port(heir(tree), tree, replace=True).changed
    (change,) = [change for change in changes if change.path.startswith(MODELS)]
    assert change.path == f"{MODELS}/qwen3_vl_moe.py"
    assert "EncoderCudaGraphConfig(" in config_of((change.after or b"").decode(), MOE)


def test_no_method_of_the_base_runs_beside_the_port(release_tree):
    """The port of tiles puts nothing together after a replay, as that of its base's two paths does."""
    changes = {
        "model.module": "step_vl",
        "model.class": "StepVLForConditionalGeneration",
        "modalities.image.sizes": "num_patches",
        "processor": None,  # that of another model
        "let.tile_tokens": "self.config.vision_config.image_size",
        "forward.call": "self._process_image_features(self._get_vision_model_output(pixels))",
    }
    port = port_of("mllama4", changes)
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port, release_tree("0.33.0"), replace=True)

    (problem,) = caught.value.diagnostics
    assert problem.code == "VCG520"
    assert problem.message.endswith("Step3VLForConditionalGeneration, and the port has no postprocess_encoder_output")
    assert "--replace" not in (problem.help or "")


@pytest.mark.parametrize("chain", [False, True])
def test_the_cost_of_heirs_grows_as_their_number(release_tree, monkeypatch, chain):
    """Classes that are asked for a method, with 20, 40 and 80 heirs."""
    tree = release_tree("0.33.0")
    asked: list[str] = []
    own_method = Program.own_method

    def ask(program, owner, name):
        asked.append(name)
        return own_method(program, owner, name)

    monkeypatch.setattr(Program, "own_method", ask)

    def cost(number: int) -> int:
        bases = [f"C{n - 1}" if chain and n else "KimiVLForConditionalGeneration" for n in range(number)]
        text = "".join(f"class C{n}({base}):\n    def _parse(self): ...\n" for n, base in enumerate(bases))
        text = f"from vllm.model_executor.models.kimi_vl import KimiVLForConditionalGeneration\n{text}"
        hostile = tree.with_files({f"{MODELS}/teleflm.py": text.encode()})
        asked.clear()
        plan(hostile, "kimi_vl", replace=True)
        return len(asked)

    few, more, many = map(cost, (20, 40, 80))
    assert more - few >= 20
    assert many - more <= 2.2 * (more - few)
