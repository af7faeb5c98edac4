"""Items that are rows of patches by themselves, each with a grid and perhaps more inputs, and what their layers read.

Their rows do not lie behind each other in one input with the grids as sizes: each item brings a tensor of its own. The
port makes the same of zeros when a model starts, so a draft says the shape of every input that the model reads with
the pixels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scaffold.cut.loops import outline
from scaffold.descriptor.expressions import parse_expression
from scaffold.draft.inputs import SAME_SIZES, beyond, sizes_of, strip
from scaffold.draft.objects import Objects
from scaffold.draft.packed import let_name
from scaffold.draft.sheet import Sheet
from scaffold.draft.steps import PartCall, Walker, computed
from scaffold.draft.subject import Subject
from scaffold.draft.tokens import TokenEntries, entries_of_tokens
from scaffold.draft.values import FieldConfig, Input, Items, Op, Plain, Ref, SourceLine, Term, inputs_of, walk_value
from scaffold.syntax import self_attribute

#: Columns of a grid, by their number, of an image of h x w patches.
COLUMNS = {3: ("1", "h", "w"), 2: ("h", "w")}
_FLATTENED = {*SAME_SIZES, "flatten_bn"}
_JOINED = {*SAME_SIZES, "torch.concat"}


def is_rows(subject: Subject, key: str) -> bool:
    """Whether an annotation says that the items of an input are rows of patches, all of one width."""
    shape = next(subject.shapes(key, made=True), None)
    return shape is not None and len(shape[0]) == 2


def with_sizes(walker: Walker, fields: dict[str, FieldConfig], key: str) -> dict[str, FieldConfig]:
    """The field configs, where only the processor knows how many rows of the pixels an item has, with the grid by whose
    product the model splits what it has computed of them.

    A batch of one item shows that this is the same: the model could not split it otherwise.
    """
    own = fields[key].sizes
    sizes = strip(own, SAME_SIZES) if own is not None else None
    for split in walker.cuts if isinstance(sizes, Input) and sizes.key not in fields else ():
        rows, *given = split.args
        by = strip(given[0], SAME_SIZES) if given and key in inputs_of(rows) and computed(rows) else None
        grid = strip(by.args[0], _JOINED) if isinstance(by, Op) and by.name in (".prod", "torch.prod") else None
        if isinstance(grid, Input) and grid.key in fields and fields[grid.key].kind == "batched":
            return fields | {key: replace(fields[key], sizes=Op(".prod", (grid,), (), split.place))}
    return fields


def unit_grid(subject: Subject, fields: dict[str, FieldConfig], key: str) -> Input | None:
    """The input with a grid for each unit of an item, such as a tile, if the units of the pixels are padded rows.

    One number cuts both into items, and annotations say how many axes they have.
    """
    shown = next(subject.shapes(key), None)
    for name, value in subject.trace.inputs.items():
        field = fields.get(name)
        if name == key or field is None or field.sizes is None or field.sizes != fields[key].sizes:
            continue
        grid = next(subject.shapes(name), None)
        if shown is not None and grid is not None and (len(shown[0]), len(grid[0])) == (3, 2):
            columns = grid[0][1]
            return replace(value, columns=columns) if isinstance(columns, int) else None
    return None


def padding_mask(subject: Subject, key: str) -> tuple[str, str]:
    """The inputs with a mask and a grid for each item, if items are rows that are padded to one length; else empty.

    Annotations say so: the mask has the first two axes of the pixels, the grid the first one and a side in each column.
    """
    annotated = ((name, next(subject.shapes(name), None)) for name in subject.trace.inputs)
    shapes = {name: shown[0] for name, shown in annotated if shown is not None}
    pixels = shapes.get(key, ())
    if len(pixels) != 3:
        return "", ""
    masks = [name for name, shape in shapes.items() if shape == pixels[:2]]
    grids = [name for name, shape in shapes.items() if shape[:1] == pixels[:1] and shape[1:] in [(n,) for n in COLUMNS]]
    return (masks[0], grids[0]) if len(masks) == len(grids) == 1 else ("", "")


@dataclass(frozen=True, slots=True)
class Tokens:
    """A second grid of an image, that of its tokens, the input that orders them or has `entries` for each, and the side
    of a token's square."""

    grid: str
    order: str
    side: str
    place: SourceLine | None
    entries: TokenEntries | None = None

    def put(self, sheet: Sheet, fields: dict[str, FieldConfig]) -> None:
        """Fill in the entries of an item, whose sides are multiples of the square's."""
        sheet.put("let.m", self.side, self.place, why="the side of the squares that `unfold` makes a row each")
        why = f"the grid of an image's tokens: its product cuts `{self.order}`, by which the model orders them"
        if self.entries is not None:
            why = f"the grid of an image's tokens: the processor makes `{self.order}` of it"
        sheet.put(f"item.values.{self.grid}", ["h // m", "w // m"], fields[self.grid].place, why=why)
        if self.entries is not None:
            self.entries.put(sheet)
        else:
            sheet.put(f"item.zeros.{self.order}", ["(h // m) * (w // m)"], fields[self.order].place, why="one a token")
        sheet.put("item.merge", "m", self.place)


def tokens_beside(
    subject: Subject,
    fields: dict[str, FieldConfig],
    names: list[str],
) -> Tokens | None:
    """The grid of an image's tokens and what the model reads of each, if these two inputs are those."""
    orders = [name for name in names if fields[name].kind != "batched"]
    if len(names) != 2 or len(orders) != 1 or fields[orders[0]].kind != "flat_from_sizes":
        return None
    [order] = orders
    unfolded = list(_unfolded(subject.objects, subject.walker))
    entries = entries_of_tokens(subject.program, subject.model, order, fields[order])
    if entries is not None:
        alone = entries.grid in names and len({side for side, _ in unfolded}) == 1
        return Tokens(entries.grid, order, *unfolded[0], entries) if alone else None
    grid, product = sizes_of(subject.tree, subject.program, subject.model, fields[order], fields, subject.trace)
    if not product or grid.key not in names or grid.columns != 2 or len({side for side, _ in unfolded}) != 1:
        return None
    return Tokens(grid.key, order, *unfolded[0]) if _is_index(subject.walker, order) else None


def _unfolded(objects: Objects, walker: Walker) -> Iterator[tuple[str, SourceLine | None]]:
    """The sides of squares that `unfold` takes beside each other, as attributes of the model."""
    for step in walker.root.walk():
        for part in walk_value(step.result):
            if isinstance(part, Op) and part.name in ("F.unfold", "nn.functional.unfold") and len(part.args) > 1:
                side = objects.text(part.args[1])
                if side is not None and dict(part.keywords) == {"stride": part.args[1]}:
                    yield _told(objects, side), part.place


def _is_index(walker: Walker, name: str) -> bool:
    """Whether the model takes rows of what it has computed by the entries of an input."""
    results = [part for step in walker.root.walk() for part in walk_value(step.result)]
    indexed = [part for part in results if isinstance(part, Op) and part.name == "[]" and computed(part.args[0])]
    return any(len(part.args) == 2 and inputs_of(part.args[1])[:1] == (name,) for part in indexed)


def put_items(
    subject: Subject,
    fields: dict[str, FieldConfig],
    key: str,
    others: list[str],
    sheet: Sheet,
) -> None:
    """Fill in `item` but its merge: rows of the pixels, a grid, and what the model reads besides. Raises VCG483."""
    grid = ""
    for name in others:
        shown = next(subject.shapes(name, made=True), None)
        columns = shown[0][1] if shown is not None and len(shown[0]) == 2 else None
        if columns in COLUMNS and not grid and shown is not None:
            grid, place, table = name, *shown[1:]
            nested = any(_is_flattened(value, name) for value in table.entries.values())
            row = COLUMNS[columns]
            value = [f"[{', '.join(row)}]"] if nested else list(row)
            sheet.put(f"item.values.{name}", value, place, why="the grid of an image of h x w patches")
            if not fields[name].on_host:
                sheet.put("item.moved", [name], fields[name].place, why="the processor has no `keep_on_cpu` for it")
        elif shown is None or len(shown[0]) != 1 or not _put_entries(subject.walker, name, key, sheet):
            what = f"the model reads `{name}` with the pixels, and nothing says what an image has there"
            raise beyond(subject.tree, fields[name].place, what)
    if not grid:
        raise beyond(
            subject.tree, fields[key].place, f"`{key}` has rows of patches, and the model reads no grid with it"
        )
    if not _put_shape(subject, key, sheet):
        raise beyond(subject.tree, fields[key].place, f"nothing says how wide a row of `{key}` is")


def put_unread(step: PartCall, layers: str, sheet: Sheet) -> None:
    """Fill in what the loop over the layers takes and reads only where the encoder has an attribute."""
    assert step.entered is not None, "it holds a loop"
    function, file, loops = step.entered.node, step.entered.module.file, _loops_over(step, layers)
    choices = [node for node in ast.walk(loops[0]) if isinstance(node, ast.If) and _absent(node.test)] if loops else []
    for node in choices if len(loops) == 1 else []:
        attribute = _absent(node.test)
        branch = node.orelse if _holds_without(node.test, attribute) else node.body
        inside = {id(part) for statement in branch for part in ast.walk(statement)}
        loads = {part.id for part in ast.walk(loops[0]) if isinstance(part, ast.Name) and id(part) not in inside}
        taken = outline(function, loops[0])
        names = [name for name in taken.arguments if name not in loads and name not in taken.results]
        if names:
            why = f"read only where `{step.path}.{attribute}` is set; such a model has no graphs"
            sheet.put("forward.unread", names, SourceLine(file, node.lineno), why=why)


def gives_several(step: PartCall, layers: str) -> bool:
    """Whether the loop over the layers hands several values on to the rest of its method."""
    assert step.entered is not None, "it holds a loop"
    return any(len(outline(step.entered.node, loop).results) > 1 for loop in _loops_over(step, layers))


def _loops_over(step: PartCall, layers: str) -> list[ast.For]:
    body = ast.walk(step.entered.node) if step.entered is not None else ()
    return [node for node in body if isinstance(node, ast.For) and layers in ast.unparse(node.iter)]


def _absent(test: ast.expr) -> str:
    """The attribute without which a condition is decided, else empty."""
    names = {self_attribute(node) or "" for node in ast.walk(test) if isinstance(node, ast.expr)} - {""}
    return next((name for name in sorted(names) if _holds_without(test, name) is not None), "")


def _holds_without(test: ast.expr, name: str) -> bool | None:
    """Whether a condition holds where an attribute is None; None if more than that decides."""
    if self_attribute(test) == name:
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _holds_without(test.operand, name)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        decides = isinstance(test.op, ast.Or)
        values = [_holds_without(value, name) for value in test.values]
        return decides if decides in values else None if None in values else not decides
    if isinstance(test, ast.Compare) and self_attribute(test.left) == name and len(test.ops) == 1:
        none = ast.unparse(test.comparators[0]) == "None"
        return isinstance(test.ops[0], ast.Is) if none and isinstance(test.ops[0], (ast.Is, ast.IsNot)) else None
    return None


def _is_flattened(value: Term, name: str) -> bool:
    """Whether a value is an input whose items the model puts behind each other: each is a table of one row."""
    bare = strip(value)
    return isinstance(bare, Op) and bare.name == "flatten_bn" and inputs_of(bare) == (name,)


def _put_entries(walker: Walker, name: str, pixels: str, sheet: Sheet) -> bool:
    """Fill in how many entries of an input an item has: so many of what is made of them are split off for it."""
    for split in walker.cuts:
        sizes = split.args[1] if inputs_of(split.args[0]) == (name,) and len(split.args) > 1 else None
        lets: dict[str, str] = {}
        text = _count(strip(sizes), pixels, lets) if sizes is not None else None
        if text is not None:
            for key, path in lets.items():
                sheet.put(f"let.{key}", path, split.place)
            plain = parse_expression(text).python()
            sheet.put(f"item.zeros.{name}", [plain], split.place, why="so many for each item")
            return True
    return False


def _count(value: Term, pixels: str, lets: dict[str, str]) -> str | None:
    """A number that follows from the rows of an item, in the language of descriptors, with names for attributes."""
    if isinstance(value, Plain):
        return str(value.value) if type(value.value) is int else None
    if isinstance(value, Ref) and value.path.startswith("self."):
        name = let_name(value.path.rpartition(".")[2])
        return name if lets.setdefault(name, value.path) == value.path else value.path
    if isinstance(value, Items) and len(value.values) == 1:  # the same for each item
        return _count(value.values[0], pixels, lets)
    if not isinstance(value, Op):
        return None
    if value.name == "list":
        return _count(value.args[0], pixels, lets)
    if value.name == "[]" and value.args[1:] == (Plain(0),) and _is_shape(value.args[0], pixels):
        return "h * w"
    parts = [_count(part, pixels, lets) for part in value.args]
    if None in parts:
        return None
    if value.name == "if >" and isinstance(value.args[1], Plain):  # of whole numbers that are not negative
        left, right, above, below = parts
        return f"({below}) + (({above}) - ({below})) * min(1, ({left}) // {int(right or 0) + 1})"
    return f"({parts[0]}) {value.name} ({parts[1]})" if value.name in ("+", "-", "*", "//", "**") else None


def _is_shape(value: Term, pixels: str) -> bool:
    each = value.args[0] if isinstance(value, Op) and value.name == ".shape" else None
    return (
        isinstance(each, Op) and each.name == "each" and isinstance(each.args[0], Input) and each.args[0].key == pixels
    )


def _put_shape(subject: Subject, key: str, sheet: Sheet) -> bool:
    """Fill in the pixels of an item: rows as wide as the product of the sides that the model views one as."""
    for step in subject.root.walk():
        value = strip(step.units) if step.raw and step.units is not None else None
        if not isinstance(value, Op) or value.name not in (".view", ".reshape") or key not in inputs_of(value):
            continue
        sides = [_sides(subject.objects, side) for side in value.args[1:] if side != Plain(-1)]
        paths = [path for side in sides for path in side or ()]
        if sides and None not in sides:
            lets = {let_name(path.rpartition(".")[2]): path for path in paths}
            for name, path in lets.items():
                sheet.put(f"let.{name}", path, value.place)
            counts = {name: paths.count(path) for name, path in lets.items()}
            width = " * ".join(f"{name} ** {count}" if count > 1 else name for name, count in counts.items())
            sheet.put("item.shape", ["h * w", width], value.place, why="a row for each patch, by what it is viewed as")
            return True
    return False


def _sides(objects: Objects, value: Term) -> list[str] | None:
    """The attributes of the model whose product a side is."""
    if isinstance(value, Op) and value.name == "*":
        sides = [_sides(objects, side) for side in value.args]
        return [path for side in sides for path in side or ()] if None not in sides else None
    path = objects.text(value)
    return [_told(objects, path)] if path is not None and path.startswith("self.") else None


def _told(objects: Objects, path: str) -> str:
    """An attribute as the model itself has it, where it is one of a configuration that a part was given."""
    holder, _, name = path.rpartition(".")
    for part, rest in ((path, ""), (holder, f".{name}")):
        given = objects.text(objects.value(part)) or ""
        if given.startswith("self.config."):
            return given + rest
    return path
