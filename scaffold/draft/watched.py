"""Drafts the layout `cut` from a recording: the largest call that gets all pixels as units, and constants of the model.

Everything that a run shows comes from the recording. The source says which method the entry is, what integration
needs, and whether the generator finds the way. Models whose units are no pixels, and packed rows, are not drafted.
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
from scaffold.draft.inputs import Beyond, beyond, left_out
from scaffold.draft.reentry import ALL, handed_on, problems_of_way, unconditional
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.subject import Subject
from scaffold.draft.values import SourceLine
from scaffold.syntax import FunctionNode, assigned_to, self_attribute
from scaffold.watch import Batch, Field, Frame, Leaf, Recording

_SIDE = re.compile(r"(^|[._])(image|crop|img|tile)_size(\[0\])?$")
_WIDTH = re.compile(r"\.hidden_size$")
#: Names of the parts of a configuration that say the width of embeddings and the side of an image first.
_TEXT, VISION = re.compile(r"\.(text|llm|language|lm)_?\w*\."), re.compile(r"\.vi[st]\w*\.")
#: Names of precomputed embeddings, which are no pixels.
_EMBEDS = re.compile(r"_embeds$")


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


def draft_watched(subject: Subject, recording: Recording, sheet: Sheet) -> tuple[tuple[str, ...], list[Diagnostic]]:
    """Fill in the sections of a cut but `model`, `layout` and `integration`; the modalities and notes on others.

    Raises VCG483 with what was seen instead.
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
        raise Beyond(refused or beyond(subject.tree, subject.model.place, _seen(recording)).diagnostics)
    sites = [site for site, _ in kept.values()]
    for name, (site, entry) in kept.items():
        sheet.put(f"modalities.{name}.pixels", site.pixels, site.place, why="all of it enters the call")
        sheet.put(f"modalities.{name}.entry", entry, line_of(site.entry))
        put_fields(subject, recording.of(name), sheet)
    _put_unit(recording, sites, sheet)
    batches = recording.of(next(iter(kept)))
    seen = f"{', '.join(str(_units(batch, sites[0].pixels)[0]) for batch in batches)} units in {len(batches)} batches"
    sheet.put("forward.call", sites[0].text, *(site.place for site in sites), why=seen)
    if sites[0].result is not None:
        sheet.put("forward.result", sites[0].result, sites[0].place, why="what later calls get of the result")
    put_width(recording, batches[0], sheet)
    missing = {name: reason for name, reason in recording.missing.items() if name in MODALITIES}
    reason = "no call gets all of its pixels as units"
    left: list[tuple[str, str]] = [*((name, reason) for name in found if name not in kept), *missing.items()]
    return tuple(kept), [left_out(subject.tree, subject.model.place, name, why) for name, why in left]


def _seen(recording: Recording) -> str:
    """The reason of a refusal: how often the first encoder with equal layers is called, and where."""
    batch = next(iter(recording.batches), None)
    if batch is None:
        return f"no run could be recorded: {'; '.join(recording.missing.values())}"
    for repeated in recording.repeated:
        owner = repeated.name.rpartition(".")[0]
        calls = [call for call in batch.calls if call.part == owner]
        if calls:
            times = "once" if len(calls) == 1 else f"{len(calls)} times"
            place = batch.way(calls[0])[-1].place
            what = f"the encoder `{owner}` is called {times} for {len(batch.items)} {batch.modality}s ({place})"
            return f"{what}, and neither it nor a call around it gets all pixels as units of one shape"
    return "no call of a part with equal layers was seen"


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


def pixel_keys(batch: Batch) -> set[str]:
    """The inputs of floating point, but precomputed embeddings."""
    found = {leaf.at.partition("[")[0] for leaf in batch.inputs if leaf.dtype.startswith(("float", "bfloat"))}
    return {key for key in found if not _EMBEDS.search(key)}


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
        names, results = _parameters(subject, batch.frames[entered], node), frame.results
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


def _parameters(subject: Subject, callee: Frame, node: ast.Call) -> list[str]:
    """The parameters of a function that positional arguments go to."""
    module = subject.program.module(callee.place.file)
    for function in ast.walk(module.tree) if module is not None else ():
        if isinstance(function, FunctionNode):
            first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
            if first == callee.first_line:
                names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
                return names[int(names[:1] in (["self"], ["cls"])) :]
    return []


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


def line_of(frame: Frame) -> SourceLine:
    return SourceLine(frame.place.file, frame.place.line)


# -- the entry ---------------------------------------------------------------------------------------------------------


def _entries(subject: Subject, site: _Site | None) -> list[str]:
    """Calls that lead to a site, the one to prefer first: what `embed_multimodal` returns as it is, or all of it."""
    narrow = narrow_entry(subject, site.entry) if site is not None and site.entered is not None else None
    return [narrow, ALL] if narrow else [ALL]


def narrow_entry(subject: Subject, frame: Frame) -> str | None:
    """The call in `embed_multimodal`, if its result is handed on and each argument is made of the batch alone."""
    found = subject.program.method(subject.model.owner, "embed_multimodal")
    if found is None or frame.part != "":
        return None
    calls = (one for one in ast.walk(found[2]) if isinstance(one, ast.Call))
    place = (frame.place.line, frame.place.column)
    node = next((one for one in calls if (one.lineno, one.col_offset) == place), None)
    if node is None or not handed_on(node, found[2]) or not unconditional(node, found[2]):
        return None
    variable = found[2].args.kwarg.arg if found[2].args.kwarg else ""
    texts = [_made_of_batch(subject, found[2], node, argument) for argument in node.args]
    if None in texts or any(one.arg or ast.unparse(one.value) != variable for one in node.keywords):
        return None
    return f"{ast.unparse(node.func)}({', '.join([*map(str, texts), *['**inputs'] * len(node.keywords)])})"


def _made_of_batch(subject: Subject, function: FunctionNode, call: ast.Call, argument: ast.expr) -> str | None:
    """An argument of a call, as made of the batch alone; an entry of a mapping by modalities, as that was made."""
    variable = function.args.kwarg.arg if function.args.kwarg else ""
    inner = _maker(function, argument)
    if isinstance(inner, ast.Subscript):
        parsed, key = _maker(function, inner.value), _modality(function, call, inner.slice)
        name = self_attribute(parsed.func) if isinstance(parsed, ast.Call) else None
        found = subject.program.method(subject.model.owner, name) if name is not None else None
        if found is None or key is None:
            return None
        makers = [
            (_maker(found[2], one.value), found[2].args.kwarg)
            for one in ast.walk(found[2])
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript)
            and ast.unparse(one.targets[0].slice) == key
        ]  # fmt: skip
        if len(makers) != 1 or makers[0][1] is None:
            return None
        inner, variable = makers[0][0], makers[0][1].arg
    if {one.id for one in ast.walk(inner) if isinstance(one, ast.Name)} != {"self", variable}:
        return None
    return ast.unparse(inner).replace(f"**{variable}", "**inputs")


def _maker(function: FunctionNode, value: ast.expr) -> ast.expr:
    """The only value that a variable gets, or the expression itself."""
    if not isinstance(value, ast.Name):
        return value
    made = [
        one.value
        for one in ast.walk(function)
        if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None
        and [ast.unparse(target) for target in assigned_to(one)] == [value.id]
    ]  # fmt: skip
    return made[0] if len(made) == 1 else value


def _modality(function: FunctionNode, call: ast.Call, key: ast.expr) -> str | None:
    """A constant key, or the constant that a variable is compared with around a call."""
    if isinstance(key, ast.Constant):
        return ast.unparse(key)
    tests = [
        one.test
        for one in ast.walk(function)
        if isinstance(one, ast.If) and any(inner is call for part in one.body for inner in ast.walk(part))
    ]
    found = [
        ast.unparse(test.comparators[0])
        for test in tests
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and isinstance(key, ast.Name)
        and ast.unparse(test.left) == key.id and isinstance(test.comparators[0], ast.Constant)
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None


# -- inputs, shapes and widths -----------------------------------------------------------------------------------------


def put_fields(subject: Subject, batches: Sequence[Batch], sheet: Sheet, *, grids: bool = False) -> None:
    """How each input of a modality lies in a batch: one entry for each item, or so many as another input says.

    With `grids`, precomputed embeddings may be so many, divided by one number.
    """
    for field in batches[0].fields:
        if field.modality != batches[0].modality:
            continue
        at = f"fields.{field.key}"
        if field.kind == "batched":
            sheet.put(at, "batched", why="as the processor declares it")
        elif field.kind == "flat":
            sizes = sizes_of_items(batches, field, divided=grids and bool(_EMBEDS.search(field.key)))
            if sizes is not None:
                sheet.put(f"{at}.sizes", sizes, why="its product is the length of each item")
            elif any(leaf.at.partition("[")[0] == field.key for leaf in batches[0].inputs):
                what = f"no input holds the lengths of the items of `{field.key}`: {', '.join(map(str, field.lengths))}"
                sheet.obstacles += beyond(subject.tree, subject.model.place, what).diagnostics


def sizes_of_items(batches: Sequence[Batch], field: Field, *, divided: bool = False) -> str | None:
    """The input whose value, or product of values, is the length of each item in every batch, or a multiple of it."""
    lengths = [next((one.lengths for one in batch.fields if one.key == field.key), ()) for batch in batches]
    fitting = [
        leaf.at
        for leaf in batches[0].inputs
        if leaf.at != field.key and _multiple([_products(batch, leaf.at) for batch in batches], lengths, divided)
    ]
    return min(fitting, default=None)


def _products(batch: Batch, at: str) -> list[int]:
    """The value of an input, or its product, for each item."""
    values = (leaf.value for leaf in batch.inputs if leaf.at == at and isinstance(leaf.value, list))
    return [prod(one) if isinstance(one, list) else one for value in values for one in value]


def _multiple(products: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], divided: bool) -> bool:
    """Whether lengths are these products, or all of them divided by one number."""
    flat, counts = [one for found in products for one in found], [one for found in lengths for one in found]
    if [len(found) for found in products] != [len(found) for found in lengths] or not counts or not all(counts):
        return False
    by = flat[0] // counts[0] if divided else 1
    return flat == [count * by for count in counts]


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


def put_width(recording: Recording, batch: Batch, sheet: Sheet) -> None:
    width = batch.results[0].shape[-1]
    what = f"columns of the embeddings: {width} in the recording"
    put_number(recording, width, "output.hidden_size", what, _WIDTH, _TEXT, sheet)


def put_number(
    recording: Recording,
    value: int,
    key: str,
    what: str,
    names: re.Pattern[str],
    part: re.Pattern[str],
    sheet: Sheet,
) -> None:
    """The attribute of this value: the only configuration entry that is called so, or a question with all of them."""
    holding = [path for path, number in recording.numbers.items() if number == value]
    holding += [f"{path}[0]" for path, pair in recording.numbers.items() if pair == [value, value]]
    holding.sort(key=lambda path: (not path.startswith("self.config."), not part.search(path), path.count("."), path))
    called = [path for path in holding if names.search(path)]
    if called and sum(path.startswith("self.config.") for path in called) < 2:
        sheet.put(key, called[0], why=f"{value} in the recording")
        return
    candidates = tuple(Candidate(path, f"{value} in the recording") for path in called or holding)
    sheet.ask(Question(key, what, candidates[:6]))
