"""Drafts the layout `cut`: the encoder's call on units of one shape, and the model's own way to it.

The captured call is the largest one that gets raw pixels and constants of the model, runs an encoder and gives one
tensor. Its way is looked for by `scaffold.cut` as the generator will, so that a draft is one that can be planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scaffold.descriptor.expressions import parse_call
from scaffold.descriptor.port import MODALITIES
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.explicit import draft_explicit
from scaffold.draft.gates import put_gate
from scaffold.draft.inputs import Beyond, beyond, left_out, strip
from scaffold.draft.masks import draft_masks
from scaffold.draft.outside_units import draft_outside_units, outside_units
from scaffold.draft.reentry import (
    as_reason,
    entries_of,
    entry_place,
    problems_of_way,
    put_fields,
    put_hidden_size,
)
from scaffold.draft.sheet import Sheet
from scaffold.draft.steps import PartCall, against, asks_for_rank, is_pixels
from scaffold.draft.subject import Subject
from scaffold.draft.units import draft_unit
from scaffold.draft.values import FieldConfig, Op, Plain, SourceLine, inputs_of, walk_value
from scaffold.protocol import Subclass, find_subclasses
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import find_class, find_method

_NOTHING = "no call that runs an encoder on raw pixels was found on the way from `embed_multimodal`"


#: Calls that turn `(units, channels, rows)` into rows, and the call that flattens a map to that.
_TURNS = ((".permute", (Plain(0), Plain(2), Plain(1))), (".transpose", (Plain(1), Plain(2))))
_FLAT = (".flatten", (Plain(2),))


class NoEncoder(Beyond):
    """Nothing was found that a cut could capture, and nothing that hinders it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The modalities that are served, and what is left out of the model."""

    modalities: tuple[str, ...]
    notes: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class _Modality:
    """`sites` are the calls that may be captured, the largest ones, each with those inside of it."""

    name: str
    pixels: str
    sites: tuple[tuple[PartCall, ...], ...]

    def has(self, text: str) -> bool:
        return bool(self.steps(text))

    def alike(self, text: str) -> bool:
        """Whether all calls of a text take their units and give their result in the same form."""
        return len({(step.axis, step.parts, step.attribute, step.layers) for step in self.steps(text)}) < 2

    def steps(self, text: str) -> list[PartCall]:
        return [step for site in self.sites for step in site if step.text == text]


def draft_cut(subject: Subject, sheet: Sheet) -> Cut:
    """Fill in the sections of a cut but `model`, `layout` and `integration`. Raises VCG483 with every reason."""
    try:
        modalities, notes = _modalities(subject)
    except Beyond as refusal:
        if cut := _at_outside_units(subject, sheet):
            return cut
        raise refusal from None
    kept, call, more = _captured(subject, modalities)
    step = kept[0][0].steps(call)[0]
    if len(kept) == 1 and subject.walker.waits(step):
        what = f"`{step.path}`, which runs the encoder, waits for values; a run shows what of it a graph can hold"
        raise beyond(subject.tree, step.place, what)
    _put_modalities(subject, sheet, {modality.name: (modality.pixels, entry, place) for modality, entry, place in kept})
    encoder = next(inner for inner in step.walk() if inner.encoder)
    keys = tuple(modality.pixels for modality, _, _ in kept)
    sides = draft_unit(subject, keys, encoder, sheet)
    draft_masks(subject, step, sides, sheet)
    sites = [site.place for modality, _, _ in kept for site in modality.steps(call)]
    sheet.put("forward.call", call, *sites, why=_runs(subject, encoder))
    if step.axis:
        sheet.put("forward.axis", step.axis, step.place, why="a batch axis of 1 before the units")
    if step.parts:
        sheet.put("forward.result", step.parts, step.place, why="what the model uses of the result")
    elif step.attribute is not None:
        sheet.put("forward.result", step.attribute, step.place, why="what the model takes of the result")
    if step.layers:
        sheet.put("forward.layers", step.layers, step.place, why="what the model takes of the list")
    elif (turned := _turned_map(subject, step)) is not None:
        sheet.put("forward.channels", 1, turned, why="the model makes rows of a map")
    if len(kept) == 1 and not sheet.keys("forward.")[1:]:
        draft_explicit(subject, keys[0], kept[0][1], step, call, sheet)
    put_hidden_size(subject, sheet, step)
    put_gate(subject, keys, sheet)
    return Cut(tuple(modality.name for modality, _, _ in kept), (*notes, *more))


def _turned_map(subject: Subject, step: PartCall) -> SourceLine | None:
    """Where the model makes rows of a result, a map with its channels on axis 1: by `.flatten(2).permute(0, 2, 1)`."""
    values = (value for call in subject.root.walk() for value in (*call.given.values(), call.result))
    for part in (part for value in values for part in walk_value(value) if isinstance(part, Op)):
        flat = strip(part.args[0]) if (part.name, part.args[1:]) in _TURNS else None
        if isinstance(flat, Op) and ((flat.name, flat.args[1:]) == _FLAT or _is_flat_view(flat)):
            of = flat.args[0]
            while isinstance(of, Op) and of is not step.result and of.name.startswith(".") and of.args:
                of = of.args[0]
            if of is step.result:
                return part.place or step.place
    return None


def _is_flat_view(value: Op) -> bool:
    return value.name in (".reshape", ".view") and len(value.args) == 4


def _put_modalities(subject: Subject, sheet: Sheet, served: Mapping[str, tuple[str, str, SourceLine]]) -> None:
    """Fill in each modality, with its pixels, its entry and where that is, and the fields of their inputs."""
    for name, (pixels, entry, place) in served.items():
        sheet.put(f"modalities.{name}.pixels", pixels, subject.fields[pixels].place)
        sheet.put(f"modalities.{name}.entry", entry, place)
    put_fields(subject, sheet, subject.fields, set(served))


def _way(subject: Subject, step: PartCall, text: str) -> str | None:
    """The first entry that leads to a call and that the generator can take."""
    entries, call = entries_of(subject.root, [step]), parse_call(text)
    return next((entry for entry in entries if not problems_of_way(subject, [entry], call)), None)


def _at_outside_units(subject: Subject, sheet: Sheet) -> Cut | None:
    """A cut at an encoder of another package behind what the model makes of its images; None if there is none."""
    tree, model, fields = subject.tree, subject.model, subject.fields
    found = outside_units(subject)
    entry = _way(subject, found.step, found.text) if found is not None else None
    if found is None or entry is None or not draft_outside_units(subject, found, sheet):
        return None
    _put_modalities(subject, sheet, {"image": (found.pixels, entry, entry_place(subject, entry, [found.step]))})
    apart = [heir for heir in find_subclasses(tree, model.module, model.class_name) if _overrides(tree, heir, entry)]
    if apart:
        names = [heir.class_name for heir in apart]
        sheet.put("model.optout", names, apart[0].path, why=f"their own `{parse_call(entry).path}`")
    sheet.put("forward.call", found.text, found.step.place, why=_runs(subject, found.step))
    put_hidden_size(subject, sheet, found.step)
    put_gate(subject, (found.pixels,), sheet)
    others = {field.modality: field.place for field in fields.values() if field.modality in set(MODALITIES) - {"image"}}
    reason = "its units may have another number of patches than those of images"
    return Cut(("image",), tuple(left_out(tree, place, str(name), reason) for name, place in others.items()))


def _overrides(tree: SourceTree, heir: Subclass, entry: str) -> bool:
    """Whether a subclass has a method of its own in the place of an entry."""
    owner = find_class(tree.parse(heir.path), heir.class_name)
    return owner is not None and find_method(owner, parse_call(entry).path.removeprefix("self.")) is not None


# --- what is captured -----------------------------------------------------------------------------------------------


def _modalities(subject: Subject) -> tuple[list[_Modality], list[Diagnostic]]:
    """Modalities with calls that may be captured, images first. Raises VCG483 if there is none."""
    sites: dict[str, dict[str, list[tuple[PartCall, ...]]]] = {}
    for site in _sites(subject.root):
        key = _pixels(site[0], subject.fields)
        name = (subject.fields[key].modality if key in subject.fields else None) or ""
        if name in MODALITIES:
            sites.setdefault(name, {}).setdefault(key, []).append(site)
    found: list[_Modality] = []
    notes: list[Diagnostic] = []
    reasons: list[Diagnostic] = []
    for name in [name for name in MODALITIES if name in sites]:
        by_key = sites[name]
        if len(by_key) > 1:
            reason = f"`{'` and `'.join(by_key)}` go through the encoder, and a cut captures units of one input"
            place = list(by_key.values())[-1][0][0].place
            notes.append(left_out(subject.tree, place, name, reason))
            reasons += beyond(subject.tree, place, reason).diagnostics
        else:
            [(key, group)] = by_key.items()
            found.append(_Modality(name, key, tuple(group)))
    if found:
        return found, notes
    if reasons:
        raise Beyond(reasons)
    raise _refusal(subject)


def _refusal(subject: Subject) -> Beyond:
    """Why nothing can be captured: of calls that get pixels alone the largest ones, else of the others the smallest."""
    refused = [step for step in subject.root.walk() if step.encodes and against(step)]
    visual = [step for step in refused if any(_is_visual(key, subject.fields) for key in _raw_keys(step))]
    steps = [step for step in visual if any(is_pixels(key) for key in _raw_keys(step))] or visual
    alone = [step for step in steps if step.raw]
    shown = [step for step in alone if not any(upper in alone for upper in list(step.up())[1:])]
    shown = shown or [step for step in steps if not any(inner in steps for inner in list(step.walk())[1:])]
    found = [
        problem
        for step in {(step.path, step.place): step for step in shown}.values()
        for what in [f"`{step.path}`, which runs the encoder, {against(step)}"]
        for problem in beyond(subject.tree, step.place, what).diagnostics
    ]
    return Beyond(found) if found else NoEncoder(list(_without_layers(subject)))


def _without_layers(subject: Subject) -> Iterator[Diagnostic]:
    """The parts that get raw pixels, and why none is taken for an encoder."""
    parts = {step.path: step for step in subject.root.walk() if step.module and step.raw}
    for path, step in parts.items():
        lacks = "no layers were found in it" if subject.objects.cls(path) else "its class is not in the tree"
        yield from beyond(subject.tree, step.place, f"`{path}` gets the pixels, and {lacks}").diagnostics
    if not parts:
        yield from beyond(subject.tree, subject.model.place, _NOTHING).diagnostics


def _sites(step: PartCall) -> Iterator[tuple[PartCall, ...]]:
    """The largest calls that can be captured, each with the ones inside of it.

    A call that brings its units into one form itself gets them in several: the calls inside of it get that form.
    """
    fitting = tuple(inner for inner in step.walk() if _fits(inner))
    if _fits(step) and not (asks_for_rank(step) and len(fitting) > 1):
        yield fitting
    else:
        for child in step.children:
            yield from _sites(child)


def _fits(step: PartCall) -> bool:
    return step.parent is not None and step.raw and step.encodes and against(step) is None


def _raw_keys(step: PartCall) -> list[str]:
    """Inputs of the arguments of a call that nothing has computed on."""
    return [key for value in step.given.values() if PartCall.is_raw(value) for key in inputs_of(value)]


def _is_visual(key: str, fields: dict[str, FieldConfig]) -> bool:
    return key in fields and fields[key].modality in MODALITIES


def _pixels(step: PartCall, fields: dict[str, FieldConfig]) -> str:
    """The input whose tensors are the units."""
    keys = [key for key in inputs_of(step.units) if _is_visual(key, fields)] if step.units is not None else []
    return next((key for key in keys if is_pixels(key)), (*keys, "")[0])


def _captured(
    subject: Subject, modalities: list[_Modality]
) -> tuple[list[tuple[_Modality, str, SourceLine]], str, list[Diagnostic]]:
    """The modalities with their entries, the captured call, and what is left out.

    The call is that of most modalities, of those the largest one. Each is tried as the generator will look for it.
    """
    texts: dict[str, int] = {}
    for modality in modalities:
        for site in modality.sites:
            for depth, step in enumerate(site):
                if step.text is not None:
                    texts[step.text] = min(depth, texts.get(step.text, depth))
    ranked = sorted(texts, key=lambda text: (-sum(modality.has(text) for modality in modalities), texts[text]))
    refused: dict[str, list[Diagnostic]] = {}
    best: tuple[list[tuple[_Modality, str, SourceLine]], str] = ([], "")
    for text in ranked:
        kept: list[tuple[_Modality, str, SourceLine]] = []
        for modality in modalities:
            steps = modality.steps(text)
            entries = entries_of(subject.root, steps) if steps and modality.alike(text) else []
            others = [entry for _, entry, _ in kept]
            tried = [(entry, problems_of_way(subject, [*others, entry], parse_call(text))) for entry in entries]
            entry = next((entry for entry, problems in tried if not problems), None)
            if entry is not None:
                kept.append((modality, entry, entry_place(subject, entry, steps)))
            elif tried:
                refused.setdefault(modality.name, tried[-1][1])
        if len(kept) > len(best[0]):
            best = kept, text
        if len(kept) == len(modalities):
            break
    kept, call = best
    if not kept:
        raise DiagnosticError([as_reason(problem) for problems in refused.values() for problem in problems])
    notes = []
    for modality in modalities:
        if modality not in [one for one, _, _ in kept]:
            problems = refused.get(modality.name)
            reason = problems[0].message if problems else f"`{call}` is not on its way"
            notes.append(left_out(subject.tree, modality.sites[0][0].place, modality.name, reason))
    return kept, call, notes


def _runs(subject: Subject, encoder: PartCall) -> str:
    cls = subject.objects.cls(encoder.path)
    return f"runs {cls[1].name}" if cls is not None else f"runs `{encoder.path}`, which is not in the tree"
