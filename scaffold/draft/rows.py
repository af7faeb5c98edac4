"""Drafts the layout `rows`: patch rows of all items in one call of the encoder, and what an item of them looks like.

The encoder is the part of the model that holds the layers and gets what other parts have computed: rows, and what says
where each item's rows end. The port itself sees what each argument is when a model starts. A draft refuses only
arguments that no buffer holds, and a part that waits for values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from scaffold.cut import runs_attention
from scaffold.cut.way import iterated
from scaffold.descriptor.port import CHUNK
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft import grids
from scaffold.draft.convolutions import is_convolution, stride_of
from scaffold.draft.gates import put_gate
from scaffold.draft.inputs import SAME_SIZES, Beyond, beyond, left_out, normalises, sizes_of, strip
from scaffold.draft.locate import Located
from scaffold.draft.objects import Objects
from scaffold.draft.packed import row_shape
from scaffold.draft.reentry import as_reason, entries_of, entry_place, problems_of_way, put_fields, put_hidden_size
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import PartCall, Walker, computed, is_pixels
from scaffold.draft.subject import Subject
from scaffold.draft.units import CHANNELS
from scaffold.draft.values import (
    BatchInputs,
    FieldConfig,
    Input,
    Items,
    Made,
    Mapped,
    Op,
    Plain,
    Ref,
    SourceLine,
    Term,
    inputs_of,
    walk_value,
)
from scaffold.draft.waits import waiting
from scaffold.protocol import read_protocol
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import parents_of

_MODALITIES = ("image", CHUNK)
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
#: Operations that hand the values of a tensor on as they are.
_SAME_VALUES = {*SAME_SIZES, "each", "torch.tensor", "torch.as_tensor", "async_tensor_h2d", ".numpy"}
_LINEAR = {"nn.Linear": "in_features", "ReplicatedLinear": "input_size", "ColumnParallelLinear": "input_size"}


class NoRows(Beyond):
    """No part of the model is an encoder of rows."""


class TooEarly(Beyond):
    """The model has rows, and its release has no graphs of them."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The tests' name of the modality that is served, why the layout fits, and what is left out of the model."""

    modalities: tuple[str, ...]
    reason: str
    notes: tuple[Diagnostic, ...]


def draft_rows(subject: Subject, sheet: Sheet) -> Rows:
    """Fill in the sections of rows but `model`, `layout` and `integration`. Raises VCG483 with the reason against."""
    tree, objects, walker = subject.tree, subject.objects, subject.walker
    step, loop, notes = _captured(subject, subject.fields)
    per_item = loop is not None and _in_loop(step)
    entry, place = _entry(subject, step, loop, per_item=per_item)
    key = _pixels(step, subject.fields)
    fields = grids.with_sizes(walker, subject.fields, key)
    modality = str(fields[key].modality)
    sheet.put(f"modalities.{modality}.pixels", key, fields[key].place)
    sheet.put(f"modalities.{modality}.entry", entry, place)
    put_fields(subject, sheet, fields, {modality}, grids=True, read=walker.trace.inputs)
    if fields[key].kind == "batched" and grids.is_rows(subject, key):
        others = [name for name in walker.trace.inputs if name != key and name in _read_with(sheet, key)]
        grids.put_items(subject, fields, key, others, sheet)
        shape = "patches of images of any size"
    elif fields[key].kind == "batched" and (padded := grids.padding_mask(subject, key))[0]:
        _padded(subject, fields, key, padded, step, sheet)
        shape = "patches of images of any size"
    elif fields[key].kind == "batched":
        _images(subject, key, step, sheet)
        shape = "images of any size"
    else:
        _patches(subject, fields, key, step, sheet)
        shape = "patches of images of any size"
    _put_merge(subject, step, sheet)
    sheet.put("forward.encoder", step.path, step.place, why=f"runs {_name(objects, step)} on the rows of all images")
    if loop is not None:
        sheet.put("forward.loop", loop, why="its own method makes what the layers get, which no graph can hold")
        grids.put_unread(step, loop, sheet)
    if step.several if loop is None else grids.gives_several(step, loop):
        why = "the loop hands on several values" if loop else "it gives a list, of which the model takes some"
        sheet.put("forward.several", True, step.place, why=why)
    if per_item:
        why = "the model calls the encoder in a loop over its items, and its layers attend to all rows of a call"
        sheet.put("forward.per_item", True, step.place, why=why)
    put_hidden_size(subject, sheet, step)
    if too_early(tree):
        what = (
            "this release fills the offsets behind a batch with zeros, and rows find their buffers when a model starts"
        )
        raise TooEarly(beyond(tree, step.place, what).diagnostics)
    cls = objects.cls(step.path)
    if cls is not None and not runs_attention(subject.program, cls):
        what = f"the layers of `{step.path}` run an attention of their own, of which nothing shows where sequences end"
        raise beyond(tree, step.place, what)
    if modality == CHUNK:  # the frames of a chunk may become fewer tokens than its rows say
        put_gate(subject, (key,), sheet)
    return Rows(("image",), f"{shape} enter one call of the encoder, as rows", notes)


def too_early(tree: SourceTree) -> bool:
    """Whether a release has no graphs of rows at all: one before 0.23."""
    try:
        return not read_protocol(tree).dialect.padding_logics
    except DiagnosticError:
        return False  # `new` says so


def _captured(subject: Subject, fields: dict[str, FieldConfig]) -> tuple[PartCall, str | None, tuple[Diagnostic, ...]]:
    """The encoder whose call is recorded, or the one whose loop over its layers is. Raises VCG483."""
    try:
        step, notes = _encoder(subject, fields)
        _check(subject, step)
        return step, None, notes
    except DiagnosticError:
        found = [
            (step, name)
            for step in subject.root.walk()
            if (name := _looped(subject.objects, step)) and _pixels(step, fields)
        ]
        images = [(step, name) for step, name in found if fields[_pixels(step, fields)].modality in _MODALITIES]
        alone = bool(images) and all(_instead(one, other) for (one, _), (other, _) in combinations(images, 2))
        if not alone or not any(_is_loop_of_rows(subject, step) for step, _ in images):
            raise
    others = {fields[_pixels(step, fields)].modality: step for step, name in found if (step, name) not in images}
    left = (
        left_out(subject.tree, step.place, str(name), "graphs of rows hold images") for name, step in others.items()
    )
    return images[0][0], f"self.{images[0][1]}", tuple(left)


def _instead(first: PartCall, other: PartCall) -> bool:
    """Whether two calls of one part never run in one batch: the first is in a branch that returns before the other."""
    parents = parents_of(first.caller.node)
    around = set(map(id, _above(other.node, parents)))
    returns = any(
        isinstance(node, ast.If) and id(node) not in around and isinstance(node.body[-1], ast.Return)
        for node in _above(first.node, parents)
    )
    return first.path == other.path and first.caller.node is other.caller.node and returns


def _above(node: ast.AST, parents: dict[int, ast.AST]) -> Iterator[ast.AST]:
    while (above := parents.get(id(node))) is not None:
        yield above
        node = above


def _is_loop_of_rows(subject: Subject, step: PartCall) -> bool:
    """Whether the part that loops is called once, is told where rows end, and its layers wait for nothing.

    They may compute the longest sequence: they get a parameter for it. The part may be called once for each item if
    its layers can be told where items end.
    """
    cls = subject.objects.cls(step.path)
    told = sum(bool(inputs_of(value)) for value in step.given.values()) > 1
    if cls is None or not told:
        return False
    if _in_loop(step):
        try:
            _entry(subject, step, f"self.{_looped(subject.objects, step)}", per_item=True)
        except DiagnosticError:
            return False
    return not list(waiting(subject.program, cls, set(), layers=_looped(subject.objects, step)))


def _looped(objects: Objects, step: PartCall) -> str:
    """The layers that a part loops over in the method that is called, else empty."""
    if step.parent is None or not step.module or not step.encoder or step.entered is None:
        return ""
    layers = {name for name, value in objects.attributes(step.path).items() if _is_layers(value)}
    return next((name for over in _loops(step) if (name := over.removeprefix("self.")) in layers), "")


def _loops(step: PartCall) -> Iterator[str]:
    """The objects of the loops in the method that a part runs: `self.layers` of `enumerate(self.layers)`."""
    body = ast.walk(step.entered.node) if step.entered is not None else ()
    return (ast.unparse(over) for node in body if isinstance(node, ast.For) for over in iterated(node.iter))


def _is_layers(value: Term) -> bool:
    return isinstance(value, Op) and value.name.endswith(("ModuleList", "make_layers"))


def _name(objects: Objects, step: PartCall) -> str:
    cls = objects.cls(step.path)
    return cls[1].name if cls is not None else f"`{step.path}`"


# --- the encoder ----------------------------------------------------------------------------------------------------


def _encoder(subject: Subject, fields: dict[str, FieldConfig]) -> tuple[PartCall, tuple[Diagnostic, ...]]:
    """The call of the encoder on images, and that videos are left out. Raises VCG483 where there is not one."""
    found = [step for step in subject.root.walk() if _is_encoder(subject.objects, step) and _pixels(step, fields)]
    found = [step for step in found if not any(upper in found for upper in list(step.up())[1:])]
    images = [step for step in found if fields[_pixels(step, fields)].modality in _MODALITIES]
    others = {fields[_pixels(step, fields)].modality: step for step in found if step not in images}
    if not images:
        what = "no part of the model encodes rows that other parts have made of images"
        raise NoRows(beyond(subject.tree, subject.model.place, what).diagnostics)
    if len(images) > 1:
        what = f"`{images[0].path}`, which runs the encoder, is called in several places"
        raise beyond(subject.tree, images[1].place, what)
    notes = (
        left_out(subject.tree, step.place, str(name), "graphs of rows hold images") for name, step in others.items()
    )
    return images[0], tuple(notes)


def _is_encoder(objects: Objects, step: PartCall) -> bool:
    """Whether a part that goes over layers of its own is called on what other parts have computed."""
    return (
        step.parent is not None
        and step.module
        and step.encoder
        and any(computed(value) for value in step.given.values())
        and any(
            f"self.{name}" in over
            for name, value in objects.attributes(step.path).items()
            if _is_layers(value)
            for over in _loops(step)
        )
    )


def _pixels(step: PartCall, fields: dict[str, FieldConfig]) -> str:
    """The input that the rows are made of."""
    keys = [key for value in step.given.values() for key in inputs_of(value) if is_pixels(key) and key in fields]
    return next(iter(keys), "")


def _check(subject: Subject, step: PartCall) -> None:
    """That a graph can hold the call. Raises VCG483."""
    tree = subject.tree
    if _in_loop(step):
        raise beyond(tree, step.place, f"`{step.path}`, which runs the encoder, is called in a loop")
    for key, value in step.given.items():
        inputs = _themselves(value)
        if inputs:
            what = f"`{step.path}`, which runs the encoder, gets `{inputs}` itself, of which no graph has a buffer"
            raise beyond(tree, step.place, what if isinstance(key, int) else f"{what} (`{key}`)")
    if sum(bool(inputs_of(value)) for value in step.given.values()) < 2:
        what = f"`{step.path}`, which runs the encoder, is not told where the rows of an item end"
        raise beyond(tree, step.place, what)
    cls = subject.objects.cls(step.path)
    assert cls is not None, "a part with layers is in the tree"
    for place, text in waiting(subject.program, cls, set()):
        raise beyond(tree, place, f"`{text}` waits for the GPU inside of the encoder, where a graph cannot")


def _in_loop(step: PartCall) -> bool:
    """Whether a call, or one that leads to it, is in a loop. A loop over the modalities of a batch does not count."""
    for lower in step.up():
        if lower.parent is None:
            continue
        parents = parents_of(lower.caller.node)
        tested: set[str] = set()
        node: ast.AST | None = lower.node
        while node is not None:
            if isinstance(node, ast.If):
                tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
                tested |= {ast.unparse(test.left) for test in tests if isinstance(test, ast.Compare)}
            if isinstance(node, _LOOPS) and not (isinstance(node, ast.For) and ast.unparse(node.target) in tested):
                return True
            node = parents.get(id(node))
    return False


def _themselves(value: Term) -> str:
    """An input that a value holds as it is, or empty: rows, offsets and bounds are made of inputs."""
    if isinstance(value, Mapped):
        return next(filter(None, map(_themselves, value.entries.values())), "")
    if isinstance(value, Items):
        return next(filter(None, map(_themselves, value.values)), "")
    bare = strip(value, _SAME_VALUES)
    if isinstance(bare, BatchInputs):
        return "**"
    return bare.key if isinstance(bare, Input) else _themselves(bare) if isinstance(bare, (Items, Mapped)) else ""


def _entry(subject: Subject, step: PartCall, loop: str | None, *, per_item: bool = False) -> tuple[str, SourceLine]:
    """The entry from which the generator finds the encoder. Raises VCG483 where there is none."""
    problems: list[Diagnostic] = []
    for entry in entries_of(subject.root, [step]):
        problems = problems_of_way(subject, [entry], step.path, loop, per_item=per_item)
        if not problems:
            return entry, entry_place(subject, entry, [step])
    raise DiagnosticError([as_reason(problem) for problem in problems])


# --- an item --------------------------------------------------------------------------------------------------------


def _images(
    subject: Subject,
    key: str,
    step: PartCall,
    sheet: Sheet,
) -> None:
    """One image an item: as many channels as annotated, and sides of whole patches, from the convolution behind."""
    shown = next((found for found in subject.shapes(key) if len(found[0]) == 4), None)
    if shown is None or not (isinstance(shown[0][1], int) or shown[0][1] in CHANNELS):
        what = f"no annotation says that an item of `{key}` is one image"
        raise beyond(subject.tree, shown[1] if shown else subject.model.place, what)
    others = [name for name in subject.trace.inputs if name != key and name in _read_with(sheet, key)]
    if others:
        what = f"the model reads `{'`, `'.join(others)}` with the pixels, and nothing says what an image has there"
        raise beyond(subject.tree, subject.trace.inputs[others[0]].place, what)
    _patch_side(subject.objects, step, sheet)
    channels = str(shown[0][1]) if isinstance(shown[0][1], int) else "3"
    sheet.put("item.shape", [channels, "h * p", "w * p"], shown[1], why="an image of h x w patches")


def _bound_side(shape: tuple[object, ...], table: Mapped) -> Ref | None:
    """The attribute that a parsed input binds the letter of both sides of a patch to, if it does."""
    bindings = table.entries.get("resolve_bindings")
    value = bindings.entries.get(str(shape[-1])) if isinstance(bindings, Mapped) and shape[-1] == shape[-2] else None
    return value if isinstance(value, Ref) and value.path.startswith("self.config.") else None


def _patch_side(objects: Objects, step: PartCall, sheet: Sheet) -> None:
    """The side of a patch, in pixels: the stride of the tower's convolution whose kernel is as large."""
    sides = _strides(objects, step)
    if len(sides) == 1:
        [(side, path)] = sides.items()
        sheet.put("let.p", side, objects.place(path), why=f"the stride of `{path}`")
    else:
        candidates = tuple(
            Candidate(side, f"the stride of `{path}`", objects.place(path)) for side, path in sides.items()
        )
        sheet.ask(
            Question("let.p", "the side of a patch, in pixels", candidates, (f"{step.place}: the encoder's call",))
        )


def _strides(objects: Objects, step: PartCall) -> dict[str, str]:
    """Strides of the convolutions of the tower whose kernels are as large, each with the path of the convolution."""
    tower = ".".join(step.path.split(".")[:2])
    found = [(path, value) for path, value in objects.kept(tower) if is_convolution(value)]
    return {text: path for path, value in found if (text := objects.text(stride_of(value))) is not None}


def _patches(
    subject: Subject,
    fields: dict[str, FieldConfig],
    key: str,
    step: PartCall,
    sheet: Sheet,
) -> None:
    """Rows of patches with a grid an item, or each of its units, as wide as the first linear layer that gets them."""
    objects = subject.objects
    grid, product = sizes_of(subject.tree, subject.program, subject.model, fields[key], fields, subject.trace)
    counts, values = "", "the grid of an image of h x w patches"
    if not product and (unit := grids.unit_grid(subject, fields, key)) is not None:
        counts, grid, product = grid.key, unit, True
        values = f"the grid of each of the `{counts}` of an image, of h x w patches"
    known = {key, grid.key, counts}
    others = [name for name in subject.trace.inputs if name not in known and name in _read_with(sheet, key)]
    beside = {name: count for name in others if (count := _width_beside(subject, fields, key, name))}
    others = [name for name in others if name not in beside]
    tokens = grids.tokens_beside(subject, fields, others) if product else None
    others = others if tokens is None else []
    columns = {3: ["1", "h", "w"], 2: ["h", "w"]}.get(grid.columns or 0)
    if not product or columns is None or others:
        what = f"a row of `{grid.key}` is no grid of an image's patches"
        if others:
            what = f"the model reads `{'`, `'.join(others)}` with the pixels, and nothing says what an image has there"
        raise beyond(subject.tree, fields[key].place, what)
    for name, count in beside.items():
        why = f"a row for each of `{key}`"
        sheet.put(f"item.zeros.{name}", ["h * w", str(count)], fields[name].place, why=why)
    annotated = (subject.shapes(key, made=made) for made in (False, True))
    shown = next((shape for found in annotated for shape in found), None)
    if counts and not fields[grid.key].on_host:
        sheet.put("item.moved", [grid.key], fields[grid.key].place, why="the processor has no `keep_on_cpu` for it")
    if shown is not None and len(shown[0]) == 4 and isinstance(shown[0][1], int):
        bound = _bound_side(shown[0], shown[2])
        if bound is not None:
            sheet.put("let.p", bound.path, bound.place, why="what the annotation's letter of both sides is bound to")
        else:
            _patch_side(objects, step, sheet)
        sheet.put("item.shape", ["h * w", str(shown[0][1]), "p", "p"], shown[1], why=f"the product of `{grid.key}`")
        sheet.put(f"item.values.{grid.key}", columns, fields[grid.key].place, why=values)
        if tokens is not None:
            tokens.put(sheet, fields)
        return
    linear = _linear(objects, subject.walker, key)
    width = "width"
    viewed = _viewed(subject, key, sheet) if linear is None else None
    if viewed is not None:
        width = viewed
    elif linear is None:
        look = tuple(str(place) for place in (shown[1] if shown else None, step.place) if place is not None)
        why = "three channels of a patch, whose side is the stride of"
        sides = {side: path for side, path in _strides(objects, step).items() if side.endswith("patch_size")}
        squares = [Candidate(f"3 * {side} ** 2", f"{why} `{path}`") for side, path in sides.items()]
        sheet.ask(Question("let.width", "the width of a row of pixels", tuple(squares), look))
    else:
        _put_width(objects, linear, key, sheet)
    sheet.put("item.shape", ["h * w", width], fields[key].place, why=f"the product of `{grid.key}`")
    sheet.put(f"item.values.{grid.key}", columns, fields[grid.key].place, why=values)
    if tokens is not None:
        tokens.put(sheet, fields)


def _padded(
    subject: Subject,
    fields: dict[str, FieldConfig],
    key: str,
    inputs: tuple[str, str],
    step: PartCall,
    sheet: Sheet,
) -> None:
    """An image's rows of patches, padded to one number: a mask and a grid say which and how many are real."""
    mask, grid = inputs
    others = sorted(name for name in subject.trace.inputs if name in _read_with(sheet, key) - {mask, grid})
    linear = _linear(subject.objects, subject.walker, key)
    if others or linear is None:
        what = f"nothing says how wide a row of `{key}` is"
        if others:
            what = f"the model reads `{'`, `'.join(others)}` with the pixels, and nothing says what an image has there"
        raise beyond(subject.tree, fields[key].place, what)
    _put_width(subject.objects, linear, key, sheet)
    sheet.put("item.shape", ["h * w", "width"], fields[key].place, why=f"`{grid}` says how many rows are real")
    sheet.put("item.mask", mask, fields[mask].place, why=f"as many entries as rows of `{key}`")
    sheet.put(f"item.values.{grid}", ["h", "w"], fields[grid].place, why="the grid of an image of h x w patches")


def _linear(objects: Objects, walker: Walker, key: str) -> PartCall | None:
    """The first linear layer that gets raw rows."""
    return next((inner for inner in walker.root.walk() if _linear_input(objects, inner, key)), None)


def _put_width(objects: Objects, linear: PartCall, key: str, sheet: Sheet) -> None:
    attribute = f"{linear.path}.{_linear_input(objects, linear, key)}"
    sheet.put("let.width", attribute, linear.place, why="the input of a linear layer")


def _viewed(subject: Subject, key: str, sheet: Sheet) -> str | None:
    """The width of a row as the part says that embeds the rows: the product of the sides of what it views one as."""
    for step in subject.root.walk():
        cls = (
            subject.objects.cls(step.path)
            if step.module and step.units is not None and _is_embedded(step.units, key)
            else None
        )
        shape = row_shape(subject.program, cls, step.path, sheet) if cls is not None else None
        if shape is not None:
            return shape[0]
    return None


def _is_embedded(value: Term, key: str) -> bool:
    """Whether a value is made of these rows, on which nothing but a normalisation of pixels has computed."""
    made = (part for part in walk_value(value) if isinstance(part, Op) and part.name.startswith("self."))
    return key in inputs_of(value) and all(map(normalises, made))


def _width_beside(subject: Subject, fields: dict[str, FieldConfig], key: str, name: str) -> int:
    """The columns of an input with a row for each of the pixels, by annotation and field config; 0 if it has none."""
    known = (subject.shapes(one, made=True) for one in (key, name))
    shapes = [next(found, None) for found in known]
    if None in shapes or fields[name].kind != fields[key].kind or fields[name].sizes != fields[key].sizes:
        return 0
    pixels, beside = (shape[0] for shape in shapes if shape is not None)
    rows, *width = beside
    return width[0] if rows == pixels[0] and len(width) == 1 and isinstance(width[0], int) else 0


def _read_with(sheet: Sheet, key: str) -> set[str]:
    """Inputs of the served modality beside the pixels that are no embeddings."""
    fields = {name.split(".")[1] for name in sheet.keys("fields.")}
    return {name for name in fields if name != key and not name.endswith("_embeds")}


def _linear_input(objects: Objects, step: PartCall, key: str) -> str:
    """The attribute that holds the width of raw rows that a linear layer gets, else empty."""
    if not step.module or not step.raw or key not in inputs_of(step.units or Plain(None)):
        return ""
    value = objects.value(step.path)
    name = value.owner[1].name if isinstance(value, Made) else value.name if isinstance(value, Op) else ""
    return _LINEAR.get(name, "")


def _put_merge(subject: Subject, step: PartCall, sheet: Sheet) -> None:
    """The side of the square of rows that becomes a token, from where embeddings are split into items."""
    sides = {text: place for split in subject.walker.cuts for text, place in _squares(split)}
    why = "where the embeddings are split into items"
    named = list(_merge_sizes(subject.model)) or list(_merge_sizes_above(subject.objects, step))
    if sheet.has("item.merge"):
        return
    if not sides and not named:
        sides, why = dict(_quotients(subject.model)), "both sides of a grid are divided by it"
    if len(sides) == 1:
        [(side, place)] = sides.items()
        sheet.put("item.merge", side, place, why=why)
        return
    candidates = [Candidate(side, "rows are divided by its square", place) for side, place in sides.items()]
    candidates = candidates or [*named, Candidate("1", "nothing divides the rows of an item")]
    what = "the side of the square of rows that becomes one token"
    sheet.ask(Question("item.merge", what, tuple(candidates), (f"{step.place}: the encoder's call",)))


def _quotients(model: Located) -> Iterator[tuple[str, SourceLine]]:
    """Attributes of the model by which its class divides both factors of a product."""
    for method in model.owner[1].body:
        nodes = list(ast.walk(method))
        aliases = {
            target.id: ast.unparse(node.value)
            for node in nodes
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
                continue
            by = {
                ast.unparse(side.right) if isinstance(side, ast.BinOp) and isinstance(side.op, ast.FloorDiv) else ""
                for side in (node.left, node.right)
            }
            text = aliases.get(path := by.pop(), path)
            if not by and re.fullmatch(r"self(\.\w+)+", text):
                yield text, SourceLine(model.file, node.lineno)


def _merge_sizes(model: Located) -> Iterator[Candidate]:
    """Attributes that the class calls a merge size, and configuration entries that its module reads as one."""
    module, owner = model.owner
    seen: set[str] = set()
    for tree, own in ((owner, True), (module.tree, False)):
        for node in ast.walk(tree):
            if not _is_merge_size(node):
                continue
            path = re.sub(r"^(self\.)?(hf_)?config\.", "self.config.", ast.unparse(node))
            if path.startswith("self." if own else "self.config.") and path not in seen:
                seen.add(path)
                why = (
                    "read from the configuration" if path.startswith("self.config.") else "the model's own name for it"
                )
                yield Candidate(path, why, SourceLine(model.file, getattr(node, "lineno", 1)))


def _merge_sizes_above(objects: Objects, step: PartCall) -> Iterator[Candidate]:
    """Attributes of the parts around the encoder that they call a merge size, or its two sides."""
    parts = step.path.split(".")
    for depth in range(len(parts), 1, -1):
        path = ".".join(parts[:depth])
        for name in objects.attributes(path):
            if name.endswith(("merge_size", "merge_kernel_size")):
                text = f"{path}.{name}" + ("[0]" if name.endswith("kernel_size") else "")
                yield Candidate(text, "what the encoder's owner calls it", objects.place(f"{path}.{name}"))


def _is_merge_size(node: ast.AST) -> bool:
    """`X.merge_size`, or the first of the two sides `X.merge_kernel_size[0]`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
        return isinstance(node.value, ast.Attribute) and node.value.attr.endswith("merge_kernel_size")
    return isinstance(node, ast.Attribute) and node.attr.endswith("merge_size")


def _squares(split: Op) -> Iterator[tuple[str, SourceLine | None]]:
    """Attributes of the model by whose square the sizes of a split are divided."""
    sizes = split.args[1] if len(split.args) > 1 else dict(split.keywords).get("split_size_or_sections")
    for part in walk_value(sizes) if sizes is not None else ():
        if not isinstance(part, Op) or part.name != "//":
            continue
        left, right = part.args
        inner = strip(left, SAME_SIZES)
        square = isinstance(right, Op) and right.name in ("**", "*") and right.args[1] in (Plain(2), right.args[0])
        twice = isinstance(inner, Op) and inner.name == "//" and inner.args[1] == right
        side = right.args[0] if square and isinstance(right, Op) else right if twice else None
        if isinstance(side, Ref) and side.path.startswith("self."):
            yield side.path, side.place or part.place
