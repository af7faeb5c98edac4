"""Drafts the shape of one unit: what enters the encoder's call once for each leading index."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scaffold.draft.locate import Located
from scaffold.draft.objects import Objects, said
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import PartCall
from scaffold.draft.subject import Subject
from scaffold.draft.values import Mapped, Op, Plain, Ref, SourceLine, Term
from scaffold.syntax import FunctionNode, assigned_to, call_name
from scaffold.tower.source import Program

_SIDE = re.compile(r"(^|\.)(force_)?(image|crop|img|tile)_size$")
_PATH = re.compile(r"\w+(\.\w+)*")
_CONFIG = re.compile(r"^(self\.)?(hf_)?config\b")
#: How a processor asks for the model's configuration.
_OF_PROCESSOR = re.compile(r"^self\.((info|ctx)\.)?get_hf_config\(\w*\)")
_COUNT = re.compile(r"^(num_patches|patch_num|image_num_patch|grid_size)$")
#: Names of dimensions in annotated shapes: of channels that have no number there, and of sides.
CHANNELS = {"c", "C"}
#: Channels, height and width; the channels of a colour image.
_AXES, _COLOURS = 3, 3
_SIDES = {"h": "height", "w": "width", "H": "height", "W": "width"}
#: Units that no annotation says anything of: images, or flat patches where the model makes that of its input.
_IMAGE: tuple[object, ...] = ("n", 3, "h", "w")
_FLAT: tuple[object, ...] = ("n", "rows", "width")


@dataclass(frozen=True, slots=True)
class _Known:
    text: str
    place: SourceLine | None
    why: str


def draft_unit(
    subject: Subject,
    keys: tuple[str, ...],
    encoder: PartCall,
    sheet: Sheet,
) -> dict[str, str]:
    """Fill in `pixels.shape` and the names that it uses, and return those of annotated dimensions.

    Asks for what the source does not tell.

    `keys` are the inputs of pixels, `encoder` the call of the part that gets them. A side is what the model checks its
    input against, else the only size that its constructor reads, else what the encoder is built for, or the part that
    holds it.
    """
    objects = subject.objects
    shapes = [list(subject.shapes(key, made=True)) for key in keys]
    shown = next((max(found, key=_tells) for found in shapes if found), None)
    if shown is None:
        dimensions, place, bindings = _FLAT if _is_flat(encoder.units) else _IMAGE, None, None
    else:
        dimensions, place, bindings = shown[0], shown[1], shown[2].entries.get("resolve_bindings")
    unit = _unit(dimensions)
    if len(unit) == 2:
        _patches(objects, encoder, unit, place or encoder.place, sheet)
        return {}
    bound = {name: _bound(subject.program, objects, bindings, name) for name in unit if name in _SIDES}
    same = len({known.text if known else None for known in bound.values()}) < 2
    lets = {name: "side" if same else _SIDES[name] for name in bound}
    lists = _lists(bindings, objects, encoder.path)
    for name, let in lets.items():
        known = (
            bound[name]
            or _read(objects, lists)
            or _built_for(objects, encoder.path, lists)
            or _kept(objects, encoder.path)
            or _built_for(objects, encoder.path.rpartition(".")[0], lists)
        )
        if known is not None:
            sheet.put(f"let.{let}", known.text, known.place, why=known.why)
        elif not sheet.has(f"let.{let}"):
            look = (f"{place or encoder.place}: the pixels have no size that the model's source tells",)
            what = f"the {let} of one unit, in pixels"
            sheet.ask(Question(f"let.{let}", what, tuple(_candidates(subject.model, lists)), look))
    for name in dict.fromkeys(part for part in unit if not part.isdigit() and part not in bound):
        what = f"the number that the annotated shape calls `{name}`"
        colours = (Candidate("3", "colour channels"),) if name in CHANNELS else ()
        sheet.ask(Question(f"let.{name}", what, colours, (str(place),)))
    why = "" if shown is not None else "an RGB image; no annotation says its shape"
    shape = [lets.get(part, part) for part in unit]
    if len(shape) == _AXES:
        shape[0] = name_channels(shape[0], place, sheet)
    sheet.put("pixels.shape", shape, place, why=why)
    return lets


def name_channels(first: str, place: SourceLine | None, sheet: Sheet) -> str:
    """A number of channels by name where it is not the three of a colour image: a reader cannot tell what it counts."""
    if not first.isdigit() or int(first) == _COLOURS:
        return first
    sheet.put("let.channels", first, place)
    return "channels"


def _is_flat(units: Term | None) -> bool:
    """Whether the model views its input as patches of each unit, `(units, rows, width)`."""
    return isinstance(units, Op) and units.name in (".view", ".reshape") and len(units.args) == len(_FLAT) + 1


def _tells(shape: tuple[tuple[object, ...], SourceLine, Mapped]) -> tuple[int, bool, int]:
    """How much an annotated shape says: axes, what they are bound to, and numbers."""
    dimensions, _, table = shape
    return len(dimensions), "resolve_bindings" in table.entries, sum(isinstance(part, int) for part in dimensions)


def _unit(dimensions: tuple[object, ...]) -> list[str]:
    """The dimensions of one unit: from the channels on, else all but the first."""
    channels = (i for i, part in enumerate(dimensions) if isinstance(part, int) or part in CHANNELS)
    return [str(part) for part in dimensions[max(next(channels, 1), 1) :]]


def _patches(objects: Objects, encoder: PartCall, names: list[str], place: SourceLine, sheet: Sheet) -> None:
    """A unit of flat patches: as wide as the layer that gets them, and as many as the encoder says."""
    rows, width = names
    for step in encoder.walk():
        made = objects.value(step.path)
        if isinstance(made, Op) and made.name.endswith("nn.Linear") and step.raw:
            sheet.put(f"let.{width}", f"{step.path}.in_features", step.place, why="the input of a linear layer")
            break
    else:
        sheet.ask(Question(f"let.{width}", "the width of a patch", (), (f"{encoder.place}: the encoder's call",)))
    paths = [f"{encoder.path}.{name}" for name in objects.attributes(encoder.path) if _COUNT.search(name)]
    found = [(text, objects.place(path)) for path in paths for text in _counts(path)]
    why = "what the encoder says of its patches"
    if len(found) == 1:
        sheet.put(f"let.{rows}", *found[0], why=why)
    else:
        candidates = tuple(Candidate(text, why, at) for text, at in found)
        what = f"the patches of one unit ({place}: {rows}, {width})"
        sheet.ask(Question(f"let.{rows}", what, candidates, (f"{encoder.place}: the encoder's call",)))
    sheet.put("pixels.shape", [rows, width], place)


def _counts(path: str) -> Iterator[str]:
    """A number of patches, or the product of its two sides."""
    name = path.rpartition(".")[2]
    if name.startswith("num_"):
        yield path
    else:
        text = said(f"{path}[0] * {path}[1]")
        if text is not None:
            yield text


def _bound(program: Program, objects: Objects, bindings: Term | None, name: str) -> _Known | None:
    """The value that a dimension is bound to where the model checks its input."""
    value = bindings.entries.get(name) if isinstance(bindings, Mapped) else None
    why = "what the model checks its input against"
    if isinstance(value, Ref) and not value.path.startswith("self."):
        found = _of_module(program, value)
        return _Known(found, value.place, why) if found else None
    text = objects.text(value)
    place = value.place if isinstance(value, (Ref, Op)) else None
    return _Known(text, place, why) if text is not None else None


def _of_module(program: Program, value: Ref) -> str | None:
    """`336` of `CONFIG.image_size`, where the module says `CONFIG = SomeConfig(image_size=336)`."""
    module = program.module(value.place.file) if value.place else None
    name, _, attribute = value.path.partition(".")
    for node in module.tree.body if module else ():
        if any(isinstance(target, ast.Name) and target.id == name for target in assigned_to(node)):
            for keyword in node.value.keywords if isinstance(getattr(node, "value", None), ast.Call) else ():  # type: ignore[attr-defined]
                if keyword.arg == attribute and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return None


def _lists(bindings: Term | None, objects: Objects, encoder: str) -> set[str]:
    """Attributes whose elements are read somewhere: they are no side themselves."""
    values = [*(bindings.entries.values() if isinstance(bindings, Mapped) else ()), *objects.taken("self")]
    values += objects.taken(encoder)
    found = (value.args[0] for value in values if isinstance(value, Op) and value.name == "[]")
    return {text for text in map(objects.text, found) if text is not None}


def _sides(objects: Objects, values: Iterator[Term]) -> Iterator[tuple[str, SourceLine | None]]:
    for value in values:
        name = value.path if isinstance(value, Ref) else value.name if isinstance(value, Op) else ""
        text = objects.text(value) if _SIDE.search(name) else None
        if text is not None:
            yield text, value.place if isinstance(value, (Ref, Op)) else None


def _built_for(objects: Objects, encoder: str, lists: set[str]) -> _Known | None:
    """The size that the constructor of the encoder reads."""
    why = "what the encoder is built for"
    for text, place in _sides(objects, objects.reads(encoder)):
        return None if text in lists else _Known(text, place, why)
    found = (path for path, value in objects.kept(encoder) if _SIDE.search(path) and _is_element(value))
    return next((_Known(path, objects.place(path), why) for path in found), None)


def _kept(objects: Objects, encoder: str) -> _Known | None:
    """The only number that the part around the encoder keeps as a size."""
    holder = encoder.rpartition(".")[0]
    found = [name for name, value in objects.attributes(holder).items() if _SIDE.search(name) and _is_number(value)]
    if len(found) != 1:
        return None
    path = f"{holder}.{found[0]}"
    return _Known(path, objects.place(path), f"the size that `{holder}` keeps")


def _is_number(value: Term) -> bool:
    return isinstance(value, Plain) and isinstance(value.value, int) and not isinstance(value.value, bool)


def _is_element(value: Term) -> bool:
    return isinstance(value, Op) and value.name == "[]"


def _read(objects: Objects, lists: set[str]) -> _Known | None:
    """The only size that the constructor of the model reads."""
    found = dict(_sides(objects, iter(objects.part_reads("self"))))
    if len(found) != 1 or found.keys() & lists:
        return None
    [(text, place)] = found.items()
    return _Known(text, place, "the size that the model reads")


def _candidates(model: Located, lists: set[str]) -> Iterator[Candidate]:
    """Configuration entries that the model's module reads as a size."""
    seen = set(lists)
    tree = model.owner[0].tree
    functions = [function for function in ast.walk(tree) if isinstance(function, FunctionNode)]
    variables = {
        id(node): names for function in functions if (names := _paths(function)) for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        path = _in_full(_read_attribute(node), variables.get(id(node), {}))
        if _SIDE.search(path) and path.startswith("self.config.") and path not in seen:
            seen.add(path)
            yield Candidate(path, "read from the configuration", SourceLine(model.file, getattr(node, "lineno", 1)))


def _paths(function: FunctionNode) -> dict[str, str]:
    """The variables of a function that hold the configuration or an attribute, each with its path."""
    found: dict[str, str] = {}
    for node in function.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _OF_PROCESSOR.sub("self.config", ast.unparse(node.value))
            if _PATH.fullmatch(text):
                found[node.targets[0].id] = _in_full(text, found)
    return found


def _in_full(path: str, variables: Mapping[str, str]) -> str:
    """A path from the model on, where a variable holds its start."""
    first, dot, rest = path.partition(".")
    return _CONFIG.sub("self.config", f"{variables.get(first, first)}{dot}{rest}")


def _read_attribute(node: ast.AST) -> str:
    """The path of an attribute that an expression reads, `a.b` of `getattr(a, "b", c)`; empty for any other."""
    if isinstance(node, ast.Attribute):
        return ast.unparse(node)
    if call_name(node) == "getattr" and isinstance(node, ast.Call) and len(node.args) > 1:
        name = node.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return f"{ast.unparse(node.args[0])}.{name.value}"
    return ""
