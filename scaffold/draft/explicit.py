"""Drafts the section `explicit` of a cut: a port in a tree that runs no code of the model twice.

The largest call that a graph can hold is tried first, and what follows it is tried as nothing before it becomes a
method. `scaffold.cut` looks for the methods as the generator will.
"""

from __future__ import annotations

import re
from contextlib import suppress

from scaffold.cut import Extraction, Form, find_calls, find_extraction, find_way
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.diagnostics import DiagnosticError
from scaffold.draft.inputs import strip
from scaffold.draft.reentry import NOWHERE
from scaffold.draft.sheet import Sheet
from scaffold.draft.steps import PartCall
from scaffold.draft.subject import Subject
from scaffold.draft.values import Op, Term
from scaffold.protocol import read_protocol

#: Operations that may stand between the pixels and the encoder: a port hands the pixels over as they are.
_MOVES = {".to", ".view", ".reshape", ".flatten", ".contiguous", "torch.cat", "torch.stack", "flatten_bn"}
#: Attributes of a model with the tokens of one unit.
_TOKENS = ("num_image_token", "num_patches")
_SIDE = re.compile(r"\bimage_size('\]|)$")


def draft_explicit(subject: Subject, pixels: str, entry: str, step: PartCall, call: str, sheet: Sheet) -> None:
    """Fill in `explicit`, where a model's code has the form that such a port needs. `step` is the encoder's call."""
    units = step.units
    tokens = _tokens(subject, sheet)
    if tokens is None or units is None or isinstance(strip(units, _MOVES), Op) or step.masks or not _has_paths(subject):
        return
    sized = subject.fields[pixels].sizes is not None
    single = not sized and not _has_axis(subject, pixels, units, sheet)
    after = "_project_image_features" if single else "_merge_patch_embeddings"
    found = _find(subject, parse_call(entry), parse_call(call), after)
    if found is None:
        return
    held, follows = found
    sheet.put("explicit.call", held.text, step.place, why="what follows the encoder unit by unit, too")
    sheet.put("explicit.tokens", tokens, why="how budgets count")
    if follows:
        sheet.put("explicit.after", follows, why="a name for the statements behind it")
    if single:
        sheet.put("explicit.single", True, subject.fields[pixels].place, why="one unit an item")


def _find(subject: Subject, entry: Call, encoder: Call, after: str) -> tuple[Call, str | None] | None:
    """The largest call of a form that the generator finds, and the name of what follows it, if anything does."""
    tree, model = subject.tree, subject.model
    way = find_way(tree, model.file, model.class_name, {entry.path: NOWHERE}, encoder, NOWHERE)
    family = tuple(subject.program.lineage(model.owner))
    calls = [call for call in find_calls(tree, way) if call != encoder]
    for call in (*reversed(calls), encoder):
        for name in (None, after):
            with suppress(DiagnosticError):
                form = Form(entry, call, name, NOWHERE)
                if isinstance(find_extraction(tree, family, way, form), Extraction):
                    return call, name
    return None


def _tokens(subject: Subject, sheet: Sheet) -> str | None:
    """The tokens of one unit: what the model says, or its patches."""
    said = [name for name in _TOKENS if name in subject.objects.attributes("self")]
    if said:
        return f"self.{said[0]}"
    side = sheet.value("let.side").strip('"') if sheet.has("let.side") else ""
    patch = _SIDE.sub(r"patch_size\1", side)
    return f"(side // {patch}) ** 2" if patch != side else None


def _has_axis(subject: Subject, pixels: str, units: Term, sheet: Sheet) -> bool:
    """Whether an item may be several units: its annotated shape has an axis for them, or the model joins the items."""
    shapes = [dimensions for dimensions, _, _ in subject.shapes(pixels, made=True)]
    unit = sheet.value("pixels.shape").count(",") + 1
    return max(map(len, shapes), default=0) > unit + 1 or _joins(units)


def _joins(value: Term) -> bool:
    """Whether the model concatenates the items of an input, in front of the encoder."""
    while isinstance(value, Op) and value.name in _MOVES and value.args:
        if value.name == "flatten_bn":
            return True
        value = value.args[0]
    return False


def _has_paths(subject: Subject) -> bool:
    """Whether the protocol of the tree names paths: then an item may have no tokens at all."""
    with suppress(DiagnosticError):
        return read_protocol(subject.tree).dialect.paths.value == "named"
    return False
