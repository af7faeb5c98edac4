"""Questions to syntax trees: source, question, answer."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
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


# -- text to tree ------------------------------------------------------------------------------------------------------

DEEP = f"it is nested deeper than {syntax.MAX_DEPTH} levels"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("x = 1\nq = x" + ".a" * 5000, DEEP, 2),
        ("class A:\n    b = 1\n    c = 1" + "+1" * 20_000, DEEP, 3),
        ("q = " + "-" * 100_000 + "1", DEEP, 1),
        ("not " * 100_000 + "x", DEEP, 1),
        ("lambda:" * 20_000 + "1", DEEP, 1),
        ("x = 1\nif a: pass\n" + "elif b: pass\n" * 20_000, DEEP, 3),
        ("f" + "()" * 4000, DEEP, 1),
        ("@" + "a." * 200 + "b\ndef f(): pass", DEEP, 1),
        ("".join(" " * level + "if a:\n" for level in range(99)) + " " * 99 + "pass", DEEP, 99),
        ("x = (\n" + "[" * 150 + "]" * 150 + ")", DEEP, 2),
        ("f'" + "{x:" * 2 + "}" * 2 + "'" + ".a" * 100, DEEP, 1),
        ("x = 1\n\0", "source code string cannot contain null bytes", 2),
        ("x = 1\ny = 0x" + "f" * 5000, "an integer has more digits than Python writes", 2),
        ("x = 1\ny = " + "9" * 5000, "Exceeds the limit (4300 digits) for integer string conversion", 2),
        ("x = (\n", "'(' was never closed", 1),
    ],
)
def test_text_that_is_unsafe_to_walk_is_refused_with_its_line(text: str, message: str, line: int) -> None:
    with pytest.raises(SyntaxError) as caught:
        syntax.parse(text)
    assert str(caught.value.msg).startswith(message)
    assert caught.value.lineno == line


#: Constructs that nest in themselves, with the number of their levels that are read.
NESTS = {
    "attribute": lambda n: "x" + ".a" * n,
    "sum": lambda n: "1" + "+1" * n,
    "sign": lambda n: "-" * n + "1",
    "lambda": lambda n: "lambda:" * n + "1",
    "call": lambda n: "f(" * n + "1" + ")" * n,
    "index": lambda n: "x" + "[0]" * n,
    "list": lambda n: "[" * n + "]" * n,
    "choice": lambda n: "x if a else " * n + "y",
    "comprehension": lambda n: "[" * (n // 3) + "x" + " for x in y]" * (n // 3),
    "keyword": lambda n: "f(a=" * (n // 2) + "1" + ")" * (n // 2),
    "elif": lambda n: "if a:\n pass\n" + "elif b:\n pass\n" * n,
    "if": lambda n: "".join(" " * level + "if a:\n" for level in range(n)) + " " * n + "pass",
    "class": lambda n: "".join(" " * level + "class A:\n" for level in range(n)) + " " * n + "pass",
    "pattern": lambda n: "match x:\n case " + "[" * n + "y" + "]" * n + ": pass",
    "annotation": lambda n: "v: " + "a[" * n + "b" + "]" * n,
}


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
def test_what_is_read_can_be_walked_copied_and_written(nest: Any) -> None:
    """As deep as it is read, from as deep in the stack as a command gets."""
    text = nest(next(n for n in range(syntax.MAX_DEPTH, 0, -1) if _is_read(nest(n))))

    def deeper(frames: int) -> None:
        if frames:
            deeper(frames - 1)
            return
        tree = syntax.parse(text)
        assert ast.dump(ast.parse(ast.unparse(copy.deepcopy(tree)))) == ast.dump(ast.NodeTransformer().visit(tree))

    deeper(100)


def _is_read(text: str) -> bool:
    try:
        syntax.parse(text)
    except SyntaxError:
        return False
    return True


def test_only_a_few_nodes_of_usual_code_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(a, b):\n" + "    x = self.layer(a + b * 2)[0].view(1, 2, -1)\n" * 1000
    looked: list[ast.AST] = []
    monkeypatch.setattr(syntax.ast, "JoinedStr", _Counting(looked))
    syntax.parse(text)
    assert len(looked) < 10


class _Counting(type):
    """A class that no node is an instance of, and that notes what is asked about."""

    def __new__(cls, looked: list[ast.AST]) -> _Counting:
        made = super().__new__(cls, "Counting", (), {})
        made.looked = looked
        return made

    def __init__(cls, looked: list[ast.AST]) -> None:
        super().__init__("Counting", (), {})

    def __instancecheck__(cls, node: object) -> bool:
        cls.looked.append(node)
        return False


def test_the_source_of_a_node_is_that_of_the_standard_library() -> None:
    text = "x = f(\n    'ä', [1,\n 2])\ny = 'ö' + z\n"
    lines = syntax.SourceLines(text)
    for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.expr | ast.stmt)):
        assert lines.segment(node) == ast.get_source_segment(text, node)


def test_statements_are_those_of_a_walk_in_its_order() -> None:
    text = """\
class A:
    def f(self):
        try:
            with a as b: x = 1
        except (E, F): y = [lambda: (z := 2)]
        except G: pass
        else:
            for i in j: k = 1
            else: l = 2
        finally:
            match m:
                case 1: n = 3
                case _ if o: return
        while p: await q
    async def g(self):
        async with r: async_ = {s: t for s in u}
if v: w = 1
elif xx: import yy
else: from zz import aa
"""
    for source in (text, Path(syntax.__file__).read_text()):
        module = ast.parse(source)
        walked = [node for node in ast.walk(module) if isinstance(node, ast.stmt)]
        assert list(syntax.statements(module)) == walked
        assert len(walked) > 20
