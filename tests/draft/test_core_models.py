"""The five core models from the release before their port: few questions, and with answers the shipped descriptors."""

from __future__ import annotations

import pytest
from draft_cases import CORE, DRAFTED, Case
from draft_meaning import differences

from scaffold.descriptor import load_descriptor, load_descriptor_text
from scaffold.descriptor.expressions import parse_expression
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor, interview
from scaffold.workflow import prepare_port, prove_numerics

pytestmark = pytest.mark.trees

#: What a completed draft says otherwise than the shipped descriptor, and why it is right for its release.
_DTYPE = "pixels.dtype"  # a later release's normalisation inside the tower; the older towers have none
DIFFERENT = {
    # 0.22 asks a grid that is no list for its values; a tower that we split asks none.
    "Qwen2-VL": {_DTYPE, "forward.call"},
    # The 0.20 tower knows no FlashInfer: no lengths, and offsets of one section.
    "Qwen2.5-VL": {_DTYPE, "lengths"},
    "Qwen3-VL": {_DTYPE},
    "InternVL": set(),
    # The model's own switch guards nothing inside the recorded call.
    "Step3-VL": {"data_parallel.switches"},
}


@pytest.mark.parametrize("case", CORE, ids=lambda case: case.name)
class TestCore:
    def test_at_most_three_questions(self, case: Case, drafted):
        asked = [question.key for question in drafted(case).questions]
        assert sorted(asked) == sorted(case.answers)
        assert len(asked) <= 3

    def test_only_the_open_questions_are_wrong(self, case: Case, drafted):
        found = drafted(case)
        with pytest.raises(DiagnosticError) as error:
            load_descriptor_text(found.text, "draft.yaml")
        assert {problem.code for problem in error.value.diagnostics} == {"VCG390"}
        named = [problem.message.split("`")[1] for problem in error.value.diagnostics]
        assert sorted(named) == sorted(case.answers)

    def test_answers_complete_it(self, case: Case, drafted, completed):
        found = drafted(case, answered=True)
        assert found.complete
        assert found.unused == ()
        assert "TODO" not in found.text
        assert completed(case).class_name == case.architecture

    def test_it_means_what_the_shipped_descriptor_means(self, case: Case, drafted, completed):
        shipped = load_descriptor(drafted(case).name)
        found = differences(completed(case), shipped)
        allowed = DIFFERENT[case.name]
        unexplained = {key: value for key, value in found.items() if not any(word in key for word in allowed)}
        assert unexplained == {}
        assert {word for word in allowed if any(word in key for key in found)} == allowed, "no difference any more"

    def test_static_proofs_pass(self, case: Case, completed, release_tree):
        """`prepare_port` raises what a proof refuses."""
        port = prepare_port(completed(case), release_tree(case.release), replace=case.name == "Qwen3-VL")
        assert any(change.path.startswith("vllm/") for change in port.changed)


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.parametrize("case", DRAFTED, ids=lambda case: case.name)
def test_the_lab_proves_a_completed_draft(case: Case, drafted, completed, release_tree):
    """The port of the draft runs with the release's real classes; `name` is the recipe that builds them."""
    port = completed(case)
    assert port.name == drafted(case).name
    [report] = prove_numerics(port, release_tree(case.release))
    assert report.passed, report


def test_a_difference_would_be_seen(completed, drafted):
    """The comparison by meaning is not blind: one formula changed, one field differs."""
    case = CORE[0]
    text = drafted(case, answered=True).text.replace("rows: t * h * w", "rows: t * h * (w + 1)")
    other = load_descriptor_text(text, "other.yaml")
    assert set(differences(completed(case), other)) == {"item.rows"}


#: The same on the newest release, whose towers are split and whose processors say more.
NEWEST = "0.33.0"
DIFFERENT_NOW = {
    "Qwen2-VL": {"forward.call"},
    "Qwen2.5-VL": set(),
    "Qwen3-VL": set(),
    "InternVL": set(),
    "Step3-VL": {"data_parallel.switches"},
}


@pytest.mark.parametrize("case", CORE, ids=lambda case: case.name)
def test_from_the_newest_release_it_means_the_same(case: Case, release_tree):
    found = draft_descriptor(release_tree(NEWEST), case.architecture, case.answers)
    assert found.complete
    port = load_descriptor_text(found.text, "draft.yaml")
    assert set(differences(port, load_descriptor(found.name))) == DIFFERENT_NOW[case.name]


def test_a_ported_tower_that_asks_its_grid_is_a_question(release_tree):
    """0.22's own port of Qwen2-VL turns its grid into a list even where it gets metadata."""
    found = draft_descriptor(release_tree("0.22.0"), "Qwen2VLForConditionalGeneration", {"budget.min": "64"})
    [question] = found.open
    assert question.key == "forward.call"
    assert question.candidates[0].value == "self.visual(pixels, [], encoder_metadata=metadata)"
    assert question.look == ("vllm/model_executor/models/qwen2_vl.py:718: .tolist()",)


#: The architectures whose two paths run the same convolutions behind the patches of 728 and of 504 pixels.
STEPS = ["Step3VL", "Step3p7", "StepVL", "Step5"]


@pytest.mark.parametrize("name", STEPS)
def test_tokens_of_a_path_follow_its_convolutions(name: str, release_tree):
    """The first candidate gives the constants of the processor, and other numbers for a model of other sizes."""
    found = draft_descriptor(release_tree(NEWEST), f"{name}ForConditionalGeneration")
    sizes = {"side": 728, "tile_side": 504, "patch": 14, "self.config.understand_projector_stride": 2}
    for path in ("global", "local"):
        [question] = [asked for asked in found.questions if asked.key == f"paths.{path}.tokens"]
        formula, constant, _ = question.candidates
        assert parse_expression(formula.value).evaluate(sizes) == int(constant.value)
        assert parse_expression(formula.value).evaluate({**sizes, "patch": 28}) < int(constant.value)


def test_first_candidates_alone_mean_what_is_shipped(release_tree):
    tree = release_tree(NEWEST)
    asked = draft_descriptor(tree, "Step3VLForConditionalGeneration").questions
    answers = {question.key: question.candidates[0].value for question in asked}
    port = load_descriptor_text(draft_descriptor(tree, "Step3VLForConditionalGeneration", answers).text, "draft.yaml")
    assert set(differences(port, load_descriptor("step3_vl"))) == DIFFERENT_NOW["Step3-VL"]


@pytest.mark.parametrize("release", ["0.28.0", "0.29.0"])
@pytest.mark.parametrize("model", ["Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"])
def test_what_normalises_raw_pixels_is_not_taken_for_the_tower(model: str, release: str, release_tree):
    draft = interview(release_tree(release), model, {}, lambda question: question.candidates[0].value)
    port = load_descriptor_text(draft.text, "draft.yaml")

    assert (port.layout, port.tower) == ("packed", "visual")
    assert [modality.name for modality in port.inputs] == ["image", "video"]
