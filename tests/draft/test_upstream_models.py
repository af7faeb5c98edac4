"""Models outside the core five, from the release before their port; and whatever else vLLM registers."""

from __future__ import annotations

import ast

import pytest
from draft_cases import BEYOND, CASES, DOCUMENT, UPSTREAM, Case, refusal, table, with_table

from scaffold.descriptor import PackedPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor
from scaffold.protocol import SourceTree
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees


@pytest.mark.parametrize("case", [case for case in UPSTREAM if not case.beyond], ids=lambda case: case.name)
def test_questions_and_static_proofs(case: Case, drafted, completed, release_tree):
    assert sorted(question.key for question in drafted(case).questions) == sorted(case.answers)
    port = prepare_port(completed(case), release_tree(case.release))
    assert any(change.path.startswith("vllm/") for change in port.changed)


@pytest.mark.parametrize("case", BEYOND, ids=lambda case: case.name)
def test_what_no_descriptor_says_is_refused_with_its_line(case: Case, release_tree):
    tree = release_tree(case.release)
    found = refusal(case, tree)
    assert len(found) == len(case.beyond)
    for problem, (reason, file, code) in zip(found, case.beyond, strict=True):
        assert (problem.code, problem.message) == ("VCG483", f"the model is beyond the layouts: {reason}")
        assert problem.span is not None
        shown = problem.span.file.removeprefix(tree.display(""))
        assert shown.endswith(f"/{file}")
        assert code in tree.read(shown).splitlines()[problem.span.line - 1]


def test_the_pictures_of_llava_next_are_refused(release_tree):
    """Lists of tiles of any number, and sizes that are no count of them: two reasons where no cut can be expressed."""
    case = Case("LLaVA-NeXT", "0.21.0", "LlavaNextForConditionalGeneration")
    messages = [problem.message for problem in refusal(case, release_tree(case.release))]
    assert any("also depends on `image_sizes`" in message for message in messages)
    assert any("`pixel_values` arrives as one tensor an item" in message for message in messages)


def test_a_split_tower_with_room_for_items_alone(release_tree):
    """0.33's own tower of ERNIE-4.5-VL pads offsets to a number of items. Its model has methods that take the grid."""
    tree, name = release_tree("0.33.0"), "Ernie4_5_VLMoeForConditionalGeneration"
    asked = {question.key: question for question in draft_descriptor(tree, name).questions}
    assert [candidate.value for candidate in asked["attention.full.unit"].candidates] == ["item", "frame"]
    answers = {key: question.candidates[0].value for key, question in asked.items()}
    port = load_descriptor_text(draft_descriptor(tree, name, answers).text, "draft.yaml")
    assert isinstance(port, PackedPort)
    assert port.split.grid == "tensor"
    assert prepare_port(port, tree, replace=True).changed


def test_the_table_is_what_ran(release_tree):
    """`docs/init.md` says what drafts of today ask; `python tests/draft/draft_cases.py` writes it again."""
    document = DOCUMENT.read_text(encoding="utf-8")
    assert document == with_table(document, table({case.release: release_tree(case.release) for case in CASES}))


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.20.0", "0.26.0", "0.33.0"])
def test_every_architecture_is_drafted_or_refused(release, release_tree):
    """Never an unexpected error, and never a draft that is wrong in more than its open questions. What is refused has
    no images, or encodes them in a way that cannot be read."""
    tree = release_tree(release)
    outcomes = {name: _outcome(tree, name) for name in _architectures(tree)}
    wrong = {name: found for name, found in outcomes.items() if found not in ("drafted", "VCG481", "VCG483", "VCG486")}
    assert wrong == {}
    assert sum(found == "drafted" for found in outcomes.values()) >= 31


def _outcome(tree: SourceTree, name: str) -> str:
    try:
        text = draft_descriptor(tree, name).text
    except DiagnosticError as error:
        return error.diagnostics[0].code
    try:
        load_descriptor_text(text, "draft.yaml")
    except DiagnosticError as error:
        codes = {problem.code for problem in error.diagnostics} - {"VCG390"}
        return "drafted" if not codes else f"draft with {', '.join(sorted(codes))}"
    return "drafted"


def _architectures(tree: SourceTree) -> list[str]:
    for node in tree.parse("vllm/model_executor/models/registry.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_MULTIMODAL_MODELS":
            assert isinstance(node.value, ast.Dict)
            return [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
    raise AssertionError("no registry")
