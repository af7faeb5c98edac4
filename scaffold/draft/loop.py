"""Drafts a cut from a recording at a loop over layers: of a model that pads its units to the longest, or of an encoder.

Other parts may run between several loops over slices of the layers. The last of them is recorded: it hands its features
to the model's own code, as an encoder would. A mask keeps attention off the padding. The run shows which method has the
layers, and what the variables are that its loop reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from math import prod

from scaffold.cut.loops import outline
from scaffold.cut.way import iterated, unsliced
from scaffold.descriptor.expressions import parse_call
from scaffold.descriptor.port import LOOP_METHOD, VISUAL
from scaffold.draft.common import SOUND, function_of, line_of, pixel_keys
from scaffold.draft.cut import put_made, put_unit, units_of
from scaffold.draft.locate import Subject
from scaffold.draft.numbers import CONFIG, PATCH, VISION, attributes, put_number
from scaffold.draft.sheet import Candidate, Sheet, SourceLine
from scaffold.draft.ways import ALL, entry_to
from scaffold.watch import Batch, Call, Frame, Recording, Repeated

_COLUMNS, _POSITIONS = re.compile(r"\.(hidden_size|embed_dim)$"), re.compile(r"^self\.\w+\.embeddings\.num_patches$")
#: The argument that hides padding.
_MASK = "mask"


#: The side of a patch in pixels, the most patches of a unit, and the columns of its features.
_Padded = tuple[int, int, int]


def draft_loop(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """Whether a method of the model itself goes over all layers, on units that it has padded to the longest."""
    batches = [batch for name in VISUAL for batch in recording.of(name)]
    keys = {batch.modality: sorted(pixel_keys(batch)) for batch in batches}
    for layers in recording.repeated if keys and {*map(len, keys.values())} == {1} else ():
        units = [found for batch in batches if (found := _padded(batch, f"{layers.name}.0")) is not None]
        first = [(batch, n) for batch in batches for n in batch.runs(f"{layers.name}.0")[:1]]
        frames = [frame for batch, n in first for frame in batch.way(batch.calls[n])[-1:] if frame.part == ""]
        if not len(units) == len(frames) == len(batches):
            continue
        call = _call(subject, recording, frames, f"self.{layers.name}")
        if not call or not entry_to(subject, None, parse_call(call), loop=f"self.{layers.name}")[0]:
            continue
        place = line_of(frames[0])
        _put_units(recording, units, place, sheet)
        sheet.put("forward.loop", f"self.{layers.name}", place, why="what runs before it cannot be captured")
        sheet.put("forward.call", call, place, why="what the loop reads")
        sheet.put(f"forward.with.{_MASK}", "additive", place, why="a row for each unit, and None where none is padded")
        sheet.put("forward.unit", ["rows", "width"], place, why="features of the patches")
        for name, [key] in keys.items():
            sheet.put(f"modalities.{name}.pixels", key, place, why="the model pads its units")
            sheet.put(f"modalities.{name}.entry", ALL, line_of(recording.of(name)[0].frames[0]))
        return True
    return False


def draft_layers(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """Whether an encoder's layers get what it makes of chunks of sound, and nothing else.

    An encoder that computes with lengths behind its layers is one (Whisper's in MOSS-Transcribe-Diarize).
    """
    batches = recording.of(SOUND)
    inputs = [units_of(batch) for batch in batches]
    units = {(key, shape) for found in inputs for key, (_, shape) in found.items()}
    for layers in recording.repeated if len(units) == 1 and all(inputs) else ():
        [(key, unit)], path, name = units, *layers.name.rpartition(".")[::2]
        calls = [_layer_calls(batch, layers, found[key][0]) for batch, found in zip(batches, inputs, strict=True)]
        shapes = {shape for found in calls for _, shape in found}
        if not all(calls) or len(shapes) != 1:
            continue
        text, loop = f"self.{path}.{LOOP_METHOD}(pixels)", f"self.{name}"
        first = batches[0].way(calls[0][0][0])
        entry, _ = entry_to(subject, first[0], parse_call(text), loop=loop)
        if not entry:
            continue
        place = line_of(first[-1])
        sheet.put(f"modalities.{SOUND}.pixels", key, place, why="the layers get what is made of all of it")
        sheet.put(f"modalities.{SOUND}.entry", entry, line_of(first[0]))
        put_unit(subject, recording, unit, "pixels", place, sheet)
        put_made(recording, shapes.pop(), place, sheet)
        sheet.put("forward.loop", loop, place, why="the encoder's call gets more than units")
        counts = ", ".join(str(found[key][0]) for found in inputs)
        sheet.put("forward.call", text, place, why=f"{counts} units in {len(batches)} batches")
        return True
    return False


def _layer_calls(batch: Batch, layers: Repeated, units: int) -> list[tuple[Call, tuple[int, ...]]]:
    """The call of each layer and the shape of a unit there; none where one gets more, or gives something else."""
    found = []
    for index in range(layers.count):
        calls = [batch.calls[n] for n in batch.runs(f"{layers.name}.{index}")]
        tensors = [leaf for call in calls for leaf in call.arguments if leaf.is_tensor]
        shapes = {leaf.shape for call in calls for leaf in (*tensors, *call.results)}
        if len(calls) != 1 or len(tensors) != 1 or len(calls[0].results) != 1 or len(shapes) != 1:
            return []
        if tensors[0].shape[0] != units:
            return []
        found.append((calls[0], tensors[0].shape[1:]))
    return found


def _padded(batch: Batch, layer: str) -> _Padded | None:
    """The units, where the first layer gets a row of features for each patch of the longest; else None."""
    units = [leaf.shape for key in pixel_keys(batch) for leaf in batch.given(key)]
    features = [
        next(leaf.shape for leaf in one.arguments if leaf.is_tensor) for one in batch.calls if one.part == layer
    ]
    if not features or min(map(len, (*features, *units))) < 3:
        return None
    side, most = units[0][-2], max(shape[-1] // shape[-2] for shape in units)
    # Items that the model encodes in several calls have a longest unit each.
    return (side, most, features[0][-1]) if max(shape[1] for shape in features) == most else None


def _call(subject: Subject, recording: Recording, frames: Sequence[Frame], layers: str) -> str:
    """The call of what a loop becomes; empty where it reads anything else than a descriptor says.

    Beside features and mask, which all rows of a unit share, it reads entries of the configuration: of the name and
    value of the variable.
    """
    function = function_of(subject, frames[0])
    loops = [
        node
        for node in ast.walk(function or ast.Module([], []))
        if isinstance(node, ast.For) and any(ast.unparse(unsliced(over)) == layers for over in iterated(node.iter))
    ]
    loop = max(loops, key=lambda node: node.lineno, default=None)
    if function is None or loop is None:
        return ""
    taken = []
    for name in outline(function, loop).arguments[1:]:
        leaves = [leaf for frame in frames for leaf in frame.values if leaf.at == name]
        held = attributes(recording.numbers, re.compile(rf"\.{name}$"), CONFIG)
        masks = [leaf for leaf in leaves if leaf.type != "NoneType"]
        if masks and all(leaf.dtype.startswith(("float", "bfloat")) and prod(leaf.shape[1:-1]) == 1 for leaf in masks):
            taken.append(_MASK)
        else:
            taken.append(next((path for path, n in held.items() if all(leaf.value == n for leaf in leaves)), ""))
    whole = "" not in taken and taken.count(_MASK) == 1
    return f"self.{LOOP_METHOD}({', '.join(['pixels', *taken])})" if whole else ""


def _put_units(recording: Recording, units: Sequence[_Padded], place: SourceLine, sheet: Sheet) -> None:
    """Fill in `pixels`, with names for the side of a patch, the patches of a unit and the columns of its features."""
    side, _, width = units[0]
    most = max(patches for _, patches, _ in units)
    put_number(recording, side, "let.patch", "the side of a patch, in pixels", PATCH, VISION, sheet)
    put_number(recording, width, "let.width", "columns of the layers' features", _COLUMNS, VISION, sheet)
    what = "the patches of the longest unit of a graph: the model's own code encodes longer ones"
    look = f"{place}: units are padded to the longest of a batch"
    sheet.ask("let.rows", what, _rows(recording, side, most), look)
    sheet.put("pixels.shape", ["3", "patch", "patch * rows"], place, why="patches side by side")


def _rows(recording: Recording, patch: int, most: int) -> list[Candidate]:
    """The patches of the processor's largest image, and the positions that the tower has: first what holds `most`."""
    found = []
    image = recording.numbers.get("self.config.image_size")
    if isinstance(image, int):
        side, count = "self.config.image_size // patch", image // patch * (image // patch + 1)
        why = "a square of that size; its sides are rounded to patches"
        found.append((count, Candidate(f"{side} * ({side} + 1)", why)))
    for path, number in attributes(recording.numbers, _POSITIONS).items():
        found.append((number, Candidate(path, "the positions that the tower has")))
    return [candidate for _, candidate in sorted(found, key=lambda one: one[0] < most)]
