"""Drafts `forward.with` of a cut: what the encoder's call gets of each unit beside its pixels.

Such an argument is a tensor of booleans. Its shape is that of the annotated input which it is made of, followed through
what the model does to it; where a step is not understood the shape is a question without a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaffold.draft.evaluate import History
from scaffold.draft.inputs import shapes_of
from scaffold.draft.locate import Located
from scaffold.draft.objects import Objects
from scaffold.draft.sheet import Question, Sheet
from scaffold.draft.steps import PartCall
from scaffold.draft.subject import Subject
from scaffold.draft.values import Input, Op, Plain, SourceLine, Term, walk_value
from scaffold.tower.source import Program

_SAME = {".bool", ".to", ".contiguous", ".type", "Compare"}
_REDUCES = {".sum", ".any", ".all", ".amax"}


def draft_masks(
    subject: Subject,
    step: PartCall,
    sides: Mapping[str, str],
    sheet: Sheet,
) -> None:
    """Fill in `forward.with`, and `pixels.padded`. `sides` are `let` names of the pixels' annotated dimensions."""
    shapes = _Shapes(subject.program, subject.model, subject.objects, subject.trace, sides)
    for name, value in step.masks.items():
        key = f"forward.with.{name}"
        shape, place = shapes.of(value), shapes.place
        if shape is None or len(shape) < 2:
            what = "the shape for one unit, as a list, of what the encoder gets beside the pixels"
            sheet.ask(Question(f"{key}.shape", what, (), (f"{step.place}: the encoder's call",)))
        else:
            sheet.put(f"{key}.shape", shape[1:], place, why="the annotated shape, through what the model does to it")
        sheet.put(f"{key}.dtype", "bool", step.place)
    padding = _padding(subject.program, step)
    if padding is not None:
        why = f"`{padding.name}` pads all items to the most units of one"
        sheet.put("pixels.padded", True, padding.place, why=why)


def _padding(program: Program, step: PartCall) -> Op | None:
    """The function of the tree that pads the units of a batch to those of its longest item."""
    for part in walk_value(step.units) if step.units is not None else ():
        if isinstance(part, Op) and _pads(program, part):
            return part
    return None


def _in_tree(program: Program, value: Op) -> bool:
    """Whether a value is the result of a function that is in the tree."""
    module = program.module(value.place.file) if value.place is not None else None
    return module is not None and "." not in value.name and program.resolve(module, value.name) is not None


def _pads(program: Program, value: Op) -> bool:
    """Whether a value comes from a function of the tree that stacks tensors of several lengths."""
    return "stack" in value.name and "pad" in value.name and _in_tree(program, value)


@dataclass
class _Shapes:
    """Shapes of values, as expressions of a descriptor; a dimension that nobody asks for keeps its annotated name."""

    program: Program
    model: Located
    objects: Objects
    trace: History
    sides: Mapping[str, str]
    place: SourceLine | None = None

    def of(self, value: Term) -> list[str] | None:
        """The dimensions of a value, None where a step on the way is not understood."""
        if isinstance(value, Input):
            found = next(shapes_of(self.program, self.model.owner[0], self.trace, value.key), None)
            self.place = found[1] if found else None
            return [self.sides.get(str(part), str(part)) for part in found[0]] if found else None
        shape = self.of(value.args[0]) if isinstance(value, Op) and value.args else None
        if shape is None or not isinstance(value, Op):
            return None
        if value.name in _SAME or _pads(self.program, value):
            return shape
        step = _STEPS.get(value.name) or (_reduced if value.name in _REDUCES else None)
        return step(self, shape, value) if step is not None else None


def _argument(value: Op, position: int, name: str) -> Term | None:
    return value.args[position] if len(value.args) > position else dict(value.keywords).get(name)


def _number(value: Term | None) -> int | None:
    return value.value if isinstance(value, Plain) and isinstance(value.value, int) else None


def _unfolded(shapes: _Shapes, shape: list[str], value: Op) -> list[str] | None:
    """`x.unfold(axis, n, n)`: windows of n beside each other, their entries last."""
    axis = _number(_argument(value, 1, "dimension"))
    size, step = _argument(value, 2, "size"), _argument(value, 3, "step")
    text = shapes.objects.text(size)
    if axis is None or text is None or size != step or not -len(shape) <= axis < len(shape):
        return None
    shape[axis] = f"{shape[axis]} // {text}"
    return [*shape, text]


def _reduced(_: _Shapes, shape: list[str], value: Op) -> list[str] | None:
    axes = _argument(value, 1, "dim")
    given = axes.value if isinstance(axes, Plain) else None
    numbers = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(axis, int) and -len(shape) <= axis < len(shape) for axis in numbers):
        return None
    gone = {axis % len(shape) for axis in numbers}
    return [part for axis, part in enumerate(shape) if axis not in gone]


def _flattened(_: _Shapes, shape: list[str], value: Op) -> list[str] | None:
    """`x.flatten(0, 1)`: items and their units become units."""
    return shape[1:] if value.args[1:] == (Plain(0), Plain(1)) else None


_STEPS: dict[str, Callable[[_Shapes, list[str], Op], list[str] | None]] = {
    ".unfold": _unfolded,
    ".flatten": _flattened,
}
