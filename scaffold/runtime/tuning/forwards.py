"""Reads the source of a module's `forward`: a tuning acts only on code that it was written for.

`digest` names one forward whatever its comments, annotations, defaults and line breaks are; `chain_of` recognises any
forward that calls its children one after the other; `reads_only_through` tells who gets a tensor. A forward with
something around it (a decorator, hooks, one on the instance) is not its source.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_modules

#: Forwards of modules whose own is not that of their class, if a tuning gave it to them.
_OURS = "scaffold.runtime.tuning."


@dataclass(frozen=True, slots=True)
class Link:
    """One child in a chain; `unpack` if it returns `(output, bias)`."""

    name: str
    unpack: bool


def has_hooks(module: nn.Module) -> bool:
    """Whether hooks watch or change the inputs and outputs of a module: its own, or those of all modules."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or torch_modules._global_forward_hooks
        or torch_modules._global_forward_pre_hooks
    )


def runs_as_written(module: nn.Module) -> bool:
    """Whether a call of a module runs the forward of its class, or that of a tuning, and its class finds children as
    torch does.
    """
    own, cls = vars(module).get("forward"), type(module)
    if own is not None and not str(getattr(own, "__module__", "")).startswith(_OURS):
        return False
    # vLLM's own decorator of classes runs `forward` where it does not compile.
    calls = cls.__call__ is nn.Module.__call__ or cls.__call__.__module__.startswith("vllm.compilation.")
    plain = not any("__getattribute__" in vars(base) for base in cls.__mro__[:-1])
    finds = plain and cls.__getattr__ is nn.Module.__getattr__
    return calls and finds and getattr(module, "_compiled_call_impl", None) is None


def is_untouched(module: nn.Module) -> bool:
    """Whether nobody put anything around a module or in the place of its forward."""
    return not has_hooks(module) and runs_as_written(module)


def forward_of(module: Any) -> ast.FunctionDef | None:
    """The syntax tree of a module's forward; None where it is not at hand, or is not what runs."""
    if isinstance(module, nn.Module) and not runs_as_written(module):
        return None
    return parse(type(module).forward)


@lru_cache(maxsize=256)
def parse(function: Any) -> ast.FunctionDef | None:
    """The syntax tree of a function; None where the source is not at hand, or something is around the function."""
    if hasattr(function, "__wrapped__"):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0] if tree.body else None
    return node if isinstance(node, ast.FunctionDef) and not node.decorator_list else None


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
    node = None if function is None else parse(function)
    return None if node is None else digest_of_node(node)


def chain_of(module: Any) -> list[Link] | None:
    """The children that `forward(x)` applies to `x` one after the other, or None if it does anything else."""
    node = forward_of(module)
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
    node = forward_of(module)
    if node is None:
        return False
    uses = [n for n in ast.walk(node) if child_of(n) == child]
    calls = [callee for n in ast.walk(node) if (callee := _call_of_child(n)[0]) in uses]
    return 0 < len(uses) == len(calls)


#: Attributes and methods of a tensor that do not change it.
_ASKED = {"shape", "dtype", "device", "ndim", "size", "dim", "numel"}


def reads_only_through(module: Any, parameter: str | None, children: Collection[str]) -> bool:
    """Whether `forward` gives the tensor under a parameter (None: the first) to these children and to nobody else."""
    node = forward_of(module)
    if node is None or len(node.args.args) < 2:
        return False
    name = parameter or node.args.args[1].arg
    fine: set[int] = set()
    for statement in node.body:
        for n in ast.walk(statement):
            if isinstance(n, ast.Attribute) and n.attr in _ASKED:
                fine.add(id(n.value))
            if isinstance(n, ast.Call) and child_of(n.func) in children and len(n.args) == 1 and not n.keywords:
                fine.add(id(n.args[0]))
        uses = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
        if any(isinstance(n.ctx, ast.Load) and id(n) not in fine for n in uses):
            return False
        if any(isinstance(n.ctx, ast.Store) for n in uses):
            return isinstance(statement, ast.Assign)  # from here on the name holds something else
    return True


def child_of(node: ast.AST) -> str | None:
    """The name in `self.<name>`; None for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None
