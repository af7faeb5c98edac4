"""Drafts the layout `rows` from a recording: the one call whose arguments are rows of all images, or its layers.

An argument says where the rows of each image end. From it follow the rows of each image, and from these what every
other argument is, the sides of an image in patches and the rows of a token. Whatever fits nothing is a refusal.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isqrt, prod

from scaffold.descriptor.port import ATTENTION
from scaffold.diagnostics import Diagnostic
from scaffold.draft.gates import put_gate
from scaffold.draft.inputs import Beyond, beyond
from scaffold.draft.reentry import ALL, as_reason, problems_of_way
from scaffold.draft.rows import too_early
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.subject import Subject
from scaffold.draft.values import SourceLine
from scaffold.draft.watched import (
    MERGE,
    VISION,
    Drafted,
    columns_of,
    function_of,
    line_of,
    narrow_entry,
    omitted,
    pixel_keys,
    put_fields,
    put_number,
    put_width,
    sizes_of_items,
)
from scaffold.watch import Batch, Call, Leaf, Recording, Repeated

_PATCH = re.compile(r"\.patch_size(\[0\])?$")
_MODALITIES = ("image", "vision_chunk")
#: The most tokens of an image beside those of its rows.
_MORE = 8
#: Columns of a grid that counts frames, too.
_WITH_FRAMES = 3
#: Integers that follow from the rows of each image, by batch.
_Rows = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A part with equal layers that is called once in each batch; `rows` are those of each image, or of its units."""

    path: str
    layers: Repeated
    calls: tuple[Call, ...]
    rows: _Rows
    place: SourceLine


@dataclass(frozen=True, slots=True)
class _Pixels:
    """The input that holds images: as patches with a `grid`, or as they are, with patches of `side` pixels.

    `mask` says which rows of an item are patches, where all are padded to one length. `zeros` are integers of other
    inputs for each item. A `nested` grid is a table of one row for each item, and a `moved` one is on the GPU.
    """

    key: str
    grid: str
    shape: tuple[int, ...]
    side: int
    columns: int
    mask: str = ""
    zeros: tuple[tuple[str, tuple[tuple[int, ...], tuple[int, ...]]], ...] = ()
    nested: bool = False
    moved: bool = False


def draft_watched_rows(subject: Subject, recording: Recording, sheet: Sheet) -> Drafted | None:
    """Fill in the sections of rows but `model`, `layout` and `integration`.

    None where no encoder is told where the rows of each image end. Raises VCG483 with what hinders one that is.
    """
    modality = next((name for name in _MODALITIES if recording.of(name)), _MODALITIES[0])
    batches = recording.of(modality)
    encoders = list(_encoders(recording, batches))
    if not encoders:
        return None
    encoder, *more = encoders
    if more:
        what = f"`{encoder.path}` and `{more[0].path}` ({more[0].place}) are both told where the rows of an image end"
        raise beyond(subject.tree, encoder.place, what)
    if too_early(subject.tree):
        raise beyond(subject.tree, encoder.place, "this release has no graphs of rows")
    results = [[leaf for leaf in call.results if leaf.is_tensor] for call in encoder.calls]
    kinds = {_kind(leaves, encoder.rows) for leaves in zip(*results, strict=False)}
    if len({len(found) for found in results}) != 1 or (len(results[0]) > 1 and kinds != {"rows"}):
        what = f"`{encoder.path}` gives {len(results[0])} tensors, of which some are no rows"
        raise beyond(subject.tree, encoder.place, what)
    pixels = _pixels(subject, batches, encoder)
    loop = _loop(subject, batches, encoder)
    entry, place = _entry(subject, batches[0], encoder, loop)
    sheet.put(f"modalities.{modality}.pixels", pixels.key, why="its images are the rows of the encoder")
    sheet.put(f"modalities.{modality}.entry", entry, place)
    put_fields(subject, batches, sheet, grids=True)
    _put_item(recording, batches, encoder, pixels, sheet)
    counts = ", ".join(str(sum(rows)) for rows in encoder.rows)
    sheet.put("forward.encoder", f"self.{encoder.path}", encoder.place, why=f"{counts} rows in {len(batches)} batches")
    if loop is not None:
        sheet.put("forward.loop", f"self.{encoder.layers.name.rpartition('.')[2]}", why=loop)
        unread = _unread(subject, batches, encoder)
        if unread:
            sheet.put("forward.unread", unread, why="the loop takes it, and no layer gets it")
    if len(results[0]) > 1:
        sheet.put("forward.several", True, encoder.place, why=f"it gives {len(results[0])} tensors of rows")
    put_width(recording, batches[0], sheet)
    if modality != _MODALITIES[0]:  # the frames of a chunk may become fewer tokens than its rows say
        put_gate(subject, (pixels.key,), sheet)
    # A chunk is an image where a test of the port brings one.
    return _MODALITIES[:1], omitted(subject, recording, (modality,), "graphs of rows hold images")


# -- the encoder -------------------------------------------------------------------------------------------------------


def _encoders(recording: Recording, batches: Sequence[Batch]) -> Iterator[_Encoder]:
    """The parts with layers that run once in each batch, and whose attention is told where rows end."""
    for layers in recording.repeated:
        path = layers.name.rpartition(".")[0]
        calls = [[call for call in batch.calls if call.part == path] for batch in batches]
        first = [[call for call in batch.calls if call.part == f"{layers.name}.0"] for batch in batches]
        if not path or not calls or any(len(found) != 1 for found in (*calls, *first)):
            continue
        rows = [_told(batch, call) for batch, [call] in zip(batches, first, strict=True)]
        told = tuple(found for found in rows if found is not None)
        inside = (call for call in batches[0].calls if call.part.startswith(f"{layers.name}.0."))
        attends = any(call.cls.endswith(f".{ATTENTION}") for call in inside)
        if len(told) == len(batches) and attends and len({sum(found) for found in told}) > 1:
            place = line_of(batches[0].way(calls[0][0])[-1])
            yield _Encoder(path, layers, tuple(call for [call] in calls), told, place)


def _told(batch: Batch, call: Call) -> tuple[int, ...] | None:
    """The rows of each item, from the one argument that counts them up from 0 to the length of another argument.

    An image may be several units, such as tiles, whose rows a grid among the inputs tells.
    """
    lengths = {size for leaf in call.arguments for size in leaf.shape}
    units = [_products(leaf) for leaf in batch.inputs]
    found = set()
    for leaf in call.arguments:
        ends = leaf.value if leaf.is_tensor and len(leaf.shape) == 1 else None
        if isinstance(ends, list) and ends[:1] == [0] and ends[-1] in lengths:
            rows = tuple(end - begin for begin, end in pairwise(ends))
            found |= {rows} if len(rows) == len(batch.items) or rows in units else set()
    return found.pop() if len(found) == 1 and min(map(min, found)) > 0 else None


def _products(leaf: Leaf) -> tuple[int, ...]:
    """The rows that each entry of a grid says; none of any other value."""
    return tuple(map(prod, _grid(leaf)))


def _grid(leaf: Leaf) -> list[list[int]]:
    """The rows of a grid, each of which may be in a table of its own; none of any other value."""
    value = leaf.value if isinstance(leaf.value, list) else []
    if all(isinstance(row, list) and len(row) == 1 and isinstance(row[0], list) for row in value):
        value = [row[0] for row in value]
    whole = all(isinstance(row, list) and all(type(one) is int for one in row) for row in value)
    return value if whole else []


def _kind(leaves: Sequence[Leaf], rows: _Rows) -> str:
    """The role of an argument in all batches: `rows`, `offsets`, `longest`, `constant`, or none of them (empty)."""
    if not all(leaf.is_tensor for leaf in leaves):
        known = all(leaf.value is not None or leaf.type == "NoneType" for leaf in leaves)
        return "constant" if known and len({(leaf.type, str(leaf.value)) for leaf in leaves}) == 1 else ""
    shapes = [leaf.shape for leaf in leaves]
    if len({len(shape) for shape in shapes}) == 1:
        sums = [sum(found) for found in rows]
        rests = (
            axis
            for axis in range(len(shapes[0]))
            if [shape[axis] for shape in shapes] == sums
            and len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) == 1
        )
        if len(list(rests)) == 1:
            return "rows"
    values = [leaf.value for leaf in leaves]
    if values == [[0, *accumulate(found)] for found in rows]:
        return "offsets"
    if all(prod(shape) == 1 for shape in shapes) and [_one(value) for value in values] == [max(f) for f in rows]:
        return "longest"
    return "constant" if values[0] is not None and all(value == values[0] for value in values) else ""


def _one(value: object) -> object:
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _unfit(calls: Sequence[Call], rows: _Rows) -> str | None:
    """The first argument of a call that no buffer holds; None where each is held."""
    names = [[leaf.at for leaf in call.arguments] for call in calls]
    for index, name in enumerate(names[0]):
        if any(found != names[0] for found in names) or not _kind([call.arguments[index] for call in calls], rows):
            return name
    return None


def _loop(subject: Subject, batches: Sequence[Batch], encoder: _Encoder) -> str | None:
    """Why the loop over the layers is captured, not the call itself: None where that gets what buffers hold."""
    unfit = _unfit(encoder.calls, encoder.rows)
    if unfit is None:
        results = [[leaf for leaf in call.results if leaf.is_tensor] for call in encoder.calls]
        if {_kind(leaves, encoder.rows) for leaves in zip(*results, strict=True)} == {"rows"}:
            return None
        unfit = "the result"
    else:
        unfit = f"`{unfit}`"
    layers: list[list[int]] = []
    for index in range(encoder.layers.count):
        part = f"{encoder.layers.name}.{index}"
        numbers = [[n for n, call in enumerate(batch.calls) if call.part == part] for batch in batches]
        if any(len(found) != 1 for found in numbers):
            what = f"the layer `{part}` is called {len(numbers[0])} times in the loop of `{encoder.path}`"
            raise beyond(subject.tree, encoder.place, what)
        layers.append([found for [found] in numbers])
    for index, numbers_of in enumerate(layers):
        calls = [batch.calls[number] for batch, number in zip(batches, numbers_of, strict=True)]
        at = line_of(batches[0].way(calls[0])[-1])
        name = _unfit(calls, encoder.rows)
        if name is not None:
            what = (
                f"`{name}` of the layer `{calls[0].part}` is neither rows, offsets, the longest of them nor a constant"
            )
            raise beyond(subject.tree, at, what)
        used = _beside(batches[0], numbers_of[0], f"{encoder.layers.name}.{index + 1}")
        if used and index + 1 < len(layers):
            raise beyond(subject.tree, at, f"`{used}` gets the result of the layer `{calls[0].part}`, beside the next")
    return f"{unfit} of the encoder is nothing that a buffer holds, and what its layers get is"


def _unread(subject: Subject, batches: Sequence[Batch], encoder: _Encoder) -> list[str]:
    """Variables in the loop over the layers that no buffer holds: no layer gets them, as `_loop` has found."""
    firsts = [next(call for call in batch.calls if call.part == f"{encoder.layers.name}.0") for batch in batches]
    frames = [
        next(frame for frame in reversed(batch.way(call)) if frame.part == encoder.path)
        for batch, call in zip(batches, firsts, strict=True)
    ]
    found = function_of(subject, frames[0])
    line = frames[0].place.line
    loops = [node for node in ast.walk(found[1]) if isinstance(node, ast.For)] if found is not None else []
    read = {
        node.id
        for loop in loops
        if loop.lineno <= line <= (loop.end_lineno or 0)
        for node in ast.walk(loop)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    values = [{leaf.at: leaf for leaf in frame.values if leaf.is_tensor} for frame in frames]
    names = sorted(read.intersection(*values))
    return [name for name in names if not _kind([one[name] for one in values], encoder.rows)]


def _beside(batch: Batch, number: int, following: str) -> str:
    """The part that gets the result of a call but is not the following layer, nor in it; empty if there is none."""
    for call in batch.calls[number + 1 :]:
        own = call.part == following or call.part.startswith(f"{following}.")
        if not own and any(source.of == f"#{number}" for leaf in call.arguments for source in leaf.sources):
            return call.part
    return ""


def _entry(subject: Subject, batch: Batch, encoder: _Encoder, loop: str | None) -> tuple[str, SourceLine]:
    """The entry from which the generator finds the encoder. Raises VCG483 where there is none."""
    first = batch.way(encoder.calls[0])[0]
    narrow = narrow_entry(subject, first)
    attribute = f"self.{encoder.layers.name.rpartition('.')[2]}" if loop is not None else None
    problems: list[Diagnostic] = []
    for entry in [narrow, ALL] if narrow else [ALL]:
        problems = problems_of_way(subject, [entry], f"self.{encoder.path}", attribute)
        if not problems:
            return entry, line_of(first)
    raise Beyond([as_reason(problem) for problem in problems])


# -- an item -----------------------------------------------------------------------------------------------------------


def _pixels(subject: Subject, batches: Sequence[Batch], encoder: _Encoder) -> _Pixels:
    """The input that the rows are made of. Raises VCG483 where the model gets more than it, or it is something else."""
    keys = sorted(pixel_keys(batches[0]))
    if len(keys) != 1:
        raise beyond(subject.tree, encoder.place, f"images come in several inputs: {', '.join(keys)}")
    key = keys[0]
    given = [[leaf for leaf in batch.inputs if leaf.at.partition("[")[0] == key] for batch in batches]
    grids = sorted(
        leaf.at
        for leaf in batches[0].inputs
        if [_products(one) for batch in batches for one in batch.inputs if one.at == leaf.at] == list(encoder.rows)
    )
    grid = next((name for name in grids), None)
    fields = {field.key: field for field in batches[0].fields}
    counts = {sizes_of_items(batches, fields[name]) for name in (key, grid) if name in fields}
    mask = next((leaf.at for leaf in batches[0].inputs if _is_mask(leaf, given[0][0])), "") if grid else ""
    zeros = dict(_zeros(batches, encoder.rows, {key, mask, *grids})) if grid else {}
    known = {key, grid, mask, *counts, *zeros}
    others = {leaf.at.partition("[")[0] for batch in batches for leaf in batch.inputs} - known
    if others:
        what = f"the model gets `{'`, `'.join(sorted(others))}` with `{key}`, which this draft does not describe"
        raise beyond(subject.tree, encoder.place, what)
    if grid is not None:
        leaves = [leaf for batch in batches for leaf in batch.inputs if leaf.at == grid]
        values = [_grid(leaf) for leaf in leaves]
        columns = {len(row) for value in values for row in value}
        single = any(len(row) == _WITH_FRAMES and row[0] == 1 for value in values for row in value)
        shapes = {leaf.shape for leaf in given[0]}
        padded = len(shapes) == 1 and min(shapes)[:1] == (len(values[0]),) and min(shapes)[0] != sum(encoder.rows[0])
        if columns == {2} or (columns == {_WITH_FRAMES} and single):
            shape = given[0][0].shape[2 if padded else 1 :]
            nested, moved = leaves[0].value != values[0], leaves[0].device == "cuda"
            return _Pixels(key, grid, shape, 0, columns.pop(), mask, tuple(zeros.items()), nested, moved)
        what = f"`{grid}` does not say so many rows as the encoder gets of each image: {values[0]}, {encoder.rows[0]}"
        raise beyond(subject.tree, encoder.place, what)
    images = [leaf.shape for found in given for leaf in found]
    lengths = [count for found in encoder.rows for count in found]
    if len(images) == len(lengths) and all(len(shape) == 3 for shape in images):
        sides = {isqrt(shape[1] * shape[2] // count) for shape, count in zip(images, lengths, strict=True)}
        side = max(sides)
        whole = all(
            shape[1] % side == shape[2] % side == 0 and shape[1] // side * (shape[2] // side) == count
            for shape, count in zip(images, lengths, strict=True)
        )
        if len(sides) == 1 and whole and len({shape[0] for shape in images}) == 1:
            return _Pixels(key, "", images[0], side, 0)
    what = f"`{key}` is neither patches with a grid nor images of whole patches: {images[0]} for {lengths[0]} rows"
    raise beyond(subject.tree, encoder.place, what)


def _zeros(
    batches: Sequence[Batch], rows: _Rows, known: set[str]
) -> Iterator[tuple[str, tuple[tuple[int, ...], tuple[int, ...]]]]:
    """The other inputs with integers for each item: their shape, and that of an image of one token if it has more."""
    for name in dict.fromkeys(leaf.at.partition("[")[0] for leaf in batches[0].inputs):
        shapes: dict[tuple[int, ...], set[int]] = {}
        for batch, counts in zip(batches, rows, strict=True):
            leaves = [leaf for leaf in batch.inputs if leaf.at.partition("[")[0] == name]
            whole = len(leaves) == 1 and leaves[0].shape[:1] == (len(batch.items),) and leaves[0].at == name
            apart = len(leaves) == len(batch.items) and all(leaf.at != name for leaf in leaves)
            if name in known or not (whole or apart) or not all(leaf.dtype.startswith("int") for leaf in leaves):
                break
            made = [leaves[0].shape[1:]] * len(counts) if whole else [leaf.shape for leaf in leaves]
            for shape, count in zip(made, counts, strict=False):
                shapes.setdefault(shape, set()).add(count)
        else:
            most, *other = sorted(shapes, key=lambda shape: -len(shapes[shape]))
            if most and not other:
                yield name, (most, ())
            elif len(most) == len(other) == 1 and max(shapes[other[0]]) < min(shapes[most]):
                yield name, (most, other[0])


def _is_mask(leaf: Leaf, pixels: Leaf) -> bool:
    """Whether an input says something of each row of an item, where rows of all items are padded to one length."""
    return not leaf.dtype.startswith("float") and len(leaf.shape) > 1 and leaf.shape == pixels.shape[: len(leaf.shape)]


def _put_item(recording: Recording, batches: Sequence[Batch], encoder: _Encoder, pixels: _Pixels, sheet: Sheet) -> None:
    channels, *sides = pixels.shape
    square = len(sides) == 2 and (bool(pixels.side) or sides[0] == sides[1])
    if square:
        side = pixels.side or sides[0]
        what = f"the side of a patch, in pixels: {side} in the recording"
        put_number(recording, side, "let.p", what, _PATCH, VISION, sheet)
        shape = ["h * p", "w * p"] if pixels.side else ["p", "p"]
        rows = [] if pixels.side else ["h * w"]
        sheet.put("item.shape", [*rows, str(channels), *shape], encoder.place, why=_shown(pixels, encoder))
    elif not sides:
        width = columns_of(recording, batches[0], pixels.key, "", pixels.shape[0], "let.width", sheet)
        if width:
            sheet.put("let.width", width, why=f"the first part that gets rows of {pixels.shape[0]} values")
        sheet.put("item.shape", ["h * w", "width"], encoder.place, why=_shown(pixels, encoder))
    else:
        sheet.put("item.shape", ["h * w", *map(str, pixels.shape)], encoder.place, why=_shown(pixels, encoder))
    if pixels.grid:
        why = "its product is the rows of each image"
        entries = ["1", "h", "w"][_WITH_FRAMES - pixels.columns :]
        entries = [f"[{', '.join(entries)}]"] if pixels.nested else entries
        sheet.put(f"item.values.{pixels.grid}", entries, why=why)
    if pixels.moved:
        sheet.put("item.moved", [pixels.grid], why="the processor does not keep it on the host")
    if pixels.mask:
        sheet.put("item.mask", pixels.mask, why="an entry for each row, where all items are padded to one length")
    _put_merge(recording, batches, encoder, pixels, sheet)
    for name, (most, single) in pixels.zeros:
        size = list(map(str, most))
        if single and sheet.has("item.merge"):
            merge = sheet.value("item.merge").strip('"')
            size = [f"{most[0]} + {single[0] - most[0]} * (1 - min(1, h * w // ({merge} ** 2 + 1)))"]
        sheet.put(f"item.zeros.{name}", size, why="so many integers in each item")


def _shown(pixels: _Pixels, encoder: _Encoder) -> str:
    return f"{', '.join(map(str, encoder.rows[0]))} rows, as `{pixels.grid or pixels.key}` says"


def _put_merge(
    recording: Recording, batches: Sequence[Batch], encoder: _Encoder, pixels: _Pixels, sheet: Sheet
) -> None:
    """The side of the square of rows that becomes a token."""
    counts = []
    for batch, found in zip(batches, encoder.rows, strict=True):
        grid = next((_grid(leaf) for leaf in batch.inputs if leaf.at == pixels.grid), [])
        lengths = next((field.lengths for field in batch.fields if field.key == pixels.grid), ())
        ends = list(accumulate(lengths or [1] * len(found)))
        for begin, end, leaf in zip([0, *ends], ends, batch.results, strict=False):
            frames = grid[begin][0] if grid and pixels.columns == _WITH_FRAMES else 1
            if frames == 1:  # a port holds one frame, and tokens of more may be fewer
                counts.append((sum(found[begin:end]), leaf.shape[0]))
    # Tokens around an image are the same number for all.
    more = range(_MORE + 1 if len({rows for rows, _ in counts}) > 1 else 1)
    sides = [(isqrt(counts[0][0] // max(counts[0][1] - extra, 1)), extra) for extra in more]
    # An image of one token may have more of them than others.
    fitting = [
        side
        for side, extra in sides
        if all(rows == (tokens - extra) * side**2 or (extra and rows == side**2) for rows, tokens in counts)
    ]
    if not fitting:
        sheet.obstacles.append(_no_square(counts))
        return
    side = fitting[0]
    what = f"the side of the square of rows that becomes one token: {side} in the recording"
    if side == 1 and not any(number == 1 and MERGE.search(path) for path, number in recording.numbers.items()):
        sheet.ask(Question("item.merge", what, (Candidate("1", "each row is a token"),)))
        return
    put_number(recording, side, "item.merge", what, MERGE, VISION, sheet)


def _no_square(counts: Sequence[tuple[int, int]]) -> Diagnostic:
    seen = ", ".join(f"{rows} rows, {tokens} tokens" for rows, tokens in counts[:3])
    return Diagnostic("VCG483", f"the model is beyond the layouts: no square of rows is a token ({seen})")
