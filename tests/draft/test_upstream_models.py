"""Models outside the core five, from the release before their port; and whatever else vLLM registers."""

from __future__ import annotations

import ast

import pytest
from draft_cases import CASES, DOCUMENT, UPSTREAM, Case, table, with_table

from scaffold.descriptor import build_spec
from scaffold.descriptor.load import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor
from scaffold.protocol import SourceTree
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

DRAFTED = [case for case in UPSTREAM if not case.hooks]
BEYOND = [case for case in UPSTREAM if case.hooks]

#: Something for each question of the models that are beyond the layouts, so that only the hooks are in the way.
ANYTHING = {
    "let.m": "2",
    "pixels.shape": "[3, 14, 14]",
    "attention.backends": "[FLASH_ATTN]",
    "attention.sequences.full.unit": "item",
    "capture.side_limit": "512",
    "buffers.rope_freqs_cis.kind": "rows",
    "budget.min": "64",
    "eager.call": "self.vision_tower(pixels, sizes)",
    "layout": "padded",
    "item.tokens": "n * 64",
}


@pytest.mark.parametrize("case", DRAFTED, ids=lambda case: case.name)
def test_questions_and_static_proofs(case: Case, drafted, completed, release_tree):
    assert sorted(question.key for question in drafted(case).questions) == sorted(case.answers)
    port = prepare_port(completed(case), release_tree(case.release))
    assert any(change.path.startswith("vllm/") for change in port.changed)


@pytest.mark.parametrize("case", BEYOND, ids=lambda case: case.name)
def test_what_no_field_says_is_a_question_with_its_line(case: Case, drafted, release_tree):
    found, tree = drafted(case), release_tree(case.release)
    hooks = [question for question in found.open if question.key.startswith("hooks.")]
    assert [question.key for question in hooks] == [f"hooks.{name}.file" for name in case.hooks]
    for question in hooks:
        for look in question.look:
            file, line, _ = look.split(":", 2)
            assert tree.read(file).splitlines()[int(line) - 1].strip()
    with pytest.raises(DiagnosticError) as error:
        load_descriptor_text(found.text, "draft.yaml")
    assert {problem.code for problem in error.value.diagnostics} == {"VCG390"}
    assert len(error.value.diagnostics) == len(found.open)


@pytest.mark.parametrize("case", BEYOND, ids=lambda case: case.name)
def test_hooks_are_never_left_out_in_silence(case: Case, release_tree):
    """A draft whose questions are all answered is valid, and generating from it is refused."""
    tree = release_tree(case.release)
    keys = [question.key for question in draft_descriptor(tree, case.architecture).open]
    answers = {key: ANYTHING.get(key, "my_code.py") for key in keys}
    found = draft_descriptor(tree, case.architecture, answers)
    assert found.complete
    spec = build_spec(load_descriptor_text(found.text, "draft.yaml"))
    with pytest.raises(DiagnosticError) as error:
        prepare_port(spec, tree)
    messages = {problem.message for problem in error.value.diagnostics}
    if spec.layout == "padded":
        assert messages == {"there is no template for the layout `padded` yet"}
    else:
        assert {f"nothing is generated from `hooks.{name}` yet" for name in case.hooks} <= messages


def test_names_of_examples_may_have_hyphens(release_tree):
    found = draft_descriptor(release_tree("0.23.0"), "LlavaNextForConditionalGeneration")
    assert "  example: llava-next " in found.text
    with pytest.raises(DiagnosticError) as error:
        load_descriptor_text(found.text, "draft.yaml")
    assert {problem.code for problem in error.value.diagnostics} == {"VCG390"}


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
    wrong = {name: found for name, found in outcomes.items() if found not in ("drafted", "VCG481", "VCG483")}
    assert wrong == {}
    assert sum(found == "drafted" for found in outcomes.values()) >= 60


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
