"""Inputs with an entry for each token of an image, which a function of the tree makes from the image's grid of tokens.

The recording says how many entries an item has for each grid. The processor, which a model's own release has where
there is none on the hub, has the function: it calls that on the numbers of which it makes the grid.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import product

from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Sheet, SourceLine
from scaffold.syntax import FunctionNode, dotted
from scaffold.watch import Batch, Field

#: Factors of h * w, h and w in a number of entries.
_FACTORS = tuple(product(range(3), repeat=3))


def put_tokens(subject: Subject, batches: Sequence[Batch], field: Field, grid: str, sheet: Sheet) -> bool:
    """Fill in `item.tokens` of an input of integers, and how it lies in a batch.

    True where it has more entries than an item has tokens, by the columns h and w of their `grid`, and a maker.
    """
    made = _maker(subject)
    items = [
        (*map(int, row), length)
        for batch in batches
        for leaf in batch.inputs
        if leaf.at == grid and isinstance(leaf.value, list) and leaf.shape[1:] == (2,)
        for row, length in zip(leaf.value, batch.lengths(field.key), strict=False)
    ]
    fitting = [
        (factors, rests.pop())
        for factors in _FACTORS
        if len(rests := {n - factors[0] * h * w - factors[1] * h - factors[2] * w for h, w, n in items}) == 1
    ]
    if made is None or len(fitting) != 1 or not fitting[0][0][0] or fitting[0] == ((1, 0, 0), 0):
        return False
    (area, rows, columns), more = fitting[0]
    terms = [(area, "h * w"), (rows, "h"), (columns, "w")]
    text = " + ".join(f"{n} * {term}" if n > 1 else term for n, term in terms if n)
    count, (module, function, place) = f"{text} + {more}" if more else text, made
    sheet.put(f"fields.{field.key}.sizes", grid, why=f"its columns say the length of each item: {count}")
    for name, value in {"input": field.key, "count": count, "module": module, "function": function}.items():
        sheet.put(f"item.tokens.{name}", value, place, why=f"what the processor makes of `{grid}`, h and w")
    return True


def _maker(subject: Subject) -> tuple[str, str, SourceLine] | None:
    """The module and name of the one function that the processor calls on the two numbers of a grid, and where."""
    info = subject.info
    owner = subject.program.made_by(info, "get_hf_processor") if info is not None else None
    method = subject.program.method(owner, "__call__") if owner is not None else None
    if owner is None or method is None:
        return None
    pairs = {ast.unparse(node) for node in ast.walk(method[2]) if isinstance(node, ast.Tuple) and len(node.elts) == 2}
    found = {}
    for call in (node for node in ast.walk(method[2]) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and f"({', '.join(map(ast.unparse, call.args))})" in pairs:
            made = subject.program.resolve(owner[0], call.func.id)
            if made is not None and isinstance(made[1], FunctionNode) and not call.keywords:
                found[made[1].name] = (
                    dotted(made[0].file), made[1].name, SourceLine(method[0].file, call.lineno)
                )  # fmt: skip
    return found.popitem()[1] if len(found) == 1 else None
