"""Questions to syntax trees that the standard library does not answer in one call: names, classes, assignments, places.

This module is below everything else, so that each stage asks the same question by the same function. The two proofs
that judge other people's code, `scaffold.verify.equivalence` and `scaffold.tower.proof`, have their own functions on
purpose. Nothing here knows of files or of vLLM.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

T = TypeVar("T")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# -- text to tree -----------------------------------------------------------------------------------------------------

#: Levels of the deepest syntax tree that is read. Walks may recurse: at this depth `copy.deepcopy`, with the most
#: frames a level, needs two thirds of Python's stack. All of vLLM 0.24 and 0.33 has 30 levels or fewer.
MAX_DEPTH = 100
#: Digits that Python writes of an integer.
_MAX_BITS = 14_000


def parse(text: str) -> ast.Module:
    """The syntax tree of somebody's text, which is safe to walk and to write again.

    Raises SyntaxError, with a line, and nothing else: also where Python's parser gives up, where the tree is deeper
    than `MAX_DEPTH`, and where a value in it cannot be written as text.
    """
    tree = _parse(text, "exec")
    assert isinstance(tree, ast.Module)
    return tree


def parse_expression(text: str) -> ast.expr:
    """The same for one expression, such as a quoted annotation."""
    tree = _parse(text, "eval")
    assert isinstance(tree, ast.Expression)
    return tree.body


def _parse(text: str, mode: str) -> ast.AST:
    # A syntax tree consists of young objects. The collector would walk them again and again (2x slower).
    collecting = gc.isenabled()
    gc.disable()
    try:
        tree: ast.AST = ast.parse(text, mode=mode)
        fault = _unsafe(tree, text)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, SyntaxError) and error.lineno is not None:
            raise
        raise _refused(str(error), text.count("\n", 0, max(text.find("\0"), 0)) + 1) from None  # a null byte
    except (RecursionError, MemoryError):
        raise _refused(_TOO_DEEP, _nested_line(text)) from None
    finally:
        if collecting:
            gc.enable()
    if fault is not None:
        raise _refused(*fault)
    return tree


_DECORATED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: Lines that do not begin a top-level statement.
_CONTINUES = (*" \t\f\r\n#)]}", "elif", "else", "except", "finally")
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def _refused(message: str, line: int) -> SyntaxError:
    return SyntaxError(message, (None, line, 1, None))


def _nested_line(text: str) -> int:
    """The longest line of the first top-level statement that Python's parser gives up on."""
    lines = text.splitlines(keepends=True)
    starts = [0, *(at for at, line in enumerate(lines) if at and not line.startswith(_CONTINUES)), len(lines)]
    for start, end in pairwise(starts):
        try:
            ast.parse("".join(lines[start:end]))
        except (RecursionError, MemoryError):
            return max(range(start, end), key=lambda at: len(lines[at])) + 1
        except (SyntaxError, ValueError):  # a part of a statement
            continue
    return 1


def _unsafe(tree: ast.AST, text: str) -> tuple[str, int] | None:
    """The reason why a tree is unsafe to walk or to write, and its line.

    Code on one line is no deeper than it is wide, so nine of ten nodes need no look.
    """
    # Python < 3.12 writes no f-string with a backslash in braces, which it needs for what does not print.
    escapes = sys.version_info < (3, 12) and not text.replace("\n", "").isprintable()
    pending: list[tuple[ast.AST, int, int]] = [(tree, 1, 1)]
    while pending:
        node, depth, line = pending.pop()
        line = getattr(node, "lineno", line)
        if depth > MAX_DEPTH:
            return _TOO_DEEP, line
        if isinstance(node, ast.JoinedStr):
            try:
                ast.unparse(node)
            except RecursionError:
                return _TOO_DEEP, line
            except ValueError as error:
                return f"an f-string cannot be written again: {error}", line
        elif isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > _MAX_BITS:
            return "an integer has more digits than Python writes", line
        room = -1 if escapes else MAX_DEPTH - depth
        for name in node._fields:
            value = getattr(node, name, None)
            for child in value if type(value) is list else (value,):
                if not isinstance(child, ast.AST) or not child._fields:
                    continue
                place: Any = child  # a few have none, and that of a definition is without its decorators
                if (
                    getattr(child, "lineno", None) is None
                    or place.lineno != place.end_lineno
                    or place.end_col_offset - place.col_offset > room
                    or isinstance(child, _DECORATED)
                ):
                    pending.append((child, depth + 1, line))
    return None


# -- modules ----------------------------------------------------------------------------------------------------------


def dotted(relpath: str) -> str:
    """`vllm/v1/worker/x.py` -> `vllm.v1.worker.x`."""
    return relpath.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_source(relpath: str, node: ast.ImportFrom) -> str:
    """The dotted module that a `from` import in `relpath` reads, relative imports resolved."""
    package = dotted(relpath).split(".")
    if not relpath.endswith("/__init__.py"):
        package.pop()
    prefix = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*prefix, *([node.module] if node.module else [])])


def find_class(module: ast.Module, name: str) -> ast.ClassDef | None:
    """The last top-level class of that name (as Python binds it), also inside top-level `if` and `try`."""
    found = None
    for node in top_level(module.body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            found = node
    return found


def top_level(body: list[ast.stmt], *, at_run_time: bool = False) -> Iterator[ast.stmt]:
    """The statements that run at import in the module's scope: also those inside top-level `if` and `try`.

    `at_run_time`: without those that only a type checker sees.
    """
    for node in body:
        yield node
        inner: list[list[ast.stmt]] = []
        if isinstance(node, ast.If):
            checked = at_run_time and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"
            inner = [node.orelse] if checked else [node.body, node.orelse]
        elif isinstance(node, ast.Try):
            inner = [node.body, [item for handler in node.handlers for item in handler.body], node.orelse]
        for statements_of in inner:
            yield from top_level(statements_of, at_run_time=at_run_time)


_BODIES = ("body", "handlers", "orelse", "finalbody", "cases")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a tree in the order of `ast.walk`, without a look at expressions: a tenth of its nodes."""
    pending = deque([node])
    while pending:
        node = pending.popleft()
        if isinstance(node, ast.stmt):
            yield node
        for field in _BODIES:
            inside = getattr(node, field, None)
            if isinstance(inside, list):
                pending.extend(inside)


def assigned_to(node: ast.AST) -> list[ast.expr]:
    """The targets of an assignment, annotated or not; empty for any other node."""
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def values_of(name: str, nodes: Iterable[ast.AST]) -> list[ast.expr]:
    """The values that assignments among some nodes give to this name alone."""
    given = ((assigned_to(node), getattr(node, "value", None)) for node in nodes)
    return [value for targets, value in given if value is not None and list(map(ast.unparse, targets)) == [name]]


def sets(node: ast.AST, attribute: str) -> bool:
    """Whether a node assigns `self.ATTRIBUTE`."""
    return any(self_attribute(target) == attribute for target in assigned_to(node))


def has_attribute(owner: ast.ClassDef, attribute: str) -> bool:
    """Whether a method of the class sets `self.ATTRIBUTE`, or the class has a method or property of that name."""
    return any(
        sets(node, attribute) or (isinstance(node, ast.FunctionDef) and node.name == attribute)
        for node in statements(owner)
    )


#: Methods that give a tensor another type.
_CASTS = ("type", "to")


def is_cast(owner: ast.ClassDef, name: str) -> bool:
    """Whether code of a class casts a tensor under this key of a mapping, or in a variable of this name."""
    for call in (node for node in ast.walk(owner) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _CASTS:
            # `to` moves as well: a type is among the arguments of a cast.
            given = " ".join(map(ast.unparse, [*call.args, *(one.value for one in call.keywords)]))
            of = {getattr(node, "value", getattr(node, "id", None)) for node in ast.walk(call.func.value)}
            if "dtype" in given and name in of:
                return True
    return False


def made_by(owner: ast.ClassDef, attribute: str) -> str | None:
    """`Class` of `self.ATTRIBUTE = Class(...)` in a class, None if it has no such line."""
    for node in statements(owner):
        if (
            isinstance(node, ast.Assign)
            and sets(node, attribute)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
        ):
            return node.value.func.id
    return None


def find_method(owner: ast.ClassDef | ast.Module, name: str) -> FunctionNode | None:
    """The last method of that name, or function of a module, as Python binds it."""
    found = [node for node in owner.body if isinstance(node, FunctionNode) and node.name == name]
    return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Bound(Generic[T]):
    """A call's arguments by parameter.

    `defaults` are the parameters without an argument, each with its declared default, or None if it declares none.
    `rest` goes to `*args` and `extra` to `**kwargs`, or does not fit.
    """

    given: dict[str, T]
    defaults: dict[str, ast.expr | None]
    rest: tuple[T, ...]
    extra: dict[str, T]


def bind_call(
    function: FunctionNode, args: Sequence[T], keywords: Mapping[str, T], *, skip_first: bool = False
) -> Bound[T]:
    """Bind the arguments of a call. `skip_first`: the first parameter (`self`, `cls`) is not the caller's."""
    declared = {parameter.arg: default for parameter, default in declared_parameters(function)}
    positional = positional_parameters(function)
    names = positional[int(skip_first) :]
    if skip_first and positional:
        del declared[positional[0]]
    given = dict(zip(names, args, strict=False)) | {name: value for name, value in keywords.items() if name in declared}
    return Bound(
        given,
        {name: default for name, default in declared.items() if name not in given},
        tuple(args[len(names) :]),
        {name: value for name, value in keywords.items() if name not in declared},
    )


def declared_parameters(function: FunctionNode) -> list[tuple[ast.arg, ast.expr | None]]:
    """The parameters, but `*args` and `**kwargs`, each with its default."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    required = [None] * (len(positional) - len(spec.defaults))
    return [
        *zip(positional, [*required, *spec.defaults], strict=True),
        *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
    ]


def positional_parameters(function: FunctionNode) -> list[str]:
    """The parameters that a call may fill by their position, `self` among them."""
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args)]


def annotations_of(function: FunctionNode) -> dict[str, ast.expr | None]:
    """The annotation of each parameter, but `*args` and `**kwargs`."""
    return {parameter.arg: parameter.annotation for parameter, _ in declared_parameters(function)}


def required_parameters(method: FunctionNode) -> list[str]:
    """The parameters of a method after `self` that every call must pass."""
    bound: Bound[ast.expr] = bind_call(method, (), {}, skip_first=True)
    return [name for name, default in bound.defaults.items() if default is None]


# -- names ------------------------------------------------------------------------------------------------------------


def last_name(node: ast.expr) -> str | None:
    """`C` of `C`, `a.b.C` and `C[T]`; None for anything else."""
    node = plain_base(node)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def call_name(node: ast.AST | None) -> str | None:
    """`f` of the calls `f()` and `a.b.f()`; None for anything else."""
    return last_name(node.func) if isinstance(node, ast.Call) and not isinstance(node.func, ast.Subscript) else None


def name_path(node: ast.expr) -> list[str]:
    """`a`, `b` and `c` of `a.b.c`; empty for anything but a name or an attribute path."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def self_attribute(node: ast.expr) -> str | None:
    """`a` of `self.a`, None for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


def plain_base(base: ast.expr) -> ast.expr:
    """The class of a base as a class statement names it: `Processor` of `Processor[Info]`."""
    return base.value if isinstance(base, ast.Subscript) else base


def decorator_names(function: FunctionNode) -> set[str]:
    """Last components of a function's decorators: `functools.lru_cache(...)` gives `lru_cache`."""
    names = set()
    for decorator in function.decorator_list:
        node: ast.expr = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(node.attr if isinstance(node, ast.Attribute) else ast.unparse(node))
    return names


def strings(node: ast.AST) -> set[str]:
    """The string constants of a subtree."""
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


# -- places in a text -------------------------------------------------------------------------------------------------


def first_line(node: ast.stmt) -> int:
    """The first line of a statement, decorators included."""
    return min([node.lineno, *(int(item.lineno) for item in getattr(node, "decorator_list", ()))])


class SourceLines:
    """The text of a file by line, to read the source of a node without splitting the file each time."""

    def __init__(self, text: str) -> None:
        self._lines = text.removeprefix("\ufeff").encode().splitlines()

    def text(self, node: ast.stmt) -> str:
        """All lines of a statement, decorators included, for a text search before a walk."""
        return b"\n".join(self._lines[first_line(node) - 1 : node.end_lineno]).decode()

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The source of a node as the file has it, line ends and all."""
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        lines = self._lines[first:last]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode()

    def source(self, node: ast.expr) -> str:
        """The source of a node as the file has it, or as `ast.unparse` writes it when it spans lines."""
        if node.end_lineno != node.lineno:
            return ast.unparse(node)
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def optional(self, node: ast.expr | None) -> str | None:
        return None if node is None else self.source(node)


def end_of(node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node ends: line and column. No other call of a file ends where one does."""
    return node.end_lineno or 0, node.end_col_offset or 0


def indentation_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def parents_of(function: ast.AST) -> dict[ast.AST, ast.AST]:
    """The node above each node of a function."""
    return {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}


def nodes_above(parents: Mapping[ast.AST, ast.AST], node: ast.AST) -> Iterator[ast.AST]:
    """All nodes above a node, the nearest first."""
    while node in parents:
        node = parents[node]
        yield node
