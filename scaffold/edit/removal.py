"""Take a definition out: a function, a method, a value, with the comments that touch it and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from scaffold.edit.document import PythonDocument, is_blank, split_lines
from scaffold.edit.operations import DropDefinition
from scaffold.edit.toplevel import defined_name
from scaffold.syntax import FunctionNode, assigned_to, find_method, first_line, self_attribute


def drop_definition(document: PythonDocument, edit: DropDefinition) -> bool:
    """Apply `DropDefinition`. Errors: VCG430 (no such owner), VCG431."""
    if not edit.owner:
        found = [
            (index, node) for index, chunk in enumerate(document.chunks) for node in _named(chunk.nodes, edit.name)
        ]
    else:
        class_name, _, method_name = edit.owner.partition(".")
        index, owner = document.find_class(class_name)
        method = find_method(owner, method_name) if method_name else None
        body = _assigned(method.body, edit.name) if method else [] if method_name else _named(owner.body, edit.name)
        found = [(index, node) for node in body]
    if not found:
        return False
    index, node = document.only("definition", edit.name, found, ())
    if edit.owner:
        document.recode(index, _without(document, index, node))
    else:
        document.remove(index)
    return True


def _named(body: Sequence[ast.stmt], name: str) -> list[ast.stmt]:
    return [node for node in body if defined_name(node) == name]


def _assigned(body: Sequence[ast.stmt], attribute: str) -> list[ast.stmt]:
    return [node for node in body if [self_attribute(target) for target in assigned_to(node)] == [attribute]]


def _without(document: PythonDocument, index: int, node: ast.stmt) -> str:
    chunk = document.chunks[index]
    start, lines = max(chunk.line, 1), split_lines(chunk.code)
    first, end = first_line(node) - start, (node.end_lineno or node.lineno) - start + 1

    def is_comment(number: int, column: int) -> bool:
        text = lines[number].lstrip() if 0 <= number < len(lines) else ""
        return text.startswith("#") and len(lines[number]) - len(text) >= column

    while isinstance(node, FunctionNode) and is_comment(end, node.col_offset + 1):
        end += 1
    # Above a plain statement with others below, a comment may be the heading of them all.
    if isinstance(node, FunctionNode) or end == len(lines) or is_blank(lines[end]):
        while is_comment(first - 1, node.col_offset):
            first -= 1
    if is_blank(lines[first - 1]):
        while end < len(lines) and is_blank(lines[end]):
            end += 1
        while end == len(lines) and is_blank(lines[first - 1]):
            first -= 1
    return "".join([*lines[:first], *lines[end:]])
