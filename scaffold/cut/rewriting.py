"""Further parameters of a method, in its own text: comments and layout stay. Only this module loads libcst.

A result depends on the arguments alone and is kept: a plan that is watched asks for the same methods after each change.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from scaffold.syntax import FunctionNode, first_line, indentation_of

#: The end of a call or statement in its file: line, and column in bytes.
End: TypeAlias = tuple[int, int]
#: The arguments of a call that are units, by position or keyword.
Units: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True)
class Added:
    """The method of `text` gets last parameters `names` whose default is None, and hands them on in `forwards`.

    `start` and `shift` are the file's line and column of the text's first character. `forwards` are ends of calls.
    """

    text: str
    start: int
    shift: int
    names: tuple[str, ...]
    annotation: str
    forwards: tuple[End, ...]

    @classmethod
    def to(
        cls, function: FunctionNode, lines: Sequence[str], names: tuple[str, ...], annotation: str, ends: Iterable[End]
    ) -> Added:
        """To a method with these lines of its file."""
        text, shift = textwrap.dedent("\n".join(lines)) + "\n", len(indentation_of(lines[0]))
        return cls(text, first_line(function), shift, names, annotation, tuple(ends))


@lru_cache(maxsize=1024)
def cut_text(added: Added, sites: tuple[tuple[End, Units], ...], every: Units) -> str:
    """The text with the parameter in the place of the calls at `sites`, too; `every` stands for all arguments, which
    stay where they are."""
    return _Cut(added, dict(sites), every).code()


@lru_cache(maxsize=1024)
def hoisted_text(added: Added, statement: End | None) -> str:
    """The text whose statement that ends at `statement` runs only where the parameter is None, on its own line."""
    return _Hoist(added, statement).code()


class _AddParameter(cst.CSTTransformer):
    def __init__(self, added: Added) -> None:
        super().__init__()
        self._wrapper = MetadataWrapper(cst.parse_module(added.text), unsafe_skip_copy=True)
        self._places = self._wrapper.resolve(PositionProvider)
        self._lines, self._start, self._shift = added.text.splitlines(), added.start, added.shift
        self._names, self._annotation, self._forwards = added.names, added.annotation, added.forwards
        self._depth = 0

    def code(self) -> str:
        """The changed text."""
        return self._wrapper.module.visit(self).code

    def end_of(self, node: cst.CSTNode) -> End:
        """Where a node ends in the file."""
        # libcst counts characters, `ast` bytes; both from the same line of the same text.
        position = self._places[node].end
        prefix = self._lines[position.line - 1][: position.column]
        return self._start + position.line - 1, self._shift + len(prefix.encode())

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self._depth -= 1
        if self._depth:
            return updated_node
        parameters = updated_node.params
        annotation = cst.Annotation(cst.parse_expression(self._annotation))
        new = [cst.Param(cst.Name(name), annotation, default=cst.Name("None")) for name in self._names]
        keyword_only = bool(parameters.kwonly_params) or isinstance(parameters.star_arg, cst.Param)
        group = "kwonly_params" if keyword_only else "params"
        return updated_node.with_changes(params=parameters.with_changes(**{group: [*getattr(parameters, group), *new]}))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if self.end_of(original_node) not in self._forwards:
            return updated_node
        tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        new = [cst.Arg(cst.Name(name), keyword=cst.Name(name), equal=tight) for name in self._names]
        return updated_node.with_changes(args=[*updated_node.args, *new])


class _Cut(_AddParameter):
    def __init__(self, added: Added, sites: dict[End, Units], every: Units) -> None:
        super().__init__(added)
        self._sites, self._every = sites, every
        #: Values of arguments, by identity: an expression there needs no parentheses.
        self._arguments: set[int] = set()

    def visit_Arg(self, node: cst.Arg) -> None:
        self._arguments.add(id(node.value))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        units = self._sites.get(self.end_of(original_node))
        if units is None:
            return super().leave_Call(original_node, updated_node)
        if units == self._every:
            return updated_node.with_changes(func=self._unless(updated_node.func, cst.Name(self._names[0])))
        features = cst.Call(cst.Name(self._names[0]), [cst.Arg(_argument(updated_node, which)) for which in units])
        return self._unless(updated_node, features, parentheses=id(original_node) not in self._arguments)

    def _unless(self, node: cst.BaseExpression, other: cst.BaseExpression, *, parentheses: bool = True) -> cst.IfExp:
        """`(node if encode is None else other)`."""
        test = cst.parse_expression(f"{self._names[0]} is None")
        left, right = ([cst.LeftParen()], [cst.RightParen()]) if parentheses else ([], [])
        return cst.IfExp(test=test, body=node, orelse=other, lpar=left, rpar=right)


class _Hoist(_AddParameter):
    def __init__(self, added: Added, statement: End | None) -> None:
        super().__init__(added)
        self._statement = statement

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement:
        if self._statement is None or self.end_of(original_node.body[0]) != self._statement:
            return updated_node
        return cst.If(
            test=cst.parse_expression(f"{self._names[0]} is None"),
            body=cst.SimpleStatementSuite(updated_node.body, trailing_whitespace=updated_node.trailing_whitespace),
            leading_lines=updated_node.leading_lines,
        )


def _argument(call: cst.Call, which: int | str) -> cst.BaseExpression:
    """The value of an argument by its position or keyword."""
    for index, argument in enumerate(call.args):
        name = argument.keyword.value if argument.keyword is not None else None
        if which in (index, name) and (name is not None) == isinstance(which, str):
            return argument.value
    raise AssertionError("the call was matched before")
