"""A Python file as a sequence of chunks, of which only the touched ones are ever parsed for editing.

`ast` reads the whole file once (about 15 ms for 1,000 lines); libcst, ten times slower, sees only the top-level
statement that an edit changes, and of a class not the bodies of its methods. Everything else is carried as the text
that it was, so it cannot change.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from scaffold.edit.faults import ambiguous_anchor, missing_anchor, unparsable
from scaffold.syntax import first_line

if TYPE_CHECKING:
    import libcst

BOM = "\ufeff"
#: Fields that hold statements of the same scope, in both `ast` and libcst.
_BLOCK_FIELDS = ("body", "handlers", "orelse", "finalbody")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_Definition = TypeVar("_Definition", bound=ast.stmt)


class Guard(Enum):
    """Under which condition a module-level statement runs."""

    ALWAYS = "always"
    #: Inside `try` or `with`: it runs, unless something fails.
    ATTEMPTED = "attempted"
    #: Under `if TYPE_CHECKING:`.
    TYPING = "typing"
    #: Under any other condition.
    SOMETIMES = "sometimes"


def split_lines(text: str) -> list[str]:
    """Lines with their ends, where Python's tokenizer ends them: at LF, CR LF and CR, and nowhere else."""
    return list(io.StringIO(text, newline=""))


def line_end(lines: Iterable[str]) -> str:
    """The end of the first of the lines that has one; a line feed when none has."""
    return next((line[len(line.rstrip("\r\n")) :] for line in lines if line.endswith(("\n", "\r"))), "\n")


def is_blank(line: str) -> bool:
    return not line.strip()


def is_type_checking(test: ast.expr) -> bool:
    """Whether a condition is `TYPE_CHECKING` or `typing.TYPE_CHECKING`."""
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else None
    return name == "TYPE_CHECKING"


def statements_of(nodes: Iterable[ast.AST], guard: Guard = Guard.ALWAYS) -> Iterator[tuple[ast.stmt, Guard]]:
    """Every statement that binds names at module level, with its guard; functions and classes are not entered."""
    for node in nodes:
        if isinstance(node, ast.stmt):
            yield node, guard
        if isinstance(node, _SCOPES):
            continue
        for name in _BLOCK_FIELDS:
            children = getattr(node, name, ())
            if isinstance(children, list):
                yield from statements_of(children, _guard_below(node, name, guard))


def _guard_below(node: ast.AST, branch: str, outer: Guard) -> Guard:
    if isinstance(node, ast.If):
        inner = Guard.SOMETIMES
        if is_type_checking(node.test):
            inner = Guard.TYPING if branch == "body" else Guard.ATTEMPTED
    else:
        inner = Guard.ATTEMPTED
    return inner if outer in (Guard.ALWAYS, Guard.ATTEMPTED) else outer


@dataclass(frozen=True, slots=True)
class Chunk:
    """Top-level statements that share lines (nearly always one), and the blank and comment lines above them.

    `line` is where `code` starts in the file as it was read, or 0 for new code.
    """

    gap: str
    code: str
    nodes: tuple[ast.stmt, ...]
    line: int = 0
    #: The libcst module of `code`, kept for the next edit of the same statement.
    tree: Any = field(default=None, compare=False, repr=False)

    @property
    def is_import(self) -> bool:
        return all(isinstance(node, ast.Import | ast.ImportFrom) for node in self.nodes)

    def split_gap(self) -> tuple[str, str]:
        """The gap above the comments that belong to the statement, and those comments."""
        lines = split_lines(self.gap)
        start = len(lines)
        while start and not is_blank(lines[start - 1]):
            start -= 1
        return "".join(lines[:start]), "".join(lines[start:])


class PythonDocument:
    """One Python file while it is edited. Created by `parse`; `text` gives the current source."""

    def __init__(
        self,
        path: str,
        chunks: list[Chunk],
        tail: str,
        *,
        package: tuple[str, ...],
        newline: str,
        indent: str,
        has_bom: bool,
        is_closed: bool,
    ) -> None:
        self.path = path
        #: The package that relative imports start from.
        self.package = package
        self.chunks = chunks
        self.tail = tail
        self.newline = newline
        self.indent = indent
        self._has_bom = has_bom
        self._is_closed = is_closed
        #: The bodies that `fold_methods` took out, by the names that stand for them.
        self._folded: dict[str, str] = {}

    @classmethod
    def parse(cls, text: str, path: str, display: str | None = None) -> PythonDocument:
        """Read a file's text; `path` says which package it is in, errors name `display`. Errors: VCG432."""
        shown = display or path
        has_bom = text.startswith(BOM)
        body = text.removeprefix(BOM)
        nodes = _parse_ast(body, shown, 1)
        lines = split_lines(body)
        is_closed = not lines or lines[-1].endswith(("\n", "\r"))
        newline = line_end(lines)
        if not is_closed:
            lines[-1] += newline  # every chunk ends its last line while it is edited; `text` takes this one back
        starts = {first_line(node) - 1 for node in nodes}
        chunks, done = [], 0
        for group in _share_lines(nodes):
            first, last = first_line(group[0]) - 1, _last_line(group) - 1
            last = _last_inner_comment(lines, last, starts)
            chunks.append(Chunk("".join(lines[done:first]), "".join(lines[first : last + 1]), group, first + 1))
            done = last + 1
        return cls(
            shown,
            chunks,
            "".join(lines[done:]),
            package=tuple(path.split("/")[:-1]),
            newline=newline,
            indent=_find_indent(nodes, lines),
            has_bom=has_bom,
            is_closed=is_closed,
        )

    @property
    def text(self) -> str:
        """The source as it is now, with the file's own byte order mark and end."""
        text = "".join(chunk.gap + chunk.code for chunk in self.chunks) + self.tail
        if not self._is_closed:
            text = text.removesuffix("\n").removesuffix("\r")
        return (BOM if self._has_bom else "") + text

    def statements(self) -> Iterator[tuple[int, ast.stmt, Guard]]:
        """Every module-level statement, nested blocks included: chunk index, node, guard."""
        for index, chunk in enumerate(self.chunks):
            for node, guard in statements_of(chunk.nodes):
                yield index, node, guard

    def make_chunk(self, gap: str, code: str) -> Chunk:
        """New code; `code` uses the file's newlines and ends with one."""
        return Chunk(gap, code, _parse_ast(code, self.path, 1))

    def find_class(self, name: str) -> tuple[int, ast.ClassDef]:
        """The one class of this name at module level. Errors: VCG430, VCG431."""
        classes = [(i, node) for i, node, _ in self.statements() if isinstance(node, ast.ClassDef)]
        return self.only(
            "class", name, [(i, node) for i, node in classes if node.name == name], (n.name for _, n in classes)
        )

    def only(
        self, kind: str, name: str, found: list[tuple[int, _Definition]], candidates: Iterable[str]
    ) -> tuple[int, _Definition]:
        """The one element of `found`. Errors: VCG430 for none, VCG431 for several."""
        if not found:
            raise missing_anchor(self.path, kind, name, candidates)
        if len(found) > 1:
            raise ambiguous_anchor(self.path, kind, name, (node.lineno for _, node in found))
        return found[0]

    def rewrite(self, index: int, change: Callable[[libcst.BaseStatement], libcst.BaseStatement]) -> None:
        """Apply `change` to every definition and simple statement of one chunk; it returns what it does not want
        unchanged. It sees the methods of a class without their bodies (`fold_methods`).
        """
        import libcst as cst

        chunk = self.chunks[index]
        config = cst.PartialParserConfig(default_newline=self.newline, default_indent=self.indent)
        tree = chunk.tree or cst.parse_module(self.fold_methods(chunk.code, chunk.nodes, max(chunk.line, 1)), config)
        module = _map_statements(tree, change)
        code = self._unfold(module.code)
        if not code.endswith(("\n", "\r")):
            code += self.newline  # libcst 1.9 loses a lone CR at the end
        nodes = _parse_ast(code, self.path, max(chunk.line, 1))
        self.chunks[index] = replace(chunk, code=code, nodes=nodes, tree=module)

    def recode(self, index: int, code: str) -> None:
        """Give one chunk other code, which starts at the same line."""
        chunk = self.chunks[index]
        nodes = _parse_ast(code, self.path, max(chunk.line, 1))
        self.chunks[index] = replace(chunk, code=code, nodes=nodes, tree=None)

    def remove(self, index: int) -> None:
        """Take out one chunk with the comments that touch it. Headings above them go to what follows."""
        above, _ = self.chunks.pop(index).split_gap()
        if index == len(self.chunks):
            self.tail = above.rstrip() + self.newline + self.tail if above.strip() else self.tail
            return
        following = self.chunks[index]
        # The distance to what is above now: that of the two which is the longer one.
        gap = (
            above + following.gap.lstrip("\r\n") if above.strip() or len(above) > len(following.gap) else following.gap
        )
        self.chunks[index] = replace(following, gap=gap if index else gap.lstrip("\r\n"))

    def fold_methods(self, code: str, nodes: Iterable[ast.stmt], start: int = 1) -> str:
        """`code` with one name in the place of each method's body; `rewrite` puts the bodies back.

        `nodes` are the statements of `code`, whose lines count from `start`. No edit looks into a method, and to
        read and print them all took libcst half of the time of an edit.
        """
        lines = split_lines(code)
        classes = [node for node, _ in statements_of(nodes) if isinstance(node, ast.ClassDef)]
        methods = [
            node for owner in classes for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        for method in reversed(methods):  # upwards, so that the lines above keep their numbers
            first = first_line(method.body[0]) - start
            end = _last_line((method.body[-1],)) - start + 1
            indent = lines[first][: method.body[0].col_offset]
            if not is_blank(indent):  # the body is on the line of its `def`
                continue
            name = f"_body_{len(self._folded)}_of_{method.name}"
            body = "".join(lines[first:end])
            text = body.rstrip("\r\n")
            self._folded[name] = text
            lines[first:end] = [indent + name + body[len(text) :]]
        return "".join(lines)

    def _unfold(self, code: str) -> str:
        lines = split_lines(code)
        for index, line in enumerate(lines):
            text = self._folded.get(line.strip())
            if text is not None:
                lines[index] = text + line[len(line.rstrip("\r\n")) :]
        return "".join(lines)


_Node = TypeVar("_Node", bound="libcst.CSTNode")


def _map_statements(node: _Node, change: Callable[[libcst.BaseStatement], libcst.BaseStatement]) -> _Node:
    import libcst as cst

    def descend(child: libcst.CSTNode) -> libcst.CSTNode:
        if isinstance(child, cst.ClassDef | cst.FunctionDef | cst.SimpleStatementLine):
            return change(child)
        return _map_statements(child, change)

    updates: dict[str, object] = {}
    for name in _BLOCK_FIELDS:
        value = getattr(node, name, None)
        if isinstance(value, cst.CSTNode):
            updates[name] = descend(value)
        elif value is not None and not isinstance(node, cst.SimpleStatementSuite):
            updates[name] = [descend(child) for child in value]
    return node.with_changes(**updates)


def _parse_ast(text: str, path: str, first_line: int) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("\n" * (first_line - 1) + text)  # much cheaper than to renumber the nodes
    except SyntaxError as error:
        raise unparsable(path, error.msg, error.lineno or first_line, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting deeper than the parser's stack
        raise unparsable(path, str(error), first_line, 1) from None
    return tuple(tree.body)


def _last_line(group: tuple[ast.stmt, ...]) -> int:
    return group[-1].end_lineno or group[-1].lineno


def _share_lines(nodes: tuple[ast.stmt, ...]) -> Iterator[tuple[ast.stmt, ...]]:
    """Group statements of the same line (`import a; import b`)."""
    group: list[ast.stmt] = []
    for node in nodes:
        if group and first_line(node) > _last_line(tuple(group)):
            yield tuple(group)
            group = []
        group.append(node)
    if group:
        yield tuple(group)


def _last_inner_comment(lines: list[str], last: int, starts: set[int]) -> int:
    """Extend a statement over the indented comments that follow it: they belong to its last block."""
    end = last
    for index in range(last + 1, len(lines)):
        if index in starts or not (is_blank(lines[index]) or lines[index][0] in " \t"):
            break
        if not is_blank(lines[index]):
            end = index
    return end


def _find_indent(nodes: tuple[ast.stmt, ...], lines: list[str]) -> str:
    """The file's indentation: that of the first block which starts on its own line."""
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list) and first_line(body[0]) > node.lineno:
            line = lines[first_line(body[0]) - 1]
            return line[: len(line) - len(line.lstrip(" \t"))]
    return "    "
