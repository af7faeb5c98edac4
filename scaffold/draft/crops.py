"""Drafts the layout `crops`: encoders that a model calls one after the other, on whole images and on crops of them.

The two are inputs of their own, of two shapes, so no call gets the units of both. A graph holds the statements
from the first encoder's call to that of the last part, which the model has once for each.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from scaffold.draft.sheet import Question, Sheet
from scaffold.draft.steps import PartCall
from scaffold.draft.subject import Subject
from scaffold.draft.values import FieldConfig, SourceLine, inputs_of
from scaffold.syntax import assigned_to
from scaffold.tower.source import Module, Program

_MODALITY = "image"


@dataclass(frozen=True, slots=True)
class Chains:
    """The first encoder's call on whole images and on crops, and the parts that the last call may be of, that one
    first."""

    whole: PartCall
    crops: PartCall
    pixels: str
    pixels_of_crops: str
    through: tuple[str, ...]

    @property
    def text(self) -> str:
        """The call in a descriptor."""
        return f"{self.whole.path}(pixels)"


def chains(root: PartCall, fields: dict[str, FieldConfig]) -> Chains | None:
    """The one encoder that gets whole images and crops; None if there is none."""
    calls: dict[str, list[PartCall]] = {}
    for step in root.walk():
        if step.module and step.encoder and step.raw and step.text == f"{step.path}(pixels)":
            calls.setdefault(step.path, []).append(step)
    for steps in calls.values():
        kinds = {fields[key].kind: (step, key) for step in steps for key in [_pixels(step, fields)] if key in fields}
        if len(steps) != 2 or kinds.keys() != {"batched", "flat_from_sizes"}:
            continue
        (whole, pixels), (crops, pixels_of_crops) = kinds["batched"], kinds["flat_from_sizes"]
        last = [step.path for step in _beside(whole) if step.path in {other.path for other in _beside(crops)}]
        if last and {fields[pixels].modality, fields[pixels_of_crops].modality} == {_MODALITY}:
            return Chains(whole, crops, pixels, pixels_of_crops, tuple(reversed(last)))
    return None


def draft_shapes(subject: Subject, found: Chains, sheet: Sheet) -> None:
    """Fill in the shapes of a whole image and of a crop, and ask for what the source does not tell."""
    for section, key, step in (
        ("pixels", found.pixels, found.whole),
        ("crops", found.pixels_of_crops, found.crops),
    ):
        shown = next(subject.shapes(key), None)
        if shown is None:
            what = f"the shape of what `{key}` holds, without its first axis"
            sheet.ask(Question(f"{section}.shape", what, (), (f"{step.place}: the encoder's call",)))
            continue
        sides = [str(side) for side in shown[0][1:]]
        for name in dict.fromkeys(side for side in sides if not side.isdigit()):
            known = _constant_of_processor(subject, name)
            if known is not None:
                sheet.put(f"let.{name}", known[0], known[1], why="what the model makes its processor with")
            elif not sheet.has(f"let.{name}"):
                what = f"the number that the annotated shape calls `{name}`"
                sheet.ask(Question(f"let.{name}", what, (), (str(shown[1]),)))
        sheet.put(f"{section}.shape", sides, shown[1])


def _pixels(step: PartCall, fields: dict[str, FieldConfig]) -> str:
    """The input that a call gets; what cuts it into items is none."""
    keys = inputs_of(step.units) if step.units is not None else ()
    return next((key for key in keys if key in fields), "")


def _beside(first: PartCall) -> list[PartCall]:
    """The calls of parts of the model behind a call, in the same function."""
    children = first.parent.children if first.parent is not None else []
    after = children[children.index(first) + 1 :] if first in children else []
    return [step for step in after if step.module and step.caller.node is first.caller.node]


def _constant_of_processor(subject: Subject, name: str) -> tuple[int, SourceLine] | None:
    """The number that the processing info hands its processor under a name."""
    made = subject.program.method(subject.model.info, "get_hf_processor") if subject.model.info else None
    if made is None:
        return None
    module, _, function = made
    for node in ast.walk(function):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == name:
                return _number(subject.program, module, keyword.value)
    return None


def _number(program: Program, module: Module, value: ast.expr, depth: int = 4) -> tuple[int, SourceLine] | None:
    """A number, or what a constant of the module is, or of the module that it is imported from."""
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return value.value, SourceLine(module.file, value.lineno)
    if not isinstance(value, ast.Name) or depth == 0:
        return None
    for node in module.tree.body:
        given = getattr(node, "value", None)
        if given is not None and any(isinstance(to, ast.Name) and to.id == value.id for to in assigned_to(node)):
            return _number(program, module, given, depth - 1)
    origin = program.imported(module, value.id)
    return _number(program, origin[0], ast.Name(origin[1]), depth - 1) if origin is not None else None
