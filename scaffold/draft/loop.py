"""Drafts a cut from a recording at a loop over layers: of a model that pads its units to the longest, or of an encoder.

Other parts may run between several loops over slices of the layers. The last of them is recorded: it hands its features
to the model's own code, as an encoder would. A mask keeps attention off the padding. The run shows which method has the
layers; what the loop reads is in its text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scaffold.cut.loops import find_misfit, outline
from scaffold.cut.way import iterated, unsliced
from scaffold.descriptor.expressions import parse_call
from scaffold.descriptor.port import LOOP_METHOD, VISUAL
from scaffold.draft.common import (
    VISION,
    Drafted,
    entries_of,
    function_of,
    line_of,
    omitted,
    pixel_keys,
    put_fields,
    put_number,
    put_width,
)
from scaffold.draft.cut import put_made, put_unit, units_of
from scaffold.draft.gates import put_gate
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Candidate, Question, Sheet, SourceLine
from scaffold.draft.ways import ALL, problems_of_way
from scaffold.syntax import FunctionNode, assigned_to, name_path
from scaffold.tower.source import Module
from scaffold.watch import Batch, Call, Recording, Repeated

_SOUND = "audio"
_PATCH, _COLUMNS = re.compile(r"[._]patch_size(\[0\])?$"), re.compile(r"\.(hidden_size|embed_dim)$")
#: The longest of some units, along their last axis.
_LONGEST = re.compile(r"max\(\((\w+)\.shape\[-1\] for \1 in \w+\)\)")


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop over layers: the call of what it becomes, and the argument with the mask."""

    text: str
    mask: str
    place: SourceLine
    padded: SourceLine


def draft_loop(subject: Subject, recording: Recording, sheet: Sheet) -> Drafted | None:
    """Fill in the sections of a cut but `model`, `layout` and `integration`.

    None where no method of the model itself goes over all layers.
    """
    for layers in recording.repeated:
        kept = {name: recording.of(name) for name in VISUAL if recording.of(name)}
        calls = {name: [_first(batch, layers.name) for batch in batches] for name, batches in kept.items()}
        keys = {name: sorted(pixel_keys(batches[0])) for name, batches in kept.items()}
        if (
            not kept
            or any(call is None for found in calls.values() for call in found)
            or max(map(len, keys.values())) > 1
        ):
            continue
        first = next(iter(kept))
        batch, call = kept[first][0], calls[first][0]
        assert call is not None, "each batch has one"
        found = function_of(subject, batch.way(call)[-1])
        loop = _of_method(*found, f"self.{layers.name}") if found is not None else None
        if loop is None or problems_of_way(subject, [ALL], parse_call(loop.text), f"self.{layers.name}"):
            continue
        _put(recording, call, f"self.{layers.name}", loop, sheet)
        for name, batches in kept.items():
            sheet.put(f"modalities.{name}.pixels", keys[name][0], loop.padded, why="the model pads its units")
            sheet.put(f"modalities.{name}.entry", ALL, line_of(batches[0].frames[0]))
            put_fields(subject, batches, sheet)
        put_width(recording, batch, sheet)
        put_gate(subject, [one for [one] in keys.values()], sheet)
        return tuple(kept), omitted(subject, recording, kept, "")
    return None


def draft_layers(subject: Subject, recording: Recording, sheet: Sheet) -> Drafted | None:
    """Fill in the sections of a cut at the loop over an encoder's layers, which get what it makes of chunks of sound.

    None where the layers get anything else. An encoder that computes with lengths behind its layers is one (Whisper's
    in MOSS-Transcribe-Diarize).
    """
    batches = recording.of(_SOUND)
    inputs = [units_of(batch) for batch in batches]
    keys = {key for found in inputs for key in found}
    for layers in recording.repeated if len(keys) == 1 and len(set(map(_unit, inputs))) == 1 else ():
        [key], path, name = keys, *layers.name.rpartition(".")[::2]
        calls = [_layer_calls(batch, layers, found[key][0]) for batch, found in zip(batches, inputs, strict=True)]
        shapes = {shape for found in calls for _, shape in found}
        if not all(calls) or len(shapes) != 1:
            continue
        text, loop = f"self.{path}.{LOOP_METHOD}(pixels)", f"self.{name}"
        first = batches[0].way(calls[0][0][0])
        ways = ((one, problems_of_way(subject, [one], parse_call(text), loop)) for one in entries_of(subject, first[0]))
        entry = next((one for one, problems in ways if not problems), None)
        if entry is None:
            continue
        place = line_of(first[-1])
        sheet.put(f"modalities.{_SOUND}.pixels", key, place, why="the layers get what is made of all of it")
        sheet.put(f"modalities.{_SOUND}.entry", entry, line_of(first[0]))
        put_fields(subject, batches, sheet)
        [[_, unit]] = inputs[0].values()
        put_unit(recording, unit, "pixels", place, sheet)
        put_made(recording, shapes.pop(), place, sheet)
        sheet.put("forward.loop", loop, place, why="the encoder's call gets more than units")
        counts = ", ".join(str(found[key][0]) for found in inputs)
        sheet.put("forward.call", text, place, why=f"{counts} units in {len(batches)} batches")
        put_width(recording, batches[0], sheet)
        put_gate(subject, [key], sheet)
        return (_SOUND,), omitted(subject, recording, (_SOUND,), "")
    return None


def _unit(inputs: Mapping[str, tuple[int, tuple[int, ...]]]) -> tuple[int, ...]:
    return next((shape for _, shape in inputs.values()), ())


def _layer_calls(batch: Batch, layers: Repeated, units: int) -> list[tuple[Call, tuple[int, ...]]]:
    """The call of each layer and the shape of a unit there; none where one gets more, or gives something else."""
    found = []
    for index in range(layers.count):
        calls = [call for call in batch.calls if call.part == f"{layers.name}.{index}"]
        tensors = [leaf for call in calls for leaf in call.arguments if leaf.is_tensor]
        shapes = {leaf.shape for call in calls for leaf in (*tensors, *call.results)}
        if len(calls) != 1 or len(tensors) != 1 or len(calls[0].results) != 1 or len(shapes) != 1:
            return []
        if tensors[0].shape[0] != units:
            return []
        found.append((calls[0], tensors[0].shape[1:]))
    return found


def _first(batch: Batch, layers: str) -> Call | None:
    """The first call of the first layer, if the model itself makes it."""
    call = next((one for one in batch.calls if one.part == f"{layers}.0"), None)
    return call if call is not None and batch.way(call)[-1].part == "" else None


def _put(recording: Recording, call: Call, layers: str, loop: _Loop, sheet: Sheet) -> None:
    """Fill in `pixels` and `forward`."""
    units = [leaf.shape for one in recording.batches for key in pixel_keys(one) for leaf in one.given(key)]
    side, most = units[0][-2], max(shape[-1] // shape[-2] for shape in units)
    width = next(leaf.shape[-1] for leaf in call.arguments if leaf.is_tensor)
    patch = f"the side of a patch, in pixels: {side} in the recording"
    put_number(recording, side, "let.patch", patch, _PATCH, VISION, sheet)
    columns = f"columns of the layers' features: {width} in the recording"
    put_number(recording, width, "let.width", columns, _COLUMNS, VISION, sheet)
    what = "the patches of the longest unit of a graph: the model's own code encodes longer ones"
    look = (f"{loop.padded}: units are padded to the longest of a batch",)
    sheet.ask(Question("let.rows", what, tuple(_rows(recording, side, most)), look))
    sheet.put("pixels.shape", ["3", "patch", "patch * rows"], loop.padded, why="patches side by side")
    sheet.put("forward.loop", layers, loop.place, why="what runs before it cannot be captured")
    sheet.put("forward.call", loop.text, loop.place, why="what the loop reads")
    sheet.put(f"forward.with.{loop.mask}", "additive", loop.place, why="None where no unit is padded")
    sheet.put("forward.unit", ["rows", "width"], loop.place, why="features of the patches")


def _rows(recording: Recording, patch: int, most: int) -> list[Candidate]:
    """The patches of the processor's largest image, and the positions that the tower has: first what holds `most`."""
    found = []
    image = recording.numbers.get("self.config.image_size")
    if isinstance(image, int):
        side, count = "self.config.image_size // patch", image // patch * (image // patch + 1)
        why = "a square of that size; its sides are rounded to patches"
        found.append((count, Candidate(f"{side} * ({side} + 1)", why)))
    for path, number in recording.numbers.items():
        if re.fullmatch(r"self\.\w+\.embeddings\.num_patches", path) and isinstance(number, int):
            found.append((number, Candidate(path, "the positions that the tower has")))
    return [candidate for _, candidate in sorted(found, key=lambda one: one[0] < most)]


# -- the loop ----------------------------------------------------------------------------------------------------------


def _of_method(module: Module, function: FunctionNode, layers: str) -> _Loop | None:
    loops = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.For)
        if any(ast.unparse(unsliced(over)) == layers for over in iterated(node.iter))
    ]
    longest = next((node for node in ast.walk(function) if _LONGEST.fullmatch(ast.unparse(node))), None)
    if not loops or longest is None:
        return None
    loop = max(loops, key=lambda node: node.lineno)
    if find_misfit(function, loop) is not None:
        return None
    taken = [_argument(function, name) for name in outline(function, loop).arguments[1:]]
    masks = [name for name in taken if name is not None and not name.startswith("self.")]
    if None in taken or len(masks) != 1:
        return None
    text = f"self.{LOOP_METHOD}({', '.join(['pixels', *map(str, taken)])})"
    lines = (SourceLine(module.file, getattr(node, "lineno", function.lineno)) for node in (loop, longest))
    return _Loop(text, masks[0], *lines)


def _argument(function: FunctionNode, name: str) -> str | None:
    """The text of a variable in a call: an entry of the configuration, or `mask`; None if it is neither."""
    values = list(_values(function, name))
    if len(values) == 1:
        return _entry(values[0])
    none = any(isinstance(value, ast.Constant) and value.value is None for value in values)
    return "mask" if none and any("torch.finfo" in text for text in _made_of(function, name, set())) else None


def _values(function: FunctionNode, name: str) -> Iterator[ast.expr]:
    """The values that are assigned to a variable, by itself or with others."""
    for node in ast.walk(function):
        targets = (part for target in assigned_to(node) for part in ast.walk(target))
        value = getattr(node, "value", None)
        if value is not None and any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield value


def _made_of(function: FunctionNode, name: str, seen: set[str]) -> Iterator[str]:
    """The texts of what a variable is computed from."""
    if name in seen:
        return
    seen.add(name)
    for value in _values(function, name):
        yield ast.unparse(value)
        for node in ast.walk(value):
            if isinstance(node, ast.Name):
                yield from _made_of(function, node.id, seen)


def _entry(value: ast.expr) -> str | None:
    """`self.config.first` of itself, and of `getattr(self.config, "first", -1)`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "getattr" and len(value.args) > 1:
        name = value.args[1]
        owner = name_path(value.args[0])
        if isinstance(name, ast.Constant) and owner:
            return ".".join((*owner, str(name.value))) if owner[0] == "self" else None
    path = name_path(value)
    return ".".join(path) if path and path[0] == "self" and len(path) > 1 else None
