"""Finds code inside of an encoder that waits for the values of a tensor, where a graph cannot."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scaffold.cut.hoist import find_computed
from scaffold.descriptor.port import LONGEST
from scaffold.draft.objects import Objects
from scaffold.draft.values import Closure, SourceLine
from scaffold.protocol.tree import holds_models
from scaffold.syntax import FunctionNode, assigned_to, name_path
from scaffold.tower.source import Module, Owner, Program
from scaffold.tower.waits import WAITS

#: Calls that wait for the values of a tensor, and the one that hands a bound to attention that waits.
_BOUNDS = WAITS | {"max"}
_DEPTH = 4


def waits(program: Program, objects: Objects, function: Closure) -> bool:
    """Whether a method of the model, or one that it calls on its own parts, waits for values."""
    pending, seen = [function], set[ast.AST]()
    while pending:
        caller = pending.pop()
        if caller.node in seen:
            continue
        seen.add(caller.node)
        for node in ast.walk(caller.node):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                return True
            path = name_path(node.func)
            if path[:1] == ["self"] and len(path) > 1:
                callee = run_by(program, objects, ".".join([caller.receiver, *path[1:]]))
                pending += [callee] if callee is not None else []
    return False


def run_by(program: Program, objects: Objects, path: str) -> Closure | None:
    """The function that a call of a path runs, as drafts know the classes of parts."""
    run = program.run_by(path.split("."), lambda part: objects.cls(".".join(part)))
    if run is None:
        return None
    (module, definer, function), _, part = run
    return Closure(module, (module, definer), function, {}, bound=True, receiver=".".join(part))


def waiting(
    program: Program, cls: Owner, seen: set[ast.AST], depth: int = 0, *, layers: str = ""
) -> Iterator[tuple[SourceLine, str]]:
    """Calls that wait for values, in the methods of a class but its constructor, and of what the constructor makes.

    With `layers` only those count that a loop over them runs, and none that finds the longest sequence where a caller
    may give it.
    """
    if cls[1] in seen or depth > _DEPTH or not holds_models(cls[0].file):
        return
    seen.add(cls[1])
    for module, owner in program.lineage(cls):
        for method in owner.body:
            if not isinstance(method, FunctionNode) or method.name in ("load_weights", "__init_subclass__"):
                continue
            if method.name == "__init__":
                for inner in _made_in(program, module, method, layers if depth == 0 else ""):
                    yield from waiting(program, inner, seen, depth + 1, layers=layers)
            elif depth or not layers:
                left_out = set(map(id, _longest(method))) if layers else set()
                for node in ast.walk(method):
                    asked = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                    if asked and node.func.attr in _BOUNDS and id(node) not in left_out:  # type: ignore[attr-defined]
                        yield SourceLine(module.file, getattr(node, "lineno", 1)), ast.unparse(node)


def _made_in(program: Program, module: Module, init: FunctionNode, layers: str) -> Iterator[Owner]:
    """The classes of the tree of which a constructor makes objects, or of which it makes these layers."""
    for statement in ast.walk(init):
        if layers and not any(ast.unparse(target) == f"self.{layers}" for target in assigned_to(statement)):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                made = program.resolve(module, node.func.id)
                if made is not None and isinstance(made[1], ast.ClassDef):
                    yield made[0], made[1]
        if not layers:
            return


def _longest(method: FunctionNode) -> Iterator[ast.AST]:
    """The nodes of a method that find the longest sequence, where a caller may give it now or will be able to."""
    computed = find_computed(method)
    yield from ast.walk(computed) if computed is not None else ()
    absent = f"{LONGEST} is None"
    if LONGEST in {argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)}:
        for node in ast.walk(method):
            if isinstance(node, ast.If) and ast.unparse(node.test) == absent:
                yield from ast.walk(ast.Module(node.body, []))
