"""Code to insert: brought to the target's indentation and newlines, and compared by meaning.

Only whitespace that Python ignores may change on the way: the inside of a multi-line string stays as it is, except
that a docstring's continuation lines move with its function, as they do when an editor indents a block.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from dataclasses import dataclass

from scaffold.edit.document import PythonDocument, split_lines
from scaffold.edit.faults import bad_snippet
from scaffold.syntax import FunctionNode

_SNIPPET_INDENT = 4


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block of definitions without indentation, LF newlines, one at the end."""

    text: str
    nodes: tuple[ast.stmt, ...]

    @property
    def functions(self) -> tuple[FunctionNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, FunctionNode))

    @property
    def members(self) -> dict[str, ast.stmt]:
        return {name: node for node in self.nodes if (name := member_name(node)) is not None}


def member_name(node: ast.stmt) -> str | None:
    """The name of a function, or of an attribute `name: Type = value`."""
    if isinstance(node, FunctionNode):
        return node.name
    return node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None


def parse_snippet(source: str, path: str) -> Snippet:
    """Read a block. Errors: VCG436 for bad syntax or an empty block."""
    text = "\n".join(source.splitlines()).strip("\n") + "\n"
    try:
        nodes = tuple(ast.parse(text).body)
    except SyntaxError as error:
        raise bad_snippet(path, f"{error.msg} (line {error.lineno})") from None
    if not nodes:
        raise bad_snippet(path, "it defines nothing")
    return Snippet(text, nodes)


def parse_methods(source: str, path: str) -> Snippet:
    """Read a block of functions and attributes with different names. Errors: VCG436."""
    snippet = parse_snippet(source, path)
    names = [member_name(node) for node in snippet.nodes]
    if None in names:
        raise bad_snippet(path, "it has statements other than functions and attributes with a type")
    if len(set(names)) != len(names):
        raise bad_snippet(path, "it defines a name twice")
    return snippet


def indent_snippet(snippet: Snippet, document: PythonDocument, prefix: str, docstring_prefix: str | None = None) -> str:
    """The block's text with `prefix` before each line, in the document's indentation unit and newline.

    `docstring_prefix` is for continuation lines of docstrings, if it differs from `prefix`.
    """
    inside, docstrings = _string_lines(snippet)
    lines = []
    for number, line in enumerate(snippet.text.splitlines(), 1):
        if not line.strip():
            lines.append(line if number in inside else "")
        elif number in docstrings:
            lines.append(
                (prefix if docstring_prefix is None else docstring_prefix) + _convert_indent(line, document.indent)
            )
        else:
            lines.append(line if number in inside else prefix + _convert_indent(line, document.indent))
    return "".join(line + document.newline for line in lines)


def _convert_indent(line: str, unit: str) -> str:
    body = line.lstrip(" ")
    levels, rest = divmod(len(line) - len(body), _SNIPPET_INDENT)
    return unit * levels + " " * rest + body


def _string_lines(snippet: Snippet) -> tuple[set[int], set[int]]:
    """Lines that begin inside a multi-line string that is not a docstring, and those that begin inside a docstring."""
    starts = set()
    for node in ast.walk(ast.Module(list(snippet.nodes), [])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and _docstring(node) is not None:
            starts.add((node.body[0].lineno, node.body[0].col_offset))
    inside: set[int] = set()
    docstrings: set[int] = set()
    depth = begin = 0
    for token in tokenize.generate_tokens(io.StringIO(snippet.text).readline):
        if token.type == tokenize.STRING:
            lines = range(token.start[0] + 1, token.end[0] + 1)
            (docstrings if token.start in starts else inside).update(lines)
        elif tokenize.tok_name[token.type] in ("FSTRING_START", "TSTRING_START"):  # pragma: no cover (Python 3.12+)
            begin = begin if depth else token.start[0]
            depth += 1
        elif tokenize.tok_name[token.type] in ("FSTRING_END", "TSTRING_END"):  # pragma: no cover (Python 3.12+)
            depth -= 1
            if not depth:
                inside.update(range(begin + 1, token.end[0] + 1))
    return inside, docstrings


def _docstring(node: ast.AST) -> str | None:
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def meaning(node: object) -> object:
    """A value that two pieces of code share when they mean the same: the AST, docstrings without their indentation.

    Formatters re-indent docstrings and drop the parentheses of `del (a, b)`; neither is a difference.
    """
    if isinstance(node, list):
        return [meaning(item) for item in node]
    if not isinstance(node, ast.AST):
        return (type(node), node)  # 1, 1.0 and True are equal, but not the same constant
    fields = {name: meaning(value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind")}
    docstring = _docstring(node)
    if docstring is not None:
        lines = inspect.cleandoc(docstring).splitlines()
        text = "\n".join(line.rstrip() for line in lines).strip()
        fields["body"] = [text, *map(meaning, getattr(node, "body", [])[1:])]
    if isinstance(node, ast.Delete) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple):
        fields["targets"] = meaning(node.targets[0].elts)
    return (type(node), fields)


def same_meaning(left: ast.AST, right: ast.AST) -> bool:
    return meaning(left) == meaning(right)


def comments_at(text: str) -> dict[int, str]:
    """The comments of a text by their lines, without the `#` and the space after it, which formatters may add."""
    lines = io.StringIO("".join(line.rstrip("\r\n") + "\n" for line in split_lines(text)))
    tokens = tokenize.generate_tokens(lines.readline)
    return {token.start[0]: token.string.lstrip("#").strip() for token in tokens if token.type == tokenize.COMMENT}
