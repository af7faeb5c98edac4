"""Whether a tower and its model are what generated methods take them for. Trees and running models are judged alike."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

from scaffold.syntax import self_attribute, values_of
from scaffold.tower.parts import Kind, Parameter, TowerSlice


def misfits(
    tower: TowerSlice,
    parameters: Sequence[Parameter],
    *,
    keys: Collection[str],
    lengths: Collection[str],
    wanted: Collection[str],
    grid: str,
) -> list[str]:
    """Faults of the metadata method: keys, parameters of capacities, the form of the grid.

    `keys` must be what the method gives, because a graph reads it whatever a descriptor says. Lengths are an exception
    where only some attention backends have them: `lengths` may be missing, and further ones that are None somewhere may
    be there.
    """
    missing = sorted(set(keys) - set(tower.keys))
    optional = {crossing.key for crossing in tower.crossings if crossing.kind is Kind.LENGTHS and crossing.nullable}
    unnamed = sorted(set(tower.keys) - optional - {*keys, *lengths})
    untaken = sorted(set(wanted) - {parameter.name for parameter in parameters})
    taken = next((parameter for parameter in parameters if parameter.name != "self"), None)
    problems = []
    if missing:
        problems.append(f"it has no metadata named {', '.join(missing)} (it has {', '.join(tower.keys)})")
    if unnamed:
        problems.append(f"its metadata have {', '.join(unnamed)}, which the descriptor does not name")
    if untaken:
        problems.append(f"its metadata method takes no {', '.join(untaken)}")
    if taken is not None and grid not in taken.forms:
        problems.append(f"it takes `{taken.name}` as {taken.annotation}, not as a {grid}")
    return problems


def made_of_pixels(owners: Iterable[ast.ClassDef], tower: str) -> set[str]:
    """Expressions for the pixels that the methods of a model class and its bases, the nearest first, hand to its tower.

    `{pixels}` stands for those that they get; none where the methods hand these on. 0.28 and 0.29 write
    `pixel_values = self.input_norm(pixel_values, self.visual.dtype)` there; later releases do it inside of the tower,
    and earlier ones in the processor.
    """
    return {made for method in _methods(owners) for made in _remade(method, tower)}


def conversion_of_pixels(owners: Iterable[ast.ClassDef], called: Collection[str]) -> str:
    """The conversion of pixels that a class and its bases, the nearest first, hand to one of `called`.

    `.to(dtype=self.visual.dtype)` for `x = x.to(dtype=self.visual.dtype)` before `self.visual(x)`, and for the same as
    its argument. Empty where nothing is done, where calls differ, or where a conversion reads a variable.
    """
    found = {
        _conversion(method, call)
        for method in _methods(owners)
        for call in ast.walk(method)
        if isinstance(call, ast.Call) and call.args and ast.unparse(call.func) in called
    }
    return found.pop() if len(found) == 1 else ""


def _conversion(method: ast.FunctionDef, call: ast.Call) -> str:
    """The conversion of the first argument of a call, there or in the last assignment to it."""
    value = call.args[0]
    above = [node for node in ast.walk(method) if isinstance(node, ast.Assign) and node.lineno < call.lineno]
    above.sort(key=lambda node: node.lineno)
    made = values_of(value.id, above) if isinstance(value, ast.Name) else []
    match [value, *made][-1]:
        case ast.Call(func=ast.Attribute(attr="to" | "type" as name), args=given, keywords=named):
            read = {node.id for part in (*given, *named) for node in ast.walk(part) if isinstance(node, ast.Name)}
            if read <= {"self", "torch"}:
                return f".{name}({', '.join(map(ast.unparse, [*given, *named]))})"
    return ""


def _methods(owners: Iterable[ast.ClassDef]) -> Collection[ast.FunctionDef]:
    """The methods of a class, which come before those of the same name in its bases."""
    methods: dict[str, ast.FunctionDef] = {}
    for owner in owners:
        for method in owner.body:
            if isinstance(method, ast.FunctionDef):
                methods.setdefault(method.name, method)
    return methods.values()


def _remade(method: ast.FunctionDef, tower: str) -> Iterator[str]:
    """Statements `x = self.module(x, ...)` before the tower gets `x`, with `{pixels}` in the place of `x`."""
    given: dict[str, int] = {}  # a name that is handed over with the tower or to it, and the line
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and tower in map(self_attribute, (node.func, *node.args)):
            given.update((name.id, node.lineno) for name in node.args if isinstance(name, ast.Name))
    for node in ast.walk(method):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.lineno < given.get(node.targets[0].id, 0)
            and isinstance(node.value, ast.Call)
            and node.value.args
            and ast.unparse(node.value.args[0]) == node.targets[0].id
            and self_attribute(node.value.func) not in (None, tower)
        ):
            further = [*node.value.args[1:], *node.value.keywords]
            yield f"{ast.unparse(node.value.func)}({', '.join(['{pixels}', *map(ast.unparse, further)])})"
