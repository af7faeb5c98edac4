"""The expression language of descriptors: integers, names, attributes of `self`, arithmetic, comparisons.

Text is parsed by hand and never evaluated as Python: a descriptor is input from strangers, error columns have to be
exact, and messages must not depend on the version of the interpreter. Two grammars share one scanner:

* `parse_expression`: `t * (h // m) * (w // m)`, `not self.is_multimodal_pruning_enabled`, `min(B, ceil_div(b, k))`,
  `self.config.image_size[0]`, `self.config.vision_config.model_type != "pixtral"`
* `parse_call`: `self.visual(pixels, None, encoder_metadata=metadata)`, calls nested as arguments

Trees are frozen. Offsets count characters of the parsed text, from 0, end exclusive.
"""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

#: Functions that every expression may call, with the number of arguments (at least, at most).
#: `round` is for a factor that a configuration holds as a fraction, such as the ratio of a pixel shuffle. `len` counts
#: a list of the model, such as the layers whose features it puts beside each other.
FUNCTIONS: dict[str, tuple[int, int]] = {
    "min": (2, 8), "max": (2, 8), "ceil_div": (2, 2), "round": (1, 1), "len": (1, 1),
}  # fmt: skip

#: Limits that keep a hostile text from costing more than a page of YAML should.
MAX_LENGTH = 500
MAX_DEPTH = 24
MAX_INTEGER = 2**53
MAX_EXPONENT = 64

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _POWER, _ATOM = range(1, 10)
_PRECEDENCE = {
    "or": _OR, "and": _AND,
    "<": _COMPARE, "<=": _COMPARE, ">": _COMPARE, ">=": _COMPARE, "==": _COMPARE, "!=": _COMPARE,
    "+": _SUM, "-": _SUM, "*": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT, "**": _POWER,
}  # fmt: skip


class ExpressionError(Exception):
    """A text is not an expression of this language. `start` and `end` are offsets into the text."""

    def __init__(self, message: str, start: int, end: int, help: str | None = None) -> None:
        super().__init__(message)
        self.message, self.start, self.end, self.help = message, start, max(end, start), help


class EvaluationError(Exception):
    """An expression has no value for the given values: division by zero, a missing name, a huge power."""


# --- trees ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a text, from `start` to `end`. Its place does not count in comparisons."""

    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Int(_Part):
    value: int


@dataclass(frozen=True, slots=True)
class Text(_Part):
    """A word in quotes, to which `==` or `!=` compares a value of the model: a kind of its configuration."""

    value: str


@dataclass(frozen=True, slots=True)
class Name(_Part):
    """A bare name: a size column, a `let` name, or one of the predefined `b`, `B`, `F`."""

    name: str


@dataclass(frozen=True, slots=True)
class Attribute(_Part):
    """`self.a.b`, `self.a.b[0]` or `self.a["b"]`, read from the model at run time."""

    path: str


@dataclass(frozen=True, slots=True)
class Unary(_Part):
    """`-x` or `not x`."""

    op: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary(_Part):
    """Arithmetic, one comparison, or one `and` / `or`."""

    op: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Function(_Part):
    """`min(...)`, `max(...)`, `ceil_div(a, b)`, `round(x)`, `len(self.x)` or a helper of the descriptor."""

    name: str
    args: tuple[Node, ...]


Node = Int | Text | Name | Attribute | Unary | Binary | Function


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. Equality is that of the tree: spaces and redundant parentheses do not matter."""

    root: Node
    text: str = field(compare=False)

    @property
    def names(self) -> frozenset[str]:
        """Free names, without `self`, attribute paths and function names."""
        return frozenset(node.name for node in walk(self.root) if isinstance(node, Name))

    @property
    def attributes(self) -> frozenset[str]:
        """Attribute paths that are read, as written: `self.visual.spatial_merge_size`."""
        return frozenset(node.path for node in walk(self.root) if isinstance(node, Attribute))

    @property
    def functions(self) -> frozenset[str]:
        """Functions that are called: built-in ones and helpers."""
        return frozenset(node.name for node in walk(self.root) if isinstance(node, Function))

    @property
    def constant(self) -> int | None:
        """The value if it is a literal integer, else None."""
        if isinstance(self.root, Int):
            return self.root.value
        if isinstance(self.root, Unary) and self.root.op == "-" and isinstance(self.root.operand, Int):
            return -self.root.operand.value
        return None

    @property
    def kind(self) -> str:
        """`int`, `bool`, or `any` for a bare name or attribute, whose type the text does not tell."""
        return _kind(self.root)

    def python(self, bindings: Mapping[str, str] | None = None) -> str:
        """Python source with minimal parentheses.

        `bindings` maps names, whole attribute paths, `self` or helper names to source text, which is parenthesised
        where its place needs it. `ceil_div(a, b)` becomes `(a + b - 1) // b` for a short `b`, else `cdiv(a, b)`.
        """
        return _render(self.root, bindings or {})[0]

    def evaluate(self, values: Mapping[str, Any]) -> int | bool:
        """The value of the expression. `values` maps names and whole attribute paths.

        Raises `EvaluationError` where Python would raise, for a helper, and for powers beyond reason.
        """
        try:
            return cast("int | bool", _evaluate(self.root, values))
        except ZeroDivisionError:
            raise EvaluationError("division by zero") from None

    def substitute(self, replacements: Mapping[str, Expression]) -> Expression:
        """The tree with names replaced by other trees (used to derive expressions from expressions)."""
        root = _substitute(self.root, {name: expression.root for name, expression in replacements.items()})
        return expression_of(root)


@dataclass(frozen=True, slots=True)
class Literal(_Part):
    """A constant argument of a call: an integer, `True`, `False`, `None` or the empty list `[]`, as ()."""

    value: int | bool | tuple[()] | None


@dataclass(frozen=True, slots=True)
class Keyword(_Part):
    name: str
    value: Argument


@dataclass(frozen=True, slots=True)
class Call(_Part):
    """A call of something of the model: `self.extract_feature(pixels)`."""

    path: str
    args: tuple[Argument, ...]
    keywords: tuple[Keyword, ...] = ()
    text: str = field(default="", compare=False)

    @property
    def names(self) -> frozenset[str]:
        """Names that are passed anywhere in the call, also in nested calls."""
        return frozenset(name.name for name in self.name_nodes())

    def calls(self) -> Iterator[Call]:
        """The call and those among its arguments, outermost first."""
        yield self
        for value in self.values():
            if isinstance(value, Call):
                yield from value.calls()

    def name_nodes(self) -> Iterator[Name]:
        """Every name that is passed, with its place."""
        for value in self.values():
            if isinstance(value, Name):
                yield value
            elif isinstance(value, Call):
                yield from value.name_nodes()

    def values(self) -> tuple[Argument, ...]:
        return (*self.args, *(keyword.value for keyword in self.keywords))

    def python(self, bindings: Mapping[str, str] | None = None) -> str:
        """Python source. `bindings` has source text that replaces names, `self` included."""
        bindings = bindings or {}
        parts = [_render_argument(arg, bindings) for arg in self.args]
        parts += [f"{keyword.name}={_render_argument(keyword.value, bindings)}" for keyword in self.keywords]
        return f"{_bind_path(self.path, bindings)[0]}({', '.join(parts)})"


Argument = Name | Attribute | Literal | Call


def path_names(path: str) -> list[str]:
    """The names of a path, without its subscripts: `self`, `a` and `b` of `self.a.b[0]`."""
    return path.partition("[")[0].split(".")


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first, in text order."""
    yield node
    if isinstance(node, Unary):
        yield from walk(node.operand)
    elif isinstance(node, Binary):
        yield from walk(node.left)
        yield from walk(node.right)
    elif isinstance(node, Function):
        for arg in node.args:
            yield from walk(arg)


def expression_of(root: Node) -> Expression:
    """An expression made of a tree instead of text. Its text is the tree in the language of descriptors."""
    return Expression(root, _render(root, {}, language=True)[0])


# --- parsing ----------------------------------------------------------------------------------------------------


def parse_expression(text: str, helpers: Mapping[str, int] | None = None) -> Expression:
    """Parse an expression. `helpers` maps names of further functions to their number of arguments.

    Raises `ExpressionError` with the exact place.
    """
    parser = _Parser(text, helpers or {})
    root = parser.expression(_OR, 0)
    parser.finish()
    return Expression(root, text)


def parse_call(text: str) -> Call:
    """Parse a call of an attribute of `self`. Raises `ExpressionError` with the exact place."""
    parser = _Parser(text, {})
    call = parser.call_of_self(0)
    parser.finish()
    return replace(call, text=text)


def parse_path(text: str) -> str:
    """Parse an attribute path such as `self.visual.input_norm.input_dtype` and give it back without spaces."""
    parser = _Parser(text, {})
    path, _ = parser.path()
    parser.finish()
    return path


_TOKEN = re.compile(
    r"(?P<space>[ \t\n]+)"
    r"|(?P<number>\d[\w.]*)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<op>\*\*|//|<=|>=|==|!=|[-+*/%<>()=,.\[\]])"
)

_HINTS = {
    "/": "use `//`: sizes are whole numbers",
    "[": "only an attribute of `self` has subscripts: self.a.b[0]",
    "=": "use `==` to compare",
}


@dataclass(frozen=True, slots=True)
class _Token(_Part):
    kind: str
    text: str

    def error(self, message: str, help: str | None = None, *, end: int | None = None) -> ExpressionError:
        """An error from here to the token's own end, or to `end`."""
        return ExpressionError(message, self.start, self.end if end is None else end, help)


def _scan(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"the expression has {len(text)} characters, more than {MAX_LENGTH}", 0, len(text), "split it with `let`"
        )
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ExpressionError(f"the character {text[at]!r} is not part of the language", at, at + 1)
        if match.lastgroup != "space":
            tokens.append(_Token(match.lastgroup or "", match.group(), start=at, end=match.end()))
        at = match.end()
    tokens.append(_Token("end", "", start=len(text.rstrip()), end=len(text.rstrip())))
    return tokens


def _example_of(function: str, arguments: int) -> str:
    return f"call it: {function}({', '.join('abcdefgh'[:arguments])})"


class _Parser:
    """Precedence climbing over the tokens of one text."""

    def __init__(self, text: str, helpers: Mapping[str, int]) -> None:
        self.text = text
        self.tokens = _scan(text)
        self.at = 0
        self.functions = FUNCTIONS | {name: (count, count) for name, count in helpers.items()}
        if self.peek.kind == "end":
            raise ExpressionError("the expression is empty", 0, len(text))

    @property
    def peek(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        if self.peek.text == text and self.peek.kind in ("op", "name"):
            self.at += 1
            return True
        return False

    def expect(self, text: str, after: str) -> _Token:
        token = self.peek
        if token.text != text or token.kind != "op":
            raise self.unexpected(token, f"expected `{text}` {after}")
        return self.take()

    def finish(self) -> None:
        if self.peek.kind != "end":
            if self.peek.text == ")":
                raise self.peek.error("`)` closes nothing")
            raise self.unexpected(self.peek, "expected an operator or the end")

    @staticmethod
    def unexpected(token: _Token, expected: str) -> ExpressionError:
        if token.kind == "end":
            return token.error(f"{expected}, but the text ends", "complete it")
        return token.error(f"{expected}, found `{token.text}`", _HINTS.get(token.text))

    def expression(self, minimum: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.peek.error("the expression is nested too deeply", "use `let`")
        left = self.prefix(minimum, depth)
        while True:
            token = self.peek
            precedence = _PRECEDENCE.get(token.text, 0) if token.kind in ("op", "name") else 0
            if precedence < minimum or precedence == 0:
                return left
            self.take()
            # `**` groups to the right; its right side may be a negation, as in Python.
            is_text = token.text in ("==", "!=") and self.peek.kind == "string"
            right = (
                self.word()
                if is_text
                else self.expression(_UNARY if precedence == _POWER else precedence + 1, depth + 1)
            )
            left = Binary(token.text, left, right, start=left.start, end=right.end)
            if precedence == _COMPARE and _PRECEDENCE.get(self.peek.text) == _COMPARE:
                raise self.peek.error("comparisons cannot be chained", "join two with `and`")

    def prefix(self, minimum: int, depth: int) -> Node:
        token = self.peek
        if token.text == "not" and minimum > _NOT:
            raise token.error("`not` needs parentheses here")
        if not (self.accept("not") or self.accept("-")):
            return self.atom(depth)
        operand = self.expression(_NOT if token.text == "not" else _UNARY, depth + 1)
        return Unary(token.text, operand, start=token.start, end=operand.end)

    def atom(self, depth: int) -> Node:
        token = self.peek
        if token.kind == "number":
            return self.integer()
        if token.kind == "name":
            if token.text == "self":
                path, end = self.path()
                if self.peek.text == "(":
                    help = "read an attribute, or compute the value with min, max, ceil_div, round or a helper"
                    raise token.error("expressions cannot call methods of the model", help, end=self.peek.end)
                while self.accept("["):
                    path = f"{path}[{self.subscript()}]"
                    end = self.expect("]", "to close `[`").end
                return Attribute(path, start=token.start, end=end)
            name = self.name("expected a value")
            if self.peek.text == "(":
                return self.function(name, depth)
            if name.text in FUNCTIONS:
                raise name.error(f"`{name.text}` is a function", _example_of(name.text, FUNCTIONS[name.text][0]))
            if self.peek.text == ".":
                message = f"attributes can only be read from `self`, not from `{name.text}`"
                raise name.error(message, f"write the whole path: self.{name.text}...", end=self.peek.end)
            return Name(name.text, start=name.start, end=name.end)
        if self.accept("("):
            inner = self.expression(_OR, depth + 1)
            self.expect(")", "to close `(`")
            return inner
        if token.kind == "string":
            help = "compare a value of the model with one: self.config.model_type == ..."
            raise token.error("strings are not values of an expression", help)
        raise self.unexpected(token, "expected a value")

    def subscript(self) -> str:
        """A number, or the key of an entry in quotes; the key is a name, so that it needs no escapes."""
        token = self.peek
        if token.kind == "number":
            return str(self.integer().value)
        if token.kind != "string" or not token.text[1:-1].isidentifier():
            raise self.unexpected(token, "expected a number or a name in quotes in `[`")
        self.take()
        return f'"{token.text[1:-1]}"'

    def word(self) -> Text:
        token = self.take()
        if not re.fullmatch(r"[\w.-]+", token.text[1:-1], re.ASCII):
            raise token.error("the text is not one word", "name a kind of model")
        return Text(token.text[1:-1], start=token.start, end=token.end)

    def integer(self) -> Int:
        token = self.take()
        if not re.fullmatch(r"0|[1-9][0-9]*", token.text, re.ASCII):
            raise token.error(f"`{token.text}` is not a decimal integer", "write digits only, without leading 0")
        value = int(token.text) if len(token.text) < 20 else MAX_INTEGER + 1
        if value > MAX_INTEGER:
            raise token.error("the integer is too large")
        return Int(value, start=token.start, end=token.end)

    def name(self, expected: str) -> _Token:
        token = self.peek
        if token.kind != "name":
            raise self.unexpected(token, expected)
        if token.text in ("True", "False", "None") or keyword.iskeyword(token.text):
            raise token.error(f"`{token.text}` is not a value of the language")
        if not token.text.isascii():
            raise token.error("names are plain ASCII")
        if token.text.startswith("__"):
            raise token.error("names do not start with `__`")
        return self.take()

    def path(self) -> tuple[str, int]:
        """A path that starts with `self`, and its end."""
        first = self.peek
        if first.kind != "name" or first.text != "self":
            raise self.unexpected(first, "expected a path that starts with `self.`")
        end = self.take().end
        parts = ["self"]
        while self.accept("."):
            part = self.name("expected the name of an attribute after `.`")
            parts.append(part.text)
            end = part.end
        if len(parts) == 1:
            raise first.error("`self` alone is not a value", "name an attribute: self.something")
        return ".".join(parts), end

    def function(self, name: _Token, depth: int) -> Function:
        if name.text not in self.functions:
            known = ", ".join(sorted(self.functions))
            raise name.error(f"the function `{name.text}` is not known here", f"functions are: {known}")
        self.take()
        args: list[Node] = []
        while self.peek.text != ")":
            args.append(self.expression(_OR, depth + 1))
            if not self.accept(","):
                break
        close = self.expect(")", f"to close `{name.text}(`")
        low, high = self.functions[name.text]
        if not low <= len(args) <= high:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            noun = "argument" if wanted == "1" else "arguments"
            message = f"`{name.text}` takes {wanted} {noun}, not {len(args)}"
            raise name.error(message, _example_of(name.text, low), end=close.end)
        if name.text == "len" and not isinstance(args[0], Attribute):
            raise name.error("`len` counts a list of the model", "call it: len(self.layers)", end=close.end)
        return Function(name.text, tuple(args), start=name.start, end=close.end)

    def call_of_self(self, depth: int) -> Call:
        if depth > MAX_DEPTH:
            raise self.peek.error("the call is nested too deeply")
        first = self.peek
        path, end = self.path()
        if self.peek.text != "(":
            raise first.error(f"`{path}` is not called", f"write {path}(pixels)", end=end)
        self.take()
        args: list[Argument] = []
        keywords: list[Keyword] = []
        while self.peek.text != ")":
            token, following = self.peek, self.tokens[min(self.at + 1, len(self.tokens) - 1)]
            if self.accept("**"):
                name = self.name("expected a name after `**`")
                args.append(Name(f"**{name.text}", start=token.start, end=name.end))
            elif token.kind == "name" and following.text == "=" and following.kind == "op":
                self.name("expected a keyword")
                self.take()
                if any(token.text == keyword.name for keyword in keywords):
                    raise token.error(f"the keyword `{token.text}` is given twice")
                value = self.argument(depth)
                keywords.append(Keyword(token.text, value, start=token.start, end=value.end))
            elif keywords:
                raise token.error("a positional argument follows a keyword")
            else:
                args.append(self.argument(depth))
            if not self.accept(","):
                break
        close = self.expect(")", f"to close `{path}(`")
        return Call(path, tuple(args), tuple(keywords), start=first.start, end=close.end)

    def argument(self, depth: int) -> Argument:
        token = self.peek
        if token.kind == "number":
            number = self.integer()
            return Literal(number.value, start=number.start, end=number.end)
        if token.kind == "string":
            raise token.error("a call passes no text", "pass an attribute of the model's configuration")
        if token.kind == "name":
            constants = {"True": True, "False": False, "None": None}
            if token.text in constants:
                self.take()
                return Literal(constants[token.text], start=token.start, end=token.end)
            if token.text == "self":
                mark = self.at
                path, end = self.path()
                if self.peek.text != "(":
                    return Attribute(path, start=token.start, end=end)
                self.at = mark
                return self.call_of_self(depth + 1)
            name = self.name("expected an argument")
            if self.peek.text in ("(", "."):
                message = "only attributes of `self` can be used here"
                raise name.error(message, f"write self.{name.text}", end=self.peek.end)
            return Name(name.text, start=name.start, end=name.end)
        if token.text == "[" and self.tokens[self.at + 1].text == "]":
            self.take()
            return Literal((), start=token.start, end=self.take().end)
        raise self.unexpected(token, "expected an argument: a name, a number, True, False, None or a call")


# --- rendering --------------------------------------------------------------------------------------------------


def _render(node: Node, bindings: Mapping[str, str], *, language: bool = False) -> tuple[str, int]:
    """Source text and its precedence. `language` keeps ceil_div as a call."""

    def part(child: Node, minimum: int) -> str:
        text, precedence = _render(child, bindings, language=language)
        return text if precedence >= minimum else f"({text})"

    if isinstance(node, Int):
        return str(node.value), _ATOM
    if isinstance(node, Text):
        return f'"{node.value}"', _ATOM
    if isinstance(node, Name):
        return _bind(node.name, bindings)
    if isinstance(node, Attribute):
        return _bind_path(node.path, bindings)
    if isinstance(node, Unary):
        if node.op == "not":
            return f"not {part(node.operand, _NOT)}", _NOT
        return f"-{part(node.operand, _UNARY)}", _UNARY
    if isinstance(node, Binary):
        own = _PRECEDENCE[node.op]
        if own == _POWER:
            return f"{part(node.left, _ATOM)} ** {part(node.right, _UNARY)}", own
        # A comparison inside a comparison would read as a chain; `and` / `or` group freely.
        left = own + 1 if own == _COMPARE else own
        return f"{part(node.left, left)} {node.op} {part(node.right, own + 1)}", own
    if node.name == "ceil_div" and not language:
        return _render_ceil_div(node, part)
    arguments = ", ".join(part(arg, _OR) for arg in node.args)
    function = node.name if node.name in FUNCTIONS else _bind(node.name, bindings)[0]
    return f"{function}({arguments})", _ATOM


def _render_ceil_div(node: Function, part: Callable[[Node, int], str]) -> tuple[str, int]:
    dividend, divisor = node.args
    if isinstance(divisor, Int) and divisor.value > 0:
        if divisor.value == 1:
            return f"{part(dividend, _PRODUCT)} // 1", _PRODUCT
        return f"({part(dividend, _SUM)} + {divisor.value - 1}) // {divisor.value}", _PRODUCT
    text = part(divisor, _UNARY)
    if text.isidentifier():
        return f"({part(dividend, _SUM)} + {text} - 1) // {text}", _PRODUCT
    # A long divisor is written once.
    return f"cdiv({part(dividend, _OR)}, {part(divisor, _OR)})", _ATOM


def _render_argument(argument: Argument, bindings: Mapping[str, str]) -> str:
    if isinstance(argument, Name):
        name = argument.name
        return bindings.get(name, name) if name.startswith("**") else _bind(name, bindings)[0]
    if isinstance(argument, Attribute):
        return _bind_path(argument.path, bindings)[0]
    if isinstance(argument, Literal):
        return "[]" if argument.value == () else repr(argument.value)
    return argument.python(bindings)


def _bind(name: str, bindings: Mapping[str, str]) -> tuple[str, int]:
    if name not in bindings:
        return name, _ATOM
    return bindings[name], _precedence_of(bindings[name])


def _bind_path(path: str, bindings: Mapping[str, str]) -> tuple[str, int]:
    if path in bindings:
        return bindings[path], _precedence_of(bindings[path])
    if "self" in bindings:
        text = bindings["self"]
        text = text if _precedence_of(text) == _ATOM else f"({text})"
        return text + path.removeprefix("self"), _ATOM
    return path, _ATOM


def _precedence_of(source: str) -> int:
    """How tightly Python source text binds. Parsing decides, since the text of a binding is our own."""
    if source.isidentifier():
        return _ATOM
    import ast

    root = ast.parse(source, mode="eval").body
    if root.col_offset > 0 and source.lstrip().startswith("(") and (root.end_col_offset or 0) < len(source.encode()):
        return _ATOM  # parenthesised as a whole
    if isinstance(root, ast.BinOp):
        operators = {ast.Pow: _POWER, ast.Add: _SUM, ast.Sub: _SUM, ast.Mult: _PRODUCT, ast.FloorDiv: _PRODUCT,
                     ast.Mod: _PRODUCT, ast.Div: _PRODUCT}  # fmt: skip
        return operators.get(type(root.op), 0)
    if isinstance(root, ast.UnaryOp):
        return _NOT if isinstance(root.op, ast.Not) else _UNARY
    if isinstance(root, ast.BoolOp):
        return _OR if isinstance(root.op, ast.Or) else _AND
    if isinstance(root, ast.Compare):
        return _COMPARE
    return _ATOM if isinstance(root, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List)) else 0


# --- meaning ----------------------------------------------------------------------------------------------------


def _kind(node: Node) -> str:
    if isinstance(node, (Name, Attribute)):
        return "any"
    if isinstance(node, Unary):
        return "bool" if node.op == "not" else "int"
    if isinstance(node, Binary):
        return "bool" if _PRECEDENCE[node.op] <= _COMPARE else "int"
    return "int"


def _substitute(node: Node, replacements: Mapping[str, Node]) -> Node:
    if isinstance(node, Name):
        return replacements.get(node.name, node)
    if isinstance(node, Unary):
        return Unary(node.op, _substitute(node.operand, replacements))
    if isinstance(node, Binary):
        return Binary(node.op, _substitute(node.left, replacements), _substitute(node.right, replacements))
    if isinstance(node, Function):
        return Function(node.name, tuple(_substitute(arg, replacements) for arg in node.args))
    return node


def _evaluate(node: Node, values: Mapping[str, Any]) -> Any:
    if isinstance(node, Int | Text):
        return node.value
    if isinstance(node, Name | Attribute):
        name = node.name if isinstance(node, Name) else node.path
        if name not in values:
            raise EvaluationError(f"`{name}` has no value")
        return values[name]
    if isinstance(node, Unary):
        operand = _evaluate(node.operand, values)
        return (not operand) if node.op == "not" else -operand
    if isinstance(node, Function):
        if node.name not in _BUILTINS:
            raise EvaluationError(f"the helper `{node.name}` has no definition")
        return _BUILTINS[node.name](*(_evaluate(arg, values) for arg in node.args))
    left = _evaluate(node.left, values)
    if node.op == "and":
        return left and _evaluate(node.right, values)
    if node.op == "or":
        return left or _evaluate(node.right, values)
    return _OPERATIONS[node.op](left, _evaluate(node.right, values))


def _power(base: Any, exponent: Any) -> Any:
    if not 0 <= exponent <= MAX_EXPONENT or abs(base) > MAX_INTEGER:
        raise EvaluationError(f"a power with exponent {exponent} is out of range")
    return base**exponent


_BUILTINS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "ceil_div": lambda a, b: -(-a // b), "round": round, "len": len,
}  # fmt: skip

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "**": _power,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
