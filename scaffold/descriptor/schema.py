"""Types of descriptor fields: each reads a node into a typed value and describes itself as JSON Schema (`VCG2xx`).

The sections of a descriptor are frozen records that declare their fields with `declare`. They read the positioned nodes
by hand, without a validation library, for two reasons. The type of a field judges a plain YAML scalar, so that `no`,
`012` and `1:20` get an answer of their own. And importing pydantic costs 120 ms, more than everything else that
`validate` does.

An unreadable value becomes None and a diagnostic. The sections around it still exist, so that the rules of `rules.py`
find further mistakes in the same run.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from scaffold.descriptor.expressions import (
    Attribute,
    Call,
    Expression,
    ExpressionError,
    parse_call,
    parse_expression,
    parse_path,
)
from scaffold.descriptor.source import MappingNode, Node, ScalarNode, SequenceNode
from scaffold.diagnostics import Diagnostic, Span

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[type], type]:
        """The standard library has it from Python 3.11; it only speaks to type checkers."""
        return lambda cls: cls


_REQUIRED: Any = object()


class Type(Protocol):
    """The type of a field's values."""

    def read(self, node: Node, at: str, reader: Reader) -> Any:
        """The typed value, or None after a diagnostic."""

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        """The JSON Schema of accepted values; sections add themselves to `definitions`."""


class Declared:
    """The declaration of a section's field: its name in Python, its key in YAML, and the type of its values."""

    def __init__(self, type: Type | None, doc: str, default: Any, examples: tuple[Any, ...], key: str) -> None:
        self.type, self.doc, self.default, self.examples, self.key = type, doc, default, examples, key
        self.name = ""

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED


def declare(type: Type, doc: str, *, default: Any = _REQUIRED, examples: Sequence[Any] = (), key: str = "") -> Any:
    """A field of a section; without a default its key is required. The key is the name without a trailing `_`."""
    return Declared(type, doc, default, tuple(examples), key)


def attach(*, default: Any) -> Any:
    """A field of a section that is not part of the YAML. It does not take part in comparisons.

    One that is called `name` gets the key of the section in a `Table`.
    """
    return Declared(None, "", default, (), "")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(declare, attach))
class Record:
    """Base of all sections: a frozen value with the fields that its class declares.

    To a type checker these are frozen, keyword-only dataclasses. They are not made by `dataclasses`, which compiles six
    functions for each class: for all sections together 20 ms of every start.
    """

    #: Fields by their name in Python, and those of the YAML by their key, in declaration order.
    by_name: ClassVar[dict[str, Declared]]
    by_key: ClassVar[dict[str, Declared]]
    #: Keys of which a section has one at least.
    some_of: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.by_name, cls.by_key = dict(getattr(cls, "by_name", {})), dict(getattr(cls, "by_key", {}))
        for name, declared in list(vars(cls).items()):
            if isinstance(declared, Declared):
                declared.name, declared.key = name, declared.key or name.rstrip("_")
                cls.by_name[name] = declared
                if declared.type is not None:
                    cls.by_key[declared.key] = declared
                delattr(cls, name)

    def __init__(self, **values: Any) -> None:
        for name, declared in self.by_name.items():
            if name not in values and declared.required:
                raise TypeError(f"{type(self).__name__} needs {name}")
            value = values.pop(name) if name in values else declared.default
            object.__setattr__(self, name, value.copy() if isinstance(value, dict) else value)
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")

    def replace(self, **values: Any) -> Self:
        """A copy with other values for some fields."""
        return type(self)(**{name: getattr(self, name) for name in self.by_name} | values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            getattr(self, name) == getattr(other, name)
            for name, field in self.by_name.items()
            if field.type is not None
        )

    __hash__ = None  # type: ignore[assignment]  # holds dicts

    def __repr__(self) -> str:
        shown = (
            f"{name}={getattr(self, name)!r}" for name, declared in self.by_name.items() if declared.type is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Use:
    """One expression or call of the descriptor, where it stands and which names it may use."""

    at: str
    value: Expression | Call
    node: ScalarNode
    scope: str
    wants: str
    calls_helpers: bool = False


@dataclass(slots=True)
class Reader:
    """Collects places, uses and problems while it reads one descriptor."""

    file: str
    helpers: Mapping[str, int] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    #: Dotted path of a value to its place, and to the place of its key.
    spans: dict[str, Span] = field(default_factory=dict)
    keys: dict[str, Span] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    #: The probable meanings of misspelt keys. No message reports those as missing again.
    meant: set[str] = field(default_factory=set)

    def report(
        self, code: str, message: str, span: Span, help: str | None = None, *, notes: tuple[str, ...] = ()
    ) -> None:
        self.problems.append(Diagnostic(code, message, span, help, notes=notes))

    def place(self, at: str) -> Span:
        """The place of the key of a value if it has one, else of the value, else of the nearest parent."""
        while at:
            if at in self.keys:
                return self.keys[at]
            if at in self.spans:
                return self.spans[at]
            at = at.rpartition(".")[0]
        return self.spans.get("", Span(self.file, 1, 1, 1, 1))


# --- scalars ----------------------------------------------------------------------------------------------------

_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_BOOL_TRAP = re.compile(r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")
_NULL = re.compile(r"~|null|Null|NULL|")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_INT_TRAP = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", re.ASCII)
_FLOAT_TRAP = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*", re.ASCII)
_DATE_TRAP = re.compile(r"\d{4}-\d\d?-\d\d?([Tt \t].*)?", re.ASCII)


def scalar_kind(node: ScalarNode) -> tuple[str, bool]:
    """The YAML type of a scalar (`str`, `bool`, `null`, `int`, `float`, `date`), and whether it is a trap.

    A trap is a spelling that YAML 1.1 and 1.2 read differently, or that surprises: `no`, `012`, `1:20`, `1_000`.
    """
    value = node.value
    if not node.plain:
        return "str", False
    for kind, pattern, trap in (
        ("bool", _BOOL, False), ("bool", _BOOL_TRAP, True), ("null", _NULL, False),
        ("int", _INT, False), ("int", _INT_TRAP, True), ("float", _FLOAT, False), ("float", _FLOAT_TRAP, True),
        ("date", _DATE_TRAP, True),
    ):  # fmt: skip
        if pattern.fullmatch(value):
            return kind, trap
    return "str", False


_KIND_WORDS = {
    "str": "text",
    "bool": "a boolean",
    "null": "nothing",
    "int": "a number",
    "float": "a decimal number",
    "date": "a date",
}


def describe(node: Node) -> str:
    """The value there, for messages."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return _KIND_WORDS[scalar_kind(node)[0]]


def _trap_value(value: str) -> str:
    """The value that YAML 1.1 reads for a trap, in words for the message."""
    text = value.replace("_", "")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if ":" in digits and "." not in digits:
        number = 0
        for part in digits.split(":"):
            number = number * 60 + int(part)
        return f"the number {sign * number}"
    for prefix, base in (("0b", 2), ("0x", 16), ("0o", 8), ("0", 8), ("", 10)):
        if digits.startswith(prefix):
            try:
                return f"the number {sign * int(digits.removeprefix(prefix) or '0', base)}"
            except ValueError:
                break
    return "a number"


#: Types of fields whose author may have meant a number or boolean as text.
_QUOTABLE = ("text", "a prompt", "a template", "a message", "a model name")


def _instead(node: Node, wanted: str) -> str:
    """The advice for a list or a mapping where a field wants something else."""
    if wanted == "an expression" and isinstance(node, SequenceNode):
        return "write one number, name or formula; an element of a list is self.config.image_size[0]"
    return f"write {wanted} here"


def read_scalar(node: Node, wanted: str, kinds: Iterable[str], reader: Reader) -> ScalarNode | None:
    """The node if it is a scalar that YAML reads as one of `kinds`; reports traps, emptiness and wrong types."""
    if not isinstance(node, ScalarNode):
        reader.report("VCG203", f"expected {wanted}, found {describe(node)}", node.span, _instead(node, wanted))
        return None
    if node.style == "*":  # an alias: reported as such already
        return None
    kind, trap = scalar_kind(node)
    if trap:
        if kind == "bool":
            read_as = f"the boolean {'true' if node.value.lower() in ('yes', 'on') else 'false'}"
        else:
            read_as = "a date" if kind == "date" else _trap_value(node.value)
        help = f'write "{node.value}" in quotes if text is meant'
        if "bool" in kinds and kind == "bool":
            help = f"write {'true' if node.value.lower() in ('yes', 'on') else 'false'}"
        elif "int" in kinds:
            help = "write a decimal number without leading zero, colon or underscore"
        reader.report("VCG113", f"YAML reads `{node.value}` as {read_as}", node.span, help)
        return None
    if kind == "null":
        reader.report("VCG211", f"expected {wanted}, found nothing", node.span, "give a value or delete the key")
        return None
    if kind not in kinds:
        help = f'quote it: "{node.value}"' if wanted in _QUOTABLE else f"write {wanted} here"
        reader.report("VCG203", f"expected {wanted}, found {describe(node)}", node.span, help)
        return None
    return node


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is nearest to a misspelt one."""
    from difflib import get_close_matches

    folded = {name.lower().replace("-", "_"): name for name in known}
    word = word.lower().replace("-", "_")
    return folded.get(word) or next((folded[name] for name in get_close_matches(word[:80], folded, n=1)), None)


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` for a near miss, else the list of known words."""
    known = list(known)
    close = nearest(word, known)
    if close is not None:
        return f"did you mean `{close}`?"
    return f"known here: {', '.join(known)}" if known else "nothing is known here"


@dataclass(eq=False, repr=False)
class Name:
    """A Python identifier. With `word` it only becomes a string, so that `global` is allowed."""

    what: str = "a name"
    word: bool = False

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        scalar = read_scalar(node, self.what, ("str",), reader)
        return None if scalar is None else check_name(scalar, self.what, reader, word=self.word)

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}


def check_name(scalar: ScalarNode, what: str, reader: Reader, *, word: bool = False) -> str | None:
    value = scalar.value
    if not (value.isidentifier() and value.isascii()):
        reader.report(
            "VCG205",
            f"`{_short(value)}` is not {what}",
            scalar.span,
            "use letters, digits and `_`, not starting with a digit",
        )
    elif (not word and keyword.iskeyword(value)) or value == "self" or value.startswith("__"):
        reader.report("VCG205", f"`{value}` is reserved and cannot be {what}", scalar.span, "choose another name")
    else:
        return value
    return None


@dataclass(eq=False, repr=False)
class Module:
    """A module below `vllm.model_executor.models`, or a dotted module path."""

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        scalar = read_scalar(node, "a module name", ("str",), reader)
        if scalar is None:
            return None
        value = scalar.value
        if all(part.isidentifier() and part.isascii() and not keyword.iskeyword(part) for part in value.split(".")):
            return value
        help = "write the module's name as in an import: internvl, or vllm.models.name.model"
        if value.endswith(".py") or "/" in value:
            help = f"write it without path and suffix: {value.rsplit('/', 1)[-1].removesuffix('.py')}"
        reader.report("VCG205", f"`{_short(value)}` is not a module name", scalar.span, help)
        return None

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*(\\.[A-Za-z_][A-Za-z0-9_]*)*$"}


#: Categories of Unicode that nobody sees: control characters, formats (such as overrides of the direction of text),
#: surrogates, separators of lines and paragraphs.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def check_text(scalar: ScalarNode, reader: Reader, *, lines: bool = True) -> str | None:
    """The text of a scalar, unless it has characters that nobody sees. `lines`: it may have line feeds and tabs."""
    if scalar.value.isprintable():
        return scalar.value
    from unicodedata import category

    for at, char in enumerate(scalar.value):
        if category(char) in _UNSEEN and not (lines and char in "\n\t"):
            what = (
                "the text has more than one line" if char == "\n" else f"the text has the character U+{ord(char):04X}"
            )
            help = "write it on one line" if char == "\n" else "delete it: nobody sees it, and programs obey it"
            reader.report("VCG215", what, scalar.span_of(at, at + 1), help)
            return None
    return scalar.value


@dataclass(eq=False, repr=False)
class Text:
    """Any text that people can see: on one line, or with `lines` on several."""

    what: str = "text"
    limit: int = 2000
    lines: bool = False

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        scalar = read_scalar(node, self.what, ("str",), reader)
        if scalar is None:
            return None
        if not scalar.value.strip():
            reader.report(
                "VCG211", f"expected {self.what}, found only spaces", scalar.span, "give a value or delete the key"
            )
            return None
        if len(scalar.value) > self.limit:
            reader.report("VCG214", f"the text is longer than {self.limit} characters", scalar.span, "shorten it")
            return None
        return check_text(scalar, reader, lines=self.lines)

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": self.limit}


#: Comments that switch checks of code off or change what they say. Tools look for them in different places of a
#: comment, so they count wherever a word may begin.
_DIRECTIVE = re.compile(
    r"(?<![^\W_])(?:(?:ruff|flake8|isort|fmt|yapf|black|autopep8|autoflake|mypy|pyright|basedpyright|pytype|pyrefly|pylint"
    r"|type|ty|codespell|typos|c?spell-?checker|cspell|noinspection)\s*:\s*\S*|(?:noqa|nopep8|nosec|nosemgrep|nolint|nosonar|pragma"
    r"|pyre-(?:ignore|fixme|strict|unsafe)|lint-(?:ignore|fixme)|@formatter)(?![^\W_]))",
    re.IGNORECASE,
)


@dataclass(eq=False, repr=False)
class Remark(Text):
    """Text that becomes a comment of generated code. Any of its words may begin a line there."""

    lines: bool = True

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        value = super().read(node, at, reader)
        found = _DIRECTIVE.search(value) if value is not None else None
        if found is None or not isinstance(node, ScalarNode):
            return value
        reader.report(
            "VCG216",
            f"`{_short(found.group())}` tells a tool something: as a comment of the port it would switch checks off",
            node.span_of(*found.span()),
            "say it in other words, without the colon or the name of the tool's comment",
        )
        return None


@dataclass(eq=False, repr=False)
class Pattern:
    """Text of a given form."""

    what: str
    pattern: str
    help: str

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        scalar = read_scalar(node, self.what, ("str",), reader)
        if scalar is None:
            return None
        if re.fullmatch(self.pattern, scalar.value, re.ASCII) is None:
            reader.report("VCG214", f"`{_short(scalar.value)}` is not {self.what}", scalar.span, self.help)
            return None
        return scalar.value

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{self.pattern}$"}


@dataclass(eq=False, repr=False)
class Integer:
    minimum: int = 1
    maximum: int = 2**31 - 1

    def read(self, node: Node, at: str, reader: Reader) -> int | None:
        scalar = read_scalar(node, "a whole number", ("int",), reader)
        if scalar is None:
            return None
        # int() of a huge text is slow and refused by Python itself: judge the length first.
        value = int(scalar.value) if len(scalar.value) <= 12 else self.maximum + 1
        if not self.minimum <= value <= self.maximum:
            reader.report(
                "VCG210",
                f"{_short(scalar.value)} is out of range",
                scalar.span,
                f"give a number from {self.minimum} to {self.maximum}",
            )
            return None
        return value

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(eq=False, repr=False)
class Flag:
    def read(self, node: Node, at: str, reader: Reader) -> bool | None:
        scalar = read_scalar(node, "true or false", ("bool",), reader)
        return None if scalar is None else scalar.value.lower() == "true"

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(eq=False, repr=False)
class FlagOrText:
    """`true`, `false`, or a reason."""

    def read(self, node: Node, at: str, reader: Reader) -> bool | str | None:
        scalar = read_scalar(node, "true, false or a reason", ("bool", "str"), reader)
        if scalar is None:
            return None
        return scalar.value.lower() == "true" if scalar_kind(scalar)[0] == "bool" else check_text(scalar, reader)

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": ["boolean", "string"]}


@dataclass(eq=False, repr=False)
class Version:
    """The format's version: an integer of which only a few are known."""

    known: tuple[int, ...]

    def read(self, node: Node, at: str, reader: Reader) -> int | None:
        value = Integer(0).read(node, at, reader)
        if value is not None and value not in self.known:
            known = " or ".join(map(str, self.known))
            reader.report(
                "VCG212", f"the schema version {value} is not known", node.span, f"this tool reads version {known}"
            )
            return None
        return value

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "integer", "enum": list(self.known)}


@dataclass(eq=False, repr=False)
class Choice:
    """One of a few words; the values say what each means."""

    what: str
    options: Mapping[str, str]

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        scalar = read_scalar(node, self.what, ("str",), reader)
        if scalar is None:
            return None
        if scalar.value not in self.options:
            reader.report(
                "VCG204",
                f"`{_short(scalar.value)}` is not {self.what}",
                scalar.span,
                suggest(scalar.value, self.options),
            )
            return None
        return scalar.value

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        meanings = [f"{option}: {meaning}" for option, meaning in self.options.items() if meaning]
        schema: dict[str, Any] = {"type": "string", "enum": list(self.options)}
        return schema | ({"description": "; ".join(meanings)} if meanings else {})


QUOTE_HELP = "put the value in quotes: between braces or brackets a comma ends it"


def _report_expression(reader: Reader, code: str, error: ExpressionError, scalar: ScalarNode, form: str) -> None:
    """Report the parser's message at its place. A message without help shows the form, unless a comma cut the text."""
    cut = scalar.plain and error.start == len(scalar.value) and scalar.value.count("(") > scalar.value.count(")")
    help = QUOTE_HELP if cut else error.help or form
    reader.report(code, error.message, scalar.span_of(error.start, error.end), help)


@dataclass(eq=False, repr=False)
class AttributePath:
    """`self.a.b`. `called`: it names a part that is called or changed, not a value that is read."""

    called: bool = False

    def read(self, node: Node, at: str, reader: Reader) -> str | None:
        scalar = read_scalar(node, "an attribute path", ("str",), reader)
        if scalar is None:
            return None
        try:
            path = parse_path(scalar.value)
        except ExpressionError as error:
            _report_expression(reader, "VCG206", error, scalar, "write an attribute of the model: self.a.b")
            return None
        value = Expression(Attribute(path, end=len(scalar.value)), scalar.value)
        reader.uses.append(Use(at, value, scalar, "part" if self.called else "value", "path"))
        return path

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "pattern": "^self(\\.[A-Za-z_][A-Za-z0-9_]*)+$"}


@dataclass(eq=False, repr=False)
class Formula:
    """An expression. `scope` tells which names it may use, `wants` whether it is a number or a condition."""

    scope: str
    wants: str = "int"
    calls_helpers: bool = False

    def read(self, node: Node, at: str, reader: Reader) -> Expression | None:
        what = "a condition" if self.wants == "bool" else "an expression"
        scalar = read_scalar(node, what, ("str", "int", "float"), reader)
        if scalar is None:
            return None
        try:
            expression = parse_expression(scalar.value, reader.helpers)
        except ExpressionError as error:
            form = "write whole numbers, names, attributes of `self`, + - * // % **, comparisons, and, or, not"
            _report_expression(reader, "VCG207", error, scalar, form)
            return None
        reader.uses.append(Use(at, expression, scalar, self.scope, self.wants, self.calls_helpers))
        return expression

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        definitions.setdefault(
            "Expression",
            {
                "type": ["string", "integer"],
                "description": "Integers, names, attribute paths starting with self., + - * // % **, comparisons, "
                "and / or / not, and calls of min, max, ceil_div, round (of a fraction that the model's configuration "
                "holds), len (of a list of the model) and helpers.",
            },
        )
        return {"$ref": "#/$defs/Expression"}


@dataclass(eq=False, repr=False)
class CallText:
    """A call of something of the model; `names` says what may be passed."""

    scope: str = "call"

    def read(self, node: Node, at: str, reader: Reader) -> Call | None:
        scalar = read_scalar(node, "a call", ("str",), reader)
        if scalar is None:
            return None
        try:
            call = parse_call(scalar.value)
        except ExpressionError as error:
            _report_expression(reader, "VCG209", error, scalar, "write a call of the model: self.visual(pixels)")
            return None
        reader.uses.append(Use(at, call, scalar, self.scope, "call"))
        return call

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "pattern": "^\\s*self\\.", "description": "A call such as self.visual(pixels, None)."}


@dataclass(eq=False, repr=False)
class Free:
    """Plain data that passes through unchanged: numbers, text, true, false, null, lists and mappings."""

    def read(self, node: Node, at: str, reader: Reader) -> Any:
        if isinstance(node, MappingNode):
            return {
                check_text(entry.key, reader): self.read(entry.value, f"{at}.{entry.key.value}", reader)
                for entry in node.entries
            }
        if isinstance(node, SequenceNode):
            return [self.read(item, f"{at}.{index}", reader) for index, item in enumerate(node.items)]
        kind, _ = scalar_kind(node)
        if kind == "null" and node.style != "*":
            return None
        scalar = read_scalar(node, "a value", ("str", "bool", "int", "float"), reader)
        if scalar is None or kind == "str":
            return None if scalar is None else check_text(scalar, reader)
        if kind == "bool":
            return scalar.value.lower() == "true"
        if len(scalar.value) > 30:
            reader.report("VCG210", "the number is too long", scalar.span, "give fewer digits")
            return None
        if kind == "int":
            return int(scalar.value)
        value = float(scalar.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if not math.isfinite(value):
            reader.report("VCG210", f"`{scalar.value}` has no literal in Python", scalar.span, "give a finite number")
            return None
        return value

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {}


# --- collections ------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Listing:
    """A list of values of one type, read as a tuple. With `single`, a single value needs no brackets; with `nested`,
    there may be two pairs of them around all values."""

    item: Type
    minimum: int = 1
    maximum: int = 64
    single: bool = False
    nested: bool = False

    def read(self, node: Node, at: str, reader: Reader) -> tuple[Any, ...] | None:
        if self.nested and isinstance(node, SequenceNode) and [type(item) for item in node.items] == [SequenceNode]:
            inner = self.read(node.items[0], f"{at}.0", reader)
            return None if inner is None else (inner,)
        if self.single and not isinstance(node, SequenceNode):
            value = self.item.read(node, at, reader)
            return None if value is None else (value,)
        if not isinstance(node, SequenceNode):
            if not (isinstance(node, ScalarNode) and node.style == "*"):
                hint = (
                    f"write [{_short(node.value)}]"
                    if isinstance(node, ScalarNode) and node.value
                    else "write a list: [a, b]"
                )
                reader.report("VCG203", f"expected a list, found {describe(node)}", node.span, hint)
            return None
        if not self.minimum <= len(node.items) <= self.maximum:
            wanted = f"{self.minimum}" if self.minimum == self.maximum else f"{self.minimum} to {self.maximum}"
            reader.report(
                "VCG213", f"expected {wanted} values, found {len(node.items)}", node.span, f"write {wanted} values"
            )
            return None
        values = []
        for index, item in enumerate(node.items):
            reader.spans[f"{at}.{index}"] = item.span
            values.append(self.item.read(item, f"{at}.{index}", reader))
        return None if any(value is None for value in values) else tuple(values)

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        item = self.item.json(definitions)
        listing = {"type": "array", "items": item, "minItems": self.minimum, "maxItems": self.maximum}
        if self.nested:
            twice = {"type": "array", "items": listing, "minItems": 1, "maxItems": 1}
            return {"oneOf": [listing, twice]}
        return {"oneOf": [item, listing]} if self.single else listing


@dataclass(eq=False, repr=False)
class Table:
    """A mapping from names chosen by the author to values of one type, read as a dict in text order."""

    value: Type
    what: str = "a name"
    #: The names that are allowed and what they mean; None allows every identifier.
    options: Mapping[str, str] | None = None
    minimum: int = 0
    word: bool = False

    def read(self, node: Node, at: str, reader: Reader) -> dict[str, Any] | None:
        if not isinstance(node, MappingNode):
            _report_no_mapping(node, reader)
            return None
        if len(node.entries) < self.minimum:
            reader.report("VCG211", "the mapping is empty", node.span, f"add {self.what}")
            return None
        values = {}
        for entry in node.entries:
            name = entry.key.value
            where = f"{at}.{name}"
            reader.keys[where], reader.spans[where] = entry.key.span, entry.value.span
            if self.options is not None and name not in self.options:
                close = nearest(name, self.options)
                reader.meant.add(f"{at}.{close}")
                help = suggest(name, self.options)
                reader.report("VCG201", f"`{_short(name)}` is not {self.what}", entry.key.span, help)
                continue
            if self.options is None and check_name(entry.key, self.what, reader, word=self.word) is None:
                continue
            value = self.value.read(entry.value, where, reader)
            # A section that wants to know its own name has a field for it.
            named = isinstance(value, Record) and "name" in value.by_name.keys() - value.by_key.keys()
            values[name] = value.replace(name=name) if named else value
        return values

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        value = self.value.json(definitions)
        if self.options is None:
            names: dict[str, Any] = {
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                "additionalProperties": value,
            }
        else:
            names = {
                "properties": {name: {**value, "description": doc} for name, doc in self.options.items()},
                "additionalProperties": False,
            }
        return {"type": "object", "minProperties": self.minimum, **names}


@dataclass(eq=False, repr=False)
class Section:
    """A mapping with fixed keys, read as a frozen record. `elsewhere` has reasons why further keys are not here."""

    cls: type[Record]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def read(self, node: Node, at: str, reader: Reader) -> Any:
        if not isinstance(node, MappingNode):
            _report_no_mapping(node, reader)
            return None
        fields = self.cls.by_key
        values: dict[str, Any] = {}
        for entry in node.entries:
            key = entry.key.value
            where = f"{at}.{key}" if at else key
            reader.keys[where], reader.spans[where] = entry.key.span, entry.value.span
            declared = fields.get(key)
            if key in self.elsewhere:
                reader.report(
                    "VCG313", f"`{where}` {self.elsewhere[key]}", entry.key.span, "delete it, or correct `layout`"
                )
                continue
            if declared is None or declared.type is None:
                help = suggest(key, fields)
                close = nearest(key, fields)
                reader.meant.add(f"{at}.{close}" if at else str(close))
                if key.endswith(")"):  # the rest of a call that a comma has cut in two
                    help = QUOTE_HELP
                reader.report("VCG201", f"unknown key `{_short(key)}`", entry.key.span, help)
                continue
            value = declared.type.read(entry.value, where, reader)
            if value is not None or declared.required:
                values[declared.name] = value  # an unreadable value is reported; a default replaces it
        for key, declared in fields.items():
            if declared.required and declared.name not in values:
                values[declared.name] = None
                if (f"{at}.{key}" if at else key) not in reader.meant:
                    self._report_missing(key, declared, node, at, reader)
        return self.cls(**values)

    @staticmethod
    def _report_missing(key: str, declared: Declared, node: Node, at: str, reader: Reader) -> None:
        start = Span(reader.file, node.span.line, node.span.column, node.span.line, node.span.column)
        owner = f"`{at}` lacks" if at else "the descriptor lacks"
        place = reader.place(at) if at else reader.keys.get("layout", start)  # the layout decides which keys there are
        help = f"add `{key}: {example_of(declared)}` ({declared.doc})"
        reader.report("VCG202", f"{owner} the key `{key}`", place, help)

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        name = self.cls.__name__
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = section_schema(self.cls, definitions)
        return {"$ref": f"#/$defs/{name}"}


def example_of(declared: Declared) -> str:
    """A possible value of a field in YAML; for a section, its required keys."""
    if declared.examples or not isinstance(declared.type, Section):
        return _flow(declared.examples[0]) if declared.examples else "..."
    required = (field for field in declared.type.cls.by_key.values() if field.required)
    return f"{{{', '.join(f'{field.key}: {example_of(field)}' for field in required)}}}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    text = str(value)
    return f'"{text}"' if "," in text else text


@dataclass(eq=False, repr=False)
class Shape:
    """A field that may be written in several shapes: a scalar, a list or a mapping, each with its own type."""

    what: str
    scalar: Type | None = None
    sequence: Type | None = None
    mapping: Type | None = None

    def read(self, node: Node, at: str, reader: Reader) -> Any:
        type = (
            self.mapping
            if isinstance(node, MappingNode)
            else self.sequence
            if isinstance(node, SequenceNode)
            else self.scalar
        )
        if type is None:
            reader.report("VCG203", f"expected {self.what}, found {describe(node)}", node.span, f"write {self.what}")
            return None
        return type.read(node, at, reader)

    def json(self, definitions: dict[str, Any]) -> dict[str, Any]:
        return {
            "oneOf": [type.json(definitions) for type in (self.scalar, self.sequence, self.mapping) if type is not None]
        }


def _report_no_mapping(node: Node, reader: Reader) -> None:
    if isinstance(node, ScalarNode) and node.style == "*":
        return
    reader.report(
        "VCG203", f"expected a mapping, found {describe(node)}", node.span, "write `key: value` lines below it"
    )


def section_schema(cls: type[Record], definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a section, without the reference to it."""
    properties: dict[str, Any] = {}
    for key, declared in cls.by_key.items():
        assert declared.type is not None
        schema = declared.type.json(definitions)
        doc = declared.doc
        if "description" in schema and "$ref" not in schema:
            doc = f"{doc} ({schema['description']})"
        schema = {**schema, "description": doc}
        if declared.examples:
            schema["examples"] = list(declared.examples)
        if isinstance(declared.default, (bool, int, str)):
            schema["default"] = declared.default
        properties[key] = schema
    schema = {
        "type": "object",
        "description": " ".join((cls.__doc__ or "").split()),
        "properties": properties,
        "required": [key for key, declared in cls.by_key.items() if declared.required],
        "additionalProperties": False,
    }
    return schema | ({"anyOf": [{"required": [key]} for key in cls.some_of]} if cls.some_of else {})


def _short(text: str, limit: int = 40) -> str:
    text = text.replace("\n", " ")
    return text if len(text) <= limit else text[: limit - 3] + "..."
