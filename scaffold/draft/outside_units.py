"""Drafts a cut at an encoder of another package that gets what the model has made of its pixels, and more of the batch.

Nothing of such an encoder is in the tree: its arguments tell what it gets for each unit, and its configuration how many
patches a unit has. The pixels of one modality have one number of them; others are the model's own business.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from scaffold.draft.objects import Objects
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import PartCall, computed, constant, is_pixels
from scaffold.draft.subject import Subject
from scaffold.draft.values import FieldConfig, Input, Op, Plain, SourceLine, Term, inputs_of, walk_value

_MODALITY = "image"
_REDUCES = (".all", ".any")


@dataclass(frozen=True, slots=True)
class OutsideUnits:
    """A call of an encoder: its text in a descriptor, the input of its units, what else it gets, what is used."""

    step: PartCall
    text: str
    pixels: str
    beside: dict[str, Term]
    attribute: str


def outside_units(subject: Subject) -> OutsideUnits | None:
    """The first call of the model's images that can be captured so; None if there is none."""
    found = (
        one for step in subject.root.walk() if (one := _of_step(subject.objects, step, subject.fields)) is not None
    )
    return next((one for one in found if subject.fields[one.pixels].modality == _MODALITY), None)


def _of_step(objects: Objects, step: PartCall, fields: dict[str, FieldConfig]) -> OutsideUnits | None:
    made = [key for key, value in step.given.items() if computed(value)]
    if not (step.module and step.encoder and step.entered is None) or len(made) != 1:
        return None
    pixels = next((key for key in inputs_of(step.given[made[0]]) if is_pixels(key) and key in fields), None)
    if pixels is None or step.attribute is None:
        return None
    beside: dict[str, Term] = {}
    parts = []
    for key, value in step.given.items():
        text = constant(value)
        if key in made:
            text = "pixels"
        elif text is None and len(_keys(value)) == 1 and isinstance(key, str):
            text = key
            beside[key] = value
        if text is None:
            return None
        parts.append(text if isinstance(key, int) else f"{key}={text}")
    text = f"{step.path}({', '.join(parts)})"
    return OutsideUnits(step, text, pixels, beside, step.attribute) if beside else None


def _keys(value: Term) -> tuple[str, ...]:
    """The inputs that a value is made of, without what counts them: `positions[i]` for each `i` of the pixels."""
    items = [part.args[0] for part in walk_value(value) if isinstance(part, Op) and part.name == "[]"]
    return tuple({part.key: None for part in items if isinstance(part, Input)}) or inputs_of(value)


def draft_outside_units(subject: Subject, found: OutsideUnits, sheet: Sheet) -> bool:
    """Fill in `pixels` and `forward` but its call; whether an annotation says the shape of a unit."""
    shapes = {key: next(subject.shapes(key), None) for key in _inputs(found)}
    shown = shapes[found.pixels]
    if None in shapes.values() or shown is None or len(shown[0]) != 3:
        return False
    rows, width = map(str, shown[0][1:])
    config = _configuration(subject.objects, found.step)
    place = found.step.place
    look = (f"{place}: the encoder's call",)
    why = "tokens of a unit, and the patches of one"
    counts = tuple(Candidate(text, why, at) for text, at in _counts(found, config))
    sheet.ask(Question(f"let.{rows}", f"the patches of one unit ({shown[1]})", counts, look))
    sides = (Candidate(f"3 * {config}.patch_size ** 2", "three channels of a patch"),) if config else ()
    sheet.ask(Question(f"let.{width}", f"the pixels of a patch ({shown[1]})", sides, look))
    columns = (Candidate(f"{config}.hidden_size", "what the encoder's configuration calls it"),) if config else ()
    sheet.ask(Question("let.columns", "the width of what the encoder gets", columns, look))
    sheet.put("pixels.shape", [rows, width], shown[1])
    sheet.put("forward.unit", [rows, "columns"], place, why="what the model has made of the patches")
    for name, value in found.beside.items():
        [key] = _keys(value)
        own = shapes[key]
        assert own is not None, "looked at above"
        booleans = any(isinstance(part, Op) and part.name == "Compare" for part in walk_value(value))
        reduced = any(isinstance(part, Op) and part.name in _REDUCES for part in walk_value(value))
        sheet.put(f"forward.with.{name}.shape", list(map(str, own[0][1:-1] if reduced else own[0][1:])), own[1])
        sheet.put(f"forward.with.{name}.dtype", "bool" if booleans else "int64", place)
    sheet.put("forward.result", found.attribute, place, why="what the model takes of the result")
    return True


def _inputs(found: OutsideUnits) -> list[str]:
    keys = [found.pixels, *(key for value in found.beside.values() for key in _keys(value))]
    return list(dict.fromkeys(keys))


def _configuration(objects: Objects, step: PartCall) -> str:
    """The configuration that the encoder's package makes it of, as the model has it."""
    value = objects.value(step.path.rpartition(".")[0])
    given = dict(value.keywords).get("config") or next(iter(value.args), None) if isinstance(value, Op) else None
    if isinstance(given, Op) and given.name == "getattr" and isinstance(given.args[1], Plain):
        given = Op(f".{given.args[1].value}", given.args[:1])
    return objects.text(given) or ""


def _counts(found: OutsideUnits, config: str) -> list[tuple[str, SourceLine]]:
    """Products of a number of tokens and the square that is pooled, of what the module reads of the configuration."""
    module = found.step.caller.module
    read = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
    tokens = {node.attr: node for node in read if node.attr.endswith("output_length")}
    pools = sorted({node.attr for node in read if node.attr.startswith("pooling") and node.attr.endswith("_size")})
    return [
        (f"{config}.{name} * {config}.{pool} ** 2", SourceLine(module.file, node.lineno))
        for name, node in tokens.items()
        for pool in pools
        if config
    ]
