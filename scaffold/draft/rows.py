"""Drafts the layout `rows` from a recording: the one call whose arguments are rows of all images, or its layers.

An argument says where the rows of each image end. From it follow the rows of each image, and from these what every
other argument is, the sides of an image in patches and the rows of a token. Whatever fits nothing is a refusal.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from math import prod
from typing import Any

from scaffold.cut import Extraction, Form, find_layers, find_looped_layers, find_tails
from scaffold.descriptor.expressions import parse_call
from scaffold.descriptor.port import ATTENTION, LONGEST
from scaffold.diagnostics import DiagnosticError
from scaffold.draft.common import (
    SOUND,
    function_of,
    line_of,
    pixel_keys,
    sizes_of_items,
    token_side,
    waiting_call,
)
from scaffold.draft.frames import put_frames
from scaffold.draft.locate import Subject
from scaffold.draft.looped import Calls
from scaffold.draft.numbers import MERGE, PATCH, VISION, put_columns, put_number
from scaffold.draft.sheet import Beyond, Candidate, Sheet, SourceLine, beyond
from scaffold.draft.tokens import put_tokens
from scaffold.draft.ways import NOWHERE, entry_to, way_to
from scaffold.tower import attention_leaves_rows
from scaffold.tower.names import loads
from scaffold.watch import Batch, Call, Frame, Leaf, Recording, Repeated

CHUNK = "vision_chunk"
_MODALITIES = ("image", CHUNK, SOUND)
#: The most tokens of an image beside those of its rows.
_MORE = 8
#: Columns of a grid that counts frames, too.
_WITH_FRAMES = 3
#: Integers that follow from the rows of each image, by batch.
_Rows = Sequence[tuple[int, ...]]
#: The shape of integers for an item, `rows` or `tokens` among its sizes; and that of an image of one token, if it is
#: another one.
_Zeros = tuple[tuple[int | str, ...], tuple[int, ...]]


#: Keys of items and calls that an explicit port has no code for.
_NOT_EXPLICIT = (
    "item.values", "item.zeros", "item.mask", "item.tokens", "forward.loop", "forward.per_item", "forward.several",
)  # fmt: skip
#: The buffers of an explicit port, each with what showed it.
_BUFFERS = {
    "rows": "an entry for each patch along this axis",
    "rotary": "a pair of tensors with an entry for each patch",
    "offsets": "where the patches of each image end",
    "longest": "the most patches of an image",
    "lengths": "None in the recording: FlashInfer's attention alone asks for it",
}
#: Names for the methods of an explicit port.
_BEFORE, _AFTER = "prepare_layers", "_process_image_features"


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
    def waiting(self) -> list[Frame]:
        """The method with the layers in each call, as it waits for the first of them."""
        part = f"{self.layers.name}.0"
        ways = [batch.way(batch.calls[batch.runs(part, numbers)[0]]) for batch, numbers in self.runs]
        return [next(frame for frame in reversed(way) if frame.part == self.path) for way in ways]

    @property
    def results(self) -> list[list[Leaf]]:
        """The tensors that each call gives."""
        return [[leaf for leaf in call.results if leaf.is_tensor] for call in self.calls]

    @property
    def rows_of_calls(self) -> _Rows:
        """The rows of each image in each call."""
        return [(count,) for counts in self.rows for count in counts] if self.per_item else self.rows


def draft_rows(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """Whether an encoder is told where the rows of each image end. Raises VCG483 with what hinders one that is."""
    modality = next((name for name in _MODALITIES if recording.of(name)), _MODALITIES[0])
    batches = recording.of(modality)
    encoders = list(_encoders(recording, batches)) if batches else []
    if not encoders:
        return False
    encoder, *more = encoders
    if more:
        what = f"`{encoder.path}` and `{more[0].path}` ({more[0].place}) are both told where the rows of an image end"
        raise beyond(subject.tree, encoder.place, what)
    results = encoder.results
    kinds = {_kind(leaves, encoder.rows_of_calls) for leaves in zip(*results, strict=False)}
    if len({len(found) for found in results}) != 1 or (len(results[0]) > 1 and kinds != {"rows"}):
        what = f"`{encoder.path}` gives {len(results[0])} tensors, of which some are no rows"
        raise beyond(subject.tree, encoder.place, what)
    if modality == SOUND:
        key = put_frames(subject, recording, batches, encoder.path, encoder.place, encoder.rows, sheet)
        what = "sounds"
    else:
        key, what = _put_item(subject, recording, batches, encoder, sheet), "images"
    loop = _loop(subject, encoder)
    first, attribute = batches[0].way(encoder.calls[0])[0], encoder.loop if loop is not None else None
    entry, reasons = entry_to(subject, first, f"self.{encoder.path}", loop=attribute, per_item=encoder.per_item)
    if not entry:
        raise Beyond(reasons)
    sheet.put(f"modalities.{modality}.pixels", key, why=f"its {what} are the rows of the encoder")
    sheet.put(f"modalities.{modality}.entry", entry, line_of(first))
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
    _put_explicit(subject, encoder, entry, sheet)
    return True


# -- the encoder -------------------------------------------------------------------------------------------------------


def _encoders(recording: Recording, batches: Sequence[Batch]) -> Iterator[_Encoder]:
    """The parts with layers that run once in each batch, and whose attention is told where rows end.

    Or they run once for each image, on rows of which a grid among the inputs says how many there are.
    """
    for layers in recording.repeated:
        path = _called(batches[0], layers.name.rpartition(".")[0])
        runs = [list(_runs(batch, path)) for batch in batches] if path else [[]]
        first = f"{layers.name}.0"
        inner = [[batch.calls[n] for n in batch.runs(first, numbers)] for found in runs for batch, numbers in found]
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
    begins = batch.runs(path)
    for begin, end in zip(begins, [*begins[1:], len(batch.calls)], strict=True):
        yield batch, range(begin, end)


def _gridded(batch: Batch, calls: Sequence[Call]) -> tuple[int, ...] | None:
    """The rows of each item, of which a grid among the inputs says how many there are, and each call gets those."""
    for rows in (leaf.rows for leaf in batch.inputs):
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
    units = [leaf.rows for leaf in batch.inputs]
    found = set()
    for leaf in call.arguments:
        ends = leaf.value if leaf.is_tensor and len(leaf.shape) == 1 else None
        if isinstance(ends, list) and ends[:1] == [0] and ends[-1] in lengths:
            rows = tuple(end - begin for begin, end in pairwise(ends))
            # A sound is a sequence for each window of its attention.
            known = len(rows) == len(batch.items) or rows in units or batch.modality == SOUND
            found |= {rows} if known else set()
    return found.pop() if len(found) == 1 and min(map(min, found)) > 0 else None


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
    if unfit is None and {_kind(leaves, rows) for leaves in zip(*encoder.results, strict=True)} == {"rows"}:
        return None
    unfit = f"`{unfit}`" if unfit else "the result"
    first = encoder.runs[0][0]
    for index in range(encoder.layers.count):
        part = f"{encoder.layers.name}.{index}"
        found = [batch.runs(part, numbers) for batch, numbers in encoder.runs]
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
    frames = encoder.waiting
    function = function_of(subject, frames[0])
    line = frames[0].place.line
    loops = [node for node in ast.walk(function) if isinstance(node, ast.For)] if function is not None else []
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


# -- an item -----------------------------------------------------------------------------------------------------------


def _put_item(subject: Subject, recording: Recording, batches: Sequence[Batch], encoder: _Encoder, sheet: Sheet) -> str:
    """Fill in `item`; the input that the rows are made of. Raises VCG483 where the model gets what no item says."""
    place, keys = encoder.place, sorted(pixel_keys(batches[0]))
    if len(keys) != 1:
        raise beyond(subject.tree, place, f"images come in several inputs: {', '.join(keys)}")
    [key] = keys
    names = dict.fromkeys(leaf.at for leaf in batches[0].inputs)
    grids = sorted(at for at in names if [leaf.rows for leaf in _all(batches, at)] == list(encoder.rows))
    grid = next(iter(grids), "")
    counts = {sizes_of_items(batches, name) for name in (key, grid) if batches[0].kind(name)}
    mask = next((at for at in names if grid and at != key and _is_mask(batches[0], at, key)), "")
    coarse, ratio = _coarse(batches, grid) if grid else ("", 0)
    others = [one for one in batches[0].fields if one.key != key and coarse]
    tokens = {one.key for one in others if put_tokens(subject, batches, one, coarse, sheet)}
    described = {key, mask, coarse, *grids, *tokens}
    zeros = dict(_zeros(batches, encoder.rows, described)) if grid else {}
    known = {*described.difference(grids[1:]), *counts, *zeros}
    unknown = {leaf.key for batch in batches for leaf in batch.inputs} - known
    if unknown:
        what = f"the model gets `{'`, `'.join(sorted(unknown))}` with `{key}`, which this draft does not describe"
        raise beyond(subject.tree, place, what)
    shown = f"{', '.join(map(str, encoder.rows[0]))} rows, as `{grid or key}` says"
    if grid:
        shape = _patches(subject, batches, encoder, key, grid)
        rows = ["h * w"]
    else:
        shape, rows = _images(subject, batches, encoder, key), []
    channels, *sides = shape
    if len(sides) == 2 and sides[0] == sides[1]:
        what, stride = "the side of a patch, in pixels", _strides(batches[0], key)
        put_number(recording, sides[0], "let.p", what, PATCH, VISION, sheet, last=stride)
        texts = [str(channels), *(["p", "p"] if grid else ["h * p", "w * p"])]
    elif not sides:
        put_columns(recording, batches[0], key, "", channels, "let.width", sheet)
        texts = ["width"]
    else:
        texts = list(map(str, shape))
    sheet.put("item.shape", [*rows, *texts], place, why=shown)
    _put_merge(subject, recording, batches, encoder, grid, ratio, sheet)
    merge = sheet.value("item.merge")
    square = [f"h // {merge}", f"w // {merge}"]
    if grid:
        leaf = next(_all(batches, grid))
        entries = ["1", "h", "w"][-len(leaf.grid[0]) :]
        entries = [f"[{', '.join(entries)}]"] if leaf.value != leaf.grid else entries
        sheet.put(f"item.values.{grid}", entries, why="its product is the rows of each image")
        if leaf.device == "cuda":
            sheet.put("item.moved", [grid], why="the processor does not keep it on the host")
    if coarse:
        sheet.put(f"item.values.{coarse}", square, why="the grid of an image's tokens, as it is in each batch")
    if mask:
        sheet.put("item.mask", mask, why="an entry for each row, where all items are padded to one length")
    sizes = {"rows": "h * w", "tokens": f"({square[0]}) * ({square[1]})"}
    for name, (most, single) in zeros.items():
        size = [sizes.get(str(one), str(one)) for one in most]
        if single:
            size = [f"{most[0]} + {single[0] - int(most[0])} * (1 - min(1, h * w // ({merge} ** 2 + 1)))"]
        sheet.put(f"item.zeros.{name}", size, why="so many integers in each item")
    return key


def _all(batches: Sequence[Batch], at: str) -> Iterator[Leaf]:
    """An input in all batches."""
    return (leaf for batch in batches for leaf in batch.inputs if leaf.at == at)


def _is_mask(batch: Batch, at: str, key: str) -> bool:
    """Whether an input says something of each row of an item, where rows of all items are padded to one length."""
    leaf, shape = next(_all([batch], at)), batch.given(key)[0].shape
    return len(leaf.shape) > 1 and leaf.shape == shape[: len(leaf.shape)] and not leaf.dtype.startswith("float")


def _patches(subject: Subject, batches: Sequence[Batch], encoder: _Encoder, key: str, grid: str) -> tuple[int, ...]:
    """The shape of a row that `key` has of each patch, as a grid says that they are."""
    values, shapes = [leaf.grid for leaf in _all(batches, grid)], {leaf.shape for leaf in batches[0].given(key)}
    columns = {len(row) for value in values for row in value}
    single = any(len(row) == _WITH_FRAMES and row[0] == 1 for value in values for row in value)
    padded = len(shapes) == 1 and min(shapes)[:1] == (len(values[0]),) and min(shapes)[0] != sum(encoder.rows[0])
    if columns == {2} or (columns == {_WITH_FRAMES} and single):
        return batches[0].given(key)[0].shape[2 if padded else 1 :]
    what = f"`{grid}` does not say so many rows as the encoder gets of each image: {values[0]}, {encoder.rows[0]}"
    raise beyond(subject.tree, encoder.place, what)


def _images(subject: Subject, batches: Sequence[Batch], encoder: _Encoder, key: str) -> tuple[int, ...]:
    """The shape of a patch of images as they are: each has so many whole squares as rows."""
    images = [leaf.shape for batch in batches for leaf in batch.given(key)]
    lengths = [count for found in encoder.rows for count in found]
    if len(images) == len(lengths) and all(len(shape) == 3 for shape in images):
        side = token_side([(prod(shape[1:]), count) for shape, count in zip(images, lengths, strict=True)])
        whole = side and all(size % side == 0 for shape in images for size in shape[1:])
        if whole and len({shape[0] for shape in images}) == 1:
            return images[0][0], side, side
    what = f"`{key}` is neither patches with a grid nor images of whole patches: {images[0]} for {lengths[0]} rows"
    raise beyond(subject.tree, encoder.place, what)


def _coarse(batches: Sequence[Batch], grid: str) -> tuple[str, int]:
    """The input with the grid of tokens of each item, and the side of the square of rows that is one; or neither."""
    for at in dict.fromkeys(leaf.at for leaf in batches[0].inputs if leaf.at != grid):
        for side in range(2, _MORE + 1):
            made = [[[-(-one // side) for one in row] for row in leaf.grid] for leaf in _all(batches, grid)]
            if [leaf.grid for leaf in _all(batches, at)] == made:
                return at, side
    return "", 0


def _zeros(batches: Sequence[Batch], rows: _Rows, known: set[str]) -> Iterator[tuple[str, _Zeros]]:
    """The other inputs with integers for each item, as many for all, or one for each of its rows or tokens."""
    for name in dict.fromkeys(leaf.key for leaf in batches[0].inputs):
        shapes: dict[tuple[Any, ...], set[int]] = {}
        for batch, counts in zip(batches, rows, strict=True):
            leaves = batch.given(name)
            whole = len(leaves) == 1 and leaves[0].shape[:1] == (len(batch.items),) and leaves[0].at == name
            apart = len(leaves) == len(batch.items) and all(leaf.at != name for leaf in leaves)
            flat = batch.lengths(name)
            if name in known or not all(leaf.dtype.startswith("int") for leaf in leaves):
                break
            if flat and len(leaves) == 1 and flat in (counts, tuple(leaf.shape[0] for leaf in batch.results)):
                made = [("rows" if flat == counts else "tokens", *leaves[0].shape[1:])] * len(counts)
            elif whole:
                made = [leaves[0].shape[1:]] * len(counts)
            elif apart:
                made = [leaf.shape for leaf in leaves]
            else:
                break
            for shape, count in zip(made, counts, strict=False):
                shapes.setdefault(shape, set()).add(count)
        else:
            most, *other = sorted(shapes, key=lambda shape: -len(shapes[shape])) or [()]
            if most and not other:
                yield name, (most, ())
            elif (
                len(most) == len(other) == 1
                and "rows" not in most
                and "tokens" not in most
                and max(shapes[other[0]]) < min(shapes[most])
            ):
                yield name, (most, other[0])


def _strides(batch: Batch, key: str) -> re.Pattern[str]:
    """The strides of what gets images: the side of a patch where nothing is called so."""
    given = {call.part for call in batch.calls for leaf in call.arguments for one in leaf.sources if one.key == key}
    return re.compile("|".join(re.escape(f"self.{part}.stride[0]") for part in given))


def _put_merge(
    subject: Subject, recording: Recording, batches: Sequence[Batch], encoder: _Encoder, grid: str, side: int,
    sheet: Sheet,
) -> None:  # fmt: skip
    """The `side` of the square of rows that becomes a token, 0 where only the numbers of both tell it."""
    counts = []
    for batch, found in zip(batches, encoder.rows, strict=True):
        sizes = next((leaf.grid for leaf in _all([batch], grid)), [])
        ends = list(accumulate(batch.lengths(grid) or [1] * len(found)))
        for begin, end, leaf in zip([0, *ends], ends, batch.results, strict=False):
            frames = sizes[begin][0] if sizes and len(sizes[begin]) == _WITH_FRAMES else 1
            if frames == 1:  # a port holds one frame, and tokens of more may be fewer
                counts.append((sum(found[begin:end]), leaf.shape[0]))
    # Tokens around an image are the same number for all.
    more = range(_MORE + 1 if len({rows for rows, _ in counts}) > 1 else 1)
    side = side or token_side(counts, more)
    if not side:
        seen = ", ".join(f"{rows} rows, {tokens} tokens" for rows, tokens in counts[:3])
        raise beyond(subject.tree, encoder.place, f"no square of rows is a token ({seen})")
    what = "the side of the square of rows that becomes one token"
    if side == 1 and not any(number == 1 and MERGE.search(path) for path, number in recording.numbers.items()):
        sheet.ask("item.merge", f"{what}: 1 in the recording", [Candidate("1", "each row is a token")])
        return
    put_number(recording, side, "item.merge", what, MERGE, VISION, sheet)


# -- a port in a tree --------------------------------------------------------------------------------------------------


def _put_explicit(subject: Subject, encoder: _Encoder, entry: str, sheet: Sheet) -> None:
    """Fill in `explicit` where a port has buffers for all variables that the encoder's call reads.

    Such a port runs no code of the model twice. `scaffold.cut` looks for its methods as the generator will.
    """
    others = [key for prefix in _NOT_EXPLICIT for key in sheet.keys(prefix)]
    if [key.rpartition(".")[0] for key in others] == ["item.values", "forward"]:
        _put_explicit_loop(subject, encoder, entry, sheet)
    roles = {} if others or "h * p" not in sheet.value("item.shape") else _roles(subject, encoder)
    if sorted(roles) != sorted(_BUFFERS):
        return
    tree, family = subject.tree, tuple(subject.program.lineage(subject.owner))
    with suppress(DiagnosticError):
        way = way_to(subject, [entry], f"self.{encoder.path}")
        for after in (*find_tails(tree, family, way), _AFTER):
            form = Form(parse_call(entry), None, after, NOWHERE)
            found = find_layers(tree, family, way, form, _BEFORE, not attention_leaves_rows(tree))
            if isinstance(found, Extraction):
                sheet.put("explicit.before", _BEFORE, why="a name for the statements in front of the encoder's call")
                sheet.put("explicit.after", after, why="a name for the statements behind its tower's call")
                for role, why in _BUFFERS.items():
                    sheet.put(f"explicit.{role}", roles[role], encoder.place, why=why)
                return


def _put_explicit_loop(subject: Subject, encoder: _Encoder, entry: str, sheet: Sheet) -> None:
    """Fill in `explicit` where the recording shows each argument of the calls around a loop over layers."""
    tree, batches = subject.tree, [batch for batch, _ in encoder.runs]
    [grid] = (key.rpartition(".")[2] for key in sheet.keys("item.values"))
    pixels = sheet.value(f"modalities.{batches[0].modality}.pixels")
    if any(batch.lengths(pixels) != rows for batch, rows in zip(batches, encoder.rows, strict=True)):
        return
    calls = Calls(subject, batches, encoder.rows, pixels, grid)
    last = f"{encoder.layers.name}.{encoder.layers.count - 1}"
    layers = calls.leading_to(encoder.calls)
    behind = calls.behind([batch.runs(last, numbers)[0] for batch, numbers in encoder.runs])
    if layers is None or behind is None:
        return
    with suppress(DiagnosticError):
        way = way_to(subject, [entry], f"self.{encoder.path}", loop=encoder.loop)
        form = Form(parse_call(entry), None, None, NOWHERE)
        found = find_looped_layers(tree, way, form, _BEFORE, parse_call(layers), not attention_leaves_rows(tree))
        if not isinstance(found, Extraction) or found.prepared is None:
            return
        read = [node.id for node in ast.walk(found.prepared.encode) if isinstance(node, ast.Name)]
        roles = _roles_of([name for name in read if name in found.prepared.made], encoder.waiting, encoder.rows)
        if "longest" not in roles and LONGEST in read:
            roles["longest"] = LONGEST
        if not {"rows", "offsets", "longest"} <= roles.keys() <= {"rows", "rotary", "offsets", "longest"}:
            return
        sheet.put("explicit.before", _BEFORE, why="a name for the statements in front of the loop over the layers")
        sheet.put("explicit.layers", layers, encoder.place, why="each argument as the calls had it")
        if calls.unread:
            names = " and ".join(f"`{name}`" for name in dict.fromkeys(calls.unread))
            sheet.put("explicit.why", f"Of {names} only None matters: any tensor will do.", encoder.place)
        held, post = behind
        if held is not None:
            sheet.put("explicit.held", held, why="it gets the rows of the layers, and gives rows")
        sheet.put("explicit.post", post, why="it gets these, and gives the embeddings of all images")
        for role in sorted(roles, key=[*_BUFFERS].index):
            sheet.put(f"explicit.{role}", roles[role], encoder.place, why=_BUFFERS[role])


def _roles(subject: Subject, encoder: _Encoder) -> dict[str, Any]:
    """The variables that the encoder's call reads, by what they are in all batches; empty where one is nothing known.

    `lengths` is one that is None, as where no attention asks for it.
    """
    frames = [batch.way(call)[-1] for (batch, _), call in zip(encoder.runs, encoder.calls, strict=True)]
    function = function_of(subject, frames[0])
    call = waiting_call(frames[0], function) if function is not None else None
    given = [*call.args, *(one.value for one in call.keywords)] if call is not None else []
    return _roles_of([one.id for one in given if isinstance(one, ast.Name)], frames, encoder.rows)


def _roles_of(names: Sequence[str], frames: Sequence[Frame], rows: _Rows) -> dict[str, Any]:
    roles: dict[str, Any] = {}
    for name in names:
        values = [[leaf for leaf in frame.values if leaf.key == name] for frame in frames]
        kinds = [_kind(leaves, rows) for leaves in zip(*values, strict=False)]
        if kinds == ["rows"]:
            axis = values[0][0].shape.index(sum(rows[0]))
            roles["rows"] = {**roles.get("rows", {}), name: axis}
            continue
        absent = all(leaf.type == "NoneType" for leaves in values for leaf in leaves)
        role = "lengths" if absent else "rotary" if kinds == ["rows", "rows"] else "".join(kinds)
        if role in roles or role not in _BUFFERS:
            return {}
        roles[role] = name
    return roles
