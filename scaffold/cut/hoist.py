"""Parameters for offsets and the longest sequence, from the loop over an encoder's layers to attention.

Some layers compute the longest sequence from the offsets, beside their attention. On a GPU attention waits for that
value, and no capture survives it. With a parameter `max_seqlen` they compute it where they get none, which is in all of
the model's own code, and a graph hands them a bound: the number of its rows.

Other encoders get one item a call, and their attention no offsets: all rows are one sequence. With the parameters
`cu_seqlens` and `max_seqlen`, which the model's own code leaves out, a graph holds the rows of several items.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaffold.descriptor.port import LONGEST, OFFSETS
from scaffold.syntax import Bound, FunctionNode, bind_call, end_of, find_class, find_method, first_line, indentation_of
from scaffold.tower.names import parameters_of, stores

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree

#: The parameters of a layer that the model tells nothing about sequences.
SEQUENCES = (OFFSETS, LONGEST)
_ANNOTATION = "torch.Tensor | None"
#: The parameters' lines in a docstring.
_BOUND = "A bound of the longest sequence; from the offsets if not given."
_TOLD = {OFFSETS: "Where sequences end; all rows are one if not given.", LONGEST: "A bound of the longest sequence."}


@dataclass(frozen=True)
class Hoisted:
    """A method that gets the parameters `names`. `calls` hand them on; without any the method computes the longest
    sequence.

    They are `(line, column)` of their ends in the file's syntax tree, columns in bytes.
    """

    file: str
    class_name: str
    function: str
    calls: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = (LONGEST,)

    @property
    def place(self) -> tuple[str, str, str]:
        """The file, class and name of the method."""
        return self.file, self.class_name, self.function

    @property
    def documentation(self) -> dict[str, str]:
        """The sentence of a docstring for each parameter."""
        return _TOLD if self.names == SEQUENCES else {LONGEST: _BOUND}


def find_computed(function: FunctionNode) -> ast.Assign | None:
    """The statement of a method that computes the longest sequence, where callers may give it instead.

    It is `max_seqlen = (X[1:] - X[:-1]).max()` of a parameter X, outside of loops. Only arguments `max_seqlen` of calls
    read the value, and the method has no other one of that name.
    """
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == LONGEST]
    stored: list[ast.expr] = [node for node in uses if not isinstance(node.ctx, ast.Load)]
    found = [node for node in _unrepeated(function.body) if isinstance(node, ast.Assign) and node.targets == stored]
    handed = [
        keyword.value
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == LONGEST
    ]
    parameters = parameters_of(function)
    if not found or LONGEST in parameters or any(node not in handed for node in uses if node is not stored[0]):
        return None
    offsets = parameters.difference(stores(function))
    values = [f"({name}[1:] - {name}[:-1]).max()" for name in offsets]
    return found[0] if ast.unparse(found[0].value) in values else None


def has_room(function: FunctionNode, names: tuple[str, ...] = (LONGEST,)) -> bool:
    """Whether a method may get parameters to hand them on: it has no such names yet, and runs as it is written."""
    words = {getattr(node, "id", None) or getattr(node, "arg", None) for node in ast.walk(function)}
    return not words & set(names) and not function.decorator_list


def takes_sequences(function: FunctionNode) -> bool:
    """Whether a method has both parameters already, and takes nothing for all rows being one sequence."""
    bound: Bound[ast.expr] = bind_call(function, (), {}, skip_first=True)
    return all(is_none(bound.defaults.get(name)) for name in SEQUENCES)


def is_none(node: ast.expr | None) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def hoisted_tree(tree: SourceTree, hoisted: Iterable[Hoisted]) -> SourceTree:
    """The tree whose methods have the parameter. Every statement keeps its line."""
    files: dict[str, list[str]] = {}
    for one in hoisted:
        lines = files.setdefault(one.file, tree.read(one.file).removeprefix("\ufeff").splitlines())
        function, old = method_lines(tree, one.file, one.class_name, one.function)
        new = textwrap.indent(_with_parameter(function, old, one), indentation_of(old[0])).splitlines()
        assert len(new) == len(old), "added to lines that are there"
        lines[first_line(function) - 1 : function.end_lineno] = new
    return (
        tree.with_files({file: ("\n".join(lines) + "\n").encode() for file, lines in files.items()}) if files else tree
    )


def hoisted_source(tree: SourceTree, one: Hoisted) -> str:
    """A method of such a tree, without indentation."""
    _, lines = method_lines(tree, one.file, one.class_name, one.function)
    return with_documentation(textwrap.dedent("\n".join(lines)) + "\n", one)


def with_documentation(source: str, one: Hoisted) -> str:
    """The method with its parameters in its docstring, if that one lists the others."""
    for name, text in one.documentation.items():
        source = documented(source, name, text)
    return source


def _with_parameter(function: FunctionNode, lines: list[str], one: Hoisted) -> str:
    from scaffold.cut.rewriting import Added, hoisted_text

    computed = find_computed(function) if not one.calls else None
    added = Added.to(function, lines, one.names, _ANNOTATION, one.calls)
    return hoisted_text(added, end_of(computed) if computed is not None else None)


def method_lines(tree: SourceTree, file: str, class_name: str, name: str) -> tuple[FunctionNode, list[str]]:
    """A method, or a function without a class, that was found before, and its lines with those of its decorators."""
    module = tree.parse(file)
    owner = find_class(module, class_name) if class_name else module
    function = find_method(owner, name) if owner is not None else None
    assert function is not None, "found before"
    lines = tree.read(file).removeprefix("\ufeff").splitlines()
    return function, lines[first_line(function) - 1 : function.end_lineno]


def documented(source: str, name: str, text: str) -> str:
    """The method with a parameter in its docstring, if that one lists the others."""
    (function,) = ast.parse(source).body
    assert isinstance(function, FunctionNode)
    if "Args:" not in (ast.get_docstring(function) or ""):
        return source
    lines, docstring = source.splitlines(keepends=True), function.body[0]
    section = next(
        number for number in range(docstring.lineno - 1, docstring.end_lineno or 0) if "Args:" in lines[number]
    )
    indentation = indentation_of(lines[section + 1])
    last = section + 1
    while lines[last].strip() and len(indentation_of(lines[last])) >= len(indentation):
        last += 1
    return "".join([*lines[:last], f"{indentation}{name}: {text}\n", *lines[last:]])


def _unrepeated(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a block and of its branches: those that run at most once in a call."""
    for node in block:
        yield node
        if isinstance(node, ast.If):
            yield from _unrepeated([*node.body, *node.orelse])
