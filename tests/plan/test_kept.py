"""What a replacement keeps of the text that it replaces: headers and comments that still hold."""

from __future__ import annotations

import ast

import pytest

from scaffold.plan.kept import keep_text

OLD = """\
class Model:
    def header(
        self,
        inputs: dict,
    ) -> int:
        # Gone with its statement.
        old = 1
        return old

    def other(self, value):
        # {comment}
        budget = 64
        return budget

    def call(self):
        # Why there are none.
        modalities = [] if self.prunes else ["image"]
        return Config(
            # Handed on.
            modalities=modalities,
            # Other keys now.
            keys=["a"],
            size=1,
        )

    def line(self): return 1
"""
NEW = """\
def header(self, inputs: dict) -> int:
    return 2

def other(self, value: int) -> int:
    # Ours.
    budget = {value}
    return min(budget, 1)

def call(self):
    return Config(
        # Ours of this.
        # Two lines.
        modalities=[] if self.prunes else ["image"],
        keys=["b"], size=1,
    )

def line(self):
    return 2

def added(self):
    return 3
"""


def kept(value: str = "64", comment: str = "About 224 x 224.", old: str = OLD) -> str:
    text = old.replace("{comment}", comment)
    [owner] = ast.parse(text).body
    assert isinstance(owner, ast.ClassDef)
    source = NEW.format(value=value)
    result = keep_text(text, owner, source)
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse(source))
    return result


def test_a_header_stays_as_it_is_written_where_the_parameters_stay():
    assert kept().startswith("def header(\n    self,\n    inputs: dict,\n) -> int:\n    return 2\n\n")
    assert "def other(self, value: int) -> int:\n" in kept()
    assert "def line(self):\n    return 2\n" in kept()


@pytest.mark.parametrize(
    ("value", "comment", "above"),
    [
        ("64", "About 224 x 224.", "    # About 224 x 224.\n"),
        ("65", "About 224 x 224.", "    # Ours.\n"),
        ("64", "word " * 19, f"    # {'word ' * 14}word\n    # word word word word\n"),
    ],
)
def test_a_comment_stays_above_the_same_value(value, comment, above):
    assert f"-> int:\n{above}    budget = {value}\n" in kept(value, comment.strip())


def test_a_comment_of_a_variable_goes_with_its_value_into_an_argument():
    assert "Config(\n        # Why there are none.\n        modalities=[] if" in kept()
    assert {"Handed on", "Other keys", "Gone"}.isdisjoint(kept().splitlines())
    assert "Other keys" not in kept()


def test_what_was_kept_stays_in_a_second_run():
    first = kept()
    again = "class Model:\n" + "".join(f"    {line}\n" if line else "\n" for line in first.splitlines())

    assert kept(old=again) == first
