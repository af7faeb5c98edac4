"""Cuts statements out of a module's text with their comments, and replaces expressions inside them.

Text is kept as it was written: a moved statement has the same characters, in the same indentation.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Replacement:
    """The expression `node` is written as `text`."""

    node: ast.expr
    text: str


class SourceText:
    """The text of one module, addressed by AST positions (lines from 1, columns in UTF-8 bytes)."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self.lines = self._text.split(b"\n")
        #: Where each line starts in the text, in bytes.
        self._starts = [0, *accumulate(len(line) + 1 for line in self.lines)]

    def statement(
        self, node: ast.stmt, above: int, replacements: Sequence[Replacement] = (), *, comments: bool = True
    ) -> str:
        """The lines of a statement with the comments between it and line `above` (the last line before it).

        One blank line is kept in front if there was any. Statements that share a line with another are written anew.
        """
        assert node.end_lineno is not None
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if not self._alone(node, first):
            return indent(ast.unparse(_replaced(node, replacements)), self.indentation_of(node)) + "\n"
        start = first
        if comments:
            while start - 1 > above and self.lines[start - 2].strip().startswith(b"#"):
                start -= 1
        blank = comments and start - 1 > above and not self.lines[start - 2].strip()
        body = self._replaced_lines(start, node.end_lineno, replacements)
        return ("\n" if blank else "") + body

    def header(self, node: ast.stmt, body: Sequence[ast.stmt], above: int) -> str:
        """The lines of a block's header, from its own comments to the line before its body."""
        if body[0].lineno == node.lineno:
            raise ValueError("the block is on one line")
        start = node.lineno
        while start - 1 > above and self.lines[start - 2].strip().startswith(b"#"):
            start -= 1
        end = self.header_end(node, body)
        blank = start - 1 > above and not self.lines[start - 2].strip()
        return ("\n" if blank else "") + b"\n".join(self.lines[start - 1 : end]).decode() + "\n"

    def header_end(self, node: ast.stmt, body: Sequence[ast.stmt]) -> int:
        """The last line of a block's header."""
        end = node.lineno
        expressions = [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.expr, ast.withitem))]
        for expression in expressions:
            inner = expression.context_expr if isinstance(expression, ast.withitem) else expression
            end = max(end, inner.end_lineno or end)
        while end < body[0].lineno - 1 and not self.lines[end - 1].split(b"#")[0].rstrip().endswith(b":"):
            end += 1
        return end

    def is_elif(self, orelse: Sequence[ast.stmt]) -> bool:
        """Whether the else part of an `if` is written as `elif`."""
        if len(orelse) != 1 or not isinstance(orelse[0], ast.If):
            return False
        return self.lines[orelse[0].lineno - 1][orelse[0].col_offset :].startswith(b"elif")

    def expression(self, node: ast.expr, replacements: Sequence[Replacement] = ()) -> str:
        """The text of an expression, with parentheses if it spans lines."""
        assert node.end_lineno is not None
        text = self._slice(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset or 0, replacements)
        return f"({text})" if "\n" in text else text

    def indentation_of(self, node: ast.AST) -> str:
        """The white space in front of the line of a node."""
        line = self.lines[node.lineno - 1]  # type: ignore[attr-defined]
        return line[: len(line) - len(line.lstrip())].decode()

    def _alone(self, node: ast.stmt, first: int) -> bool:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        before = self.lines[first - 1][: node.col_offset] if first == node.lineno else b""
        after = self.lines[node.end_lineno - 1][node.end_col_offset :].strip()
        return not before.strip() and (not after or after.startswith(b"#"))

    def _replaced_lines(self, start: int, end: int, replacements: Sequence[Replacement]) -> str:
        return self._slice(start, 0, end, len(self.lines[end - 1]), replacements) + "\n"

    def _slice(
        self, line: int, column: int, end_line: int, end_column: int, replacements: Sequence[Replacement]
    ) -> str:
        start, end = self._starts[line - 1] + column, self._starts[end_line - 1] + end_column
        result, cursor = b"", start
        ranges = []
        for replacement in replacements:
            node = replacement.node
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            a = self._starts[node.lineno - 1] + node.col_offset
            b = self._starts[node.end_lineno - 1] + node.end_col_offset
            if start <= a and b <= end:
                ranges.append((a, b, replacement.text.encode()))
        for a, b, new in sorted(ranges):
            if a < cursor:
                continue  # inside a larger replacement
            result += self._text[cursor:a] + new
            cursor = b
        return (result + self._text[cursor:end]).decode()


def _replaced(node: ast.stmt, replacements: Sequence[Replacement]) -> ast.stmt:
    """A copy of a statement with expressions replaced."""
    by_position = {
        (r.node.lineno, r.node.col_offset, r.node.end_lineno, r.node.end_col_offset): r.text for r in replacements
    }

    class Swap(ast.NodeTransformer):
        def visit(self, inner: ast.AST) -> ast.AST:
            if isinstance(inner, ast.expr):
                key = (inner.lineno, inner.col_offset, inner.end_lineno, inner.end_col_offset)
                if key in by_position:
                    return ast.parse(by_position[key], mode="eval").body
            visited: ast.AST = self.generic_visit(inner)
            return visited

    changed = Swap().visit(copy.deepcopy(node))
    assert isinstance(changed, ast.stmt)
    return changed


def indent(text: str, indentation: str) -> str:
    """Put `indentation` in front of every line that is not empty."""
    return "\n".join(indentation + line if line.strip() else line for line in text.split("\n"))


def dedent(text: str, indentation: str) -> str:
    """Take `indentation` away from the front of every line that has it."""
    return "\n".join(line[len(indentation) :] if line.startswith(indentation) else line for line in text.split("\n"))
