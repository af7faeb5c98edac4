"""Drafts the layout `cut` from a recording: the largest call that gets all pixels as units, and constants of the model.

Everything that a run shows comes from the recording. The source says which method the entry is, what integration
needs, and whether the generator finds the way. Models whose units are no pixels are not drafted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from scaffold.descriptor.expressions import ExpressionError, parse_call
from scaffold.descriptor.port import MODALITIES
from scaffold.diagnostics import Diagnostic
from scaffold.draft.gates import put_gate
from scaffold.draft.reentry import ALL, problems_of_way
from scaffold.draft.sheet import Sheet
from scaffold.draft.subject import Subject
from scaffold.draft.values import SourceLine
from scaffold.draft.watched import (
    VISION,
    Drafted,
    function_of,
    line_of,
    narrow_entry,
    omitted,
    pixel_keys,
    put_fields,
    put_number,
    put_width,
)
from scaffold.watch import Batch, Frame, Leaf, Recording

_SIDE = re.compile(r"(^|[._])(image|crop|img|tile)_size(\[0\])?$")


@dataclass(frozen=True, slots=True)
class _Site:
    """A call that may be captured. `text` is the call as a descriptor writes it, `unit` the shape of one unit.

    `result` are the parts or the attribute that the model uses of the result, None where it is one tensor.
    """

    text: str
    pixels: str
    unit: tuple[int, ...]
    place: SourceLine
    entry: Frame
    entered: Frame | None
    result: tuple[str, ...] | str | None


def draft_watched_cut(subject: Subject, recording: Recording, sheet: Sheet) -> Drafted | None:
    """Fill in the sections of a cut but `model`, `layout` and `integration`.

    None where no call gets all pixels of a modality as units. A call that does, but that the generator cannot reach, is
    an obstacle of the sheet.
    """
    found = {name: list(_sites(subject, recording, name)) for name in MODALITIES if recording.of(name)}
    texts = list(dict.fromkeys(site.text for sites in found.values() for site in sites))
    kept: dict[str, tuple[_Site, str]] = {}
    refused: list[Diagnostic] = []
    for text in sorted(texts, key=lambda text: -sum(any(s.text == text for s in sites) for sites in found.values())):
        tried: dict[str, tuple[_Site, str]] = {}
        for name, sites in found.items():
            site = next((one for one in sites if one.text == text), None)
            for entry in _entries(subject, site) if site is not None else ():
                others = [other for _, other in tried.values()]
                problems = problems_of_way(subject, [*others, entry], parse_call(text))
                refused += problems
                if site is not None and not problems:
                    tried[name] = site, entry
                    break
        if len(tried) > len(kept):
            kept = tried
    if not kept:
        sheet.obstacles += refused
        return None
    sites = [site for site, _ in kept.values()]
    for name, (site, entry) in kept.items():
        sheet.put(f"modalities.{name}.pixels", site.pixels, site.place, why="all of it enters the call")
        sheet.put(f"modalities.{name}.entry", entry, line_of(site.entry))
        put_fields(subject, recording.of(name), sheet)
    _put_unit(recording, sites, sheet)
    batches = recording.of(next(iter(kept)))
    shown = f"{', '.join(str(_units(batch, sites[0].pixels)[0]) for batch in batches)} units in {len(batches)} batches"
    sheet.put("forward.call", sites[0].text, *(site.place for site in sites), why=shown)
    if sites[0].result is not None:
        sheet.put("forward.result", sites[0].result, sites[0].place, why="what later calls get of the result")
    put_width(recording, batches[0], sheet)
    put_gate(subject, [site.pixels for site in sites], sheet)
    return tuple(kept), omitted(subject, recording, kept, "no call gets all of its pixels as units")


# -- the call ----------------------------------------------------------------------------------------------------------


def _sites(subject: Subject, recording: Recording, modality: str) -> Iterator[_Site]:
    """The calls on the way to layers that get all units in every batch, the outermost first."""
    batches = recording.of(modality)
    ways = [list(_of_batch(subject, recording, batch)) for batch in batches]
    for site in ways[0]:
        alike = [[one for one in way if (one.text, one.unit, one.pixels) == (site.text, site.unit, site.pixels)]
                 for way in ways]  # fmt: skip
        if all(len(found) == 1 for found in alike):
            yield site


def _of_batch(subject: Subject, recording: Recording, batch: Batch) -> Iterator[_Site]:
    shapes = {key: _units(batch, key) for key in pixel_keys(batch)}
    looked: set[int] = set()
    for repeated in recording.repeated:
        for layer in [call for call in batch.calls if call.part == f"{repeated.name}.0"]:
            way = _indices(batch, layer.frame)
            for depth, index in enumerate(way):
                if index not in looked:
                    looked.add(index)
                    entered = way[depth + 1] if depth + 1 < len(way) else None
                    site = _site(subject, batch, shapes, way[0], index, entered)
                    if site is not None:
                        yield site


def _indices(batch: Batch, index: int | None) -> list[int]:
    found: list[int] = []
    while index is not None:
        found.insert(0, index)
        index = batch.frames[index].caller
    return found


def _units(batch: Batch, key: str) -> tuple[int, tuple[int, ...]]:
    """The number of units in an input and the shape of one; that of images, unless the input has fewer axes."""
    tensors = [leaf.shape for leaf in batch.inputs if leaf.at.partition("[")[0] == key]
    axes = min(3, min(len(shape) for shape in tensors) - 1)
    units = {shape[len(shape) - axes :] for shape in tensors}
    return sum(prod(shape[: len(shape) - axes]) for shape in tensors), units.pop() if len(units) == 1 else ()


def _site(
    subject: Subject,
    batch: Batch,
    shapes: Mapping[str, tuple[int, tuple[int, ...]]],
    entry: int,
    index: int,
    entered: int | None,
) -> _Site | None:
    """The call of a frame, if it gets all units of an input, constants otherwise, and gives a row for each unit."""
    frame = batch.frames[index]
    node = _call(frame)
    if node is None or frame.part is None:
        return None
    number = next((n for n, call in enumerate(batch.calls) if call.frame == index), None)
    if number is not None:
        given = {leaf.at: leaf for leaf in batch.calls[number].arguments}
        names, results = list(given), batch.calls[number].results
    elif entered is not None:
        given = {leaf.at: leaf for leaf in batch.frames[entered].values}
        names, results = _parameters(subject, batch.frames[entered]), frame.results
    else:
        return None
    arguments = dict(zip(names, node.args, strict=False)) | {one.arg: one.value for one in node.keywords if one.arg}
    for name in arguments:
        leaf = given.get(name)
        key = _whole(leaf, shapes) if leaf is not None else None
        if leaf is None or key is None:
            continue
        part = batch.calls[number].part if number is not None else None
        text = _text(node, arguments[name], frame.part, part)
        taken = _taken(batch, number, results, leaf.shape[0])
        if text is None or taken is None:
            return None
        entry_frame = batch.frames[entry]
        return _Site(
            text,
            key,
            leaf.shape[1:],
            line_of(frame),
            entry_frame,
            batch.frames[index] if index != entry else None,
            taken[0],
        )
    return None


def _call(frame: Frame) -> ast.Call | None:
    try:
        node = ast.parse(frame.text.strip(), mode="eval").body
    except SyntaxError:
        return None
    return node if isinstance(node, ast.Call) else None


def _parameters(subject: Subject, callee: Frame) -> list[str]:
    """The parameters of a function that positional arguments go to."""
    found = function_of(subject, callee)
    names = [one.arg for one in (*found[1].args.posonlyargs, *found[1].args.args)] if found is not None else []
    return names[int(names[:1] in (["self"], ["cls"])) :]


def _whole(leaf: Leaf, shapes: Mapping[str, tuple[int, tuple[int, ...]]]) -> str | None:
    """The input of which a tensor holds all units, one along the first axis."""
    for key, (count, unit) in shapes.items():
        origin = any(source.of.partition("[")[0] == key for source in leaf.sources)
        if len(unit) > 1 and origin and leaf.shape == (count, *unit):
            return key
    return None


def _text(node: ast.Call, units: ast.expr, part: str, called: str | None) -> str | None:
    """The call with `pixels` in the place of the units, from the model on; None if it has other variables.

    A method of `part` makes it. A part that is `called` may be a variable there.
    """

    class Seen(ast.NodeTransformer):
        def visit(self, one: ast.AST) -> ast.AST:
            if one is units:
                return ast.Name("pixels")
            if part and isinstance(one, ast.Name) and one.id == "self":
                return ast.parse(f"self.{part}", mode="eval").body
            return self.generic_visit(one)

    Seen().visit(node)
    if called is not None:
        node.func = ast.parse(f"self.{called}", mode="eval").body
    text = ast.unparse(node)
    try:
        parse_call(text)
    except ExpressionError:
        return None
    names = {one.id for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Name)}
    return text if names <= {"self", "pixels"} else None


def _taken(
    batch: Batch, number: int | None, results: Sequence[Leaf], count: int
) -> tuple[tuple[str, ...] | str | None] | None:
    """The used part of a result, in a tuple (None for one tensor); None if it has no row for each unit."""
    tensors = [leaf for leaf in results if leaf.is_tensor]
    if len(tensors) == 1 and tensors[0].at == "":
        return (None,) if tensors[0].shape[:1] == (count,) else None
    later = (source.of for call in batch.calls for leaf in call.arguments for source in leaf.sources)
    used = {
        of.removeprefix(f"#{number}") for of in later if of.startswith((f"#{number}[", f"#{number}.", f"#{number}l"))
    }
    fitting = [leaf.at for leaf in tensors if leaf.at in used and leaf.shape[:1] == (count,)]
    if len(fitting) != 1:
        return None
    if re.fullmatch(r"\[\d+\]", fitting[0]):
        return (tuple("features" if leaf.at == fitting[0] else "_" for leaf in results),)
    return (fitting[0].lstrip("."),)


def _entries(subject: Subject, site: _Site | None) -> list[str]:
    """Calls that lead to a site, the one to prefer first: what `embed_multimodal` returns as it is, or all of it."""
    narrow = narrow_entry(subject, site.entry) if site is not None and site.entered is not None else None
    return [narrow, ALL] if narrow else [ALL]


def _put_unit(recording: Recording, sites: Sequence[_Site], sheet: Sheet) -> None:
    """The shape of a unit, with names for sides that the model holds."""
    unit = sites[0].unit
    shape = [str(size) for size in unit]
    if len(unit) == 3:
        for axis, name in ((1, "side"),) if unit[1] == unit[2] else ((1, "height"), (2, "width")):
            what = f"the {name} of one unit, in pixels: {unit[axis]} in the recording"
            put_number(recording, unit[axis], f"let.{name}", what, _SIDE, VISION, sheet)
            shape[axis] = name
        shape[2] = shape[1] if unit[1] == unit[2] else shape[2]
    sheet.put("pixels.shape", shape, sites[0].place)
