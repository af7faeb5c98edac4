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
def parse(function: Any) -> ast.FunctionDef | None:
    """The syntax tree of a function, or None where the source is not at hand."""
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
    """The digest of a method of an object's class; None where there is none, or its source is not at hand."""
    function = getattr(type(module), method, None)
    node = None if function is None else parse(inspect.unwrap(function))
    return None if node is None else digest_of_node(node)


def chain_of(module: Any) -> list[Link] | None:
    """The children that `forward(x)` applies to `x` one after the other, or None if it does anything else."""
    node = parse(inspect.unwrap(type(module).forward))
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
    callee, argument = _call_of_child(node)
    inner = None if callee is None else _steps(argument, current)
    return None if inner is None or callee is None else [*inner, Link(callee.attr, False)]


def _call_of_child(node: ast.AST | None) -> tuple[ast.Attribute | None, ast.expr | None]:
    """`self.<child>` and `x` of `self.<child>(x)`.

    vLLM writes `maybe_fused_act_quant(self.<child>, x, self.<linear>)` for the same, where it may also convert the
    result.
    """
    if not isinstance(node, ast.Call) or node.keywords:
        return None, None
    callee, arguments = node.func, node.args
    if isinstance(callee, ast.Name) and callee.id == "maybe_fused_act_quant" and len(arguments) == 3:
        callee, arguments = arguments[0], arguments[1:2]
    if isinstance(callee, ast.Attribute) and child_of(callee) is not None and len(arguments) == 1:
        return callee, arguments[0]
    return None, None


def only_calls(module: Any, child: str) -> bool:
    """Whether `forward` calls `self.<child>(x)`, and does nothing else with that child."""
    node = parse(inspect.unwrap(type(module).forward))
    if node is None:
        return False
    uses = [n for n in ast.walk(node) if child_of(n) == child]
    calls = [callee for n in ast.walk(node) if (callee := _call_of_child(n)[0]) in uses]
    return 0 < len(uses) == len(calls)


def child_of(node: ast.AST) -> str | None:
    """The name in `self.<name>`; None for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


def hands_through(owner: Any, layers: str) -> bool:
    """Whether the loop over `self.<layers>` in `forward` gives each layer's result to the next one, untouched."""
    node = parse(inspect.unwrap(type(owner).forward))
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
    if len(calls) != 1 or len(calls[0].targets) != 1:
        return False
    target = calls[0].targets[0]
    if isinstance(target, ast.Tuple):  # a layer that returns its rows and None
        target = target.elts[0]
    if not isinstance(target, ast.Name):
        return False
    state = target.id
    assert isinstance(calls[0].value, ast.Call)
    arguments = calls[0].value.args
    if not arguments or not isinstance(arguments[0], ast.Name) or arguments[0].id != state:
        return False
    if any(isinstance(n, (ast.Continue, ast.Break)) for n in inside):
        return False
    stores = [n for n in inside if isinstance(n, ast.Name) and n.id == state and isinstance(n.ctx, ast.Store)]
    return len(stores) == 1 and not any(_changes(n, state) for n in inside)


def _mentions(node: ast.expr, layers: str) -> bool:
    return any(child_of(n) == layers for n in ast.walk(node))


def _changes(node: ast.AST, state: str) -> bool:
    """Whether a node changes the tensor in place: `state[...] = `, `state += `, `state.add_()`, `f_(state)`."""
    if isinstance(node, ast.AugAssign):
        return any(isinstance(n, ast.Name) and n.id == state for n in ast.walk(node.target))
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return any(isinstance(n, ast.Name) and n.id == state for n in ast.walk(node.value))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return any(isinstance(n, ast.Name) and n.id == state for n in ast.walk(node))
    return False
