"""Drafts the section `explicit` of a cut: a port in a tree that runs no code of the model twice.

The largest call that a graph can hold is tried first, and what follows it is tried as nothing before it becomes a
method. `scaffold.cut` looks for the methods as the generator will.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from scaffold.cut import Extraction, Form, find_calls, find_extraction, find_way
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.diagnostics import DiagnosticError
from scaffold.draft.inputs import strip
from scaffold.draft.reentry import NOWHERE
from scaffold.draft.sheet import Sheet
from scaffold.draft.steps import PartCall
from scaffold.draft.subject import Subject
from scaffold.draft.values import Op, SourceLine, Term
from scaffold.protocol import read_protocol

#: Operations that may stand between the pixels and the encoder: a port hands the pixels over as they are.
_MOVES = {".to", ".view", ".reshape", ".flatten", ".contiguous", "torch.cat", "torch.stack", "flatten_bn"}
#: Attributes of a model with the tokens of one unit.
_TOKENS = ("num_image_token", "num_patches")
#: Entries of a configuration by which a side of the patches gets shorter behind the encoder, and whether it is padded.
_FACTORS = {"downsample_factor": False, "downsample_ratio": True, "hidden_stride": True, "pixel_shuffle_factor": False,
            "scale_factor": False, "spatial_pool_stride": False}  # fmt: skip
_Node = TypeVar("_Node", bound=ast.AST)
_SIDE = re.compile(r"\bimage_size('\]|)$")


def draft_explicit(subject: Subject, pixels: str, entry: str, step: PartCall, call: str, sheet: Sheet) -> None:
    """Fill in `explicit`, where a model's code has the form that such a port needs. `step` is the encoder's call."""
    units = step.units
    if units is None or isinstance(strip(units, _MOVES), Op) or step.masks or not _has_paths(subject):
        return
    field = subject.fields[pixels]
    single = field.sizes is None and not _has_axis(subject, pixels, units, sheet)
    places = step.place, field.place
    put_explicit(subject, entry, call, lambda held: _tokens(subject, step, held, sheet), single, places, sheet)


def put_explicit(
    subject: Subject,
    entry: str,
    call: str,
    tokens: Callable[[Call], str | None],
    single: bool,
    places: tuple[SourceLine, SourceLine | None],
    sheet: Sheet,
) -> None:
    """Fill in `explicit` of a call that gets the pixels as they are. `tokens` says what a call gives of a unit.

    `single`: an item is one unit. `places` are those of the call and of the pixels.
    """
    after = "_project_image_features" if single else "_merge_patch_embeddings"
    found = _find(subject, parse_call(entry), parse_call(call), after) if _has_paths(subject) else None
    if found is None:
        return
    held, follows = found
    said = tokens(held)
    if said is None:
        return
    sheet.put("explicit.call", held.text, places[0], why="what follows the encoder unit by unit, too")
    sheet.put("explicit.tokens", said, why="what a graph gives of a unit, which `verify` counts")
    if follows:
        sheet.put("explicit.after", follows, why="a name for the statements behind it")
    if single:
        sheet.put("explicit.single", True, places[1], why="one unit an item")


def _find(subject: Subject, entry: Call, encoder: Call, after: str) -> tuple[Call, str | None] | None:
    """The largest call of a form that the generator finds, and the name of what follows it, if anything does."""
    tree, model = subject.tree, subject.model
    way = find_way(tree, model.file, model.class_name, {entry.path: NOWHERE}, encoder, NOWHERE)
    family = tuple(subject.program.lineage(model.owner))
    calls = [call for call in find_calls(tree, way) if call != encoder]
    for call in (*reversed(calls), encoder):
        for name in (None, after):
            with suppress(DiagnosticError):
                form = Form(entry, call, name, NOWHERE)
                if isinstance(find_extraction(tree, family, way, form), Extraction):
                    return call, name
    return None


def tokens_recorded(numbers: Mapping[str, object], rows: int, sheet: Sheet) -> str | None:
    """The tokens of one unit, of which a run gave `rows`: what the model says, or its patches and what joins them.

    None where no expression gives that number, or several do. `numbers` are the recorded values by path.
    """
    said = [f"self.{name}" for name in _TOKENS if numbers.get(f"self.{name}") == rows]
    if said or rows == 1:
        return said[0] if said else "1"
    side, patch = _side_and_patch(sheet)
    long, short = numbers.get(side), numbers.get(patch)
    if patch == side or not isinstance(long, int) or not isinstance(short, int) or not short:
        return None
    across = long // short
    factors: dict[str, str] = {}
    for path in sorted(numbers, key=lambda path: (path.count("."), path)):
        factors.setdefault(path.rpartition(".")[2], path)
    joined = {path: numbers[path] for name, path in factors.items() if name in _FACTORS}
    patches = f"(side // {patch}) ** 2"
    made = {patches: across**2, f"{patches} + 1": across**2 + 1, _with_ends(patch): (across // 2) ** 2 + 2}
    for path, by in joined.items():
        if isinstance(by, int) and by > 0:
            is_padded = _FACTORS[path.rpartition(".")[2]]
            made[_joined(patch, path)] = (-(-across // by) if is_padded else across // by) ** 2
    found = [text for text, value in made.items() if value == rows]
    return found[0] if len(found) == 1 else None


def _side_and_patch(sheet: Sheet) -> tuple[str, str]:
    """The side of a unit and that of a patch, as the configuration names them; the same text where it names none."""
    side = sheet.value("let.side").strip('"') if sheet.has("let.side") else ""
    return side, _SIDE.sub(r"patch_size\1", side)


def _joined(patch: str, factor: str) -> str:
    """The tokens of patches that a projector joins, `factor` a side."""
    if _FACTORS[factor.rpartition(".")[2]]:
        return f"ceil_div(side // {patch}, {factor}) ** 2"
    return f"(side // {patch} // {factor}) ** 2"


def _with_ends(patch: str) -> str:
    """The tokens where two by two patches are one, and a token is at either end."""
    return f"(side // {patch} // 2) ** 2 + 2"


def _tokens(subject: Subject, step: PartCall, held: Call, sheet: Sheet) -> str | None:
    """The rows that a call gives of one unit: what the model says, or its patches, as the parts of the call change
    their number.
    """
    said = [name for name in _TOKENS if name in subject.objects.attributes("self")]
    if said:
        return f"self.{said[0]}"
    side, patch = _side_and_patch(sheet)
    if patch == side:
        return None
    parts = [*_parts(subject, held.text)]
    words = {name for _, code in parts for name in (*_read(code), *(one.id for one in _nodes(code, ast.Name)))}
    if "pooled_output" in words:
        return "1"
    encoder = next((inner.path for inner in step.walk() if inner.encoder), step.path)
    if {"boi", "eoi", "conv"} <= {*subject.objects.attributes(encoder)}:
        return _with_ends(patch)
    for path, code in parts:
        read = _read(code)
        for name in (name for name in _FACTORS if name in read):
            owner = subject.objects.value(f"{path}.{read[name].removeprefix('self.')}")
            return _joined(patch, f"{subject.objects.text(owner) or 'self.config'}.{name}")
    first = "class_embedding" in subject.objects.attributes(f"{encoder}.embeddings")
    return f"(side // {patch}) ** 2" + " + 1" * (first and "feature_select_strategy" not in words)


def _parts(subject: Subject, text: str) -> Iterator[tuple[str, ast.AST]]:
    """The methods of a model that a call runs, and its parts that these call, by path."""
    for node in _nodes(ast.parse(text), ast.Call):
        method = subject.program.method(subject.model.owner, ast.unparse(node.func).removeprefix("self."))
        if method is not None:
            yield "self", method[2]
        for call in _nodes(method[2], ast.Call) if method is not None else [node]:
            path = ast.unparse(call.func)
            part = subject.objects.cls(path) if path.startswith("self.") else None
            if part is not None:
                yield path, part[1]


def _nodes(code: ast.AST, kind: type[_Node]) -> list[_Node]:
    return [node for node in ast.walk(code) if isinstance(node, kind)]


def _read(code: ast.AST) -> dict[str, str]:
    """The attributes that code reads, each with what it is one of."""
    return {node.attr: ast.unparse(node.value) for node in _nodes(code, ast.Attribute)}


def _has_axis(subject: Subject, pixels: str, units: Term, sheet: Sheet) -> bool:
    """Whether an item may be several units: its annotated shape has an axis for them, or the model joins the items."""
    shapes = [dimensions for dimensions, _, _ in subject.shapes(pixels, made=True)]
    unit = sheet.value("pixels.shape").count(",") + 1
    return max(map(len, shapes), default=0) > unit + 1 or _joins(units)


def _joins(value: Term) -> bool:
    """Whether the model concatenates the items of an input, in front of the encoder."""
    while isinstance(value, Op) and value.name in _MOVES and value.args:
        if value.name == "flatten_bn":
            return True
        value = value.args[0]
    return False


def _has_paths(subject: Subject) -> bool:
    """Whether the protocol of the tree names paths: then an item may have no tokens at all."""
    with suppress(DiagnosticError):
        return read_protocol(subject.tree).dialect.paths.value == "named"
    return False
