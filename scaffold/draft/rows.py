"""Drafts the layout `rows` from a recording: the one call whose arguments are rows of all images, or its layers.

An argument says where the rows of each image end. From it follow the rows of each image, and from these what every
other argument is, the sides of an image in patches and the rows of a token. Whatever fits nothing is a refusal.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from math import isqrt, prod

from scaffold.descriptor.port import ATTENTION
from scaffold.diagnostics import Diagnostic
from scaffold.draft.common import (
    MERGE,
    VISION,
    Drafted,
    columns_of,
    entries_of,
    function_of,
    line_of,
    omitted,
    pixel_keys,
    put_fields,
    put_number,
    put_width,
    sizes_of_items,
)
from scaffold.draft.frames import Frames, find_frames
from scaffold.draft.gates import put_gate
from scaffold.draft.locate import Subject
from scaffold.draft.refusals import Beyond, beyond
from scaffold.draft.sheet import Candidate, Question, Sheet, SourceLine
from scaffold.draft.tokens import TokenEntries, entries_of_tokens
from scaffold.draft.unportable import dialect_of
from scaffold.draft.ways import as_reason, problems_of_way
from scaffold.tower.names import loads
from scaffold.watch import Batch, Call, Leaf, Recording, Repeated

_PATCH = re.compile(r"[._]patch_size(\[0\])?$")
_SOUND = "audio"
_MODALITIES = ("image", "vision_chunk", _SOUND)
#: The most tokens of an image beside those of its rows.
_MORE = 8
#: Columns of a grid that counts frames, too.
_WITH_FRAMES = 3
#: Integers that follow from the rows of each image, by batch.
_Rows = Sequence[tuple[int, ...]]
#: The shape of integers for an item, `rows` or `tokens` among its sizes; and that of an image of one token, if it is
#: another one.
_Zeros = tuple[tuple[int | str, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A part with equal layers that is called once in each batch; `rows` are those of each image, or of its units.

    One `per_item` is called for each image, and its layers attend to all rows of a call. `loop` is the attribute with
    its layers. `runs` are its calls, each with its batch and the numbers of the calls from it to the next one.
    """

    path: str
    layers: Repeated
    runs: tuple[tuple[Batch, range], ...]
    rows: _Rows
    place: SourceLine
    per_item: bool

    @property
    def loop(self) -> str:
        return f"self.{self.layers.name.removeprefix(f'{self.path}.')}"

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(batch.calls[numbers[0]] for batch, numbers in self.runs)

    @property
    def results(self) -> list[list[Leaf]]:
        """The tensors that each call gives."""
        return [[leaf for leaf in call.results if leaf.is_tensor] for call in self.calls]

    @property
    def rows_of_calls(self) -> _Rows:
        """The rows of each image in each call."""
        return [(count,) for counts in self.rows for count in counts] if self.per_item else self.rows


@dataclass(frozen=True, slots=True)
class _Pixels:
    """The input that holds images: as patches with a `grid`, or as they are, with patches of `side` pixels.

    `mask` says which rows of an item are patches, where all are padded to one length. `zeros` are integers of other
    inputs for each item. A `nested` grid is a table of one row for each item, and a `moved` one is on the GPU. `coarse`
    is the grid of tokens where it is an input, too, of squares with `ratio` rows a side; `tokens` has entries of these.
    """

    key: str
    grid: str
    shape: tuple[int, ...]
    side: int
    columns: int
    mask: str = ""
    zeros: tuple[tuple[str, _Zeros], ...] = ()
    nested: bool = False
    moved: bool = False
    coarse: str = ""
    ratio: int = 0
    tokens: TokenEntries | None = None


def draft_rows(subject: Subject, recording: Recording, sheet: Sheet) -> Drafted | None:
    """Fill in the sections of rows but `model`, `layout` and `integration`.

    None where no encoder is told where the rows of each image end. Raises VCG483 with what hinders one that is.
    """
    modality = next((name for name in _MODALITIES if recording.of(name)), _MODALITIES[0])
    batches = recording.of(modality)
    encoders = list(_encoders(recording, batches)) if batches else []
    if not encoders:
        return None
    encoder, *more = encoders
    if more:
        what = f"`{encoder.path}` and `{more[0].path}` ({more[0].place}) are both told where the rows of an image end"
        raise beyond(subject.tree, encoder.place, what)
    dialect = dialect_of(subject.tree)
    if dialect is not None and not dialect.padding_logics:
        raise beyond(subject.tree, encoder.place, "this release has no graphs of rows")
    results = encoder.results
    kinds = {_kind(leaves, encoder.rows_of_calls) for leaves in zip(*results, strict=False)}
    if len({len(found) for found in results}) != 1 or (len(results[0]) > 1 and kinds != {"rows"}):
        what = f"`{encoder.path}` gives {len(results[0])} tensors, of which some are no rows"
        raise beyond(subject.tree, encoder.place, what)
    pixels: _Pixels | Frames = (
        find_frames(subject, recording, batches, encoder.path, encoder.place, encoder.rows)
        if modality == _SOUND
        else _pixels(subject, batches, encoder)
    )
    loop = _loop(subject, encoder)
    entry, place = _entry(subject, batches[0], encoder, loop)
    what = "sounds" if modality == _SOUND else "images"
    sheet.put(f"modalities.{modality}.pixels", pixels.key, why=f"its {what} are the rows of the encoder")
    sheet.put(f"modalities.{modality}.entry", entry, place)
    put_fields(subject, batches, sheet, grids=True)
    if isinstance(pixels, Frames):
        pixels.put(recording, sheet, encoder.place)
    else:
        _put_item(recording, batches, encoder, pixels, sheet)
    counts = ", ".join(str(sum(rows)) for rows in encoder.rows)
    sheet.put("forward.encoder", f"self.{encoder.path}", encoder.place, why=f"{counts} rows in {len(batches)} batches")
    if loop is not None:
        sheet.put("forward.loop", encoder.loop, why=loop)
        unread = _unread(subject, encoder)
        if unread:
            sheet.put("forward.unread", unread, why="the loop takes it, and no layer gets it")
    if encoder.per_item:
        sheet.put(
            "forward.per_item", True, encoder.place, why="a call for each image, whose layers get all of its rows"
        )
    if len(results[0]) > 1:
        sheet.put("forward.several", True, encoder.place, why=f"it gives {len(results[0])} tensors of rows")
    put_width(recording, batches[0], sheet)
    if modality == _MODALITIES[1]:  # the frames of a chunk may become fewer tokens than its rows say
        put_gate(subject, (pixels.key,), sheet)
    # A chunk is an image where a test of the port brings one.
    kept = (modality if modality == _SOUND else _MODALITIES[0],)
    return kept, omitted(subject, recording, (modality,), f"graphs of rows hold {what}")


# -- the encoder -------------------------------------------------------------------------------------------------------


def _encoders(recording: Recording, batches: Sequence[Batch]) -> Iterator[_Encoder]:
    """The parts with layers that run once in each batch, and whose attention is told where rows end.

    Or they run once for each image, on rows of which a grid among the inputs says how many there are.
    """
    for layers in recording.repeated:
        path = _called(batches[0], layers.name.rpartition(".")[0])
        runs = [list(_runs(batch, path)) for batch in batches] if path else [[]]
        first = f"{layers.name}.0"
        inner = [
            [call for n in numbers if (call := batch.calls[n]).part == first]
            for found in runs
            for batch, numbers in found
        ]
        if not all(runs) or any(len(found) != 1 for found in inner):
            continue
        inside = (call for call in batches[0].calls if call.part.startswith(f"{first}."))
        attends = any(call.cls.endswith(f".{ATTENTION}") for call in inside)
        apart = [len(found) for found in runs] == [len(batch.items) for batch in batches]
        if all(len(found) == 1 for found in runs):
            rows = [_told(batch, call) for batch, [call] in zip(batches, inner, strict=True)]
        elif apart:
            calls = iter(inner)
            rows = [_gridded(batch, [call for [call] in islice(calls, len(batch.items))]) for batch in batches]
        else:
            continue
        told = tuple(found for found in rows if found is not None)
        if len(told) == len(batches) and attends and len({sum(found) for found in told}) > 1:
            batch, numbers = runs[0][0]
            place = line_of(batch.way(batch.calls[numbers[0]])[-1])
            yield _Encoder(path, layers, tuple(chain(*runs)), told, place, not all(len(found) == 1 for found in runs))


def _called(batch: Batch, path: str) -> str:
    """The part that is called, of one that may only hold others and those around it; empty if none is."""
    called = {call.part for call in batch.calls}
    while path and path not in called:
        path = path.rpartition(".")[0]
    return path


def _runs(batch: Batch, path: str) -> Iterator[tuple[Batch, range]]:
    """The calls of a part, each with the numbers of the calls up to the next one."""
    begins = [number for number, call in enumerate(batch.calls) if call.part == path]
    for begin, end in zip(begins, [*begins[1:], len(batch.calls)], strict=True):
        yield batch, range(begin, end)


def _gridded(batch: Batch, calls: Sequence[Call]) -> tuple[int, ...] | None:
    """The rows of each item, of which a grid among the inputs says how many there are, and each call gets those."""
    for rows in map(_products, batch.inputs):
        if len(rows) == len(calls) and all(
            any(count in leaf.shape for leaf in call.arguments) for count, call in zip(rows, calls, strict=True)
        ):
            return rows
    return None


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
            # A sound is a sequence for each window of its attention.
            known = len(rows) == len(batch.items) or rows in units or batch.modality == _SOUND
            found |= {rows} if known else set()
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


def _loop(subject: Subject, encoder: _Encoder) -> str | None:
    """Why the loop over the layers is captured, not the call itself: None where that gets what buffers hold."""
    rows = encoder.rows_of_calls
    unfit = _unfit(encoder.calls, rows)
    if unfit is None:
        if {_kind(leaves, rows) for leaves in zip(*encoder.results, strict=True)} == {"rows"}:
            return None
        unfit = "the result"
    else:
        unfit = f"`{unfit}`"
    first = encoder.runs[0][0]
    for index in range(encoder.layers.count):
        part = f"{encoder.layers.name}.{index}"
        found = [[n for n in numbers if batch.calls[n].part == part] for batch, numbers in encoder.runs]
        if any(len(numbers) != 1 for numbers in found):
            what = f"the layer `{part}` is called {len(found[0])} times in the loop of `{encoder.path}`"
            raise beyond(subject.tree, encoder.place, what)
        calls = [batch.calls[n] for (batch, _), [n] in zip(encoder.runs, found, strict=True)]
        at = line_of(first.way(calls[0])[-1])
        name = _unfit(calls, rows)
        if name is not None:
            what = f"`{name}` of the layer `{part}` is neither rows, offsets, the longest of them nor a constant"
            raise beyond(subject.tree, at, what)
        used = _beside(first, found[0][0], encoder.runs[0][1], f"{encoder.layers.name}.{index + 1}")
        if used and index + 1 < encoder.layers.count:
            raise beyond(subject.tree, at, f"`{used}` gets the result of the layer `{part}`, beside the next")
    return f"{unfit} of the encoder is nothing that a buffer holds, and what its layers get is"


def _unread(subject: Subject, encoder: _Encoder) -> list[str]:
    """Variables in the loop over the layers that no buffer holds: no layer gets them, as `_loop` has found."""
    part = f"{encoder.layers.name}.0"
    firsts = [
        (batch, next(batch.calls[n] for n in numbers if batch.calls[n].part == part)) for batch, numbers in encoder.runs
    ]
    frames = [
        next(frame for frame in reversed(batch.way(call)) if frame.part == encoder.path) for batch, call in firsts
    ]
    found = function_of(subject, frames[0])
    line = frames[0].place.line
    loops = [node for node in ast.walk(found[1]) if isinstance(node, ast.For)] if found is not None else []
    read = {name for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0) for name in loads(loop)}
    values = [{leaf.at: leaf for leaf in frame.values if leaf.is_tensor} for frame in frames]
    names = sorted(read.intersection(*values))
    return [name for name in names if not _kind([one[name] for one in values], encoder.rows_of_calls)]


def _beside(batch: Batch, number: int, run: range, following: str) -> str:
    """The part that gets the result of a call but is not the following layer, nor in it; empty if there is none."""
    for call in batch.calls[number + 1 : run.stop]:
        own = call.part == following or call.part.startswith(f"{following}.")
        if not own and any(source.of == f"#{number}" for leaf in call.arguments for source in leaf.sources):
            return call.part
    return ""


def _entry(subject: Subject, batch: Batch, encoder: _Encoder, loop: str | None) -> tuple[str, SourceLine]:
    """The entry from which the generator finds the encoder. Raises VCG483 where there is none."""
    first = batch.way(encoder.calls[0])[0]
    attribute = encoder.loop if loop is not None else None
    problems: list[Diagnostic] = []
    for entry in entries_of(subject, first):
        problems = problems_of_way(subject, [entry], f"self.{encoder.path}", attribute, per_item=encoder.per_item)
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
    given = [batch.given(key) for batch in batches]
    grids = sorted(
        leaf.at
        for leaf in batches[0].inputs
        if [_products(one) for batch in batches for one in batch.inputs if one.at == leaf.at] == list(encoder.rows)
    )
    grid = next((name for name in grids), None)
    fields = {field.key: field for field in batches[0].fields}
    counts = {sizes_of_items(batches, fields[name]) for name in (key, grid) if name in fields}
    # It says something of each row of an item, where rows of all items are padded to one length.
    shape = given[0][0].shape
    alike = (one for one in batches[0].inputs if len(one.shape) > 1 and one.shape == shape[: len(one.shape)])
    mask = next((one.at for one in alike if grid and not one.dtype.startswith("float")), "")
    coarse, ratio = _coarse(batches, grid) if grid else ("", 0)
    told = (entries_of_tokens(subject, batches, fields[one]) for one in fields if one != key and coarse)
    tokens = next((one for one in told if one is not None and one.grid == coarse), None)
    described = {key, mask, coarse, *grids[:1], *([tokens.name] if tokens is not None else [])}
    zeros = dict(_zeros(batches, encoder.rows, {*described, *grids})) if grid else {}
    known = {*described, *counts, *zeros}
    others = {leaf.key for batch in batches for leaf in batch.inputs} - known
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
            integers = tuple(zeros.items())
            return _Pixels(key, grid, shape, 0, columns.pop(), mask, integers, nested, moved, coarse, ratio, tokens)
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


def _coarse(batches: Sequence[Batch], grid: str) -> tuple[str, int]:
    """The input with the grid of tokens of each item, and the side of the square of rows that is one; or neither."""
    fine = [_grid(leaf) for batch in batches for leaf in batch.inputs if leaf.at == grid]
    for at in dict.fromkeys(leaf.at for leaf in batches[0].inputs if leaf.at != grid):
        found = [_grid(leaf) for batch in batches for leaf in batch.inputs if leaf.at == at]
        for side in range(2, _MORE + 1):
            if found == [[[-(-one // side) for one in row] for row in rows] for rows in fine]:
                return at, side
    return "", 0


def _zeros(batches: Sequence[Batch], rows: _Rows, known: set[str]) -> Iterator[tuple[str, _Zeros]]:
    """The other inputs with integers for each item, as many for all, or one for each of its rows or tokens."""
    for name in dict.fromkeys(leaf.key for leaf in batches[0].inputs):
        shapes: dict[tuple[int, ...], set[int]] = {}
        per: list[tuple[int | str, ...]] = []
        for batch, counts in zip(batches, rows, strict=True):
            leaves = batch.given(name)
            whole = len(leaves) == 1 and leaves[0].shape[:1] == (len(batch.items),) and leaves[0].at == name
            apart = len(leaves) == len(batch.items) and all(leaf.at != name for leaf in leaves)
            flat = next((field.lengths for field in batch.fields if field.key == name and field.kind == "flat"), ())
            if name in known or not all(leaf.dtype.startswith("int") for leaf in leaves):
                break
            if flat and len(leaves) == 1 and flat in (counts, tuple(leaf.shape[0] for leaf in batch.results)):
                per.append(("rows" if flat == counts else "tokens", *leaves[0].shape[1:]))
                continue
            if not (whole or apart):
                break
            made = [leaves[0].shape[1:]] * len(counts) if whole else [leaf.shape for leaf in leaves]
            for shape, count in zip(made, counts, strict=False):
                shapes.setdefault(shape, set()).add(count)
        else:
            most, *other = sorted(shapes, key=lambda shape: -len(shapes[shape])) or [()]
            if per and len(set(per)) == 1 and len(per) == len(batches):
                yield name, (per[0], ())
            elif not per and most and not other:
                yield name, (most, ())
            elif not per and len(most) == len(other) == 1 and max(shapes[other[0]]) < min(shapes[most]):
                yield name, (most, other[0])


def _put_item(recording: Recording, batches: Sequence[Batch], encoder: _Encoder, pixels: _Pixels, sheet: Sheet) -> None:
    channels, *sides = pixels.shape
    square = len(sides) == 2 and (bool(pixels.side) or sides[0] == sides[1])
    if square:
        side = pixels.side or sides[0]
        what = f"the side of a patch, in pixels: {side} in the recording"
        stride = _stride(recording, batches[0], pixels.key, side)
        if stride:
            sheet.put(
                "let.p", stride, encoder.place, why=f"the stride of what gets the images: {side} in the recording"
            )
        else:
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
    _put_merge(recording, batches, encoder, pixels, sheet)
    merge = sheet.value("item.merge").strip('"') if sheet.has("item.merge") else "1"
    if pixels.grid:
        why = "its product is the rows of each image"
        entries = ["1", "h", "w"][_WITH_FRAMES - pixels.columns :]
        entries = [f"[{', '.join(entries)}]"] if pixels.nested else entries
        sheet.put(f"item.values.{pixels.grid}", entries, why=why)
    if pixels.coarse:
        tokens = [f"h // {merge}", f"w // {merge}"]
        sheet.put(f"item.values.{pixels.coarse}", tokens, why="the grid of an image's tokens, as it is in each batch")
    if pixels.tokens is not None:
        pixels.tokens.put(sheet)
    if pixels.moved:
        sheet.put("item.moved", [pixels.grid], why="the processor does not keep it on the host")
    if pixels.mask:
        sheet.put("item.mask", pixels.mask, why="an entry for each row, where all items are padded to one length")
    sizes = {"rows": "h * w", "tokens": f"(h // {merge}) * (w // {merge})"}
    for name, (most, single) in pixels.zeros:
        size = [sizes.get(str(one), str(one)) for one in most]
        if single and sheet.has("item.merge"):
            size = [f"{most[0]} + {single[0] - int(most[0])} * (1 - min(1, h * w // ({merge} ** 2 + 1)))"]
        sheet.put(f"item.zeros.{name}", size, why="so many integers in each item")


def _stride(recording: Recording, batch: Batch, key: str, side: int) -> str:
    """The stride of the one part that gets images and has it, where no configuration names the side of a patch."""
    if any(n in (side, [side, side]) and _PATCH.search(path) for path, n in recording.numbers.items()):
        return ""
    parts = {
        call.part for call in batch.calls for leaf in call.arguments for one in leaf.sources if one.of.startswith(key)
    }
    strides = {f"self.{part}.stride" for part in parts if recording.numbers.get(f"self.{part}.stride") == [side, side]}
    return f"{strides.pop()}[0]" if len(strides) == 1 else ""


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
    side = pixels.ratio or next(iter(fitting), 0)
    if not side:
        seen = ", ".join(f"{rows} rows, {tokens} tokens" for rows, tokens in counts[:3])
        what = f"the model is beyond the layouts: no square of rows is a token ({seen})"
        raise Beyond(Diagnostic("VCG483", what))
    what = f"the side of the square of rows that becomes one token: {side} in the recording"
    if side == 1 and not any(number == 1 and MERGE.search(path) for path, number in recording.numbers.items()):
        sheet.ask(Question("item.merge", what, (Candidate("1", "each row is a token"),)))
        return
    put_number(recording, side, "item.merge", what, MERGE, VISION, sheet)
