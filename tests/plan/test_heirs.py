"""Subclasses of a ported class: who is named, who is warned about, and how one is kept out."""

from __future__ import annotations

import ast

import pytest
from changed_ports import document_of, port_of, text_of

from scaffold.descriptor import load_descriptor_text
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit import apply_edits
from scaffold.plan import Plan, plan_changes
from scaffold.plan.heirs import _of_a_base
from scaffold.plan.question import plan_question
from scaffold.protocol import SourceTree, read_protocol
from scaffold.tower.source import Program
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

MODELS = "vllm/model_executor/models"
OCR = f"{MODELS}/glm_ocr.py"
INTERFACES = f"{MODELS}/interfaces.py"
NO = "supports_encoder_cudagraph: ClassVar[Literal[False]] = False"


def plan(tree: SourceTree, model: str, *optout: str, replace: bool = False) -> Plan:
    port = port_of(model, {"model.optout": list(optout)} if optout else {})
    return plan_changes(port, tree, read_protocol(tree), replace=replace)


def answer_of(source: str, class_name: str) -> str | None:
    """What a class says of itself when vLLM asks whether it has graphs, if it says anything."""
    owner = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    found = [node for node in owner.body if getattr(node, "target", None)]
    answers = [node for node in found if ast.unparse(node.target) == "supports_encoder_cudagraph"]
    return ast.unparse(answers[0]) if answers else None


@pytest.mark.parametrize(("release", "replace"), [("0.23.0", False), ("0.33.0", True)])
def test_a_subclass_that_opts_out_says_so_when_vllm_asks_first(release_tree, release, replace):
    """GLM-OCR's tower deletes what the metadata method of its base reads (catalogue B1)."""
    port = prepare_port(load_port("glm4_1v"), release_tree(release), replace=replace)
    after = {change.path: change.after.decode() for change in port.changed if change.after}

    assert answer_of(after[OCR], "GlmOcrForConditionalGeneration") == NO
    assert answer_of(after[f"{MODELS}/glm4_1v.py"], "Glm4vForConditionalGeneration") is None
    assert "if not model.supports_encoder_cudagraph:" in after[INTERFACES]
    assert "GlmOcr" not in "".join(note.message for note in port.notes)
    overlaid = release_tree(release).with_files({path: text.encode() for path, text in after.items()})
    assert plan_question(overlaid) is None


def test_nothing_else_changes_the_first_question(release_tree):
    planned = plan(release_tree("0.33.0"), "llava_next")

    assert INTERFACES not in [file.path for file in planned.files]


def test_a_question_of_another_form_is_warned_about(release_tree):
    tree = release_tree("0.23.0")
    text = tree.read(INTERFACES).replace("return isinstance(model, SupportsEncoderCudaGraph)", "return ask(model)")
    own = tree.with_files({INTERFACES: text.encode()})

    planned = plan(own, "glm4_1v")
    assert INTERFACES not in [file.path for file in planned.files]
    [note] = [note for note in planned.notes if "has another form" in note.message]
    assert (note.code, note.severity) == ("VCG428", Severity.WARNING)
    assert isinstance(plan_question(tree.with_files({INTERFACES: b"x = 1\n"})), Diagnostic)


def test_a_subclass_in_the_file_of_the_model_is_part_of_its_edits(release_tree):
    tree = release_tree("0.23.0")
    (model,) = (
        file
        for file in plan(tree, "glm4_1v", "Glm4vMoeForConditionalGeneration").files
        if file.path == f"{MODELS}/glm4_1v.py"
    )
    after = apply_edits(tree.read(model.path), model.edits, path=model.path).text

    assert answer_of(after, "Glm4vMoeForConditionalGeneration") == NO
    assert answer_of(after, "Glm4vForConditionalGeneration") is None


def test_a_subclass_that_the_release_does_not_have_is_left_out(release_tree):
    planned = plan(release_tree("0.23.0"), "glm4_1v", "OfTomorrow")

    assert OCR not in [file.path for file in planned.files]
    (note,) = [note for note in planned.notes if "OfTomorrow" in note.message]
    assert (note.code, note.severity, note.span) == ("VCG428", Severity.INFO, planned.port.span("model.optout.0"))


def test_a_tower_of_its_own_is_warned_about(release_tree):
    """GLM-5-Next's is another class. OpenCUA's is the ported one under another name, EXAONE 4.5's builds it anew."""

    def notes(name: str) -> dict[Severity, str]:
        planned = plan(release_tree("0.33.0"), name, replace=True)
        return {note.severity: note.message for note in planned.notes if note.code == "VCG428"}

    found = notes("glm4_1v")[Severity.WARNING]
    assert "Glm5NextForConditionalGeneration" in found
    assert "Glm5NextVisionTransformer instead of Glm4vVisionTransformer" in found
    assert notes("qwen2_5_vl").keys() == {Severity.INFO}
    same = notes("qwen2_5_vl")[Severity.INFO]
    assert "Exaone4_5_ForConditionalGeneration" in same
    assert "OpenCUAForConditionalGeneration" in same


def test_towers_of_tiles_are_not_compared(release_tree):
    """The port of tiles calls the model's own methods: it asks no tower for metadata."""
    notes = [note for note in plan(release_tree("0.33.0"), "step3_vl", replace=True).notes if note.code == "VCG428"]

    assert [note.severity for note in notes] == [Severity.INFO]
    assert "StepVLForConditionalGeneration" in notes[0].message


def test_a_port_belongs_to_the_base_whose_code_it_runs(release_tree):
    """As LLaVA-OneVision's does for Bee, which adds a projector and no method."""
    tree, (path, sub) = release_tree("0.33.0"), (f"{MODELS}/llava_next.py", "OfToday")
    text = f"{tree.read(path)}\n\nclass {sub}(LlavaNextForConditionalGeneration):\n    pass\n"
    port = port_of("llava_next", {"model.class": sub})

    assert list(_of_a_base(load_port("llava_next"), tree)) == []
    assert list(_of_a_base(port_of(HEIR), tree)) == []
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port, tree.with_files({path: text.encode()}))
    [problem] = caught.value.diagnostics
    assert (problem.code, problem.severity) == ("VCG428", Severity.ERROR)
    assert problem.message.startswith(f"all that a port of {sub} runs is code of LlavaNextForConditionalGeneration (")
    asked = prepare_port(port, tree.with_files({path: text.encode()}), replace=True)
    assert [note.severity for note in asked.notes if note.message == problem.message] == [Severity.WARNING]


# --- a class whose base has a port ------------------------------------------------------------------------------------

MOE, BASE = "Qwen3VLMoeForConditionalGeneration", "Qwen3VLForConditionalGeneration"
#: The draft of a class that inherits upstream's port; its tower is imported from its base's module.
HEIR = "qwen3_vl_moe"


def test_a_port_of_the_base_is_not_overridden_unasked(release_tree):
    tree = release_tree("0.33.0")
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port_of(HEIR), tree)

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
    changes = prepare_port(port_of(HEIR), tree, replace=True).changed
    (change,) = [change for change in changes if change.path.startswith(MODELS)]
    assert change.path == f"{MODELS}/qwen3_vl_moe.py"
    [owner] = [node for node in ast.parse(change.after or b"").body if getattr(node, "name", "") == MOE]
    assert "get_encoder_cudagraph_config" in [getattr(node, "name", "") for node in owner.body]


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
    """Classes that are asked for a method, with 5, 10 and 20 heirs."""
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

    few, more, many = map(cost, (5, 10, 20))
    assert more - few >= 5
    assert many - more <= 2.2 * (more - few)


# --- a class with a port of its other encoder -------------------------------------------------------------------------


def test_a_port_of_sound_says_that_it_replaces_one_of_images(release_tree):
    """An adapter of the one beside the port of the other keeps both."""
    module, name = "qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration"
    document = document_of("qwen3_asr") | {"model": {"module": module, "class": name}}
    port = load_descriptor_text(text_of(document), "heard.yaml")
    tree, path = release_tree("0.33.0"), f"{MODELS}/{module}.py"
    first = "    is_3d_moe_weight: ClassVar[bool] = True\n"
    by_hand = '    def get_encoder_cudagraph_config(self):\n        return dict(modalities=["image", "video"])\n\n'
    text = tree.read(path).replace(first, by_hand + first)
    seen = tree.with_files({path: text.encode()})

    notes = plan_changes(port, seen, read_protocol(seen), replace=True).notes
    [note] = [note for note in notes if note.code == "VCG520"]
    assert note.severity is Severity.WARNING
    assert "has graphs of its image and video, which this port of another encoder replaces" in note.message
    assert "vitcg-scaffold new heard.yaml --into generated" in (note.help or "")
    with pytest.raises(DiagnosticError) as caught:
        plan_changes(port, seen, read_protocol(seen))
    assert [one.code for one in caught.value.diagnostics] == ["VCG520", "VCG520"]
    assert note in caught.value.diagnostics
    heard = tree.with_files({path: text.replace('"image", "video"', '"audio"').encode()})
    assert "VCG520" not in {one.code for one in plan_changes(port, heard, read_protocol(heard), replace=True).notes}
