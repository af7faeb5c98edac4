"""Drafts a cut at an encoder that gets what the model has made of its pixels, where nothing before it can be captured.

Such an encoder may get one more argument of the batch, which the model leaves out in one of its ways: batches that have
it run in the model's own code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from scaffold.draft.convolutions import is_convolution, stride_of
from scaffold.draft.objects import Objects
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import PartCall, computed, constant, is_pixels
from scaffold.draft.values import FieldConfig, Input, Made, Op, Term, inputs_of, walk_value
from scaffold.syntax import FunctionNode, assigned_to, parents_of, positional_parameters

_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)


@dataclass(frozen=True, slots=True)
class MadeUnits:
    """A call of an encoder: its text in a descriptor, the input that its units are made of, and what may be absent."""

    step: PartCall
    text: str
    pixels: str
    absent: tuple[str, ...]


def made_units(objects: Objects, root: PartCall, fields: dict[str, FieldConfig]) -> MadeUnits | None:
    """The one call that can be captured so; None if there is none, or several."""
    found = [one for step in root.walk() if (one := _of_step(objects, step, fields)) is not None]
    return found[0] if len(found) == 1 else None


def draft_made_units(objects: Objects, found: MadeUnits, sheet: Sheet) -> None:
    """Fill in `forward.unit` and `forward.with`. The sides of the pixels are filled in."""
    step = found.step
    for name in found.absent:
        why = "the model leaves it out in one of its ways; batches that have it run in its own code"
        sheet.put(f"forward.with.{name}", "absent", step.place, why=why)
    side = ("side", "side") if sheet.has("let.side") else ("height", "width")
    tower = step.path.rpartition(".")[0]
    candidates = []
    for path, value in objects.kept(tower):
        patch = objects.text(stride_of(value)) if is_convolution(value) and isinstance(value, (Made, Op)) else None
        columns = objects.text(dict(value.keywords).get("out_channels")) if isinstance(value, (Made, Op)) else None
        if patch is not None and columns is not None:
            rows = (
                f"({side[0]} // {patch}) ** 2"
                if side[0] == side[1]
                else f"{side[0]} // {patch} * ({side[1]} // {patch})"
            )
            why = f"the patches that `{path}` makes of a unit"
            candidates.append(Candidate(f"[{rows}, {columns}]", why, objects.place(path)))
    what = "the shape of one unit as the encoder gets it"
    sheet.ask(Question("forward.unit", what, tuple(candidates), (f"{step.place}: the encoder's call",)))


def _of_step(objects: Objects, step: PartCall, fields: dict[str, FieldConfig]) -> MadeUnits | None:
    if not (step.module and step.encoder and step.entered is not None) or not _layers(objects, step) or _repeated(step):
        return None
    optional = {key for key, value in step.given.items() if _may_be_absent(step, key, value)}
    units = [key for key, value in step.given.items() if computed(value) and key not in optional]
    if len(units) != 1 or units[0] in optional:
        return None
    pixels = next((key for key in inputs_of(step.given[units[0]]) if is_pixels(key) and key in fields), None)
    parts, absent = [], []
    for key, value in step.given.items():
        name = "pixels" if key == units[0] else "mask" if len(optional) == 1 else f"mask_{key}"
        text: str | None = name
        if key in optional:
            absent.append(name)
        elif key != units[0]:
            text = constant(value)
        if text is None:
            return None
        parts.append(text if isinstance(key, int) else f"{key}={text}")
    return MadeUnits(step, f"{step.path}({', '.join(parts)})", pixels, tuple(absent)) if pixels and optional else None


def _layers(objects: Objects, step: PartCall) -> bool:
    """Whether the called method goes over layers that the part holds."""
    body = ast.walk(step.entered.node) if step.entered is not None else ()
    over = [ast.unparse(node.iter) for node in body if isinstance(node, ast.For)]
    held = (name for name, value in objects.attributes(step.path).items() if isinstance(value, Op))
    return any(f"self.{name}" in text for name in held for text in over)


def _repeated(step: PartCall) -> bool:
    """Whether a call, or one that leads to it, is in a loop."""
    for lower in step.up():
        parents = parents_of(lower.caller.node) if lower.parent is not None else {}
        node: ast.AST | None = lower.node
        while node is not None:
            if isinstance(node, _LOOPS):
                return True
            node = parents.get(id(node))
    return False


def _may_be_absent(step: PartCall, key: int | str, value: Term) -> bool:
    """Whether an argument of the batch is a variable that the caller sets to None in one way."""
    if not any(isinstance(part, Input) for part in walk_value(value)) or step.entered is None:
        return False
    nodes = dict(enumerate(step.node.args)) | {keyword.arg: keyword.value for keyword in step.node.keywords}
    given = nodes.get(key)
    if not isinstance(given, ast.Name) or not _has_default_none(step.entered.node, key):
        return False
    return any(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is None
        and any(isinstance(target, ast.Name) and target.id == given.id for target in assigned_to(node))
        for node in ast.walk(step.caller.node)
    )  # fmt: skip


def _has_default_none(function: FunctionNode, key: int | str) -> bool:
    return any(key in both for both in _defaults_none(function))


def _defaults_none(function: FunctionNode) -> Iterator[tuple[int, str]]:
    """Number, counted without `self`, and name of each parameter with the default None."""
    names = positional_parameters(function)
    first = len(names) - len(function.args.defaults)
    for number, default in enumerate(function.args.defaults, first):
        if isinstance(default, ast.Constant) and default.value is None:
            yield number - 1, names[number]
    for argument, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if isinstance(value, ast.Constant) and value.value is None:
            yield -1, argument.arg
