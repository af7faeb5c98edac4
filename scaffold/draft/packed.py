"""Drafts the packed layout: tokens and merge size, the tower's slice, sequences, buffers, budget."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.draft.evaluate import Evaluator, History
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
from scaffold.syntax import FunctionNode
from scaffold.tower import METADATA_ARGUMENT, Kind, slice_tower, split_tower
from scaffold.tower.model import Crossing, Hazard, Label, TowerSlice
from scaffold.tower.source import Owner, Program

_JOINS = {"torch.cat", "torch.concat", "torch.stack"}
#: Layers that leave rows where they are: padding behind a batch stays behind it.
_ROW_LAYERS = {
    "Linear", "ReplicatedLinear", "ColumnParallelLinear", "RowParallelLinear", "GELU", "SiLU", "ReLU", "LayerNorm",
    "RMSNorm", "Identity", "get_act_fn", "Dropout",
}  # fmt: skip
_REPEATS = {"np.repeat", "torch.repeat_interleave", ".repeat_interleave"}
_FRAMES = "get_num_frames_with_most_features"
_GRIDS = {("t", "h", "w"): ("t * h * w", "t * (h // m) * (w // m)"), ("h", "w"): ("h * w", "(h // m) * (w // m)")}


@dataclass(frozen=True, slots=True)
class Packed:
    """The tower of a packed model, the modalities that one formula serves, and the notes on the others."""

    tower: Part
    modalities: tuple[ModalityInputs, ...]
    notes: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class _Scene:
    tree: SourceTree
    program: Program
    model: Located
    inputs: ModelInputs
    sheet: Sheet


def draft_packed(subject: Subject, inputs: ModelInputs, sheet: Sheet) -> Packed:
    """Fill in all sections of a packed model but its modalities.

    A call between the tower and the embeddings that no descriptor expresses becomes an obstacle of the sheet. So does
    each reason why the tower cannot be split. Raises VCG483 when the tower's class is not there to be read.
    """
    scene = _Scene(subject.tree, subject.program, subject.model, inputs, sheet)
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
    _budget(scene, kept, first)
    return Packed(tower, kept, notes)


def _inside(scene: _Scene, first: ModalityInputs, call: Op, tower: Part, *, frames: bool) -> None:
    """Fill in all that the tower's own code tells. Raises `Beyond` where it tells no more.

    `frames`: an item may have several.
    """
    sheet, program = scene.sheet, scene.program
    assert tower.cls is not None, "checked by the caller"
    around = _between(scene, first, call)
    sheet.put("tower.class", tower.cls[1].name, tower.place)
    sheet.put("tower.entry", "forward")
    names = parameters(program, tower.cls, "forward")
    by_name = by_parameter(names, call)
    data = tuple(key for key, value in by_name.items() if set(inputs_of(value)) & set(first.encoded[0].pixels))
    grid = tuple(key for key, value in by_name.items() if key not in data and first.sizes in inputs_of(value))
    if len(data) != 1 or not grid:
        what = f"`{call.name}` does not get pixels and their grid as two arguments"
        raise beyond(scene.tree, call.place, what)
    sheet.put("tower.data", data[0], call.place)
    sheet.put("tower.metadata", grid)
    _pixels(scene, tower, data[0])
    sliced = _slice(scene, tower, data, grid, call)
    _attention(scene, tower, sliced, grid, first.columns, frames=frames)
    _calls(scene, tower, names, data[0], grid, sliced, around)
    for hazard in sliced.hazards:
        if not hazard.moved and (sliced.already_split or hazard.label != Label.META):
            sheet.note("forward", f"stays in the captured part: {_short(scene, hazard)}")


def _short(scene: _Scene, hazard: Hazard) -> str:
    return f"{_relative(scene, hazard.file)}:{hazard.line}: {hazard.what}"


def _relative(scene: _Scene, shown: str) -> str:
    return shown.removeprefix(scene.tree.display(""))


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


def _slice(scene: _Scene, tower: Part, data: tuple[str, ...], grid: tuple[str, ...], call: Op) -> TowerSlice:
    """The tower's slice. Each reason why a clean slice cannot be split is an obstacle of the sheet."""
    assert tower.cls is not None, "checked by the caller"
    try:
        sliced = slice_tower(scene.tree, tower.cls[0].file, tower.cls[1].name, data=data, metadata=grid)
        staying = [hazard for hazard in sliced.hazards if not hazard.moved and hazard.label == Label.META]
        if not staying and not sliced.already_split:
            split_tower(sliced)
    except DiagnosticError as error:
        first = error.diagnostics[0]
        place = SourceLine(_relative(scene, first.span.file), first.span.line) if first.span else call.place
        what = f"`{call.name}` ({tower.cls[1].name}) cannot be split: {first.message}"
        raise beyond(scene.tree, place, what) from None
    for hazard in staying if not sliced.already_split else ():
        place = SourceLine(_relative(scene, hazard.file), hazard.line)
        within = f"`{hazard.via[-1]}`: " if hazard.via else ""
        what = f"{within}{hazard.what} follows from the grid and cannot leave the tower"
        scene.sheet.obstacles += beyond(scene.tree, place, what).diagnostics
    return sliced


def _crossings(sliced: TowerSlice) -> Iterator[tuple[Crossing, TowerSlice]]:
    """Values that cross the cut and become buffers, children's last. A child's own arguments do not become any."""
    passed = {name for child in sliced.children for name, _ in child.arguments}
    for crossing in sliced.crossings:
        # The grid itself crosses only where something that needs its values could not leave the tower.
        own = not sliced.already_split and crossing.key in sliced.metadata
        if crossing.kind is not Kind.PYTHON and not own and crossing.key not in passed - set(sliced.keys):
            yield crossing, sliced
    for child in sliced.children:
        yield from _crossings(child.slice)


def _attention(
    scene: _Scene, tower: Part, sliced: TowerSlice, grid: tuple[str, ...], columns: tuple[str, ...], *, frames: bool
) -> None:
    sheet = scene.sheet
    assert tower.cls is not None, "checked by the caller"
    crossings = list(_crossings(sliced))
    offsets = [crossing for crossing, _ in crossings if crossing.kind in (Kind.CUMULATIVE, Kind.TWO_SECTION)]
    if not offsets:
        place = SourceLine(tower.cls[0].file, tower.cls[1].lineno)
        raise beyond(scene.tree, place, "the tower builds no offsets of sequences from the grid")
    values = _metadata_values(scene, tower, sliced, grid, columns)
    bounds, alone = _bounds(offsets, [crossing for crossing, _ in crossings if crossing.kind is Kind.HOST_BOUND])
    taken = set()
    found = [(crossing, value, *_unit(value)) for crossing, value in _valued(offsets, values)]
    # The sequences of whole frames or items come first: they are the tower's main ones.
    for crossing, value, unit, why, shown in sorted(found, key=lambda entry: entry[2] == "window"):
        name = "window" if unit == "window" else "full"
        name = crossing.key if name in taken else name
        taken.add(name)
        at = f"attention.{name}"
        shows = (_evidence(scene, crossing),)
        if unit is None:
            candidates = tuple(Candidate(word, text) for word, text in _UNITS.items())
            sheet.ask(Question(f"{at}.unit", "what one attention sequence covers", candidates, shows))
        elif unit == "frame" and not frames and _has_room_for_items(sliced):
            alike = Candidate("item", "an image is one frame, and the tower's method has room for items alone", shown)
            whole = (alike, Candidate("frame", why, shown))
            sheet.ask(Question(f"{at}.unit", "what one attention sequence of images covers", whole, shows))
        else:
            sheet.put(f"{at}.unit", unit, shown, why=why)
        sheet.put(f"{at}.offsets", crossing.key, _evidence(scene, crossing))
        bound = bounds.get(crossing.key)
        if bound is not None:
            sheet.put(f"{at}.max", bound.key, _evidence(scene, bound))
        elif len(alone) == 1:
            bound = alone.pop()
            candidate = Candidate(bound.key, "the one bound that the tower makes of no offsets")
            what = "the host scalar with the longest of these sequences, in rows"
            sheet.ask(Question(f"{at}.max", what, (candidate,), (_evidence(scene, bound),)))
        lengths = next((c for c, _ in crossings if c.kind is Kind.LENGTHS and c.source == crossing.key), None)
        if lengths is not None:
            sheet.put(f"{at}.lengths", lengths.key, _evidence(scene, lengths))
        if unit == "window" and value is not None:
            _window(scene, at, value, tower)
    for bound in alone:
        place = SourceLine(tower.cls[0].file, tower.cls[1].lineno)
        what = f"the bound `{bound.key}` belongs to no set of sequences, so nothing tells its largest value"
        raise beyond(scene.tree, place, what)
    named = {value for key, value in _named(sheet)}
    buffers = [c for c, _ in crossings if c.key not in named and c.kind is not Kind.HOST_BOUND]
    keys = list(dict.fromkeys(crossing.key for crossing in buffers))
    doubtful = [crossing for crossing in buffers if not crossing.certain]
    if doubtful:
        listed = Candidate(f"[{', '.join(keys)}]", "if zeros are right behind a batch for all of them")
        look = tuple(f"{crossing.key}: {_evidence(scene, crossing) or _SLICE}" for crossing in doubtful)
        what = "metadata with an entry for each row or token, which is padded with zeros; nothing shows it of some"
        sheet.ask(Question("buffers", what, (listed,), look))
    elif keys:
        sheet.put("buffers", keys, *(_evidence(scene, crossing) for crossing in buffers[:1]))
    limit = _table_limit(scene, tower)
    if limit is not None:
        sheet.put("capture.side_limit", limit[0], limit[1], why="entries of the rotary table")
    else:
        free = Candidate("8192", "enough for every image, if positions are computed and not looked up")
        what = "the largest side of a grid, in rows: what the tower's tables of positions hold"
        sheet.ask(Question("capture.side_limit", what, (free,), (f"{tower.cls[0].file}:{tower.cls[1].lineno}",)))


def _has_room_for_items(sliced: TowerSlice) -> bool:
    """Whether a tower's own method of metadata pads offsets to a number of items, and to none of frames."""
    names = {parameter.name for parameter in sliced.method_parameters}
    return sliced.already_split and "max_batch_size" in names and "max_frames_per_batch" not in names


def _bounds(offsets: list[Crossing], bounds: list[Crossing]) -> tuple[dict[str, Crossing], list[Crossing]]:
    """The bound that is made of each set's offsets, by their key, and the bounds that no set has."""
    of = {crossing.key: next((b for b in bounds if b.source == crossing.key), None) for crossing in offsets}
    own = {key: bound for key, bound in of.items() if bound is not None}
    taken = {bound.key for bound in own.values()}
    return own, [bound for bound in bounds if bound.key not in taken]


def _valued(crossings: list[Crossing], values: dict[str, Term]) -> Iterator[tuple[Crossing, Term | None]]:
    return ((crossing, values.get(crossing.name, values.get(crossing.key))) for crossing in crossings)


_SLICE = "`vitcg-scaffold tower MODULE:CLASS -v` shows every statement"
_UNITS = {
    "frame": "one sequence a frame: h * w rows, t times",
    "item": "one sequence an item: all its rows",
    "window": "one sequence an attention window",
}


def _named(sheet: Sheet) -> Iterator[tuple[str, str]]:
    for key in sheet.keys("attention."):
        if key.endswith((".offsets", ".max", ".lengths")):
            yield key, sheet.value(key)


def _evidence(scene: _Scene, crossing: Crossing) -> str:
    if not crossing.evidence:
        return ""
    last = crossing.evidence[-1]
    return f"{_relative(scene, last.file)}:{last.line}: {last.what}"


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


def _unit(value: Term | None) -> tuple[str | None, str, SourceLine | None]:
    """The unit that one sequence covers, from how its offsets are computed; None when that is not clear."""
    if value is None:
        return None, "", None
    parts = list(walk_value(value))
    windows = [part for part in parts if isinstance(part, Ref) and "window" in part.path]
    for part in parts:
        if not isinstance(part, Op) or part.name not in _REPEATS or len(part.args) < 2:
            continue
        if 0 in _grid_columns(part.args[1]) and _grid_columns(part.args[0]) >= {1, 2}:
            return "frame", "h * w rows, once for each frame", part.place
    if windows:
        return "window", f"cut by `{windows[0].path}`", windows[0].place
    product = next((p for p in parts if isinstance(p, Op) and p.name == ".prod"), None)
    if product is not None and not any(isinstance(p, Op) and p.name in _REPEATS for p in parts):
        return "item", "the product of an item's grid", product.place
    return None, "", None


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


def _window(scene: _Scene, at: str, value: Term, tower: Part) -> None:
    """Count and size of windows: nothing derives them, a window's side is a hint."""
    parts = list(walk_value(value))
    sides = (_arithmetic(part, f"self.{tower.name}") for part in parts)
    side = next((text for text in sides if text and "window" in text and "//" in text), None)
    place = next((part.place for part in parts if isinstance(part, Ref) and "window" in part.path), None)
    if side:
        merge = scene.sheet.value("let.m")
        side = " // ".join("m" if part == merge else part for part in side.split(" // "))
        scene.sheet.put("let.window", side, place, why="the side of a window, from where windows are cut")
    look = (f"{place}: the windows are cut here",) if place else ()
    strips = Candidate("min(b, max(B, F) + ceil_div(b, window))", "strips one token high, a partial window a frame")
    scene.sheet.ask(
        Question(
            f"{at}.count",
            "the largest number of windows of a batch, over b, B, F (tokens, items, frames) and `let` names",
            (strips if side else Candidate("b", "a window has at least one token"),),
            look,
        )
    )
    square = Candidate("(window * m) ** 2", "a square of this side, in tokens")
    scene.sheet.ask(
        Question(
            f"{at}.longest",
            "rows of the largest window",
            (square if side else Candidate("b * m ** 2", "the whole budget"),),
            look,
        )
    )


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


def _table_limit(scene: _Scene, tower: Part) -> tuple[int, SourceLine] | None:
    """The number of positions that the tower's rotary table is made for."""
    for module, cls in scene.program.lineage(tower.cls) if tower.cls else ():
        constructors = [node for node in cls.body if isinstance(node, FunctionNode) and node.name == "__init__"]
        for node in (inner for init in constructors for inner in ast.walk(init)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("get_rope"):
                for keyword in node.keywords:
                    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                    if keyword.arg == "max_position" and isinstance(value, int):
                        return value, SourceLine(module.file, keyword.value.lineno)
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
    dtype = _input_dtype(program, tower)
    if dtype is not None:
        sheet.put(
            "pixels.dtype", f"self.{tower.name}.input_norm.input_dtype", dtype, why="raw pixels, normalised inside"
        )


def _input_dtype(program: Program, tower: Part) -> SourceLine | None:
    """Where a normalisation inside the tower keeps the dtype of raw pixels; None if the tower has none that does."""
    found = assigned(program, tower.cls, "input_norm") if tower.cls else None
    for node in ast.walk(found[0]) if found else ():
        made = program.resolve(found[2][0], node.id) if found and isinstance(node, ast.Name) else None
        if made is None or not isinstance(made[1], ast.ClassDef):
            continue
        norm = (made[0], made[1])
        value, method = assigned(program, norm, "input_dtype"), program.method(norm, "input_dtype")
        if value is not None or method is not None:
            return value[1] if value else SourceLine(norm[0].file, method[2].lineno if method else norm[1].lineno)
    return None


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


def _calls(
    scene: _Scene,
    tower: Part,
    names: list[str],
    data: str,
    grid: tuple[str, ...],
    sliced: TowerSlice,
    around: str,
) -> None:
    """The recorded call and the eager one; `around` is the part that projects the tower's rows, if there is one."""
    sheet = scene.sheet
    wrapped = f"{around}({{}})" if around else "{}"
    given = [name for name in names if name == data or name in grid]
    captured, eager = [], []
    for position, name in enumerate(names):
        if name not in given:
            continue
        key = f"{name}=" if names[:position] != given[:position] else ""
        captured.append(key + ("pixels" if name == data else "None"))
        eager.append(key + ("pixels" if name == data else "sizes"))
    place = scene.inputs.modalities[0].encoded[0].place
    call = wrapped.format(f"self.{tower.name}({', '.join([*captured, f'{METADATA_ARGUMENT}=metadata'])})")
    left = [hazard for hazard in sliced.hazards if not hazard.moved and hazard.label == Label.META]
    if left and sliced.already_split:  # of another tower they are obstacles
        candidates = (
            Candidate(call.replace("None", "[]"), "a grid without items passes what asks the grid for its values"),
            Candidate(call, "no grid, if what asks for one is guarded"),
        )
        look = tuple(_short(scene, hazard) for hazard in left)
        what = "the recorded call: the tower asks its grid even where it gets metadata"
        sheet.ask(Question("forward.call", what, candidates, look))
    else:
        sheet.put("forward.call", call, place)
    plain = wrapped.format(f"self.{tower.name}({', '.join(eager)})")
    changed = _changed_grid(scene, tower, names, grid)
    _grid_form(scene, tower, grid[0], sliced, elsewhere=changed is not None or sheet.has("post.call"))
    if changed is None:
        sheet.put("eager.call", plain, place)
        return
    shown, through = changed
    ways = [Candidate(plain, "the sizes as they are")]
    if through:
        ways.insert(0, Candidate(through, "the method that changes the grid", shown))
    what = "the eager call: the model changes the grid before the tower gets it, the metadata is made of the sizes"
    sheet.ask(Question("eager.call", what, tuple(ways), (f"{shown}: the call of the tower",)))


def _grid_form(scene: _Scene, tower: Part, grid: str, sliced: TowerSlice, *, elsewhere: bool) -> None:
    """A list, which copies nothing to the device, unless methods of the model beside the tower get the grid, too."""
    assert tower.cls is not None, "checked by the caller"
    parameter = sliced.method_parameters[0] if sliced.already_split else None
    forms = (parameter or next(p for p in sliced.parameters if p.name == grid)).forms
    form = "list" if "list" in forms and not (elsewhere and "tensor" in forms) else "tensor"
    why = f"what `{grid}` may be" if form == "list" or not elsewhere else "as the model's own methods get it"
    scene.sheet.put("tower.grid", form, SourceLine(sliced.file, tower.cls[1].lineno), why=why)


def _changed_grid(scene: _Scene, tower: Part, names: list[str], grid: tuple[str, ...]) -> tuple[SourceLine, str] | None:
    """Where the tower gets another grid than the sizes, and a call of the method that makes it (or nothing)."""
    model = scene.model
    call = innermost(scene.program, model.owner, scene.inputs.modalities[0].encoded[0].call)
    given = by_parameter(names, call)
    if all(isinstance(strip(given[name], SAME_SIZES), Input) for name in grid if name in given) or call.place is None:
        return None
    for node in model.owner[1].body:
        if not isinstance(node, ast.FunctionDef) or len(node.args.args) != 3:  # self, pixels and the grid
            continue
        if node.lineno <= call.place.line <= (node.end_lineno or 0):
            return call.place, f"self.{node.name}(pixels, sizes)"
    return call.place, ""


def _budget(scene: _Scene, kept: tuple[ModalityInputs, ...], first: ModalityInputs) -> None:
    sheet, program, model = scene.sheet, scene.program, scene.model
    look = [f"{model.processor_place}: the processor, for the smallest image that it makes"]
    sheet.ask(
        Question(
            "budget.min",
            "the smallest token budget that makes sense: about the tokens of the smallest common item",
            (
                Candidate("64", "an image of 224 x 224 with patches of 14 and merge size 2"),
                Candidate("16", "an image of 112 x 112 with patches of 14 and merge size 2"),
            ),
            tuple(look),
        )
    )
    if not any(modality.name == "video" for modality in kept):
        return
    frames = program.method(model.info, _FRAMES) if model.info else None
    dummies = dict(_dummy_frames(model))
    if frames is not None:
        sheet.put("budget.frames.info", _FRAMES, SourceLine(frames[0].file, frames[2].lineno))
    elif len(dummies) == 1:
        [(number, place)] = dummies.items()
        sheet.put("budget.frames", number, place, why="as many as the videos that memory is measured with")
    else:
        info = model.info[1].name if model.info else "the processing info"
        sheet.ask(Question("budget.frames", "the largest number of frames of a video", (), (info,)))


def _dummy_frames(model: Located) -> Iterator[tuple[int, SourceLine]]:
    """Numbers of frames of the videos with which the memory of a module's models is measured."""
    module = model.owner[0]
    for function in (node for node in ast.walk(module.tree) if isinstance(node, FunctionNode)):
        statements = [node for node in function.body if isinstance(node, ast.Assign)]
        known = {ast.unparse(node.targets[0]): node.value for node in statements}
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("._get_dummy_videos"):
                continue
            given = next((keyword.value for keyword in node.keywords if keyword.arg == "num_frames"), None)
            value = known.get(given.id) if isinstance(given, ast.Name) else given
            if isinstance(value, ast.Constant) and type(value.value) is int:
                yield value.value, SourceLine(module.file, value.lineno)


_PRUNING = "is_multimodal_pruning_enabled"


def gate_of(program: Program, owner: Owner, trace: History) -> tuple[str, SourceLine] | None:
    """The condition without which embeddings are edited after the encoder: where `embed_multimodal` reads it.

    A class that only sets the attribute prunes nothing: GLM-4.1V has it for a port's own gate, and no code for it.
    """
    if assigned(program, owner, _PRUNING) is None:
        return None
    for module, function in trace.visited:
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{_PRUNING}":
                return f"not self.{_PRUNING}", SourceLine(module.file, node.lineno)
    return None
