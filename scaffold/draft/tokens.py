"""Inputs with an entry for each token of an image, which a function of the tree makes from the image's grid of tokens.

The processor's field config has the number of entries as a formula of the grid. The processing object, which a model's
own release has where there is none on the hub, has the function: it calls that on the numbers of which it makes the
grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaffold.descriptor.expressions import parse_expression
from scaffold.draft.evaluate import Evaluator
from scaffold.draft.locate import Located
from scaffold.draft.sheet import Sheet
from scaffold.draft.values import FieldConfig, Input, Items, Mapped, Op, Plain, SourceLine, Term, walk_value
from scaffold.syntax import FunctionNode, dotted
from scaffold.tower.source import Program

_COLUMNS = ("h", "w")


@dataclass(frozen=True, slots=True)
class TokenEntries:
    """The input `name`, whose items have `count` entries by the columns h and w of `grid`, made by a function."""

    name: str
    grid: str
    count: str
    module: str
    function: str
    counted: SourceLine | None
    made: SourceLine | None

    def put(self, sheet: Sheet) -> None:
        """Fill in `item.tokens`."""
        sheet.put("item.tokens.input", self.name, self.made, why="what the processor makes of the numbers of its grid")
        sheet.put("item.tokens.count", self.count, self.counted, why=f"h and w are those of `{self.grid}`")
        sheet.put("item.tokens.module", self.module, self.made)
        sheet.put("item.tokens.function", self.function, self.made)


def entries_of_tokens(program: Program, model: Located, name: str, field: FieldConfig) -> TokenEntries | None:
    """The number and the maker of an item's entries in an input, if that is one of tokens."""
    grids = {part.key for part in walk_value(field.sizes) if isinstance(part, Input)} if field.sizes else set()
    if field.kind != "flat_from_sizes" or field.sizes is None or len(grids) != 1:
        return None
    [grid] = grids
    text = _formula(field.sizes, grid)
    maker = program.made_by(model.info, "get_hf_processor") if model.info is not None else None
    if text is None or maker is None:
        return None
    result = Evaluator(program, maker).method("__call__")
    tables = walk_value(result) if result is not None else ()
    for table in tables:
        if isinstance(table, Mapped) and {name, grid} <= table.entries.keys():
            made, row = _only(table.entries[name]), _only(table.entries[grid])
            if isinstance(made, Op) and isinstance(row, Items) and not made.keywords:
                found = program.resolve(maker[0], made.name)
                same = len(row.values) == len(_COLUMNS) and list(made.args) == row.values
                if same and found is not None and isinstance(found[1], FunctionNode):
                    count = parse_expression(text).python()
                    module = dotted(found[0].file)
                    return TokenEntries(name, grid, count, module, found[1].name, field.place, made.place)
    return None


def _formula(value: Term, grid: str) -> str | None:
    """A number of entries by the columns of a grid: `grid[:, 0]` is h, and `grid[:, 1]` w."""
    if isinstance(value, Plain):
        return str(value.value) if type(value.value) is int else None
    if not isinstance(value, Op) or len(value.args) != 2:
        return None
    if value.name == "[]":
        of, index = value.args
        column = index.values[-1] if isinstance(index, Items) else None
        known = [name for number, name in enumerate(_COLUMNS) if column == Plain(number)]
        return known[0] if known and isinstance(of, Input) and of.key == grid else None
    left, right = (_formula(part, grid) for part in value.args)
    named = value.name in ("+", "-", "*", "//")
    return f"({left}) {value.name} ({right})" if named and left is not None and right is not None else None


def _only(value: Term) -> Term | None:
    """The entry of a list for each item, where the processor joins it: `torch.cat(parts)`, `torch.tensor(rows)`."""
    joined = value.args[0] if isinstance(value, Op) and value.name in ("torch.cat", "torch.tensor") else None
    return joined.values[0] if isinstance(joined, Items) and len(joined.values) == 1 else None
