"""Reads the source of a module's `forward`: a tuning acts only on code that it was written for.

`digest` names one forward whatever its comments, annotations, defaults and line breaks are; `chain_of` recognises any
forward that calls its children one after the other; `hands_through` tells whether a loop over layers passes its
hidden states from one to the next untouched.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Link:
    """One child in a chain; `unpack` if it returns `(output, bias)`."""

    name: str
    unpack: bool


@lru_cache(maxsize=256)
def _parse(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0] if tree.body else None
    return node if isinstance(node, ast.FunctionDef) else None


def digest_of_node(node: ast.FunctionDef) -> str:
    """The digest of a function: names, order of parameters and statements; nothing else."""
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    extra = [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    body = node.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    text = "\n".join([",".join([*names, *extra]), *map(ast.unparse, body)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest(module: Any, method: str = "forward") -> str | None:
    """The digest of a method of an object's class; None where the source is not at hand."""
    node = _parse(inspect.unwrap(getattr(type(module), method)))
    return None if node is None else digest_of_node(node)


def chain_of(module: Any) -> list[Link] | None:
    """The children that `forward(x)` applies to `x` one after the other, or None if it does anything else."""
    node = _parse(inspect.unwrap(type(module).forward))
    return None if node is None else chain_of_node(node)


def chain_of_node(node: ast.FunctionDef) -> list[Link] | None:
    """The same as `chain_of`, for a syntax tree."""
    arguments = [a.arg for a in node.args.args]
    if len(arguments) != 2 or node.args.vararg or node.args.kwarg or node.args.kwonlyargs:
        return None
    steps: list[Link] = []
    current = arguments[1]  # the name that holds the value of the last step
    for statement in node.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.Return):
            found = _steps(statement.value, current)
            return None if found is None else [*steps, *found]
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        found = _steps(statement.value, current)
        name, unpack = _target(statement.targets[0])
        if not found or name is None:
            return None
        steps += [*found[:-1], Link(found[-1].name, unpack)]
        current = name
    return None


def _target(node: ast.expr) -> tuple[str | None, bool]:
    if isinstance(node, ast.Name):
        return node.id, False
    if isinstance(node, ast.Tuple) and len(node.elts) == 2:
        first, second = node.elts
        if isinstance(first, ast.Name) and isinstance(second, ast.Name) and second.id.startswith("_"):
            return first.id, True
    return None, False


def _steps(node: ast.expr | None, current: str) -> list[Link] | None:
    """`self.c(self.b(current))` as [b, c]; `current` as []."""
    if isinstance(node, ast.Name):
        return [] if node.id == current else None
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1:
        return None
    callee = node.func
    if not (isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name) and callee.value.id == "self"):
        return None
    inner = _steps(node.args[0], current)
    return None if inner is None else [*inner, Link(callee.attr, False)]


def hands_through(owner: Any, layers: str) -> bool:
    """Whether the loop over `self.<layers>` in `forward` gives each layer's result to the next one, untouched."""
    node = _parse(inspect.unwrap(type(owner).forward))
    return node is not None and hands_through_node(node, layers)


def hands_through_node(node: ast.FunctionDef, layers: str) -> bool:
    """The same as `hands_through`, for a syntax tree."""
    loops = [n for n in ast.walk(node) if isinstance(n, ast.For) and _mentions(n.iter, layers)]
    if len(loops) != 1 or loops[0].orelse:
        return False
    loop = loops[0]
    names = [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)]
    inside = [n for statement in loop.body for n in ast.walk(statement)]
    calls = [
        n for n in loop.body
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and isinstance(n.value.func, ast.Name)
        and n.value.func.id in names
    ]  # fmt: skip
    if len(calls) != 1 or len(calls[0].targets) != 1 or not isinstance(calls[0].targets[0], ast.Name):
        return False
    state = calls[0].targets[0].id
    assert isinstance(calls[0].value, ast.Call)
    arguments = calls[0].value.args
    if not arguments or not isinstance(arguments[0], ast.Name) or arguments[0].id != state:
        return False
    if any(isinstance(n, (ast.Continue, ast.Break)) for n in inside):
        return False
    stores = [n for n in inside if isinstance(n, ast.Name) and n.id == state and isinstance(n.ctx, ast.Store)]
    return len(stores) == 1 and not any(_changes(n, state) for n in inside)


def _mentions(node: ast.expr, layers: str) -> bool:
    return any(
        isinstance(n, ast.Attribute) and n.attr == layers and isinstance(n.value, ast.Name) and n.value.id == "self"
        for n in ast.walk(node)
    )


def _changes(node: ast.AST, state: str) -> bool:
    """Whether a node changes the tensor in place: `state[...] = `, `state += `, `state.add_()`, `f_(state)`."""
    if isinstance(node, ast.AugAssign):
        return any(isinstance(n, ast.Name) and n.id == state for n in ast.walk(node.target))
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return any(isinstance(n, ast.Name) and n.id == state for n in ast.walk(node.value))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return any(isinstance(n, ast.Name) and n.id == state for n in ast.walk(node))
    return False
