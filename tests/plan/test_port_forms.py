"""A port in a tree runs the model's code once, or the plan says why not; and what that means for the shipped models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from port_forms import DOCUMENT, RELEASE, plans, with_table

from scaffold.diagnostics import DiagnosticError, Severity
from scaffold.plan import plan_changes
from scaffold.protocol import read_protocol
from scaffold.pull_request import RFC_LINES, changed_lines
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees


def test_the_table_of_models_is_what_is_planned(release_tree: Any) -> None:
    """`python tests/plan/port_forms.py` writes it again."""
    page = DOCUMENT.read_text("utf-8")
    assert page == with_table(page, release_tree(RELEASE))


def test_no_port_in_a_tree_is_large(release_tree: Any) -> None:
    """vLLM asks for an RFC above 500 added lines. Those that `new` writes unasked stay far below, in all files."""
    tree = release_tree(RELEASE)
    once = [name for name, plan in plans(tree).items() if not plan.reenters]
    added: Counter[str] = Counter()
    for name in once:
        for change in prepare_port(load_port(name), tree, replace=True).changed:
            assert "encoder_cudagraph_" not in change.path  # the files of classes that other ports share
            added[name] += changed_lines(change)[0]
    assert len(once) >= 14
    assert set(added) == set(once)
    assert max(added.values()) <= RFC_LINES, added.most_common(1)


def test_every_port_that_runs_code_twice_says_why(release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    for name, plan in plans(tree).items():
        notes = [note for note in plan.notes if note.code == "VCG466"]
        assert len(notes) == plan.reenters, name
        assert {note.severity for note in notes} <= {Severity.INFO}
        assert all(note.span is not None and note.span.file == f"{name}.yaml" for note in notes)


@pytest.mark.parametrize(
    ("name", "advice"), [("deepseek_ocr", "keep them, since "), ("qwen2_vl", "add --replace to swap")]
)
def test_a_port_by_hand_is_not_given_up_for_one(name: str, advice: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    with pytest.raises(DiagnosticError) as caught:
        plan_changes(load_port(name), tree, read_protocol(tree))
    [problem] = caught.value.diagnostics
    assert problem.code == "VCG520"
    assert (problem.help or "").startswith(advice)


@pytest.mark.parametrize(
    ("name", "release", "key", "reason"),
    [
        ("deepseek_ocr2", "0.33.0", "layout", "the layout `crops` has no other form"),
        ("phi3v", "0.33.0", "layout", "the descriptor has no section `explicit`"),
        ("llava_next", "0.26.0", "explicit", "before 0.27 an item has no number of tokens of its own"),
        # What its code scales there is in the way: the line of the tree is in the notes.
        ("paligemma", "0.28.0", "explicit", "`embed_multimodal` changes what it gets"),
    ],
)
def test_the_reason_is_at_its_key(name: str, release: str, key: str, reason: str, release_tree: Any) -> None:
    port, tree = load_port(name), release_tree(release)

    plan = plan_changes(port, tree, read_protocol(tree))

    [note] = [note for note in plan.notes if note.code == "VCG466"]
    assert note.message.startswith("the port runs the model's code again for each batch: ")
    assert reason in note.message
    assert note.span == port.span(key)
    assert [one.partition(":")[0] for one in note.notes] == (
        [f"look at {tree.display('vllm/model_executor/models/paligemma.py')}"] if name == "paligemma" else []
    )
