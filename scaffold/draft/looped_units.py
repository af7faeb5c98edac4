"""Drafts a cut at a loop over layers in a method of the model itself, on units that the model pads to the longest.

Other parts may run between several loops over slices of the layers. The last of them is recorded: it hands its features
to the model's own code, as an encoder would. A mask keeps attention off the padding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from scaffold.cut.loops import find_misfit, outline
from scaffold.cut.way import iterated, unsliced
from scaffold.descriptor.port import LOOP_METHOD, MODALITIES
from scaffold.draft.convolutions import is_convolution, stride_of
from scaffold.draft.objects import Objects
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import is_pixels
from scaffold.draft.subject import Subject
from scaffold.draft.values import Made, Op, SourceLine, Term
from scaffold.syntax import FunctionNode, assigned_to, name_path
from scaffold.tower.source import Module

_LAYERS = re.compile(r"self(\.\w+){2,}")
#: The longest of some units, along their last axis.
_LONGEST = re.compile(r"max\(\((\w+)\.shape\[-1\] for \1 in \w+\)\)")
_LARGEST = "get_image_size_with_most_features"


@dataclass(frozen=True, slots=True)
class LoopedUnits:
    """A loop over `layers`: the call of what it becomes, the argument with the mask, and the inputs of its units."""

    layers: str
    text: str
    mask: str
    pixels: tuple[tuple[str, str], ...]
    place: SourceLine
    padded: SourceLine


def looped_units(subject: Subject) -> LoopedUnits | None:
    """The one loop that can be recorded so; None if there is none, or several methods have one."""
    pixels = {
        str(field.modality): key for key, field in subject.fields.items() if is_pixels(key) and field.kind == "batched"
    }
    served = tuple((name, pixels[name]) for name in MODALITIES if name in pixels)
    found = [one for module, function in _methods(subject) if (one := _of_method(module, function, served))]
    return found[0] if served and len(found) == 1 else None


def _methods(subject: Subject) -> Iterator[tuple[Module, FunctionNode]]:
    """The methods of the model, each where the first of its bases has it."""
    seen: set[str] = set()
    for module, cls in subject.program.lineage(subject.model.owner):
        for node in cls.body:
            if isinstance(node, FunctionNode) and node.name not in seen:
                seen.add(node.name)
                yield module, node


def _of_method(module: Module, function: FunctionNode, pixels: tuple[tuple[str, str], ...]) -> LoopedUnits | None:
    loops = [
        (node, ast.unparse(unsliced(over)))
        for node in ast.walk(function)
        if isinstance(node, ast.For)
        for over in iterated(node.iter)
        if _LAYERS.fullmatch(ast.unparse(unsliced(over)))
    ]
    longest = next((node for node in ast.walk(function) if _LONGEST.fullmatch(ast.unparse(node))), None)
    if not loops or len({layers for _, layers in loops}) != 1 or longest is None:
        return None
    loop, layers = max(loops, key=lambda found: found[0].lineno)
    if find_misfit(function, loop) is not None:
        return None
    taken = [_argument(function, name) for name in outline(function, loop).arguments[1:]]
    masks = [name for name in taken if name is not None and not name.startswith("self.")]
    if None in taken or len(masks) != 1:
        return None
    text = f"self.{LOOP_METHOD}({', '.join(['pixels', *map(str, taken)])})"
    lines = (SourceLine(module.file, getattr(node, "lineno", function.lineno)) for node in (loop, longest))
    return LoopedUnits(layers, text, masks[0], pixels, *lines)


def _argument(function: FunctionNode, name: str) -> str | None:
    """The text of a variable in a call: an entry of the configuration, or `mask`; None if it is neither."""
    values = list(_values(function, name))
    if len(values) == 1:
        return _entry(values[0])
    none = any(isinstance(value, ast.Constant) and value.value is None for value in values)
    return "mask" if none and any("torch.finfo" in text for text in _made_of(function, name, set())) else None


def _values(function: FunctionNode, name: str) -> Iterator[ast.expr]:
    """The values that are assigned to a variable, by itself or with others."""
    for node in ast.walk(function):
        targets = [part for target in assigned_to(node) for part in ast.walk(target)] if _assigns(node) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield node.value  # type: ignore[attr-defined]


def _assigns(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None


def _made_of(function: FunctionNode, name: str, seen: set[str]) -> Iterator[str]:
    """The texts of what a variable is computed from."""
    if name in seen:
        return
    seen.add(name)
    for value in _values(function, name):
        yield ast.unparse(value)
        for node in ast.walk(value):
            if isinstance(node, ast.Name):
                yield from _made_of(function, node.id, seen)


def _entry(value: ast.expr) -> str | None:
    """`self.config.first` of itself, and of `getattr(self.config, "first", -1)`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "getattr" and len(value.args) > 1:
        name = value.args[1]
        owner = name_path(value.args[0])
        if isinstance(name, ast.Constant) and owner:
            return ".".join((*owner, str(name.value))) if owner[0] == "self" else None
    path = name_path(value)
    return ".".join(path) if path and path[0] == "self" and len(path) > 1 else None


def draft_looped_units(subject: Subject, found: LoopedUnits, sheet: Sheet) -> bool:
    """Fill in `pixels.shape` and `forward`; whether the source tells the side of a patch, and the features' width."""
    objects = subject.objects
    tower = ".".join(found.layers.split(".")[:2])
    known = ((path, *_sides(objects, value)) for path, value in objects.kept(tower) if is_convolution(value))
    shown = next(((path, patch, width) for path, patch, width in known if patch and width), None)
    if shown is None:
        return False
    path, patch, width = shown
    sheet.put("let.patch", patch, objects.place(path), why=f"the stride of `{path}`")
    sheet.put("let.width", width, objects.place(path), why=f"the columns that `{path}` makes")
    what = "the patches of the longest unit of a graph: the model's own code encodes longer ones"
    look = (f"{found.padded}: units are padded to the longest of a batch",)
    sheet.ask(Question("let.rows", what, tuple(_rows(subject, path)), look))
    sheet.put("pixels.shape", ["3", "patch", "patch * rows"], found.padded, why="patches side by side")
    sheet.put("forward.loop", found.layers, found.place, why="what runs before it cannot be captured")
    sheet.put("forward.call", found.text, found.place, why="what the loop reads")
    sheet.put(f"forward.with.{found.mask}", "additive", found.place, why="None where no unit is padded")
    sheet.put("forward.unit", ["rows", "width"], found.place, why="features of the patches")
    return True


def _sides(objects: Objects, value: Term) -> tuple[str | None, str | None]:
    """The stride of a convolution, and its columns."""
    columns = dict(value.keywords).get("out_channels") if isinstance(value, Made | Op) else None
    return objects.text(stride_of(value)), objects.text(columns)


def _rows(subject: Subject, path: str) -> Iterator[Candidate]:
    """The patches of the processor's largest image, and the positions that the tower has."""
    info = subject.program.method(subject.model.info, _LARGEST) if subject.model.info is not None else None
    if info is not None and '"image_size"' in ast.unparse(info[2]).replace("'", '"'):
        side = "self.config.image_size // patch"
        why = "a square of the size that the processor cuts images to; its sides are rounded to patches"
        yield Candidate(f"{side} * ({side} + 1)", why, SourceLine(info[0].file, info[2].lineno))
    parent = path.rpartition(".")[0]
    if "num_patches" in subject.objects.attributes(parent):
        name = f"{parent}.num_patches"
        yield Candidate(name, "the positions that the tower has", subject.objects.place(name))
