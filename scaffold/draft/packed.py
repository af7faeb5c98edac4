"""Drafts the packed layout: tokens and merge size, the tower's slice, sequences, buffers, budget."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from scaffold.diagnostics import Diagnostic
from scaffold.draft.evaluate import Evaluator
from scaffold.draft.inputs import (
    SAME_SIZES,
    Beyond,
    ModalityInputs,
    ModelInputs,
    beyond,
    by_parameter,
    innermost,
    left_out,
    schema_of,
    strip,
)
from scaffold.draft.layers import first_layer
from scaffold.draft.locate import Located
from scaffold.draft.modules import Part, assigned, linear_width, parameters, part_of
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.split import Tower, Unit, put_attention, put_budget, put_calls, put_dtype, slice_of
from scaffold.draft.subject import Subject
from scaffold.draft.values import (
    Input,
    Items,
    Mapped,
    Op,
    Plain,
    Ref,
    SourceLine,
    Term,
    inputs_of,
    walk_value,
)
from scaffold.protocol.tree import SourceTree
from scaffold.tower.parts import Crossing, TowerSlice
from scaffold.tower.source import Owner, Program

_JOINS = {"torch.cat", "torch.concat", "torch.stack"}
#: Layers that leave rows where they are: padding behind a batch stays behind it.
_ROW_LAYERS = {
    "Linear", "ReplicatedLinear", "ColumnParallelLinear", "RowParallelLinear", "GELU", "SiLU", "ReLU", "LayerNorm",
    "RMSNorm", "Identity", "get_act_fn", "Dropout",
}  # fmt: skip
_REPEATS = {"np.repeat", "torch.repeat_interleave", ".repeat_interleave"}
_GRIDS = {("t", "h", "w"): ("t * h * w", "t * (h // m) * (w // m)"), ("h", "w"): ("h * w", "(h // m) * (w // m)")}


@dataclass(frozen=True, slots=True)
class Packed:
    """The tower of a packed model, the modalities that one formula serves, and the notes on the others."""

    tower: Part
    modalities: tuple[ModalityInputs, ...]
    notes: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class _Scene:
    subject: Subject
    inputs: ModelInputs
    sheet: Sheet

    @property
    def tree(self) -> SourceTree:
        return self.subject.tree

    @property
    def program(self) -> Program:
        return self.subject.program

    @property
    def model(self) -> Located:
        return self.subject.model


def draft_packed(subject: Subject, inputs: ModelInputs, sheet: Sheet) -> Packed:
    """Fill in all sections of a packed model but its modalities.

    A call between the tower and the embeddings that no descriptor expresses becomes an obstacle of the sheet. So does
    each reason why the tower cannot be split. Raises VCG483 when the tower's class is not there to be read.
    """
    scene = _Scene(subject, inputs, sheet)
    first = inputs.modalities[0]
    call = innermost(subject.program, subject.model.owner, first.encoded[0].call)
    name = call.name.removeprefix("self.")
    tower = part_of(subject.program, subject.model.owner, name)
    if tower is None or tower.cls is None:
        raise beyond(subject.tree, call.place, f"the class of `{call.name}`, which gets the pixels, is not in the tree")
    kept, notes = _tokens(scene, first, tower)
    try:
        _inside(scene, first, call, tower, frames=any(modality.name != "image" for modality in kept))
    except Beyond as met:
        sheet.obstacles += met.diagnostics
    put_budget(subject, [modality.name for modality in kept], sheet)
    return Packed(tower, kept, notes)


def _inside(scene: _Scene, first: ModalityInputs, call: Op, part: Part, *, frames: bool) -> None:
    """Fill in all that the tower's own code tells. Raises `Beyond` where it tells no more.

    `frames`: an item may have several.
    """
    sheet, program = scene.sheet, scene.program
    assert part.cls is not None, "checked by the caller"
    around = _between(scene, first, call)
    sheet.put("tower.class", part.cls[1].name, part.place)
    sheet.put("tower.entry", "forward")
    by_name = by_parameter(parameters(program, part.cls, "forward"), call)
    data = tuple(key for key, value in by_name.items() if set(inputs_of(value)) & set(first.encoded[0].pixels))
    grid = tuple(key for key, value in by_name.items() if key not in data and first.sizes in inputs_of(value))
    if len(data) != 1 or not grid:
        what = f"`{call.name}` does not get pixels and their grid as two arguments"
        raise beyond(scene.tree, call.place, what)
    sheet.put("tower.data", data[0], call.place)
    sheet.put("tower.metadata", grid)
    place = call.place or first.encoded[0].place
    tower = Tower(scene.subject, sheet, part, part.cls, data[0], grid, place)
    _pixels(scene, part, data[0])
    put_dtype(tower)
    sliced = slice_of(tower)
    values = _metadata_values(scene, part, sliced, grid, first.columns)

    def value_of(crossing: Crossing) -> Term | None:
        return values.get(crossing.name, values.get(crossing.key))

    def window_of(crossing: Crossing) -> str | None:
        return _window(value_of(crossing), part, sheet.value("let.m"))

    put_attention(tower, sliced, lambda crossing: _unit(value_of(crossing)), window_of, frames=frames)
    put_calls(tower, sliced, around, _changed_grid(scene, part, grid))


# --- items ----------------------------------------------------------------------------------------------------------


def _tokens(
    scene: _Scene, first: ModalityInputs, tower: Part
) -> tuple[tuple[ModalityInputs, ...], tuple[Diagnostic, ...]]:
    """Rows and tokens of an item. A modality whose tokens follow another formula than the first is left out."""
    sheet = scene.sheet
    rows, tokens = _GRIDS[first.columns]
    merges = {modality.name: _merge_of(scene, modality) for modality in scene.inputs.modalities}
    merge = merges[first.name]
    sheet.put("item.rows", rows, first.field.place, why=f"the product of `{first.sizes}`")
    if merge is None:
        side = _merge_candidates(scene, tower)
        sheet.ask(Question("let.m", "the side of the square of rows that becomes one token", side, (str(tower.place),)))
        sheet.put("item.tokens", tokens)
    else:
        path, place = merge
        sheet.put("let.m", path, place, why="each item's embeddings are split off by this divisor, twice")
        sheet.put("item.tokens", tokens, place)
    kept, notes = [], []
    for modality in scene.inputs.modalities:
        other = merges[modality.name]
        if modality is first or (other is not None and merge is not None and other[0] == merge[0]):
            kept.append(modality)
            continue
        reason = f"its tokens follow another formula than those of `{first.name}`"
        notes.append(left_out(scene.tree, modality.encoded[0].place, modality.name, reason))
        sheet.note("modalities", f"`{modality.name}` is left out, {modality.encoded[0].place}: {reason}")
    return tuple(kept), tuple(notes)


def _merge_of(scene: _Scene, modality: ModalityInputs) -> tuple[str, SourceLine] | None:
    """The path that the product of a grid is divided by twice, where the embeddings are split into items."""
    roots = {id(root.call) for root in modality.encoded}
    for split in scene.inputs.trace.splits:
        if not any(id(part) in roots for part in walk_value(split.args[0])) or len(split.args) < 2:
            continue
        divisors: list[Term] = []
        value = strip(split.args[1], SAME_SIZES)
        while isinstance(value, Op) and value.name == "//":
            divisors.append(value.args[1])
            value = strip(value.args[0], SAME_SIZES)
        is_product = isinstance(value, Op) and value.name == ".prod" and inputs_of(value) == (modality.sizes,)
        if not is_product:
            continue
        if len(divisors) == 1 and isinstance(divisors[0], Op) and divisors[0].name in ("**", "*"):
            square = divisors[0]
            divisors = [square.args[0], square.args[0] if square.args[1] == Plain(2) else square.args[1]]
        if len(divisors) == 2 and divisors[0] == divisors[1] and isinstance(divisors[0], Ref):
            place = divisors[0].place or split.place
            if divisors[0].path.startswith("self.") and place is not None:
                return divisors[0].path, place
    return None


def _merge_candidates(scene: _Scene, tower: Part) -> tuple[Candidate, ...]:
    assert tower.cls is not None, "checked by the caller"
    found = assigned(scene.program, tower.cls, "spatial_merge_size")
    if found is None:
        return ()
    return (Candidate(f"self.{tower.name}.spatial_merge_size", "the tower keeps it under this name", found[1]),)


def _between(scene: _Scene, first: ModalityInputs, call: Op) -> str:
    """The part that projects each row of the tower's output, which a graph can hold; empty where there is none.

    A part that gets the output and the sizes runs outside of the graph; what else is between hinders.
    """
    outer = first.encoded[0].call
    if outer is call:
        return ""
    if len(outer.operands) == 1 and outer.args and strip(outer.args[0]) is call and _is_row_wise(scene, outer):
        return outer.name
    if first.sizes in {key for value in outer.operands[1:] for key in inputs_of(value)}:
        rest = [strip(value, SAME_SIZES) for value in outer.args[1:]]
        plain = all(isinstance(value, Input) and value.key == first.sizes for value in rest)
        if outer.args and strip(outer.args[0]) is call and plain and len(rest) == 1 and not outer.keywords:
            scene.sheet.put("post.call", f"{outer.name}(output, sizes)", outer.place, why="needs the sizes on the host")
            return ""
        what = f"`{outer.name}` runs on the tower's output and needs the sizes of the items"
        scene.sheet.obstacles += beyond(scene.tree, outer.place, what).diagnostics
        return ""
    joins = [part.name for value in outer.operands for part in walk_value(value) if isinstance(part, Op)]
    reasons = [f"`{outer.name}` runs on the tower's output"]
    reasons += [f"which `{name}` has put together from a list of items" for name in joins if name in _JOINS][:1]
    scene.sheet.obstacles += beyond(scene.tree, outer.place, ", ".join(reasons)).diagnostics
    return ""


def _is_row_wise(scene: _Scene, outer: Op) -> bool:
    """Whether a part of the model is made of layers that work on each row by itself, called one after the other."""
    program, owner = scene.program, scene.model.owner
    part = part_of(program, owner, outer.name.removeprefix("self."))
    if part is None or part.made is None:
        return False
    if part.cls is None:
        return _is_row_layer(part.made)
    forward, init = (program.method(part.cls, name) for name in ("forward", "__init__"))
    if forward is None or init is None or len(forward[2].args.args) != 2:
        return False
    made = {
        target.attr: node.value
        for node in ast.walk(init[2])
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }
    calls = [node for node in ast.walk(forward[2]) if isinstance(node, (ast.Call, ast.BinOp, ast.Subscript, ast.If))]
    return bool(calls) and all(
        isinstance(node, ast.Call)
        and _is_row_layer(made.get(ast.unparse(node.func).removeprefix("self.")))
        and all(isinstance(value, ast.Name) for value in node.args)
        for node in calls
    )


def _is_row_layer(made: ast.expr | None) -> bool:
    """Whether a call makes a layer that works on each row by itself, or several of them in a row."""
    if not isinstance(made, ast.Call):
        return False
    name = ast.unparse(made.func).rpartition(".")[2]
    return name in _ROW_LAYERS or (name == "Sequential" and bool(made.args) and all(map(_is_row_layer, made.args)))


# --- tower ----------------------------------------------------------------------------------------------------------


def _metadata_values(
    scene: _Scene, tower: Part, sliced: TowerSlice, grid: tuple[str, ...], columns: tuple[str, ...]
) -> dict[str, Term]:
    """The values of the tower's variables, or of the entries that an existing metadata method returns."""
    assert tower.cls is not None, "checked by the caller"
    evaluator = Evaluator(scene.program, tower.cls, deep=True)
    sizes = Input("grid", len(columns))
    if sliced.already_split and sliced.metadata_method:
        made = evaluator.method(sliced.metadata_method, **{sliced.method_parameters[0].name: sizes})
        return made.entries if isinstance(made, Mapped) else {}
    names: dict[str, Term] = dict.fromkeys(sliced.data, Input("pixels"))
    names |= dict.fromkeys(grid, sizes)
    return evaluator.variables("forward", **names)


def _unit(value: Term | None) -> Unit:
    """The unit that one sequence covers, from how its offsets are computed."""
    if value is None:
        return Unit()
    parts = list(walk_value(value))
    windows = [part for part in parts if isinstance(part, Ref) and "window" in part.path]
    for part in parts:
        if not isinstance(part, Op) or part.name not in _REPEATS or len(part.args) < 2:
            continue
        if 0 in _grid_columns(part.args[1]) and _grid_columns(part.args[0]) >= {1, 2}:
            return Unit("frame", "h * w rows, once for each frame", part.place)
    if windows:
        return Unit("window", f"cut by `{windows[0].path}`", windows[0].place)
    product = next((p for p in parts if isinstance(p, Op) and p.name == ".prod"), None)
    if product is not None and not any(isinstance(p, Op) and p.name in _REPEATS for p in parts):
        return Unit("item", "the product of an item's grid", product.place)
    return Unit()


def _grid_columns(value: Term) -> set[int]:
    """Columns of the grid that a value is made of: `grid[:, 1]`, or the second of `for t, h, w in grid`."""
    found: set[int] = set()
    for part in walk_value(value):
        if isinstance(part, Op) and part.name == "[]" and "grid" in inputs_of(part.args[0]):
            index = part.args[1]
            if isinstance(index, Items):
                index = index.values[-1]
            if isinstance(index, Plain) and isinstance(index.value, int):
                found.add(index.value)
    return found


def _window(value: Term | None, tower: Part, merge: str) -> str | None:
    """The side of a window in tokens, from where windows are cut."""
    parts = walk_value(value) if value is not None else ()
    sides = (_arithmetic(part, f"self.{tower.name}") for part in parts)
    side = next((text for text in sides if text and "window" in text and "//" in text), None)
    return " // ".join("m" if part == merge else part for part in side.split(" // ")) if side else None


def _arithmetic(value: Term, prefix: str) -> str | None:
    """A term over the tower's attributes as an expression of a descriptor."""
    if isinstance(value, Ref) and value.path.startswith("self."):
        return prefix + value.path.removeprefix("self")
    if isinstance(value, Plain) and isinstance(value.value, int):
        return str(value.value)
    if isinstance(value, Op) and value.name in ("//", "*", "+", "-") and len(value.args) == 2:
        left, right = (_arithmetic(part, prefix) for part in value.args)
        return f"{left} {value.name} {right}" if left and right else None
    return None


# --- pixels, calls, budget ------------------------------------------------------------------------------------------


def _pixels(scene: _Scene, tower: Part, data: str) -> None:
    """The width of a row from the first module that gets the pixels."""
    sheet, program = scene.sheet, scene.program
    assert tower.cls is not None, "checked by the caller"
    evaluator = Evaluator(program, tower.cls, sizes=frozenset({"grid"}))
    names = parameters(program, tower.cls, "forward")
    arguments: dict[str, Term] = dict.fromkeys(names, Input("grid", 3))
    arguments[data] = Input("pixels")
    evaluator.variables("forward", **arguments)
    calls = [call for call in evaluator.trace.calls if "pixels" in inputs_of(call)]
    shape = None
    for call in calls:  # what normalises pixels comes before what embeds them
        path = call.name.removeprefix("self.")
        patch = part_of(program, tower.cls, path) if "." not in path else None
        if shape is None and patch is not None and patch.cls is not None:
            shape = row_shape(program, patch.cls, f"self.{tower.name}.{path}", sheet)
    if shape is None:
        layer = first_layer(program, scene.model.owner, tower, data)
        look: tuple[str, ...] = (layer,) if layer else ()
        shown = schema_of(program, scene.model.owner[0], scene.inputs.trace, scene.inputs.modalities[0].pixels)
        if shown is not None:
            look += (f"{shown[1]}: the annotated shape, ({', '.join(map(str, shown[0]))})",)
        sheet.ask(Question("pixels.shape", "shape of one row of the pixel tensor, as a list", (), look))
    else:
        text, place, why = shape
        sheet.put("pixels.shape", [text], place, why=why)


def row_shape(program: Program, cls: Owner, prefix: str, sheet: Sheet) -> tuple[str, SourceLine, str] | None:
    """The width of a row that the part at `prefix` embeds, its place and why: of a linear layer, or of the patch that a
    convolution gets a row as. None where the part does neither first."""
    evaluator = Evaluator(program, cls)
    names = parameters(program, cls, "forward")
    evaluator.variables("forward", **{names[0]: Input("pixels")} if names else {})
    made = next((call for call in evaluator.trace.calls if call.name.count(".") == 1), None)
    inner = part_of(program, cls, made.name.removeprefix("self.")) if made else None
    if made is None or inner is None or made.place is None:
        return None
    width = linear_width(inner)
    bare = strip(made.args[0])
    if width is not None and isinstance(bare, Input):
        return f"{prefix}.{inner.name}.{width}", inner.place, "the input of a linear layer"
    if isinstance(bare, Op) and bare.name in (".view", ".reshape"):
        dims = [dim for dim in bare.args[2:] if dim != Plain(-1)]
        paths = [
            dim.path.removeprefix("self.") for dim in dims if isinstance(dim, Ref) and dim.path.startswith("self.")
        ]
        conv = ast.unparse(inner.made.func) if inner.made else ""
        if dims and len(paths) == len(dims) and "Conv" in conv:
            lets = {let_name(name): f"{prefix}.{name}" for name in paths}
            if Plain(-1) in bare.args[1:]:  # whose size the others leave
                lets = {"channels": f"{prefix}.{inner.name}.in_channels"} | lets
            for name, path in lets.items():
                sheet.put(f"let.{name}", path, inner.place if path.endswith(".in_channels") else bare.place)
            counts = {name: sum(let_name(path) == name for path in paths) for name in lets}
            terms = [f"{name} ** {count}" if count > 1 else name for name, count in counts.items()]
            return " * ".join(terms), bare.place or made.place, "what a row is viewed as"
    return None


def let_name(attribute: str) -> str:
    if attribute.endswith("channels"):
        return "channels"
    return "frames" if "temporal" in attribute else "side" if attribute == "patch_size" else attribute


def _changed_grid(scene: _Scene, tower: Part, grid: tuple[str, ...]) -> tuple[SourceLine, str] | None:
    """Where the tower gets another grid than the sizes, and a call of the method that makes it (or nothing)."""
    model = scene.model
    call = innermost(scene.program, model.owner, scene.inputs.modalities[0].encoded[0].call)
    given = by_parameter(parameters(scene.program, tower.cls, "forward") if tower.cls else [], call)
    if all(isinstance(strip(given[name], SAME_SIZES), Input) for name in grid if name in given) or call.place is None:
        return None
    for node in model.owner[1].body:
        if not isinstance(node, ast.FunctionDef) or len(node.args.args) != 3:  # self, pixels and the grid
            continue
        if node.lineno <= call.place.line <= (node.end_lineno or 0):
            return call.place, f"self.{node.name}(pixels, sizes)"
    return call.place, ""
