"""Cuts statements out of a module's text with their comments, and replaces expressions inside them.

Text is kept as it was written: a moved statement has the same characters, in the same indentation.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import accumulate

from scaffold.syntax import FunctionNode, first_line
from scaffold.tower.parts import Replacement


class SourceText:
    """The text of one module, addressed by AST positions (lines from 1, columns in UTF-8 bytes)."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self.lines = self._text.split(b"\n")
        #: Where each line starts in the text, in bytes.
        self._starts = [0, *accumulate(len(line) + 1 for line in self.lines)]

    def statement(self, node: ast.stmt, above: int, replacements: Sequence[Replacement] = ()) -> str:
        """The lines of a statement with the comments between it and line `above` (the last line before it).

        One blank line is kept in front if there was any. No other statement is on these lines (`is_alone`).
        """
        assert node.end_lineno is not None
        start, blank = self._start(first_line(node), above)
        return blank + self._slice(start, 0, node.end_lineno, len(self.lines[node.end_lineno - 1]), replacements) + "\n"

    def header(self, node: ast.If, above: int) -> str:
        """The lines of a block's header, from its own comments to the line before its body, which has lines of its own.

        One blank line is kept in front if there was any.
        """
        start, blank = self._start(node.lineno, above)
        return blank + b"\n".join(self.lines[start - 1 : self.header_end(node)]).decode() + "\n"

    def _start(self, first: int, above: int) -> tuple[int, str]:
        """The first line of the comments in front of line `first`, and a line feed where a blank line is above them."""
        while first - 1 > above and self.lines[first - 2].strip().startswith(b"#"):
            first -= 1
        return first, "\n" if first - 1 > above and not self.lines[first - 2].strip() else ""

    def header_end(self, node: ast.If | FunctionNode) -> int:
        """The last line of a block's header."""
        expressions = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        end = max([node.lineno, *(expression.end_lineno or 0 for expression in expressions)])
        while end < node.body[0].lineno - 1 and not self.lines[end - 1].split(b"#")[0].rstrip().endswith(b":"):
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

    def is_alone(self, node: ast.stmt) -> bool:
        """Whether no other statement is on the lines of this one."""
        assert node.end_lineno is not None
        before = self.lines[node.lineno - 1][: node.col_offset] if first_line(node) == node.lineno else b""
        after = self.lines[node.end_lineno - 1][node.end_col_offset :].strip()
        return not before.strip() and (not after or after.startswith(b"#"))

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


def indent(text: str, indentation: str) -> str:
    """Put `indentation` in front of every line that is not empty."""
    return "\n".join(indentation + line if line.strip() else line for line in text.split("\n"))


def dedent(text: str, indentation: str) -> str:
    """Take `indentation` away from the front of every line that has it."""
    return "\n".join(line[len(indentation) :] if line.startswith(indentation) else line for line in text.split("\n"))
