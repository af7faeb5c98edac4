"""Questions to syntax trees that the standard library does not answer in one call: names, classes, assignments, places.

This module is below everything else, so that each stage asks the same question by the same function. The two proofs
that judge other people's code, `scaffold.verify.equivalence` and `scaffold.tower.proof`, have their own functions on
purpose. Nothing here knows of files or of vLLM.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

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


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run at import in the module's scope: also those inside top-level `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from top_level(node.body)
            yield from top_level(node.orelse)
        elif isinstance(node, ast.Try):
            yield from top_level(node.body)
            yield from top_level([item for handler in node.handlers for item in handler.body])
            yield from top_level(node.orelse)


def assigned_to(node: ast.AST) -> list[ast.expr]:
    """The targets of an assignment, annotated or not; empty for any other node."""
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def sets(node: ast.AST, attribute: str) -> bool:
    """Whether a node assigns `self.ATTRIBUTE`."""
    return any(self_attribute(target) == attribute for target in assigned_to(node))


def has_attribute(owner: ast.ClassDef, attribute: str) -> bool:
    """Whether a method of the class sets `self.ATTRIBUTE`, or the class has a method or property of that name."""
    return any(
        sets(node, attribute) or (isinstance(node, ast.FunctionDef) and node.name == attribute)
        for node in ast.walk(owner)
    )


def made_by(owner: ast.ClassDef, attribute: str) -> str | None:
    """`Class` of `self.ATTRIBUTE = Class(...)` in a class, None if it has no such line."""
    for node in ast.walk(owner):
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
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    declared: dict[str, ast.expr | None] = dict.fromkeys(parameter.arg for parameter in positional)
    declared |= {a.arg: default for a, default in zip(reversed(positional), reversed(spec.defaults), strict=False)}
    declared |= {a.arg: default for a, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True)}
    names = [parameter.arg for parameter in positional[int(skip_first) :]]
    if skip_first and positional:
        del declared[positional[0].arg]
    given = dict(zip(names, args, strict=False)) | {name: value for name, value in keywords.items() if name in declared}
    return Bound(
        given,
        {name: default for name, default in declared.items() if name not in given},
        tuple(args[len(names) :]),
        {name: value for name, value in keywords.items() if name not in declared},
    )


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

    def source(self, node: ast.expr) -> str:
        """The source of a node as the file has it, or as `ast.unparse` writes it when it spans lines."""
        if node.end_lineno != node.lineno:
            return ast.unparse(node)
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def optional(self, node: ast.expr | None) -> str | None:
        return None if node is None else self.source(node)
