"""Edits at module level: definitions, and entries of the literals that variables are assigned."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import libcst as cst

from scaffold.edit.document import PythonDocument, is_blank
from scaffold.edit.faults import bad_snippet, different_definition, unsupported_shape
from scaffold.edit.operations import AddDictEntry, AddListEntry, PutFunction, ReplaceFunction
from scaffold.edit.sequences import BracketLayout
from scaffold.edit.snippets import indent_snippet, parse_snippet, same_meaning
from scaffold.syntax import FunctionNode, assigned_to, first_line


def defined_name(node: ast.stmt) -> str | None:
    """The one name that a statement defines: a function, a class, `NAME = ...` or `NAME: type = ...`."""
    if isinstance(node, FunctionNode | ast.ClassDef):
        return node.name
    targets = assigned_to(node)
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def put_function(document: PythonDocument, edit: PutFunction) -> bool:
    """Apply `PutFunction`. Errors: VCG430, VCG431, VCG434, VCG436."""
    snippet = parse_snippet(edit.source, document.path)
    function = snippet.nodes[0]
    if len(snippet.nodes) > 1 or not isinstance(function, FunctionNode):
        raise bad_snippet(document.path, "it is not one function")
    present = [old for _, old, _ in document.statements() if defined_name(old) == function.name]
    if present:
        if len(present) > 1 or not same_meaning(present[0], function):
            raise different_definition(document.path, "definition", function.name, present[0].lineno)
        return False
    found = [(index, node) for index, node, _ in document.statements() if defined_name(node) == edit.before]
    names = [defined_name(node) for _, node, _ in document.statements()]
    place, _ = document.only("definition", edit.before, found, (name for name in names if name))
    following = document.chunks[place]
    above, own = following.split_gap()
    document.chunks[place] = replace(following, gap=2 * document.newline + own)
    lines, top = snippet.text.splitlines(keepends=True), first_line(function) - 1
    code = parse_snippet("".join(lines[top:]), document.path)
    # Comments of a section above the anchor stay above.
    gap = above if not is_blank(above) else 2 * document.newline if place else ""
    comments = "".join(line.rstrip() + document.newline for line in lines[:top] if line.strip())
    document.chunks.insert(place, document.make_chunk(gap + comments, indent_snippet(code, document, "")))
    return True


def replace_function(document: PythonDocument, edit: ReplaceFunction) -> bool:
    """Apply `ReplaceFunction`. Errors: VCG430, VCG431, VCG434."""
    snippet = parse_snippet(edit.source, document.path)
    if [defined_name(node) for node in snippet.nodes] != [edit.name]:
        raise bad_snippet(document.path, f"it does not define `{edit.name}` alone")
    functions = [(index, node) for index, node, _ in document.statements() if isinstance(node, FunctionNode)]
    named = [(index, node) for index, node in functions if node.name == edit.name]
    found = [one for one in named if not _overloads(one[1])]
    index, old = document.only("function", edit.name, found, (node.name for _, node in functions))
    if same_meaning(old, snippet.nodes[0]):
        return False
    document.recode(index, indent_snippet(snippet, document, ""))
    return True


def _overloads(node: FunctionNode) -> bool:
    """Whether a function is a further type of one that follows."""
    return any(ast.unparse(one).rpartition(".")[2] == "overload" for one in node.decorator_list)


def _find_assignment(document: PythonDocument, variable: str) -> tuple[int, ast.Assign | ast.AnnAssign]:
    found: list[tuple[int, ast.Assign | ast.AnnAssign]] = []
    names: list[str] = []
    for index, node, _ in document.statements():
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            name = defined_name(node)
            names += [name] if name else []
            if name == variable:
                found.append((index, node))
    return document.only("variable", variable, found, names)


def add_dict_entry(document: PythonDocument, edit: AddDictEntry) -> bool:
    """Apply `AddDictEntry`. Errors: VCG430, VCG431, VCG435, VCG436."""
    index, node = _find_assignment(document, edit.variable)
    if not isinstance(node.value, ast.Dict):
        raise unsupported_shape(document.path, f"`{edit.variable}`", "is not a dict literal", node.lineno)
    if any(isinstance(key, ast.Constant) and key.value == edit.key for key in node.value.keys):
        return False
    text = edit.source.strip()
    quoted = _quote(edit.key, '"')

    def build(opening: Any, elements: Any) -> Any:
        prefix = opening.last_line.value if isinstance(opening, cst.ParenthesizedWhitespace) else ""
        snippet = parse_snippet(f"_ = {{\n{quoted}: {text}\n}}", document.path)
        value = snippet.nodes[0].value if isinstance(snippet.nodes[0], ast.Assign) else None
        if len(snippet.nodes) != 1 or not isinstance(value, ast.Dict) or len(value.keys) != 1:
            raise bad_snippet(document.path, f"the value of {quoted} is not one expression")
        parsed = cst.parse_module(
            indent_snippet(snippet, document, prefix).removeprefix(prefix),
            cst.PartialParserConfig(default_newline=document.newline, default_indent=document.indent),
        )
        statement = cst.ensure_type(parsed.body[0], cst.SimpleStatementLine)
        return cst.ensure_type(cst.ensure_type(statement.body[0], cst.Assign).value, cst.Dict).elements[0]

    _insert_element(document, index, edit.variable, None, build)
    return True


def add_list_entry(document: PythonDocument, edit: AddListEntry) -> bool:
    """Apply `AddListEntry`. Errors: VCG430, VCG431, VCG435."""
    index, node = _find_assignment(document, edit.variable)
    if not isinstance(node.value, ast.List):
        raise unsupported_shape(document.path, f"`{edit.variable}`", "is not a list literal", node.lineno)
    values = [item.value if isinstance(item, ast.Constant) else None for item in node.value.elts]
    strings = [value for value in values if isinstance(value, str)]
    if edit.value in strings:
        return False
    if values and not strings:
        raise unsupported_shape(document.path, f"`{edit.variable}`", "does not contain strings", node.lineno)
    place = None
    if len(strings) == len(values) >= 2 and strings == sorted(strings):
        place = sum(value < edit.value for value in strings)

    def build(opening: Any, elements: Any) -> Any:
        first = next((e.value.value for e in elements if isinstance(e.value, cst.SimpleString)), '"')
        return cst.Element(cst.SimpleString(_quote(edit.value, first[-1])))

    _insert_element(document, index, edit.variable, place, build)
    return True


def _quote(value: str, quote: str) -> str:
    """A string literal in the given quotes. `repr` escapes everything but the quote that it did not choose."""
    body = repr(value + "\"'")[1:-4]  # with both quotes inside, repr uses single quotes and escapes only those
    plain = body.replace("\\'", "'")
    return quote + plain.replace(quote, "\\" + quote) + quote


def _insert_element(document: PythonDocument, index: int, variable: str, place: int | None, build: Any) -> None:
    def change(statement: cst.BaseStatement) -> cst.BaseStatement:
        if not isinstance(statement, cst.SimpleStatementLine):
            return statement
        body = [_extend(small, variable, place, build) for small in statement.body]
        return statement.with_changes(body=body)

    document.rewrite(index, change)


def _extend(small: Any, variable: str, place: int | None, build: Any) -> Any:
    targets = list(_targets(small))
    if targets != [variable]:
        return small
    literal = small.value
    left, right = ("lbracket", "rbracket") if isinstance(literal, cst.List) else ("lbrace", "rbrace")
    opener, closer = getattr(literal, left), getattr(literal, right)
    new = build(opener.whitespace_after, literal.elements)
    layout = BracketLayout(opener.whitespace_after, literal.elements, closer.whitespace_before)
    layout = layout.insert(len(literal.elements) if place is None else place, new)
    changes = {
        "elements": layout.elements,
        left: opener.with_changes(whitespace_after=layout.opening),
        right: closer.with_changes(whitespace_before=layout.closing),
    }
    return small.with_changes(value=literal.with_changes(**changes))


def _targets(small: Any) -> Iterator[str]:
    targets = [target.target for target in small.targets] if isinstance(small, cst.Assign) else []
    if isinstance(small, cst.AnnAssign) and small.value is not None:
        targets = [small.target]
    for target in targets:
        yield target.value if isinstance(target, cst.Name) else ""
