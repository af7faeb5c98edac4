"""The signatures of a protocol as values, to hash, store and compare.

They keep names, kinds, annotations and defaults, but no comments, docstrings and bodies. Annotations and defaults are
text. Two spellings of one annotation (quoted or not) are equal in hashes and comparisons.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from scaffold.syntax import parse_expression


class ParameterKind(str, Enum):
    """As in `inspect.Parameter`, with the same names."""

    POSITIONAL_ONLY = "positional_only"
    POSITIONAL_OR_KEYWORD = "positional_or_keyword"
    VAR_POSITIONAL = "var_positional"
    KEYWORD_ONLY = "keyword_only"
    VAR_KEYWORD = "var_keyword"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `annotation` and `default` are source text, None when there is none."""

    name: str
    kind: ParameterKind
    annotation: str | None
    default: str | None

    def __str__(self) -> str:
        stars = {ParameterKind.VAR_POSITIONAL: "*", ParameterKind.VAR_KEYWORD: "**"}.get(self.kind, "")
        return stars + _declaration(self.name, self.annotation, self.default)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a protocol. `parameters` begin with `self`. `has_default`: the body does something.

    A method without a default body must be implemented: the inherited stub returns None.
    """

    name: str
    parameters: tuple[Parameter, ...]
    returns: str | None
    has_default: bool
    decorators: tuple[str, ...] = ()
    is_async: bool = False

    def signature_source(self) -> str:
        """The text between the parentheses of the `def`, on one line, with `/` and `*` where Python needs them."""
        parts: list[str] = []
        starred = False
        for index, parameter in enumerate(self.parameters):
            if parameter.kind is ParameterKind.KEYWORD_ONLY and not starred:
                parts.append("*")
            starred = starred or parameter.kind in (ParameterKind.KEYWORD_ONLY, ParameterKind.VAR_POSITIONAL)
            parts.append(str(parameter))
            following = self.parameters[index + 1].kind if index + 1 < len(self.parameters) else None
            if parameter.kind is ParameterKind.POSITIONAL_ONLY and following is not ParameterKind.POSITIONAL_ONLY:
                parts.append("/")
        return ", ".join(parts)

    def parameter(self, name: str) -> Parameter | None:
        return next((parameter for parameter in self.parameters if parameter.name == name), None)

    def __str__(self) -> str:
        returns = f" -> {self.returns}" if self.returns is not None else ""
        return f"{self.name}({self.signature_source()}){returns}"


@dataclass(frozen=True, slots=True)
class Field:
    """One annotated attribute of a class. `default` is source text, None when there is none."""

    name: str
    annotation: str
    default: str | None

    def __str__(self) -> str:
        return _declaration(self.name, self.annotation, self.default)


@dataclass(frozen=True, slots=True)
class DataClass:
    """One data class of the definitions module; `fields` are in the order of the constructor."""

    name: str
    fields: tuple[Field, ...]
    frozen: bool

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class ProtocolShape:
    """All signatures of one protocol. Two trees of one generation share them."""

    bases: tuple[str, ...]
    attributes: tuple[Field, ...]
    methods: tuple[Method, ...]
    dataclasses: tuple[DataClass, ...]

    def method(self, name: str) -> Method | None:
        return next((method for method in self.methods if method.name == name), None)

    def dataclass(self, name: str) -> DataClass | None:
        return next((dataclass for dataclass in self.dataclasses if dataclass.name == name), None)

    def canonical(self) -> dict[str, Any]:
        """JSON-ready facts, independent of quoting and of the order of methods and classes."""
        return {
            "bases": [canonical_type(base) for base in self.bases],
            "attributes": [_canonical_field(item) for item in sorted(self.attributes, key=lambda item: item.name)],
            "methods": [
                {
                    "name": method.name,
                    "parameters": [
                        [item.name, item.kind.value, canonical_type(item.annotation), canonical_value(item.default)]
                        for item in method.parameters
                    ],
                    "returns": canonical_type(method.returns),
                    "has_default": method.has_default,
                    "decorators": list(method.decorators),
                    "is_async": method.is_async,
                }
                for method in sorted(self.methods, key=lambda method: method.name)
            ],
            "dataclasses": [
                {
                    "name": dataclass.name,
                    "frozen": dataclass.frozen,
                    "fields": [_canonical_field(item) for item in dataclass.fields],
                }
                for dataclass in sorted(self.dataclasses, key=lambda dataclass: dataclass.name)
            ],
        }

    def fingerprint(self) -> str:
        """16 hex digits over the canonical facts (the first 64 bits of their SHA-256)."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_canonical(cls, facts: dict[str, Any]) -> ProtocolShape:
        """The inverse of `canonical`."""
        return cls(
            bases=tuple(facts["bases"]),
            attributes=tuple(Field(*item) for item in facts["attributes"]),
            methods=tuple(
                Method(
                    name=item["name"],
                    parameters=tuple(
                        Parameter(name, ParameterKind(kind), annotation, default)
                        for name, kind, annotation, default in item["parameters"]
                    ),
                    returns=item["returns"],
                    has_default=item["has_default"],
                    decorators=tuple(item["decorators"]),
                    is_async=item["is_async"],
                )
                for item in facts["methods"]
            ),
            dataclasses=tuple(
                DataClass(item["name"], tuple(Field(*entry) for entry in item["fields"]), item["frozen"])
                for item in facts["dataclasses"]
            ),
        )


def compare_shapes(old: ProtocolShape, new: ProtocolShape) -> tuple[str, ...]:
    """The differences of `new` from `old`, method by method and field by field; empty when their hashes are equal."""
    lines: list[str] = []
    if _canonical_all(old.bases) != _canonical_all(new.bases):
        lines.append(f"protocol bases changed: `{', '.join(old.bases)}` -> `{', '.join(new.bases)}`")
    lines += _compare_declared("protocol attribute", old.attributes, new.attributes, ordered=False)
    old_methods = {method.name: method for method in old.methods}
    new_methods = {method.name: method for method in new.methods}
    lines += [f"method `{name}` removed" for name in old_methods if name not in new_methods]
    lines += [f"method `{method}` added" for name, method in new_methods.items() if name not in old_methods]
    for name, method in new_methods.items():
        if name in old_methods:
            lines += _compare_methods(old_methods[name], method)
    old_classes = {dataclass.name: dataclass for dataclass in old.dataclasses}
    new_classes = {dataclass.name: dataclass for dataclass in new.dataclasses}
    lines += [f"data class `{name}` removed" for name in old_classes if name not in new_classes]
    for name, new_class in new_classes.items():
        if name not in old_classes:
            fields = ", ".join(str(field) for field in new_class.fields)
            lines.append(f"data class `{name}({fields})` added")
        else:
            if old_classes[name].frozen != new_class.frozen:
                lines.append(f"data class `{name}` {'is now frozen' if new_class.frozen else 'is no longer frozen'}")
            lines += _compare_declared(f"`{name}` field", old_classes[name].fields, new_class.fields, ordered=True)
    return tuple(lines)


def _compare_methods(old: Method, new: Method) -> list[str]:
    where = f"method `{new.name}`"
    lines = _compare_declared(f"{where}: parameter", old.parameters, new.parameters, ordered=True)
    if canonical_type(old.returns) != canonical_type(new.returns):
        lines.append(f"{where}: return type changed: {_text(old.returns)} -> {_text(new.returns)}")
    if old.has_default != new.has_default:
        lines.append(f"{where}: {'has a default body now' if new.has_default else 'has no default body any more'}")
    if old.decorators != new.decorators:
        lines.append(f"{where}: decorators changed: {_list(old.decorators)} -> {_list(new.decorators)}")
    if old.is_async != new.is_async:
        lines.append(f"{where}: {'is async now' if new.is_async else 'is no longer async'}")
    return lines


def _compare_declared(
    what: str, old: Sequence[Field | Parameter], new: Sequence[Field | Parameter], *, ordered: bool
) -> list[str]:
    """The differences of names with annotations and defaults."""
    before, after = ({one.name: one for one in declared} for declared in (old, new))
    lines = [f"{what} `{name}` removed" for name in before if name not in after]
    for name, one in after.items():
        if name not in before:
            lines.append(f"{what} `{one}` added")
            continue
        was = before[name]
        if isinstance(was, Parameter) and isinstance(one, Parameter) and was.kind is not one.kind:
            lines.append(f"{what} `{name}` changed kind: {was.kind.value} -> {one.kind.value}")
        if canonical_type(was.annotation) != canonical_type(one.annotation):
            lines.append(f"{what} `{name}` changed type: {_text(was.annotation)} -> {_text(one.annotation)}")
        if canonical_value(was.default) != canonical_value(one.default):
            lines.append(f"{what} `{name}` changed default: {_text(was.default)} -> {_text(one.default)}")
    common_old = [name for name in before if name in after]
    common_new = [name for name in after if name in before]
    if ordered and common_old != common_new:
        lines.append(f"{what}s reordered: {', '.join(common_old)} -> {', '.join(common_new)}")
    return lines


@lru_cache(maxsize=1024)
def canonical_type(text: str | None) -> str | None:
    """The one spelling of an annotation: that of `ast.unparse`, with forward references unquoted."""
    return None if text is None else _spelled(_Unquote().visit(ast.parse(text, mode="eval")))


@lru_cache(maxsize=1024)
def canonical_value(text: str | None) -> str | None:
    """The one spelling of a default: that of `ast.unparse`."""
    return None if text is None else _spelled(ast.parse(text, mode="eval"))


def _spelled(node: ast.AST) -> str:
    """The same text under every Python: 3.10 writes a space after a `lambda` without parameters."""
    return ast.unparse(node).replace("lambda : ", "lambda: ")


class _Unquote(ast.NodeTransformer):
    """Turns a quoted forward reference into the expression that it quotes; `Literal["a"]` keeps its strings."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
        return node if name == "Literal" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        try:
            quoted = parse_expression(node.value)
        except SyntaxError:
            return node
        return self.visit(quoted) if not isinstance(quoted, ast.Constant) else quoted


def _canonical_field(field: Field) -> list[str | None]:
    return [field.name, canonical_type(field.annotation), canonical_value(field.default)]


def _canonical_all(texts: tuple[str, ...]) -> list[str | None]:
    return [canonical_type(text) for text in texts]


def _declaration(name: str, annotation: str | None, default: str | None) -> str:
    if annotation is None:
        return name if default is None else f"{name}={default}"
    return f"{name}: {annotation}" if default is None else f"{name}: {annotation} = {default}"


def _text(source: str | None) -> str:
    return "none" if source is None else f"`{source}`"


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
