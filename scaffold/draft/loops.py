"""Drafts the layout `rows` for an encoder whose own method computes positions and offsets and runs the layers.

No call in it gets rows alone, so the loop over the layers is what a graph holds (`forward.loop`). Which loop can be one
the generator says: a draft asks it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.inputs import beyond, read_fields, shapes_of, sizes_of
from scaffold.draft.locate import Located
from scaffold.draft.objects import Objects
from scaffold.draft.reentry import ALL, as_reason, entries_of, entry_step, problems_of_way, put_fields, put_hidden_size
from scaffold.draft.rows import NoRows, Rows, in_loop, is_convolution, put_merge, read_with
from scaffold.draft.sheet import Sheet
from scaffold.draft.steps import PartCall, Walker, is_pixels
from scaffold.draft.values import FieldConfig, Items, Made, Op, Plain, SourceLine, inputs_of
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import FunctionNode, name_path
from scaffold.tower import attention_leaves_rows
from scaffold.tower.source import Owner, Program

_MODALITY = "image"


def draft_loop(tree: SourceTree, program: Program, model: Located, sheet: Sheet) -> Rows:
    """Fill in the sections of rows but `model`, `layout` and `integration`. Raises VCG483 with the reason against."""
    fields = read_fields(tree, program, model)
    objects = Objects(program, model.owner)
    walker = Walker(program, model.owner, objects, into_parts=True)
    found = [
        (step, key, loop, node)
        for step in walker.root.walk()
        if (key := _patches(step, fields))
        for loop, node in _loops(program, objects.cls(step.path))
    ]
    if not found or attention_leaves_rows(tree):
        raise _none(tree, model.place, "no part of the model runs layers in a loop on rows")
    step, key, loop, node = found[0]
    entry, place = _entry(tree, model, walker.root, step, loop)
    if any(isinstance(inner, ast.If) for inner in ast.walk(node)):
        what = f"the layers of `{step.path}` take different values, and a graph knows one set of offsets"
        raise _none(tree, step.place, what)
    sheet.put(f"modalities.{_MODALITY}.pixels", key, fields[key].place)
    sheet.put(f"modalities.{_MODALITY}.entry", entry, place)
    put_fields(tree, sheet, fields, {_MODALITY}, grids=True)
    _item(tree, program, model, objects, walker, fields, key, step, sheet)
    put_merge(model, walker, step, sheet)
    sheet.put("forward.encoder", step.path, step.place, why="computes what its layers need besides the rows")
    sheet.put("forward.loop", loop, SourceLine(_file(program, objects, step), node.lineno), why="runs them")
    _hidden_size(program, model, objects, sheet, step)
    return Rows((_MODALITY,), "patches of images of any size enter one loop over layers, as rows", ())


def _file(program: Program, objects: Objects, step: PartCall) -> str:
    cls = objects.cls(step.path)
    assert cls is not None, "a part with a loop"
    return cls[0].file


def _patches(step: PartCall, fields: dict[str, FieldConfig]) -> str:
    """The input whose rows a part of the model gets, if items lie in it behind each other."""
    given = [value for upper in step.up() for value in upper.given.values()] if step.module else []
    keys = [key for value in given for key in inputs_of(value) if is_pixels(key) and key in fields]
    rows = [key for key in keys if fields[key].kind == "flat_from_sizes" and fields[key].modality == _MODALITY]
    return rows[0] if rows else ""


def _loops(program: Program, cls: Owner | None) -> Iterator[tuple[str, ast.For]]:
    """Loops of a class that call each of its layers, with what they go through."""
    for _, owner in program.lineage(cls) if cls is not None else ():
        methods = [node for node in owner.body if isinstance(node, FunctionNode)]
        for node in (inner for method in methods for inner in ast.walk(method) if method.name != "__init__"):
            if not isinstance(node, ast.For):
                continue
            given = node.iter.args[:1] if isinstance(node.iter, ast.Call) else [node.iter]
            path = name_path(given[0]) if given else []
            names = {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
            called = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            if path[:1] == ["self"] and len(path) > 1 and names & called:
                yield ".".join(path), node


def _entry(tree: SourceTree, model: Located, root: PartCall, step: PartCall, loop: str) -> tuple[str, SourceLine]:
    """The entry from which the generator finds the loop. Raises VCG483 where there is none."""
    if in_loop(step):
        raise _none(tree, step.place, f"`{step.path}`, which runs the encoder, is called in a loop")
    problems: list[Diagnostic] = []
    for entry in entries_of(root, [step]):
        problems = problems_of_way(tree, model, [entry], step.path, loop)
        if not problems:
            return entry, ((entry_step([step]) if entry != ALL else None) or root).place
    if not any(problem.code == "VCG448" for problem in problems):
        raise _none(tree, step.place, "the generator finds no way to the loop")
    raise DiagnosticError([as_reason(problem) for problem in problems])


def _none(tree: SourceTree, place: SourceLine, what: str) -> NoRows:
    """What is no reason against a model that no layout fits: that its encoder is another one."""
    return NoRows(beyond(tree, place, what).diagnostics)


def _item(
    tree: SourceTree,
    program: Program,
    model: Located,
    objects: Objects,
    walker: Walker,
    fields: dict[str, FieldConfig],
    key: str,
    step: PartCall,
    sheet: Sheet,
) -> None:
    """Rows of patches with a grid an item, each as the convolution behind takes it."""
    grid, product = sizes_of(tree, program, model, fields[key], fields, walker.trace)
    others = [name for name in walker.trace.inputs if name not in (key, grid.key) and name in read_with(sheet, key)]
    columns = {3: ["1", "h", "w"], 2: ["h", "w"]}.get(grid.columns or 0)
    if not product or columns is None or others:
        what = f"a row of `{grid.key}` is no grid of an image's patches"
        if others:
            what = f"the model reads `{'`, `'.join(others)}` with the pixels, and nothing says what an image has there"
        raise _none(tree, fields[key].place, what)
    shown = next(shapes_of(program, model.owner[0], walker.trace, key), None)
    square = shown is not None and len(shown[0]) == 4
    sides = {side: inner for inner in walker.root.walk() if (side := _side(objects, inner, key)) is not None}
    if len(sides) != 1:
        raise _none(tree, fields[key].place, f"no convolution says how large the squares in `{key}` are")
    [(side, inner)] = sides.items()
    sheet.put("let.p", side, objects.place(inner.path), why=f"the stride of `{inner.path}`")
    shape = ["h * w", "3", "p", "p"] if square else ["h * w", "3 * p ** 2"]
    sheet.put("item.shape", shape, shown[1] if shown else fields[key].place, why="a row for each patch")
    sheet.put(f"item.values.{grid.key}", columns, fields[grid.key].place, why="the grid of an image of h x w patches")


def _hidden_size(program: Program, model: Located, objects: Objects, sheet: Sheet, step: PartCall) -> None:
    """The width of the embeddings: what the tower keeps as its own, else that of the language model."""
    path = f"{step.path}.out_hidden_size"
    if step.path.count(".") == 1 and "out_hidden_size" in objects.attributes(step.path):
        sheet.put("output.hidden_size", path, objects.place(path), why="the tower's own")
        return
    put_hidden_size(program, model, objects, sheet, step)


def _side(objects: Objects, step: PartCall, key: str) -> str | None:
    """The side of the squares of raw pixels that a convolution takes, one after the other and whole."""
    raw = step.module and step.raw and key in inputs_of(step.units or Plain(None))
    value = objects.value(step.path) if raw else None
    if not isinstance(value, (Made, Op)) or not is_convolution(value):
        return None
    given = dict(value.keywords)
    sides = [
        tuple(map(objects.text, part.values if isinstance(part, Items) else (part, part)))
        for part in (given.get("kernel_size"), given.get("stride"))
        if part is not None
    ]
    same = len(sides) == 2 and sides[0] == sides[1] and len(set(sides[0])) == 1
    return sides[0][0] if same else None
