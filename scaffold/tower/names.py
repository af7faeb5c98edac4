"""The names that code reads and writes: the one definition for the interpreter, the split, the cut and drafts.

Proofs have their own on purpose. Nothing here knows of values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from scaffold.syntax import FunctionNode


def loads(node: ast.AST) -> list[str]:
    """Names that code reads, in the order of `ast.walk`."""
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]


def stores(node: ast.AST) -> list[str]:
    """Names that code sets or deletes, as often as it does, in the order of `ast.walk`."""
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)]


def mentions(node: ast.AST) -> set[str]:
    """Names that code reads or writes."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def parameters_of(function: FunctionNode) -> set[str]:
    """Names of all parameters."""
    spec = function.args
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
    return {one.arg for one in every if one is not None}


def bound_by(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that nodes bind themselves, whatever way: variables, definitions, imports and caught errors."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, FunctionNode | ast.ClassDef) or (isinstance(node, ast.ExceptHandler) and node.name):
            found.add(node.name or "")
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def exits(body: Sequence[ast.stmt]) -> bool:
    """Whether a block never falls through."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    return isinstance(last, ast.If) and bool(last.orelse) and exits(last.body) and exits(last.orelse)


def exposed_reads(statements: Sequence[ast.stmt]) -> list[ast.Name]:
    """Names that statements may read before they have written them themselves, in source order."""
    found: list[ast.Name] = []
    _expose(statements, set(), found)
    return found


def must_writes(statements: Sequence[ast.stmt]) -> set[str]:
    """Names that statements write on every path."""
    return _expose(statements, set(), [])


def _expose(statements: Sequence[ast.stmt], written: set[str], found: list[ast.Name]) -> set[str]:
    written = set(written)
    for node in statements:
        if isinstance(node, ast.If):
            _read(node.test, written, found)
            a = _expose(node.body, written, found)
            b = _expose(node.orelse, written, found)
            if exits(node.body):
                written |= b
            elif node.orelse and exits(node.orelse):
                written |= a
            else:
                written |= a & b
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            _read(node.iter, written, found)
            inner = written.union(stores(node.target))
            _expose(node.body, inner, found)
            _expose(node.orelse, written, found)
        elif isinstance(node, ast.While):
            _read(node.test, written, found)
            _expose(node.body, written, found)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                _read(item.context_expr, written, found)
                if item.optional_vars is not None:
                    written.update(stores(item.optional_vars))
            written |= _expose(node.body, written, found)
        elif isinstance(node, ast.Try):
            body = _expose(node.body, written, found)
            for handler in node.handlers:
                _expose(handler.body, written, found)
            if not node.handlers:
                written |= body
            written |= _expose(node.finalbody, written, found)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for name in ast.walk(node):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and name.id not in written:
                    found.append(name)
            written.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            if node.value is not None:
                _read(node.value, written, found)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(node, ast.AugAssign) and isinstance(target, ast.Name) and target.id not in written:
                    found.append(target)
                _read(target, written, found)
            for target in targets:
                written.update(stores(target))
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    _read(child, written, found)
    return written


def _read(node: ast.expr, written: set[str], found: list[ast.Name]) -> None:
    bound: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.comprehension):
            bound.update(stores(inner.target))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load) and inner.id not in written | bound:
            found.append(inner)
