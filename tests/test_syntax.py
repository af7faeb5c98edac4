"""Questions to syntax trees: source, question, answer."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from scaffold import syntax


def expression(text: str) -> Any:
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("text", "last", "called", "own", "dotted"),
    [
        ("C", "C", None, None, True),
        ("a.b.C", "C", None, None, True),
        ("C[T]", "C", None, None, False),
        ("a.C[T]", "C", None, None, False),
        ("f()", None, "f", None, False),
        ("a.f()", None, "f", None, False),
        ("f[0]()", None, None, None, False),
        ("self.a", "a", None, "a", True),
        ("self.a.b", "b", None, None, True),
        ("1", None, None, None, False),
    ],
)
def test_names(text: str, last: str | None, called: str | None, own: str | None, dotted: bool) -> None:
    node = expression(text)

    assert syntax.last_name(node) == last
    assert syntax.call_name(node) == called
    assert syntax.self_attribute(node) == own
    assert bool(syntax.name_path(node)) is dotted


@pytest.mark.parametrize(
    ("relpath", "statement", "module"),
    [
        ("vllm/a/b.py", "from . import c", "vllm.a"),
        ("vllm/a/b.py", "from .c import d", "vllm.a.c"),
        ("vllm/a/b.py", "from ..c import d", "vllm.c"),
        ("vllm/a/__init__.py", "from .c import d", "vllm.a.c"),
        ("vllm/a/b.py", "from torch import nn", "torch"),
    ],
)
def test_import_source(relpath: str, statement: str, module: str) -> None:
    node = ast.parse(statement).body[0]
    assert isinstance(node, ast.ImportFrom)

    assert syntax.import_source(relpath, node) == module


def test_what_python_binds_last_is_found() -> None:
    tree = ast.parse("class A:\n    def f(self): ...\n    def f(self, x): ...\nif x:\n    class A(B):\n        pass\n")
    first, second = tree.body[0], syntax.find_class(tree, "A")

    assert isinstance(first, ast.ClassDef)
    assert second is not None
    assert (second.lineno, syntax.find_class(tree, "C")) == (5, None)
    assert (syntax.find_method(first, "f"), syntax.find_method(second, "f")) == (first.body[1], None)


def test_lines_of_a_decorated_function() -> None:
    text = '\ufeff@cache\n@other(\n    "é",\n)\ndef f(x: int = 1, y=[\n    2,\n]): ...\n'
    function = ast.parse(text.removeprefix("\ufeff")).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = syntax.SourceLines(text)

    assert syntax.first_line(function) == 1
    assert lines.text(function) == text.removeprefix("\ufeff").rstrip("\n")
    assert [lines.source(node) for node in function.args.defaults] == ["1", "[2]"]
    assert syntax.strings(function) == {"é"}
    assert syntax.decorator_names(function) == {"cache", "other"}


@pytest.mark.parametrize(
    ("declaration", "args", "keywords", "skip", "given", "defaults", "rest", "extra"),
    [
        ("a, b=1", (1,), {}, False, {"a": 1}, {"b": "1"}, (), {}),
        ("self, a, b=1", (1,), {"b": 2}, True, {"a": 1, "b": 2}, {}, (), {}),
        ("a, /, b, *, c=None, d", (1,), {"c": 3}, False, {"a": 1, "c": 3}, {"b": None, "d": None}, (), {}),
        ("a, *more, **names", (1, 2, 3), {"x": 4}, False, {"a": 1}, {}, (2, 3), {"x": 4}),
        ("", (1,), {"x": 2}, True, {}, {}, (1,), {"x": 2}),
    ],
)
def test_binding_a_call(declaration, args, keywords, skip, given, defaults, rest, extra) -> None:
    function = ast.parse(f"def f({declaration}): ...").body[0]
    assert isinstance(function, ast.FunctionDef)

    bound = syntax.bind_call(function, args, keywords, skip_first=skip)

    assert bound.given == given
    assert {name: node and ast.unparse(node) for name, node in bound.defaults.items()} == defaults
    assert (bound.rest, bound.extra) == (rest, extra)
