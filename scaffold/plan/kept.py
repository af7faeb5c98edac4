"""Upstream's text that a replacement keeps: what it says still holds.

A header stays as it is written where the new method has its parameters. A comment stays above the value that it
explains, where the new method of the same name gives that name the same value, be it a variable or an argument.
"""

from __future__ import annotations

import ast
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from scaffold.edit.snippets import same_meaning
from scaffold.syntax import FunctionNode, first_line

#: The columns of vLLM's lines, and those of a method's body that `source` lacks.
_WIDTH, _INDENT = 88, 4


def keep_text(text: str, owner: ast.ClassDef, source: str) -> str:
    """The methods of `source` with the headers and comments that still hold of those which `owner` in `text` has."""
    lines, old = source.splitlines(), text.splitlines()
    there = {node.name: node for node in owner.body if isinstance(node, FunctionNode)}
    new = [node for node in ast.parse(source).body if isinstance(node, FunctionNode) and node.name in there]
    for node in reversed(new):
        before = there[node.name]
        slots = _slots(before, old)
        # From below: a change moves no line above it.
        for name, (line, value) in sorted(_slots(node, lines).items(), key=lambda item: -item[1][0]):
            above = _comment(old, slots[name][0]) if name in slots and slots[name][1] == value else []
            if above:
                first = line - len(_comment(lines, line))
                lines[first - 1 : line - 1] = _indented(above, lines[line - 1])
        if _same_header(before, node):
            header = old[first_line(before) - 1 : _body_line(old, before) - 1]
            lines[first_line(node) - 1 : _body_line(lines, node) - 1] = textwrap.dedent("\n".join(header)).splitlines()
    return "\n".join(lines) + "\n"


def _slots(function: FunctionNode, lines: Sequence[str]) -> dict[str, tuple[int, str]]:
    """The names that a method gives a value in a line of its own, each once, with that line and the value.

    `name=name` hands a value on.
    """
    found = [
        (name, node.lineno, ast.dump(value))
        for name, node, value in _named(function)
        if not lines[node.lineno - 1].encode()[: node.col_offset].strip() and ast.unparse(value) != name
    ]
    times = Counter(name for name, _, _ in found)
    return {name: (line, value) for name, line, value in found if times[name] == 1}


def _named(function: FunctionNode) -> Iterator[tuple[str, ast.stmt | ast.keyword, ast.expr]]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.keyword(arg=str(name), value=value):
                yield name, node, value


def _comment(lines: Sequence[str], line: int) -> list[str]:
    """The lines of a comment that touches a line from above."""
    first = line - 1
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return [one.strip() for one in lines[first : line - 1]]


def _indented(comment: Sequence[str], below: str) -> list[str]:
    """A comment in the place of a line, whose text flows anew where it is too wide there."""
    prefix = below[: len(below) - len(below.lstrip())]
    width = _WIDTH - _INDENT - len(prefix)
    if max(map(len, comment)) > width:
        words = " ".join(line.lstrip("# ") for line in comment)
        comment = textwrap.wrap(words, width, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return [prefix + line for line in comment]


def _same_header(old: FunctionNode, new: FunctionNode) -> bool:
    if old.lineno == old.body[0].lineno or old.decorator_list or new.decorator_list:
        return False
    left, right = (type(node)(node.name, node.args, [ast.Pass()], [], node.returns) for node in (old, new))
    return same_meaning(left, right)


def _body_line(lines: Sequence[str], function: FunctionNode) -> int:
    """The first line behind a header."""
    line = first_line(function.body[0])
    while not lines[line - 2].strip() or lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return line
