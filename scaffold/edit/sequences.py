"""Insert one element into a comma-separated sequence of libcst nodes without disturbing its layout.

The same four shapes occur in imports, base lists and literals: one line, one element a line with or without a trailing
comma, and "hanging" (several a line over several lines). Comments stay with the element that they stood beside or
above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

Whitespace = cst.BaseParenthesizableWhitespace


@dataclass(frozen=True, slots=True)
class BracketLayout:
    """A bracketed sequence: whitespace after the opening bracket, the elements, whitespace before the closing one."""

    opening: Whitespace
    elements: Sequence[Any]
    closing: Whitespace

    def insert(self, index: int, element: Any) -> BracketLayout:
        """The sequence with `element` (its own comma is ignored) before the element `index`, or at the end."""
        if index < len(self.elements):
            return self._insert_before(index, element)
        return (
            self._append(element)
            if self.elements
            else BracketLayout(self.opening, [_without_comma(element)], self.closing)
        )

    def _insert_before(self, index: int, element: Any) -> BracketLayout:
        elements = list(self.elements)
        above = elements[index - 1].comma.whitespace_after if index else self.opening
        if isinstance(above, cst.ParenthesizedWhitespace):
            here: Whitespace = above.with_changes(empty_lines=())
            below: Whitespace = _line_break(above.last_line).with_changes(empty_lines=above.empty_lines)
        else:
            here, below = above, cst.SimpleWhitespace(" ")
        if index:
            elements[index - 1] = _with_comma(elements[index - 1], here)
        elements.insert(index, _with_comma(element, below))
        return BracketLayout(self.opening if index else here, elements, self.closing)

    def _append(self, element: Any) -> BracketLayout:
        *others, last = self.elements
        has_comma = isinstance(last.comma, cst.Comma)
        # The whitespace before the closing bracket is on the trailing comma of arguments and imports, on the bracket
        # of literals.
        on_comma = has_comma and self.closing.empty
        tail: Whitespace = last.comma.whitespace_after if on_comma else self.closing
        between: Whitespace = cst.SimpleWhitespace(" ")
        if isinstance(tail, cst.ParenthesizedWhitespace):
            if isinstance(self.opening, cst.ParenthesizedWhitespace):
                between = tail.with_changes(last_line=self.opening.last_line)
            elif tail.first_line.comment or tail.empty_lines:
                # A comment must stay where it is: break the line after it.
                between = tail.with_changes(last_line=tail.last_line.with_changes(value=tail.last_line.value + "    "))
            tail = _line_break(tail.last_line)
        elif isinstance(self.opening, cst.ParenthesizedWhitespace):
            between = _line_break(self.opening.last_line)
        # A one-line tuple of one element needs its comma; with two elements it would only force one element a line.
        keep_comma = has_comma and (isinstance(tail, cst.ParenthesizedWhitespace) or bool(others))
        new = _without_comma(element)
        if keep_comma:
            new = _with_comma(new, tail if on_comma else cst.SimpleWhitespace(""))
        closing = self.closing if on_comma and keep_comma else tail
        return BracketLayout(self.opening, [*others, _with_comma(last, between), new], closing)


def _line_break(last_line: cst.SimpleWhitespace) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(indent=True, last_line=last_line)


def _with_comma(element: Any, after: Whitespace) -> Any:
    comma = element.comma if isinstance(element.comma, cst.Comma) else cst.Comma()
    return element.with_changes(comma=comma.with_changes(whitespace_after=after))


def _without_comma(element: Any) -> Any:
    return element.with_changes(comma=cst.MaybeSentinel.DEFAULT)
