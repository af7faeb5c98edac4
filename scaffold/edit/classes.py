"""Edits of a class: a base, a block of methods, one replaced method."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import libcst as cst

from scaffold.edit.document import PythonDocument
from scaffold.edit.faults import ambiguous_anchor, bad_snippet, different_definition, missing_anchor
from scaffold.edit.operations import AddBase, PutMethods, ReplaceMethod
from scaffold.edit.sequences import BracketLayout
from scaffold.edit.snippets import (
    Snippet,
    comments_at,
    indent_snippet,
    member_name,
    parse_methods,
    parse_snippet,
    same_meaning,
)
from scaffold.syntax import FunctionNode, first_line, last_name

#: Bases that must stay last: with a base after them the method resolution order has no solution.
_LAST_BASES = frozenset({"object", "Protocol", "Generic"})


#: Letters of a word that is a name: two headings with one are about the same.
_LONG = 12


def add_base(document: PythonDocument, edit: AddBase) -> bool:
    """Apply `AddBase`; the answer says whether anything changed. Errors: VCG430, VCG431."""
    index, node = document.find_class(edit.class_name)
    names = [last_name(base) for base in node.bases]
    wanted = edit.base.rpartition(".")[2]
    if wanted in names:
        return False
    place = 0 if edit.first else len(names)
    while place and names[place - 1] in _LAST_BASES:
        place -= 1
    value = cst.parse_expression(edit.base)

    def change(statement: cst.BaseStatement) -> cst.BaseStatement:
        if not isinstance(statement, cst.ClassDef) or statement.name.value != edit.class_name:
            return statement
        opening = (
            statement.lpar.whitespace_after if isinstance(statement.lpar, cst.LeftParen) else cst.SimpleWhitespace("")
        )
        closing = (
            statement.rpar.whitespace_before if isinstance(statement.rpar, cst.RightParen) else cst.SimpleWhitespace("")
        )
        layout = BracketLayout(opening, [*statement.bases, *statement.keywords], closing).insert(place, cst.Arg(value))
        count = len(statement.bases) + 1
        return statement.with_changes(
            lpar=cst.LeftParen(layout.opening),
            bases=layout.elements[:count],
            keywords=layout.elements[count:],
            rpar=cst.RightParen(layout.closing),
        )

    document.rewrite(index, change)
    return True


def put_methods(document: PythonDocument, edit: PutMethods) -> bool:
    """Apply `PutMethods`. Errors: VCG430, VCG431, VCG434, VCG436."""
    snippet = parse_methods(edit.source, document.path)
    index, node = document.find_class(edit.class_name)
    members = [(place, name, child) for place, child in enumerate(node.body) if (name := member_name(child))]
    block = snippet.members
    gone: set[int] = set()
    for place, name, child in members:
        if name in edit.remove:
            gone.add(place)
        elif name in block:
            if not same_meaning(child, block[name]):
                raise different_definition(document.path, "method", f"{node.name}.{name}", child.lineno)
            gone.add(place)
    if _is_in_place(document, index, node, sorted(gone), snippet):
        return False
    if gone:
        replaced = {place for place, name, _ in members if name in block}
        place = min(replaced or gone)
    else:
        places = [place for place, _ in _methods(node)] if edit.first else []
        place = min(places, default=len(node.body))
    _splice(document, index, node, snippet, gone, place)
    return True


def replace_method(document: PythonDocument, edit: ReplaceMethod) -> bool:
    """Apply `ReplaceMethod`. Errors: VCG430, VCG431, VCG434, VCG436."""
    snippet = parse_methods(edit.source, document.path)
    block = {function.name: function for function in snippet.functions}
    if edit.name not in block:
        raise bad_snippet(document.path, f"it does not define `{edit.name}`")
    index, node = document.find_class(edit.class_name)
    methods = _methods(node)
    old = [(place, child) for place, child in methods if child.name == edit.name]
    kind = f"method of `{node.name}`"
    if not old:
        raise missing_anchor(document.path, kind, edit.name, {child.name for _, child in methods}, line=node.lineno)
    if len(old) > 1:
        raise ambiguous_anchor(document.path, kind, edit.name, (child.lineno for _, child in old))
    if not block[edit.name].decorator_list:
        snippet = _with_decorators(document, snippet, edit.name, old[0][1])
        block = {function.name: function for function in snippet.functions}
    gone = {old[0][0]}
    for place, child in methods:
        if child.name in block and child.name != edit.name:
            if not same_meaning(child, block[child.name]):
                raise different_definition(document.path, "method", f"{node.name}.{child.name}", child.lineno)
            gone.add(place)
    if _is_in_place(document, index, node, sorted(gone), snippet):
        return False
    _splice(document, index, node, snippet, gone, min(gone), keep_comments_of=edit.name)
    return True


def _methods(node: ast.ClassDef) -> list[tuple[int, FunctionNode]]:
    """The functions of a class's body, each with its place there."""
    return [(place, child) for place, child in enumerate(node.body) if isinstance(child, FunctionNode)]


def holds_methods(text: str, path: str, class_name: str, source: str) -> bool:
    """Whether the class has all methods of a block in one place, with their meaning and comments."""
    document = PythonDocument.parse(text, path)
    snippet = parse_methods(source, path)
    index, node = document.find_class(class_name)
    places = [place for place, child in enumerate(node.body) if member_name(child) in snippet.members]
    return _is_in_place(document, index, node, places, snippet)


def _is_in_place(
    document: PythonDocument, index: int, owner: ast.ClassDef, gone: Sequence[int], snippet: Snippet
) -> bool:
    """Whether the statements at `gone` are the block already: together, in its order, with its meaning and comments."""
    if len(gone) != len(snippet.nodes) or gone[-1] - gone[0] + 1 != len(gone):
        return False
    nodes = [owner.body[place] for place in gone]
    if not all(same_meaning(there, node) for there, node in zip(nodes, snippet.nodes, strict=True)):
        return False
    chunk = document.chunks[index]
    above = owner.body[gone[0] - 1].end_lineno if gone[0] else owner.lineno
    heads, inside = _comments(chunk.code, nodes, above or 0, max(chunk.line, 1))
    planned, own = _comments(snippet.text, snippet.nodes, 0, 1)
    # Comments above the block's own heading belong to others.
    return inside == own and heads[len(heads) - len(planned) :] == planned


def _comments(text: str, nodes: Sequence[ast.stmt], above: int, start: int) -> tuple[list[str], list[str]]:
    """The comments between line `above` and the statements, and those inside; lines of the text count from `start`."""
    first, last = first_line(nodes[0]), nodes[-1].end_lineno or 0
    found = [(line + start - 1, comment) for line, comment in comments_at(text).items()]
    return (
        [comment for line, comment in found if above < line < first],
        [comment for line, comment in found if first <= line <= last],
    )


def _with_decorators(document: PythonDocument, snippet: Snippet, name: str, old: FunctionNode) -> Snippet:
    """The block with the old method's decorators, as they are written, above its new definition."""
    lines = snippet.text.splitlines(keepends=True)
    line = next(function.lineno for function in snippet.functions if function.name == name) - 1
    decorators = [f"@{ast.unparse(decorator)}\n" for decorator in old.decorator_list]
    return parse_snippet("".join([*lines[:line], *decorators, *lines[line:]]), document.path)


def _splice(
    document: PythonDocument,
    index: int,
    node: ast.ClassDef,
    snippet: Snippet,
    gone: set[int],
    place: int,
    *,
    keep_comments_of: str | None = None,
) -> None:
    """Replace the statements `gone` of a class by the block, which goes before the statement `place`."""
    prefix = _body_prefix(document, node)
    text = indent_snippet(snippet, document, document.indent, prefix)
    config = cst.PartialParserConfig(default_newline=document.newline, default_indent=document.indent)
    source = f"class _:{document.newline}{text}"
    if prefix == document.indent:  # in a class inside a block, libcst must move the bodies to the right
        source = document.fold_methods(source, ast.parse(source).body)
    wrapper = cst.ensure_type(cst.parse_module(source, config).body[0], cst.ClassDef)
    new = list(cst.ensure_type(wrapper.body, cst.IndentedBlock).body)

    def change(statement: cst.BaseStatement) -> cst.BaseStatement:
        if not isinstance(statement, cst.ClassDef) or statement.name.value != node.name:
            return statement
        block = statement.body
        if isinstance(block, cst.SimpleStatementSuite):  # `class A: pass`
            line = cst.SimpleStatementLine(block.body, trailing_whitespace=block.trailing_whitespace)
            block = cst.IndentedBlock([line])
        return statement.with_changes(
            body=_replace_statements(cst.ensure_type(block, cst.IndentedBlock), new, gone, place, keep_comments_of)
        )

    document.rewrite(index, change)


def _body_prefix(document: PythonDocument, node: ast.ClassDef) -> str:
    """The whitespace before the statements of a class, all levels together."""
    return node.col_offset // max(len(document.indent), 1) * document.indent + document.indent


Lines = list[cst.EmptyLine]


def _replace_statements(
    block: cst.IndentedBlock, new: list[Any], gone: set[int], place: int, keep_comments_of: str | None
) -> cst.IndentedBlock:
    old: list[Any] = list(block.body)
    footer = list(block.footer)
    own_comments = {line.comment.value for line in new[0].leading_lines if line.comment}
    if keep_comments_of is not None:
        new = _with_footer(new, next(old[p] for p in gone if old[p].name.value == keep_comments_of))
    body: list[Any] = []
    kept: Lines = []  # section comments of removed methods that still head something
    for position, statement in enumerate([*old, None]):
        if position == place:
            above: Lines = kept
            kept = []
            if position in gone:
                sections, attached = _split_leading(old[position])
                stays = (
                    keep_comments_of is not None and not own_comments and old[position].name.value == keep_comments_of
                )
                above += _strip_blank(sections) if stays or _still_heads(old, gone, position, own_comments) else []
                if stays:
                    above += [*_blank_if(above), *attached] if attached else []
                    body.extend(_with_leading(new, above, body, glue=bool(attached)))
                    continue
            if position == len(old):
                above, footer = [*above, *_strip_blank(footer)], []
            fields = [*old[-1:], *new] if position == len(old) and not above else [None]
            listed = all(isinstance(one, cst.SimpleStatementLine) for one in fields)  # as those of a dataclass
            body.extend(new if listed else _with_leading(new, above, body, glue=False))
        if position in gone and position != place and _still_heads(old, gone, position, own_comments):
            kept += _split_leading(old[position])[0]
        if statement is None or position in gone:
            continue
        if position - 1 in gone or position == place or kept:
            lines = [*kept, *statement.leading_lines]
            kept = []
            if body and not (lines and lines[0].comment is None):
                lines.insert(0, cst.EmptyLine(indent=False))
            while not body and lines and lines[0].comment is None:
                lines.pop(0)
            body.append(statement.with_changes(leading_lines=lines))
        else:
            body.append(statement)
    return block.with_changes(body=body, footer=footer)


def _with_footer(new: list[Any], replaced: Any) -> list[Any]:
    """The statements, with the comments behind the last statement of a replaced method behind that of its successor."""
    behind: Lines = list(getattr(replaced.body, "footer", ()))
    if not any(line.comment for line in behind):
        return new
    return [
        one.with_deep_changes(one.body, footer=behind)
        if getattr(one, "name", None) and one.name.value == replaced.name.value and not one.body.footer
        else one
        for one in new
    ]


def _split_leading(statement: Any) -> tuple[Lines, Lines]:
    """Leading lines of a statement: those above the last blank line, and the comments that touch it."""
    lines = list(statement.leading_lines)
    start = len(lines)
    while start and lines[start - 1].comment is not None:
        start -= 1
    return lines[:start], lines[start:]


def _still_heads(old: list[Any], gone: set[int], position: int, own_comments: set[str]) -> bool:
    """Whether a removed method's section comment still heads something, and the block does not bring it itself.

    A block with a heading of its own brings that of what it replaces, whatever else that one says: both name it.
    """
    sections, _ = _split_leading(old[position])
    comments = [line.comment.value for line in sections if line.comment]
    own = " ".join(own_comments)
    names = [word for comment in comments for word in comment.split() if len(word) >= _LONG]
    if not comments or any(comment in own_comments for comment in comments) or any(name in own for name in names):
        return False
    following = position + 1
    while following in gone and not any(line.comment for line in _split_leading(old[following])[0]):
        following += 1
    return (
        following < len(old)
        and following not in gone
        and not any(line.comment for line in _split_leading(old[following])[0])
    )


def _strip_blank(lines: Lines) -> Lines:
    start, end = 0, len(lines)
    while start < end and lines[start].comment is None:
        start += 1
    while end > start and lines[end - 1].comment is None:
        end -= 1
    return lines[start:end]


def _blank_if(lines: Lines) -> Lines:
    return [cst.EmptyLine(indent=False)] if lines else []


def _with_leading(new: list[Any], above: Lines, body: list[Any], *, glue: bool) -> list[Any]:
    """The block below the lines `above`, one blank line between it and what precedes; `glue`: no blank line below
    `above`.
    """
    first, *rest = new
    lines = [*_blank_if(body), *above, *([] if glue else _blank_if(above)), *first.leading_lines]
    return [first.with_changes(leading_lines=lines), *rest]
