"""Further parameters of a method, in its own text: comments and layout stay. Only this module loads libcst."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider


class AddParameter(cst.CSTTransformer):
    """Gives the method of a text last parameters whose default is None, and hands them on in `forwards`.

    `start` and `shift` are the file's line and column of the text's first character. `forwards` are ends of calls in
    the file, `(line, column)` in bytes.
    """

    def __init__(
        self,
        text: str,
        start: int,
        shift: int,
        names: tuple[str, ...],
        annotation: str,
        forwards: Collection[tuple[int, int]],
    ) -> None:
        super().__init__()
        self._wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self._places = self._wrapper.resolve(PositionProvider)
        self._parents = self._wrapper.resolve(ParentNodeProvider)
        self._lines, self._start, self._shift = text.splitlines(), start, shift
        self._names, self._annotation, self._forwards = names, annotation, forwards
        self._depth = 0

    def code(self) -> str:
        """The changed text."""
        return self._wrapper.module.visit(self).code

    def end_of(self, node: cst.CSTNode) -> tuple[int, int]:
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


class Cut(AddParameter):
    """Puts the parameter in the place of calls, too. `sites` are their units, by position or keyword; `every` stands
    for all arguments, which stay where they are."""

    sites: Mapping[tuple[int, int], tuple[int | str, ...]]
    every: tuple[int | str, ...]

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        units = self.sites.get(self.end_of(original_node))
        if units is None:
            return super().leave_Call(original_node, updated_node)
        if units == self.every:
            return updated_node.with_changes(func=self._unless(updated_node.func, cst.Name(self._names[0])))
        features = cst.Call(cst.Name(self._names[0]), [cst.Arg(_argument(updated_node, which)) for which in units])
        return self._unless(updated_node, features, parentheses=not isinstance(self._parents[original_node], cst.Arg))

    def _unless(self, node: cst.BaseExpression, other: cst.BaseExpression, *, parentheses: bool = True) -> cst.IfExp:
        """`(node if encode is None else other)`."""
        test = cst.parse_expression(f"{self._names[0]} is None")
        left, right = ([cst.LeftParen()], [cst.RightParen()]) if parentheses else ([], [])
        return cst.IfExp(test=test, body=node, orelse=other, lpar=left, rpar=right)


class Hoist(AddParameter):
    """Runs the statement that ends at `statement` only where the parameter is None, on the line where it stands."""

    statement: tuple[int, int] | None

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement:
        if self.statement is None or self.end_of(original_node.body[0]) != self.statement:
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
