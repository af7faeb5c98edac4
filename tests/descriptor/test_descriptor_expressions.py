"""The expression language: what it accepts, what it refuses and where, and that printing keeps the meaning."""

from __future__ import annotations

import string
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scaffold.descriptor.expressions import (
    Attribute,
    Binary,
    EvaluationError,
    ExpressionError,
    Function,
    Int,
    Name,
    Node,
    Unary,
    expression_of,
    parse_call,
    parse_expression,
    parse_path,
)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("t*(h//m)*(w//m)", "t * (h // m) * (w // m)"),
        ("(a - b) - c", "a - b - c"),
        ("a - (b - c)", "a - (b - c)"),
        ("-(a + b) ** 2", "-(a + b) ** 2"),
        ("(-a) ** 2", "(-a) ** 2"),
        ("a ** -b", "a ** -b"),
        ("(a ** b) ** c", "(a ** b) ** c"),
        ("a ** b ** c", "a ** b ** c"),
        ("not (a or b) and c", "not (a or b) and c"),
        ("(not a) == b", "(not a) == b"),
        ("(a < b) == (c < d)", "(a < b) == (c < d)"),
        ("ceil_div(a + b, m)", "(a + b + m - 1) // m"),
        ("ceil_div(a, 8)", "(a + 7) // 8"),
        ("ceil_div(b, self.visual.merge) * 2", "cdiv(b, self.visual.merge) * 2"),
        ("ceil_div(a * b, c * d)", "cdiv(a * b, c * d)"),
        ("max(B, min(F, b))", "max(B, min(F, b))"),
        ("round(side//patch*ratio)**2", "round(side // patch * ratio) ** 2"),
        ("width*( len(self.a)+len( self.b[0] ))", "width * (len(self.a) + len(self.b[0]))"),
        ("self.config.vision.size", "self.config.vision.size"),
        ("self.config.vision.size [ 1 ] [0]*2", "self.config.vision.size[1][0] * 2"),
        ("self.config.vision['size'][0]", 'self.config.vision["size"][0]'),
        ("self.kind=='a-b' or not self.other!=\"c\"", 'self.kind == "a-b" or not self.other != "c"'),
    ],
)
def test_printing_has_minimal_parentheses(text: str, printed: str) -> None:
    assert parse_expression(text).python() == printed


@pytest.mark.parametrize(
    ("text", "bindings", "printed"),
    [
        ("n * k", {"k": "a + b"}, "n * (a + b)"),
        ("n + k", {"k": "a + b"}, "n + (a + b)"),
        ("k + n", {"k": "a + b"}, "a + b + n"),
        ("k ** 2", {"k": "self.side"}, "self.side ** 2"),
        ("k ** 2", {"k": "-x"}, "(-x) ** 2"),
        ("n * k", {"k": "(a + b)"}, "n * (a + b)"),
        ("n * k", {"n": "int(x)", "k": "sizes[0]"}, "int(x) * sizes[0]"),
        ("n * k", {"k": "a if c else b"}, "n * (a if c else b)"),
        ("self.a.b * n", {"self": "model"}, "model.a.b * n"),
        ("self.a.b[0] * n", {"self": "model"}, "model.a.b[0] * n"),
        ("self.a.b * n", {"self.a.b": "x + 1"}, "(x + 1) * n"),
        ("ceil_div(n, k)", {"k": "self.side"}, "cdiv(n, self.side)"),
        ("n", {"n": "lambda: 1"}, "lambda: 1"),
    ],
)
def test_bound_source_is_parenthesised_where_needed(text: str, bindings: dict[str, str], printed: str) -> None:
    assert parse_expression(text).python(bindings) == printed


@pytest.mark.parametrize(
    ("text", "values", "value"),
    [
        ("t * (h // m) * (w // m)", {"t": 2, "h": 8, "w": 12, "m": 2}, 48),
        ("ceil_div(b, k)", {"b": 9, "k": 4}, 3),
        ("min(b, max(B, F) + ceil_div(b, s))", {"b": 64, "B": 2, "F": 5, "s": 8}, 13),
        ("-a ** 2", {"a": 3}, -9),
        ("round(p * self.ratio) ** 2", {"p": 24, "self.ratio": 0.5}, 144),
        ("len(self.layers) * 2", {"self.layers": [1, 5, 9]}, 6),
        ("7 % 4 + 2 ** 3", {}, 11),
        ("not a and b > 3", {"a": 0, "b": 4}, True),
        ("a or b", {"a": 0, "b": 5}, 5),
        ("self.x.y + 1", {"self.x.y": 4}, 5),
        ('self.x["side"][0]', {'self.x["side"][0]': 7}, 7),
        ("self.x.kind != 'pixtral'", {"self.x.kind": "clip"}, True),
    ],
)
def test_evaluation(text: str, values: dict[str, int], value: object) -> None:
    assert parse_expression(text).evaluate(values) == value


@pytest.mark.parametrize("text", ["a // 0", "a % 0", "ceil_div(a, 0)", "b", "2 ** a", "2 ** -1", "unit(a)", "self.x"])
def test_what_has_no_value(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_expression(text, {"unit": 1}).evaluate({"a": 65})


def test_what_an_expression_uses() -> None:
    expression = parse_expression("n * unit(k) + self.a.b - min(n, 3)", {"unit": 1})
    assert expression.names == {"n", "k"}
    assert expression.attributes == {"self.a.b"}
    assert expression.functions == {"unit", "min"}
    assert (parse_expression("3").constant, parse_expression("-3").constant, expression.constant) == (3, -3, None)
    assert [parse_expression(text).kind for text in ("a + 1", "a > 1", "not a", "a")] == ["int", "bool", "bool", "any"]
    assert parse_expression("(n)*k") == parse_expression("n * k") != parse_expression("k * n")


@pytest.mark.parametrize(
    ("text", "start", "end", "message"),
    [
        ("", 0, 0, "the expression is empty"),
        ("   ", 0, 3, "the expression is empty"),
        ("a b", 2, 3, "expected an operator or the end, found `b`"),
        ("a / b", 2, 3, "expected an operator or the end, found `/`"),
        ("a +", 3, 3, "expected a value, but the text ends"),
        ("(a", 2, 2, "expected `)` to close `(`, but the text ends"),
        ("a)", 1, 2, "`)` closes nothing"),
        ("a[0]", 1, 2, "expected an operator or the end, found `[`"),
        ("self.a[b]", 7, 8, "expected a number or a name in quotes in `[`, found `b`"),
        ("self.a['b c']", 7, 12, "expected a number or a name in quotes in `[`, found `'b c'`"),
        ("foo(a)", 0, 3, "the function `foo` is not known here"),
        ("min", 0, 3, "`min` is a function"),
        ("min(a)", 0, 6, "`min` takes 2 to 8 arguments, not 1"),
        ("round(a, 2)", 0, 11, "`round` takes 1 argument, not 2"),
        ("round", 0, 5, "`round` is a function"),
        ("2 * len(n)", 4, 10, "`len` counts a list of the model"),
        ("len(3)", 0, 6, "`len` counts a list of the model"),
        ("len(self.a, self.b)", 0, 19, "`len` takes 1 argument, not 2"),
        ("min(a,)", 0, 7, "`min` takes 2 to 8 arguments, not 1"),
        ("self", 0, 4, "`self` alone is not a value"),
        ("self.", 5, 5, "expected the name of an attribute after `.`, but the text ends"),
        ("self.a()", 0, 7, "expressions cannot call methods of the model"),
        ("self.__class__", 5, 14, "names do not start with `__`"),
        ("x.y", 0, 2, "attributes can only be read from `self`, not from `x`"),
        ("1.5", 0, 3, "`1.5` is not a decimal integer"),
        ("012", 0, 3, "`012` is not a decimal integer"),
        ("1_000", 0, 5, "`1_000` is not a decimal integer"),
        ("99999999999999999999", 0, 20, "the integer is too large"),
        ("'a'", 0, 3, "strings are not values of an expression"),
        ("a == 'b c'", 5, 10, "the text is not one word"),
        ("a < 'b'", 4, 7, "strings are not values of an expression"),
        ("lambda", 0, 6, "`lambda` is not a value of the language"),
        ("a if b else c", 2, 4, "expected an operator or the end, found `if`"),
        ("a = b", 2, 3, "expected an operator or the end, found `=`"),
        ("a < b < c", 6, 7, "comparisons cannot be chained"),
        ("a + not b", 4, 7, "`not` needs parentheses here"),
        ("a ; b", 2, 3, "the character ';' is not part of the language"),
        ("größe", 0, 5, "names are plain ASCII"),
        ("a" * 600, 0, 600, "the expression has 600 characters, more than 500"),
        ("(" * 60 + "a" + ")" * 60, 25, 26, "the expression is nested too deeply"),
    ],
)
def test_errors_have_their_place(text: str, start: int, end: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text)
    assert (caught.value.start, caught.value.end, caught.value.message) == (start, end, message)


@pytest.mark.parametrize(
    ("text", "bindings", "printed"),
    [
        ("self.extract_feature(pixels)", {}, "self.extract_feature(pixels)"),
        ("self.visual(pixels, None, encoder_metadata=metadata)", {"pixels": "x"},
         "self.visual(x, None, encoder_metadata=metadata)"),
        ("self.f( self.g(pixels) , 3, flag=True, mode = None, on=self.x)", {},
         "self.f(self.g(pixels), 3, flag=True, mode=None, on=self.x)"),
        ("self.f(pixels)", {"self": "model"}, "model.f(pixels)"),
    ],
)  # fmt: skip
def test_calls(text: str, bindings: dict[str, str], printed: str) -> None:
    assert parse_call(text).python(bindings) == printed


def test_what_a_call_uses() -> None:
    call = parse_call("self.project(self.encode(pixels), data=metadata)")
    assert call.names == {"pixels", "metadata"}
    assert [inner.path for inner in call.calls()] == ["self.project", "self.encode"]
    assert [(name.name, name.start) for name in call.name_nodes()] == [("pixels", 25), ("metadata", 39)]


@pytest.mark.parametrize(
    ("text", "start", "message"),
    [
        ("self.f", 0, "`self.f` is not called"),
        ("f(pixels)", 0, "expected a path that starts with `self.`, found `f`"),
        ("self.f(pixels + 1)", 14, "expected `)` to close `self.f(`, found `+`"),
        ("self.f(g(pixels))", 7, "only attributes of `self` can be used here"),
        ("self.f(x=1, x=2)", 12, "the keyword `x` is given twice"),
        ("self.f(x=1, pixels)", 12, "a positional argument follows a keyword"),
        (
            "self.f(*pixels)",
            7,
            "expected an argument: a name, a number, True, False, None or a call, found `*`",
        ),
        ("self.f(pixels).view(1)", 14, "expected an operator or the end, found `.`"),
        ("self.f('a')", 7, "a call passes no text"),
        ("self.f(" * 60 + ")" * 60, 175, "the call is nested too deeply"),
    ],
)
def test_call_errors_have_their_place(text: str, start: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_call(text)
    assert (caught.value.start, caught.value.message) == (start, message)


def test_paths() -> None:
    assert parse_path(" self . a.b ") == "self.a.b"
    with pytest.raises(ExpressionError):
        parse_path("self.a + 1")


_names = st.sampled_from(["a", "b", "n", "k"])
_leaves = st.one_of(
    st.integers(0, 40).map(Int), _names.map(Name), st.sampled_from(["self.x", "self.x.y"]).map(Attribute)
)


def _grow(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(Unary, st.sampled_from(["-", "not"]), children),
        st.builds(Binary, st.sampled_from(["+", "-", "*", "//", "%", "<", "==", "and", "or"]), children, children),
        st.builds(lambda base, power: Binary("**", base, Int(power)), children, st.integers(0, 2)),
        st.builds(lambda name, args: Function(name, tuple(args)), st.sampled_from(["min", "max", "ceil_div"]),
                  st.lists(children, min_size=2, max_size=2)),
        st.builds(lambda value: Function("round", (value,)), children),
    )  # fmt: skip


_trees = st.recursive(_leaves, _grow, max_leaves=10)
_VALUES = {"a": 7, "b": 3, "n": 0, "k": -2, "self.x": 5, "self.x.y": 2}


@given(_trees)
@settings(max_examples=300, deadline=None)
def test_printed_trees_are_read_back(tree: Node) -> None:
    expression = expression_of(tree)
    assert parse_expression(expression.text) == expression


@given(_trees)
@example(Binary("-", Int(0), Function("ceil_div", (Name("a"), Int(1)))))  # `0 - (8 - 1) // 1`
@settings(max_examples=300, deadline=None)
def test_printed_python_has_the_same_value(tree: Node) -> None:
    expression = expression_of(tree)
    source = expression.python({"self.x": "xs[0]", "self.x.y": "xs[1] * 1", "a": "8 - 1", "k": "-2"})
    try:
        value = expression.evaluate(_VALUES)
    except EvaluationError:
        return
    names = {"b": 3, "n": 0, "xs": [5, 2], "min": min, "max": max, "round": round, "cdiv": lambda a, b: -(-a // b)}
    assert eval(compile(source, "test", "eval"), {"__builtins__": {}}, names) == value


@given(st.text(alphabet=string.printable + "é…\u2028", max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_text_gives_a_tree_or_an_error_inside_it(text: str) -> None:
    for parse in (parse_expression, parse_call, parse_path):
        start, end = _place_of_error(parse, text)
        assert 0 <= start <= end <= len(text)


def _place_of_error(parse: Callable[[str], object], text: str) -> tuple[int, int]:
    try:
        parse(text)
    except ExpressionError as error:
        return error.start, error.end
    return 0, 0
