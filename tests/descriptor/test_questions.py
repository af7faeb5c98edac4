"""Open questions in a descriptor: each is an error with its place and what the comments above say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaffold.descriptor
from scaffold.descriptor import load_descriptor_text, shipped_names
from scaffold.diagnostics import Diagnostic, DiagnosticError

SHIPPED = Path(scaffold.descriptor.__file__).parent / "shipped"
COMPLETE = (SHIPPED / "internvl.yaml").read_text(encoding="utf-8")


def problems(text: str) -> list[Diagnostic]:
    try:
        return list(load_descriptor_text(text, "my.yaml").warnings)
    except DiagnosticError as error:
        return list(error.diagnostics)


#: what is replaced by what -> place and message of the one question
OPEN = {
    "an expression": ("k: self.num_image_token", "k: TODO", "my.yaml:12:6", "`let.k` is an open question"),
    "a name": ("class: InternVLChatModel", "class: TODO", "my.yaml:5:10", "`model.class` is an open question"),
    "a word": ("layout: tiles", "layout: TODO", "my.yaml:6:9", "`layout` is an open question"),
    "a call": (
        "forward: {call: self.extract_feature(pixels), flatten: true}",
        "forward: {call: TODO, flatten: true}",
        "my.yaml:18:17",
        "`forward.call` is an open question",
    ),
    "a list's element": ("shape: [3, side, side]", "shape: [3, TODO, side]", "my.yaml:15:21", "`pixels.shape.1`"),
    "a whole list": ("shape: [3, side, side]", "shape: TODO", "my.yaml:15:17", "`pixels.shape` is an open question"),
    "a whole section": (
        "output: {hidden_size: self.config.text_config.hidden_size}",
        "output: TODO",
        "my.yaml:20:9",
        "`output` is an open question",
    ),
    "with a reason": (
        "k: self.num_image_token",
        "k: TODO tokens of a tile",
        "my.yaml:12:6",
        "`let.k` is an open question: tokens of a tile",
    ),
    "in quotes": ("k: self.num_image_token", 'k: "TODO: tokens"', "my.yaml:12:6", "open question: tokens"),
    "a comment": ("let:", "# TODO look at the tiles\nlet:", "my.yaml:11:1", "an open question: TODO look at the tiles"),
    "a comment beside a value": ("layout: tiles", "layout: tiles  # TODO sure?", "my.yaml:6:16", "TODO sure?"),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_question_is_the_only_error(name):
    old, new, place, message = OPEN[name]
    assert old in COMPLETE
    found = problems(COMPLETE.replace(old, new, 1))
    assert [problem.code for problem in found] == ["VCG390"]
    assert str(found[0].span) == place
    assert message in found[0].message
    assert found[0].help
    assert found[0].exit == 3


def test_comments_above_are_its_notes():
    above = "  # open: the tokens of a tile\n  #   candidate: 256\n  #   look at: a.py:3\n  k: TODO"
    [found] = problems(COMPLETE.replace("  k: self.num_image_token", above, 1))
    assert found.message == "`let.k` is an open question: the tokens of a tile"
    assert found.notes == ("candidate: 256", "look at: a.py:3")


def test_other_mistakes_are_reported_beside_it():
    text = COMPLETE.replace("k: self.num_image_token", "k: TODO", 1).replace("layout: tiles", "layout: tile", 1)
    assert sorted(problem.code for problem in problems(text)) == ["VCG204", "VCG390"]


#: Texts that look like questions and are none.
CLOSED = {
    "a prompt": (
        'image_prompt: "<image>\\nWhat is in this image?"',
        'image_prompt: "TODOs # TODO and TODO: what is it?"',
    ),
    "a longer word": ("# InternVL 2", "# TODOS of InternVL 2"),
    "inside a comment": ("# InternVL 2", "# nothing TODO here, InternVL 2"),
    "a name": ("key: internvl", "key: TODO_LIST"),
}


@pytest.mark.parametrize("name", CLOSED)
def test_no_question(name):
    old, new = CLOSED[name]
    assert old in COMPLETE
    assert problems(COMPLETE.replace(old, new, 1)) == []


def test_shipped_descriptors_have_none():
    for name in shipped_names():
        assert problems((SHIPPED / f"{name}.yaml").read_text(encoding="utf-8")) == []
