"""The common parts of drafts from a recording: places, inputs and their fields, and what a draft leaves out."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from math import isqrt, prod

from scaffold.descriptor.port import MODALITIES, VISUAL
from scaffold.diagnostics import Diagnostic, Severity
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Sheet, SourceLine
from scaffold.draft.unportable import offered
from scaffold.syntax import FunctionNode, first_line
from scaffold.tower.paths import refuses_embeds
from scaffold.watch import Batch, Call, Frame, Recording

#: Axes of one image, or of several.
_IMAGES = 4
#: The most rows of an item beside the product of its sizes.
_EXTRA = 8
#: Names of precomputed embeddings, which are no pixels.
EMBEDS = re.compile(r"_embeds$")
SOUND = "audio"


def seen(recording: Recording) -> str:
    """The reason of a refusal: how often the first encoder with equal layers is called, and where."""
    batch = recording.batches[0]
    for repeated in recording.repeated:
        owner = repeated.name.rpartition(".")[0]
        calls = [call for call in batch.calls if call.part == owner]
        if calls:
            times = "once" if len(calls) == 1 else f"{len(calls)} times"
            place = batch.way(calls[0])[-1].place
            what = f"the encoder `{owner}` is called {times} for {len(batch.items)} {batch.modality}s ({place})"
            return f"{what}, and neither it nor a call around it gets all pixels as units of one shape"
    return "no call of a part with equal layers was seen"


def omitted(
    subject: Subject, recording: Recording, drafted: Collection[str], layout: str, *, alone: bool
) -> tuple[Diagnostic, ...]:
    """The notes on modalities that a draft leaves out: another part serves them, or nothing was recorded of them.

    `alone`: with them a port in a tree would run the model's code twice.
    """
    nothing = "nothing to do: the port is complete without it, and the modality runs eagerly, as before"
    held = f"the drafted layout `{layout}` holds {' and '.join(drafted)} alone"
    if alone:
        held = "with it a port in a tree would run the model's code twice"
    more = "nothing to do: it runs eagerly, as before. With --adapter the draft has it, for the plugin's adapter"
    left = {batch.modality: (held, more if alone else nothing) for batch in recording.batches}
    left |= {name: (reason, nothing) for name, reason in recording.missing.items() if name in MODALITIES}
    encoder, option = ("sound", "without") if SOUND in drafted else ("images and videos", "with")
    other = f"draft it {option} --audio: the plugin serves an adapter of each"
    for name in sorted(other_encoder(subject, drafted)):
        left.setdefault(name, (f"a descriptor captures one encoder, here that of {encoder}", other))
    place = subject.tree.span(subject.file, subject.place.line)
    return tuple(
        Diagnostic("VCG484", f"the modality `{name}` is left out: {reason}", place, help_text, Severity.WARNING)
        for name, (reason, help_text) in left.items()
        if name not in drafted
    )


def other_encoder(subject: Subject, drafted: Collection[str]) -> frozenset[str]:
    """The modalities of requests that another encoder serves than the drafted one: sound beside images, or these."""
    return offered(subject) & (VISUAL.keys() if SOUND in drafted else {SOUND})


def line_of(frame: Frame) -> SourceLine:
    return SourceLine(frame.place.file, frame.place.line)


def function_of(subject: Subject, frame: Frame) -> FunctionNode | None:
    """The function that a frame waits in."""
    module = subject.program.module(frame.place.file)
    functions = (node for node in ast.walk(module.tree) if isinstance(node, FunctionNode)) if module is not None else ()
    return next((one for one in functions if first_line(one) == frame.first_line), None)


def waiting_call(frame: Frame, function: FunctionNode) -> ast.Call | None:
    """The call in a function that a frame waits for."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return next((one for one in calls if (one.lineno, one.col_offset) == (frame.place.line, frame.place.column)), None)


def pixel_keys(batch: Batch) -> set[str]:
    """The inputs of floating point, but precomputed embeddings, which have few axes."""
    given = (leaf for leaf in batch.inputs if leaf.dtype.startswith(("float", "bfloat")))
    return {leaf.key for leaf in given if not EMBEDS.search(leaf.key) or len(leaf.shape) >= _IMAGES}


def put_dtype(subject: Subject, norms: Sequence[Call], sheet: Sheet) -> None:
    """Where a normalisation inside a graph, by its calls, keeps the dtype of raw pixels."""
    owner = next((subject.program.class_at(call.cls) for call in norms), None)
    kept = subject.program.method(owner, "input_dtype") if owner is not None else None
    if kept is not None:
        place = SourceLine(kept[0].file, kept[2].lineno)
        sheet.put("pixels.dtype", f"self.{norms[0].part}.input_dtype", place, why="raw pixels, normalised inside")


def put_embeds(subject: Subject, batch: Batch, sheet: Sheet) -> None:
    """The input with precomputed embeddings that the processor declares and takes, and that the model reads."""
    declared = (field.key for field in batch.fields if field.modality == batch.modality and EMBEDS.search(field.key))
    takes = not refuses_embeds(subject.tree, subject.module, subject.class_name, batch.modality)
    for key in [key for key in declared if takes and reads(subject, key)][:1]:
        sheet.put(f"modalities.{batch.modality}.embeds", key, why="as the processor declares it")


def reads(subject: Subject, key: str) -> bool:
    """Whether the files of a model and of its bases have the name of an input."""
    return any(f'"{key}"' in module.text for module, _ in subject.program.lineage(subject.owner))


def _names(subject: Subject, key: str) -> bool:
    """Whether the class of a model, or one of its bases, names an input: a text, a parameter or a keyword."""
    nodes = (node for _, owner in subject.program.lineage(subject.owner) for node in ast.walk(owner))
    return any(key in (getattr(node, "value", None), getattr(node, "arg", None)) for node in nodes)


# -- inputs, shapes and widths -----------------------------------------------------------------------------------------


def put_fields(subject: Subject, batches: Sequence[Batch], sheet: Sheet) -> None:
    """How each input of a modality lies in a batch: one entry for each item, or so many as another input says.

    Precomputed embeddings beside rows may be so many, divided by one number. Those that the model does not read, or its
    processor refuses, are none. An input that comes with no media, and that the model's class never names, is of these.
    """
    grids = sheet.value("layout") == "rows"
    embeds = [field.key for field in batches[0].fields if EMBEDS.search(field.key)]
    # A model may hand embeddings of videos on under the key of images.
    takes = any(reads(subject, key) for key in embeds)
    takes &= not refuses_embeds(subject.tree, subject.module, subject.class_name, batches[0].modality)
    for field in batches[0].fields:
        if field.modality != batches[0].modality:
            continue
        ready = EMBEDS.search(field.key)
        if not takes if ready else not (any(one.given(field.key) for one in batches) or _names(subject, field.key)):
            continue
        at = f"fields.{field.key}"
        if field.kind == "batched":
            sheet.put(at, "batched", why="as the processor declares it")
        elif field.kind == "flat" and not sheet.has(f"{at}.sizes"):
            sized = sized_by(batches, field.key, divided=grids and bool(EMBEDS.search(field.key)))
            if sized:
                sheet.put(f"{at}.sizes", sized[0][0], why="its product is the length of each item")
                if sized[0][1]:
                    sheet.put(f"{at}.{sized[0][1]}", sized[0][2], why="as the lengths of items show")
            elif batches[0].given(field.key):
                what = f"no input holds the lengths of the items of `{field.key}`: {', '.join(map(str, field.lengths))}"
                sheet.refuse(subject.tree, subject.place, what)


def sizes_of_items(batches: Sequence[Batch], key: str) -> str | None:
    """The input whose value, or product of values, is the length of each item in every batch."""
    return next((at for at, kind, _ in sized_by(batches, key) if not kind), None)


def sized_by(batches: Sequence[Batch], key: str, *, divided: bool = False) -> list[tuple[str, str, int]]:
    """Inputs that say the length of each item: as they are, so many `extra` rows, or none below the `least` product."""
    found = []
    for at in dict.fromkeys(leaf.at for leaf in batches[0].inputs if leaf.at != key):
        groups: list[tuple[int, int, int]] = []  # rows, product, and the number of items that these are of
        for batch in batches:
            products = _products(batch, at)
            declared = batch.lengths(key)
            if declared and len(declared) == len(products):
                groups += [(rows, product, 1) for rows, product in zip(declared, products, strict=True)]
            elif not declared and products:  # a processor may keep to itself what it cuts by
                rows = sum(leaf.shape[0] for leaf in batch.inputs if leaf.at == key and leaf.shape)
                groups.append((rows, sum(products), len(products)))
            else:
                groups.append((0, 0, 0))
        if not all(items for _, _, items in groups) or not any(rows for rows, _, _ in groups):
            continue
        by = groups[0][1] // groups[0][0] if divided and groups[0][0] else 1
        none = {product for rows, product, _ in groups if not rows}
        some = {product for rows, product, _ in groups if rows}
        more = {(rows - product) / items for rows, product, items in groups}
        if all(product == rows * by for rows, product, _ in groups):
            found.append((at, "", 0))
        elif none and max(none) < min(some) and all(rows in (0, product) for rows, product, _ in groups):
            found.append((at, "least", max(none) + 1))
        elif len(more) == 1 and max(more) in range(1, _EXTRA + 1):
            found.append((at, "extra", int(max(more))))
    # A number for each item says it before a grid does, whose product may be another one where there are more tiles.
    grids = {leaf.at for leaf in batches[0].inputs if len(leaf.shape) > 1}
    return sorted(found, key=lambda one: (bool(one[1]), one[0] in grids, one[0]))


def token_side(counts: Sequence[tuple[int, int]], extras: Iterable[int] = (0,)) -> int:
    """The side of the square of rows that becomes a token, by the rows and tokens of items; 0 where there is none.

    All items may have as many tokens more, one of the `extras`. An image of one token may have other ones.
    """
    for extra in extras:
        side = isqrt(counts[0][0] // max(counts[0][1] - extra, 1))
        if side and all(rows == (tokens - extra) * side**2 or (extra and rows == side**2) for rows, tokens in counts):
            return side
    return 0


def _products(batch: Batch, at: str) -> list[int]:
    """The value of an input, or its product, for each item; none of tables of several rows."""
    values = (leaf.value for leaf in batch.inputs if leaf.at == at and isinstance(leaf.value, list))
    found = [prod(one) if isinstance(one, list) else one for value in values for one in value]
    return found if all(isinstance(one, int) for one in found) else []
