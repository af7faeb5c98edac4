"""Drafts the layout `cut` from a recording: the largest call that gets all pixels as units, and constants of the model.

Everything that a run shows comes from the recording. The source says which method the entry is, what integration
needs, and whether the generator finds the way.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from scaffold.cut import Extraction, Form, find_calls, find_extraction, find_tails
from scaffold.descriptor.expressions import Call, ExpressionError, parse_call
from scaffold.descriptor.port import MODALITIES, unit_word
from scaffold.descriptor.sections import WEIGHTS
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.common import SOUND, function_of, line_of, pixel_keys, put_dtype, waiting_call
from scaffold.draft.left import read_inside
from scaffold.draft.locate import Subject
from scaffold.draft.numbers import (
    CONFIG,
    TEXT_WIDTH,
    VISION,
    attributes,
    expressions,
    put_number,
    tokens_of_unit,
    value_of,
)
from scaffold.draft.sheet import Candidate, Sheet, SourceLine
from scaffold.draft.spelled import sides_of_images
from scaffold.draft.unportable import dialect_of
from scaffold.draft.ways import NOWHERE, entry_to, way_to
from scaffold.protocol import find_subclasses
from scaffold.protocol.dialect import Paths
from scaffold.syntax import (
    assigned_to,
    call_name,
    find_class,
    find_method,
    name_path,
    parents_of,
    positional_parameters,
    self_attribute,
)
from scaffold.tower.names import mentions
from scaffold.watch import Batch, Frame, Leaf, Recording

_SIDE = re.compile(r"((^|[._])(image|crop|img|tile)_size|(^|\.)resolution)(\[\d\])?$")
_PATCH = re.compile(r"\.(temporal_)?patch_size(\[0\])?$")
_COLUMNS = re.compile(r"\.(hidden_size|in_features)$")
#: Paths that may hold a size: those of an encoder, and of its configuration, but for numbers of its parts.
_NO_PARTS = r"^(?!.*(layers|heads|head_dim|intermediate|token_id))"
_SIZE = re.compile(_NO_PARTS + f".*{VISION.pattern}")
_CONFIG = re.compile(_NO_PARTS + r"self\.config\.vision_config\.\w+$")
#: Names in a configuration of sound: the rows of a chunk's spectrum, the positions of its encoder, and their columns.
#: Whisper's convolutions make one position of two columns of the spectrum.
_POSITIONS = re.compile(r"\.max_source_positions$|\.(audio|whisper|speech|sound)\w*\.max_position_embeddings$")
_COLUMNS_OF_SOUND = re.compile(r"\.(audio|whisper|speech|sound)\w*\.d_model$")
_SPECTRUM = (("a", re.compile(r"\.num_mel_bins$")), ("2 * a", _POSITIONS), ("a", _POSITIONS), ("a", _COLUMNS_OF_SOUND))
#: The most parts of an image, as configurations call them.
_MOST = re.compile(r"^self\.config\.([\w.]+\.)?max_(crops|dynamic_patch|(num_)?tiles)$")
#: A smaller size may be a number of the code, such as two coordinates.
_SMALL = 5
#: Dtypes of arguments that a descriptor gives for each unit.
_DTYPES = ("bool", "int32", "int64")
_FLOATS = ("float", "bfloat")
#: The way to an entry of a configuration of the encoder.
_OF = re.compile(r"self\.(config\.vi\w+|[\w.]+\.config|[\w.]+(?=\.patch_size\b))\.")
#: Those of a colour image.
_CHANNELS = 3
_Shape = tuple[int, ...]
#: Where every way begins.
_ENTRY = "embed_multimodal"
_IMAGE = "image"
#: The name of the method that has the rest of a loop over items.
_ITEMS = "_finish_image_embeddings"


@dataclass(frozen=True, slots=True)
class Site:
    """A call that may be captured. `text` is the call as a descriptor writes it, `unit` the shape of one of `pixels`.

    `axis` is that of the units. `made` is the shape of one as the call gets it, where the model has made it of pixels.
    `more` are arguments with an entry for each unit, None where there is none. `result` are the parts or the attribute
    that the model uses of the result, None where it is one tensor, and `layers` what it takes of a list with those of
    all layers. `way` are the frames from the entry to the call, `after` parts that the last of them calls later.
    """

    text: str
    pixels: str
    unit: _Shape
    way: tuple[Frame, ...]
    axis: int
    made: _Shape
    more: tuple[tuple[str, tuple[_Shape, str] | None], ...]
    result: tuple[str, ...] | str | None
    after: tuple[str, ...]
    #: Whether it gets the pixels as they are, moved or joined.
    raw: bool
    #: Whether each of `more` is an input of that name.
    given: bool = True
    #: Whether the call gets units of padding, too, or no units of the padding in the input.
    padded: bool = False
    short: bool = False
    layers: tuple[str, ...] = ()
    #: Rows of the features of one unit, where the result is one tensor, and the number of units.
    rows: int = 0
    units: int = 0
    #: The call of the model that leads to it, where one was looked for.
    entry: str = ""

    @property
    def place(self) -> SourceLine:
        return line_of(self.way[-1])

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for the same call in another batch."""
        return self.text, self.pixels, self.unit, self.axis, self.made, self.more


def draft_cut(subject: Subject, recording: Recording, sheet: Sheet, modalities: Collection[str] = MODALITIES) -> bool:
    """Whether a call gets all pixels of a modality as units. One that the generator cannot reach is an obstacle."""
    kept, refused = reached_sites(subject, recording, modalities)
    if not kept:
        sheet.obstacles += refused
        return False
    sites = [*kept.values()]
    for name, site in kept.items():
        sheet.put(f"modalities.{name}.pixels", site.pixels, site.place, why="all of it enters the call")
        sheet.put(f"modalities.{name}.entry", site.entry, line_of(site.way[0]))
    put_unit(subject, recording, sites[0].unit, "pixels", sites[0].place, sheet)
    batches = recording.of(next(iter(kept)))
    counts = ", ".join(str(units_of(batch)[sites[0].pixels][0]) for batch in batches)
    shown = f"{counts} units in {len(batches)} batches"
    if any(site.padded for site in sites):
        sheet.put(
            "pixels.padded", True, sites[0].place, why="so many units as the item with the most has, of each item"
        )
    _put_arguments(recording, sites[0], sheet)
    sheet.put("forward.call", sites[0].text, *(site.place for site in sites), why=shown)
    if sites[0].result is not None:
        sheet.put("forward.result", sites[0].result, sites[0].place, why="what later calls get of the result")
    if sites[0].layers:
        sheet.put("forward.layers", sites[0].layers, sites[0].place, why="what the model takes of the list")
    others = [key for key in sheet.keys("forward.") if not key.startswith(("forward.call", "forward.with."))]
    if len(kept) == 1 and sites[0].raw and sites[0].given and not others and not sheet.has("pixels.padded"):
        _put_explicit(subject, recording, next(iter(kept)), sites[0], sheet)
        inside = (call for call in batches[0].calls if sites[0].way[-1] in batches[0].way(call))
        put_dtype(subject, [call for call in inside if call.part == "input_norm"], sheet)
    if sites[0].layers:
        _put_joined_width(recording, batches[0], sheet)
    _put_optout(subject, sites, sheet)
    return True


def draft_images(subject: Subject, recording: Recording, sheet: Sheet) -> bool:
    """A cut of images alone whose port runs no code of the model twice, though one with videos would.

    The model's own code serves these.
    """
    others = {batch.modality for batch in recording.batches} - {_IMAGE}
    return bool(others) and draft_cut(subject, recording, sheet, [_IMAGE]) and sheet.has("explicit.call")


def reached_sites(
    subject: Subject, recording: Recording, modalities: Collection[str] = MODALITIES
) -> tuple[dict[str, Site], list[Diagnostic]]:
    """The call that gets all units of most modalities, with the entry of each, and what hinders those on the way."""
    found = {name: _of_one_input(sites_of(subject, recording, name)) for name in modalities if recording.of(name)}
    texts = list(dict.fromkeys(site.text for sites in found.values() for site in sites))
    kept: dict[str, Site] = {}
    refused: list[Diagnostic] = []
    for text in sorted(texts, key=lambda text: -sum(any(s.text == text for s in sites) for sites in found.values())):
        tried: dict[str, Site] = {}
        for name, sites in found.items():
            site = next((one for one in sites if one.text == text), None)
            if site is not None:
                others = [other.entry for other in tried.values()]
                # The port of images alone does not call its entry, and one of several modalities may.
                alone = len(modalities) == 1
                entry, problems = entry_to(subject, site.way[0], parse_call(text), beside=others, conditional=alone)
                refused += problems
                tried |= {name: replace(site, entry=entry)} if entry else {}
        if len(tried) > len(kept):
            kept = tried
    return kept, refused


def _put_optout(subject: Subject, sites: Sequence[Site], sheet: Sheet) -> None:
    """The subclasses with a method of their own on the way: another model, which the port leaves alone."""
    frames = (frame for site in sites for frame in site.way if frame.part == "")
    names = {frame.function.rpartition(".")[2] for frame in frames} - {_ENTRY}
    apart = [
        heir
        for heir in find_subclasses(subject.tree, subject.module, subject.class_name)
        for owner in [find_class(subject.tree.parse(heir.path), heir.class_name)]
        if owner is not None and any(find_method(owner, name) for name in names)
    ]
    if apart:
        shown = f"their own methods on the way: {', '.join(sorted(names))}"
        sheet.put("model.optout", [heir.class_name for heir in apart], apart[0].path, why=shown)


def results_of(batch: Batch, path: str) -> list[tuple[set[str], Leaf]]:
    """The tensors that the calls of a part or a method of the model gave, each with the calls that made its memory."""
    of_part = [
        ({f"#{number}"}, leaf)
        for number, call in enumerate(batch.calls)
        for leaf in call.results
        if f"self.{call.part}" == path and leaf.at == ""
    ]
    return of_part or [
        ({one.of for one in leaf.sources if one.how != "copy"}, leaf)
        for frame in batch.frames
        for leaf in frame.results
        if frame.part == "" and frame.text.startswith(f"{path}(") and leaf.at == ""
    ]


# -- a port in a tree --------------------------------------------------------------------------------------------------


def _put_explicit(subject: Subject, recording: Recording, modality: str, site: Site, sheet: Sheet) -> None:
    """Fill in `explicit` of a call that gets the pixels as they are: a port in a tree that runs no code twice.

    `scaffold.cut` looks for its methods as the generator will.
    """
    batches = recording.of(modality)
    # Each item was one unit, in batches of items of all sizes, and may be no other number of them.
    counted = all(units_of(batch)[site.pixels][0] == len(batch.items) for batch in batches)
    single = counted and all(batch.kind(site.pixels) != "flat" for batch in batches)
    what = modality if modality == SOUND else "image"
    unit = unit_word(what, single=single, side=sheet.value("let.side") or "")
    after = f"_process_{what}_features" if single else f"_merge_{unit}_embeddings"
    dialect = dialect_of(subject.tree)
    # Where the protocol names no paths, an item may not be without tokens.
    named = dialect is not None and dialect.paths is Paths.NAMED
    found = _extracted(subject, batches, site, after, single) if named else None
    if found is None:
        return
    held, follows, items, reads = found
    whole = single and follows is not None and not reads
    said = _tokens(recording, batches[0], site, None if whole else held.path, sheet)
    if said is None:
        return
    sheet.put("explicit.call", held.text, site.place, why="what follows the encoder unit by unit, too")
    sheet.put("explicit.tokens", said, why="what a graph gives of a unit, which `verify` counts")
    if follows:
        own = "the model's own method behind it"
        sheet.put("explicit.after", follows, why="a name for the statements behind it" if follows == after else own)
    if items:
        sheet.put("explicit.items", items, why="a name for what follows in the loop over items")
    if single:
        sheet.put("explicit.single", True, why="one unit an item, in batches of items of all sizes")
        return
    largest = max(_most_units(batch, site.pixels) for batch in batches)
    bounds = attributes(recording.numbers, _MOST)
    if most := next((path for path in bounds if bounds[path] + 1 >= largest > 1), None):
        sheet.put("explicit.most", f"{most} + 1", why=f"parts of an image, and the whole: at most {largest} recorded")


def _most_units(batch: Batch, key: str) -> int:
    """The units of the largest item in an input of pixels."""
    axes = len(units_of(batch)[key][1])
    return max(batch.lengths(key) or [leaf.shape[-axes - 1] for leaf in batch.given(key)])


def _extracted(
    subject: Subject, batches: Sequence[Batch], site: Site, after: str, single: bool
) -> tuple[Call, str | None, str | None, tuple[str, ...]] | None:
    """The largest call that a graph can hold, the names of what follows it, also in a loop over items, and what the
    first of these reads beside features.

    It tries the largest call first, and no method for the statements behind it before one. Where an item is a `single`
    unit, and they read nothing beside features, a graph holds them, too: none may that reads the host's memory.
    """
    tree, encoder, entry = subject.tree, parse_call(site.text), parse_call(site.entry)
    way = way_to(subject, [site.entry], encoder)
    family = tuple(subject.program.lineage(subject.owner))
    beside = tuple(node.name for node in encoder.name_nodes() if node.name != "pixels")
    calls = [call for call in find_calls(tree, way, beside) if call != encoder]
    names = [(name, None) for name in (None, *find_tails(tree, family, way), after)]
    for call in (*reversed(calls), encoder):
        for name, items in (*names, *([] if single else [(after, _ITEMS)])):
            with suppress(DiagnosticError):
                found = find_extraction(tree, family, way, Form(entry, call, name, NOWHERE, beside, items))
                if not isinstance(found, Extraction):
                    continue
                whole = single and name is not None and not found.arguments
                left = any(batch.left for batch in batches) if whole else read_inside(batches, call.python())
                if not left:
                    return call, name, items, found.arguments
    return None


def _tokens(recording: Recording, batch: Batch, site: Site, path: str | None, sheet: Sheet) -> str | None:
    """The tokens that a call of the model gives of a unit, or without a `path` what the whole model gives of an item.

    None where the call's result is no table of them, or where nothing says their number.
    """
    units = units_of(batch)[site.pixels][0]
    shapes = [leaf.shape for _, leaf in results_of(batch, path) if len(leaf.shape) > 1] if path else []
    # A branch of the model may make the call for each item.
    of_all = sum(shape[0] for shape in shapes) == units
    tables = {prod(shape[1:-1]) for shape in shapes if of_all or shape[0] == units}
    if path and len(tables) != 1:
        return None
    rows = tables.pop() if path else batch.results[0].shape[0]
    # An encoder may join two positions.
    said = [*_of_spectrum(recording, rows), *(f"{text} // 2" for text in _of_spectrum(recording, 2 * rows))]
    return said[0] if said else tokens_of_unit(recording.numbers, rows, sheet)


# -- the call ----------------------------------------------------------------------------------------------------------


def _of_one_input(sites: Sequence[Site]) -> list[Site]:
    """The sites without calls that get units of several inputs: no cut captures these."""
    return [site for site in sites if all(other.pixels == site.pixels for other in sites if other.text == site.text)]


def sites_of(subject: Subject, recording: Recording, modality: str) -> list[Site]:
    """The calls on the way to layers that get all units, the simplest arguments first, of these the outermost first.

    They do so in two batches or more: another may hold units of another shape. One batch is enough if the others have
    units of padding, which a model leaves out.
    """
    batches = recording.of(modality)
    ways = [list(_of_batch(subject, recording, batch)) for batch in batches]
    found: dict[tuple[object, ...], tuple[Site, int]] = {}
    for site in (site for way in ways for site in way):
        same = [one for way in ways for one in way if site.form == one.form]
        if len(same) > 1 and not all(one.short for one in same):
            padded, raw = any(one.padded for one in same), all(one.raw for one in same)
            given = all(one.given for one in same)
            found.setdefault(site.form, (replace(site, padded=padded, raw=raw, given=given), len(same)))
    ordered = sorted(found.values(), key=lambda one: (any(form for _, form in one[0].more), bool(one[0].made), -one[1]))
    return [site for site, _ in ordered]


def _of_batch(subject: Subject, recording: Recording, batch: Batch) -> Iterator[Site]:
    """The calls that get all units of an input, in one or several runs."""
    shapes = units_of(batch)
    pieces: dict[tuple[object, ...], list[Site]] = {}
    looked: set[int] = set()
    layers = {f"{repeated.name}.0" for repeated in recording.repeated}
    for call in [one for one in batch.calls if one.part in layers] or batch.calls:
        for index in [index for index in batch.chain(call.frame) if index not in looked]:
            looked.add(index)
            for site in _pieces(subject, batch, shapes, index):
                pieces.setdefault(site.form, []).append(site)
    for group in pieces.values():
        site, total = group[0], sum(one.units for one in group)
        count, leaves = shapes[site.pixels][0], batch.given(site.pixels)
        axes = [leaf.shape[: len(leaf.shape) - len(site.unit)] for leaf in leaves]
        # All items may be padded to the most units of one, in several tensors or in an axis of one.
        if total in (count, len(axes) * max(map(prod, axes))):
            yield replace(site, padded=total != count)
        elif total < count and len(axes) == 1 and len(axes[0]) > 1 and leaves[0].at == site.pixels:
            yield replace(site, short=True)


def units_of(batch: Batch) -> dict[str, tuple[int, _Shape]]:
    """The number of units in each input of pixels, and the shape of one: that of images, or of fewer axes."""
    found = {}
    for key in sorted(pixel_keys(batch)):
        tensors = [leaf.shape for leaf in batch.given(key)]
        fewest = min(len(shape) for shape in tensors) - 1
        axes = fewest if batch.kind(key) == "flat" and len(tensors) == 1 else min(3, fewest)
        units = {shape[len(shape) - axes :] for shape in tensors}
        count = sum(prod(shape[: len(shape) - axes]) for shape in tensors)
        found[key] = count, units.pop() if len(units) == 1 else ()
    return found


def _pieces(subject: Subject, batch: Batch, shapes: Mapping[str, tuple[int, _Shape]], index: int) -> Iterator[Site]:
    """The call of a frame, if it gets units and constants, and gives each unit a row."""
    frame = batch.frames[index]
    node = _call(frame)
    number = next((n for n, call in enumerate(batch.calls) if call.frame == index), None)
    # A function's variables are its arguments as long as it has called nothing.
    inner = next((one for one in batch.frames if one.caller == index), None)
    if node is None or frame.part is None or (number is None and inner is None):
        return
    if number is not None:
        call = batch.calls[number]
        given, results, called = {leaf.at: leaf for leaf in call.arguments}, call.results, call.part
        names = list(given)
    elif inner is not None:
        given, results, called = {leaf.at: leaf for leaf in inner.values}, frame.results, ""
        names = _parameters(subject, inner)
    arguments = dict(zip(names, node.args, strict=False)) | {one.arg: one.value for one in node.keywords if one.arg}
    own = {leaf.at: leaf for leaf in frame.values}
    given |= {
        name: own[value.id] for name, value in arguments.items() if isinstance(value, ast.Name) and value.id in own
    }
    for name in arguments:
        found = _units_of(given[name], shapes, bool(called)) if name in given else None
        told = _text(node, arguments, given, name, found[1], frame.part, called) if found is not None else None
        if found is None or told is None:
            continue
        (key, axis), shape = found, given[name].shape
        taken = _taken(batch, number, results, shape[axis], axis)
        several = all(leaf.shape[:1] == shape[axis : axis + 1] for leaf in results) and len(results) > 1
        layers = _layers_of(subject, frame) if taken is None and several and not axis else ()
        if taken is None and not layers:
            return
        made = shape[axis + 1 :] if shape[axis + 1 :] != shapes[key][1] else ()
        beside = [one for one in batch.calls if one.frame is not None and one.frame > index]
        after = tuple(one.part for one in beside if batch.frames[one.frame or 0].caller == frame.caller)
        way = tuple(batch.frames[one] for one in batch.chain(index))
        (text, more), unit = told, shapes[key][1]
        raw = any(one.key == key for one in given[name].sources)
        inputs = all(form is not None and any(one.key == of for one in given[of].sources) for of, form in more)
        result = taken[0] if taken is not None else None
        rows = prod(results[0].shape[axis + 1 : -1]) if len(results) == 1 else 0
        yield Site(
            text, key, unit, way, axis, made, more, result, after, raw, inputs,
            layers=layers, rows=rows, units=shape[axis],
        )  # fmt: skip
        return


def _units_of(leaf: Leaf, shapes: Mapping[str, tuple[int, _Shape]], part: bool) -> tuple[str, int] | None:
    """The input whose units a tensor may hold, and their axis; a part may also get what is made of them."""
    fitting = [
        (key, axis)
        for key, (_, unit) in shapes.items()
        for axis in (0, 1)
        if len(unit) > 1 and leaf.shape[axis + 1 :] == unit and leaf.shape[:axis] == (1,) * axis
    ]
    given = [(key, axis) for key, axis in fitting if any(one.key == key for one in leaf.sources)]
    if given or len(fitting) == 1:
        return (given or fitting)[0]
    made = leaf.dtype.startswith(_FLOATS) and len(leaf.shape) == 3 and part and len(shapes) == 1
    [(key, (count, unit))] = shapes.items() if made and not fitting else [("", (0, ()))]
    return (key, 0) if unit and leaf.shape[0] == count else None


def _call(frame: Frame) -> ast.Call | None:
    try:
        node = ast.parse(frame.text.strip(), mode="eval").body
    except SyntaxError:
        return None
    return node if isinstance(node, ast.Call) else None


def _parameters(subject: Subject, callee: Frame) -> list[str]:
    """The parameters of a function that positional arguments go to; of one outside of the tree its first variables."""
    found = function_of(subject, callee)
    if found is None:
        return list(dict.fromkeys(re.split(r"[\[.]", leaf.at)[0] for leaf in callee.values))
    names = positional_parameters(found)
    return names[int(names[:1] in (["self"], ["cls"])) :]


def _text(
    node: ast.Call,
    arguments: Mapping[str, ast.expr],
    given: Mapping[str, Leaf],
    units: str,
    axis: int,
    part: str,
    called: str,
) -> tuple[str, tuple[tuple[str, tuple[_Shape, str] | None], ...]] | None:
    """The call with `pixels` in the place of the units, from the model on, and its arguments with an entry for each.

    None if it has other variables. A method of `part` makes it. A part that is `called` may be a variable there.
    """
    count = given[units].shape[axis]
    more: list[tuple[str, tuple[_Shape, str] | None]] = []
    names = {id(arguments[units]): "pixels"}
    for name, value in arguments.items():
        leaf = given.get(name)
        variables = mentions(value) - {"self"}
        if name == units or not variables or leaf is None:
            continue
        dtype = WEIGHTS if leaf.dtype == given[units].dtype else leaf.dtype
        if leaf.is_tensor and leaf.shape[:1] == (count,) and dtype in (*_DTYPES, WEIGHTS) and not axis:
            more.append((name, (leaf.shape[1:], dtype)))
        elif leaf.type == "NoneType":
            more.append((name, None))
        else:
            return None
        names[id(value)] = name

    def seen(one: ast.expr) -> ast.expr:
        text = re.sub(r"\bself\b", f"self.{part}", ast.unparse(one)) if part else ast.unparse(one)
        return ast.Name(names[id(one)]) if id(one) in names else ast.parse(text, mode="eval").body

    parts = called.split(".")
    if any(word.isdigit() for word in (*parts, *part.split("."))):
        return None
    func = ast.parse(f"self.{called}", mode="eval").body if called else seen(node.func)
    keywords = [ast.keyword(one.arg, seen(one.value)) for one in node.keywords]
    text = ast.unparse(ast.Call(func, [seen(one) for one in node.args], keywords))
    try:
        parse_call(text)
    except ExpressionError:
        return None
    known = {"self", "pixels", *(name for name, _ in more)}
    free = mentions(ast.parse(text))
    return (text, tuple(more)) if free <= known else None


def _taken(
    batch: Batch, number: int | None, results: Sequence[Leaf], count: int, axis: int
) -> tuple[tuple[str, ...] | str | None] | None:
    """The used part of a result, in a tuple (None for one tensor); None if it has no row for each unit.

    Numbers of tokens have no columns, by which a budget counts rows.
    """
    tensors = [leaf for leaf in results if leaf.is_tensor]
    if len(tensors) == 1 and not tensors[0].dtype.startswith(_FLOATS):
        return None
    if len(tensors) == 1 and tensors[0].at == "":
        return (None,) if tensors[0].shape[axis : axis + 1] == (count,) else None
    later = (source.of for call in batch.calls for leaf in call.arguments for source in leaf.sources)
    used = {
        of.removeprefix(f"#{number}") for of in later if of.startswith((f"#{number}[", f"#{number}.", f"#{number}l"))
    }
    fitting = [leaf.at for leaf in tensors if leaf.at in used and leaf.shape[axis : axis + 1] == (count,)]
    if len(fitting) != 1:
        return None
    if re.fullmatch(r"\[\d+\]", fitting[0]):
        return (tuple("features" if leaf.at == fitting[0] else "_" for leaf in results),)
    return (fitting[0].lstrip("."),)


# -- layers ----------------------------------------------------------------------------------------------------------


def _layers_of(subject: Subject, frame: Frame) -> tuple[str, ...]:
    """The layers that the model's method takes of the list which the call of a frame gives, as a descriptor says them.

    None if it does anything else with the list.
    """
    function = function_of(subject, frame) if frame.part == "" else None
    if function is None:
        return ()
    call = waiting_call(frame, function)
    parents = parents_of(function)
    above = parents.get(call) if call is not None else None
    names = {ast.unparse(target) for target in assigned_to(above)} if above is not None else set()
    loaded = (node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    taken = [parents.get(node) for node in loaded if node.id in names]
    layers = [_layer(function, node.slice) if isinstance(node, ast.Subscript) else None for node in taken]
    return tuple(dict.fromkeys(text for text in layers if text)) if layers and all(layers) else ()


def _put_joined_width(recording: Recording, batch: Batch, sheet: Sheet) -> None:
    """Ask for the columns of embeddings that parts make side by side, if so many are in lists of the model itself."""
    width, lists = batch.results[0].shape[-1], [one for one in recording.repeated if "." not in one.name]
    held = {path: n for path, n in recording.numbers.items() if TEXT_WIDTH.fullmatch(path) and isinstance(n, int)}
    wide = [path for path, n in held.items() if width > n and width == n * sum(one.count for one in lists)]
    if len(wide) == 1:
        what = "columns of the embeddings, which the model makes of several layers side by side"
        counts = " + ".join(f"len(self.{one.name})" for one in lists)
        candidate = Candidate(f"{wide[0]} * ({counts})", "the results of these parts beside each other")
        sheet.ask("output.hidden_size", what, [candidate])


def _layer(function: ast.AST, index: ast.expr) -> str | None:
    """A layer that is an attribute of the model or a number, or a column of a table that the method goes over."""
    if isinstance(index, ast.Constant) and isinstance(index.value, int):
        return str(index.value)
    path = name_path(index)
    if path[:1] == ["self"] and len(path) > 1:
        return ".".join(path)
    for loop in ast.walk(function) if isinstance(index, ast.Name) else ():
        if not isinstance(loop, ast.For):
            continue
        row, table = loop.target, loop.iter
        if call_name(table) == "enumerate" and isinstance(table, ast.Call) and isinstance(row, ast.Tuple):
            row, table = row.elts[1], table.args[0]
        names = [ast.unparse(part) for part in row.elts] if isinstance(row, ast.Tuple) else []
        attribute = self_attribute(table)
        if attribute and ast.unparse(index) in names:
            return f"{{table: self.{attribute}, column: {names.index(ast.unparse(index))}}}"
    return None


# -- shapes ------------------------------------------------------------------------------------------------------------


def put_unit(
    subject: Subject, recording: Recording, unit: _Shape, section: str, place: SourceLine, sheet: Sheet
) -> None:
    """The shape of a unit, with names for its side, or height and width, that the model holds.

    A side is what the processor gets, or what the model's own check of pixels says.
    """
    if len(unit) != 3:
        words = ("rows", "columns") if len(unit) == 2 else tuple(f"unit_{axis}" for axis in range(len(unit)))
        words = ("bins", "frames") if len(unit) == 2 and _of_sound(recording) else words
        if len(unit) == 4 and unit[1] == unit[2] and unit[3] == _CHANNELS:
            words = ("frames", "side", "side", "channels")
        sizes = [_size(recording, size, name, sheet) for size, name in zip(unit, words, strict=True)]
        sheet.put(f"{section}.shape", sizes, place)
        return
    before, side = ("crop_", "crop") if section == "crops" else ("", "side")
    named = {1: side} if unit[1] == unit[2] else {1: f"{before}height", 2: f"{before}width"}
    for axis, name in named.items():
        sides = sides_of_images(subject, "hw"[axis - 1])
        if given := next((side for side in sides if value_of(recording, side) == unit[axis]), ""):
            sheet.put(f"let.{name}", given, why=f"as its own code says it: {unit[axis]} in the recording")
            continue
        what = f"the {name} of one unit, in pixels"
        put_number(recording, unit[axis], f"let.{name}", what, _SIDE, VISION, sheet, at=axis - 1)
    channels = str(unit[0])
    if unit[0] != _CHANNELS:  # by name: a reader cannot tell what another number counts
        sheet.put("let.channels", channels, place)
        channels = "channels"
    sheet.put(f"{section}.shape", [channels, named[1], named.get(2, named[1])], place)


def _put_arguments(recording: Recording, site: Site, sheet: Sheet) -> None:
    """The units as the call gets them, and what it gets with each."""
    if site.made:
        put_made(recording, site.made, site.place, sheet)
    if site.axis:
        sheet.put("forward.axis", site.axis, site.place, why="a batch axis of 1 before the units")
    for name, form in site.more:
        at = f"forward.with.{name}"
        if form is None:
            sheet.put(at, "absent", site.place, why="None in each batch")
            continue
        shape = [_size(recording, size, f"{name}_{axis}", sheet) for axis, size in enumerate(form[0])]
        sheet.put(f"{at}.shape", shape, site.place, why="an entry for each unit")
        sheet.put(f"{at}.dtype", form[1])


def put_made(recording: Recording, made: _Shape, place: SourceLine, sheet: Sheet) -> None:
    """The shape of a unit as the call gets it, where the model has made it of pixels."""
    shape = [_size(recording, size, ("rows", "columns")[axis], sheet) for axis, size in enumerate(made)]
    sheet.put("forward.unit", shape, place, why="what the model makes of the pixels")


def _size(recording: Recording, value: int, name: str, sheet: Sheet) -> str:
    """A size by constants of the model: an expression, the number itself, or a name in `let`, one for each size.

    The sheet asks for it where several expressions give it.
    """
    what = f"a size of a unit: {value} in the recording"
    texts = _of_spectrum(recording, value) or _of_configuration(list(dict.fromkeys(_texts(recording, value, sheet))))
    asked = (question.key for question in sheet.questions if question.what == what)
    same = (key for key in sheet.keys("let.") if sheet.value(key) in texts[:1])
    known = next(chain(asked, same), None)
    if known is not None:
        return known.removeprefix("let.")
    if texts and "side //" in texts[0]:
        return texts[0]
    if value < _SMALL and not (texts and "patch" in texts[0]):
        return str(value)
    name = name if not sheet.has(f"let.{name}") else f"{name}_more"
    if len(texts) == 1:
        sheet.put(f"let.{name}", texts[0], why=what)
    else:
        candidates = (Candidate(one, f"{value} there") for one in (*texts[:5], str(value)))
        sheet.ask(f"let.{name}", what, candidates)
    return name


def _of_sound(recording: Recording) -> bool:
    """Whether the items are sound."""
    return {batch.modality for batch in recording.batches} == {"audio"}


def _of_spectrum(recording: Recording, value: int) -> list[str]:
    """The number of a spectrum as the configuration of its encoder says it, if anything does."""
    for form, name in _SPECTRUM if _of_sound(recording) else ():
        if found := expressions(value, [form], a=attributes(recording.numbers, name, CONFIG)):
            return found[:1]
    return []


def _of_configuration(texts: Sequence[str]) -> list[str]:
    """The texts but those that say of a part's own configuration what another says of the model's."""
    bare = [_OF.sub("config.", text) for text in texts]
    return [text for index, text in enumerate(texts) if bare[index] not in bare[:index]]


def _texts(recording: Recording, value: int, sheet: Sheet) -> Iterator[str]:
    """Patches of a side or of a unit, an attribute, or a product of two."""
    held, patches = attributes(recording.numbers), attributes(recording.numbers, _PATCH, CONFIG)
    side = {"side": held[path]} if (path := sheet.value("let.side")) in held else {}
    yield from expressions(value, ["side // p", "(side // p) ** 2"], p=patches, side=side)
    yield from expressions(value, ["3 * p ** 2", "p"], p=patches)
    for path, pair in recording.numbers.items():
        if "patch" in path and isinstance(pair, list) and len(pair) == 2 and prod(pair) == value:
            yield f"{path}[0] * {path}[1]"
    yield from expressions(value, ["a"], a=attributes(recording.numbers, _SIZE, _COLUMNS))[:2]
    config = {path: n for path, n in attributes(recording.numbers, _CONFIG).items() if n > 1}
    yield from expressions(value, ["a * b ** 2"], a=config, b=config)
