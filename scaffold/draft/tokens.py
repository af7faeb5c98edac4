"""Inputs with an entry for each token of an image, which a function of the tree makes from the image's grid of tokens.

The recording says how many entries an item has for each grid. The processor, which a model's own release has where
there is none on the hub, has the function: it calls that on the numbers of which it makes the grid.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from scaffold.draft.locate import Subject
from scaffold.draft.sheet import SourceLine
from scaffold.syntax import FunctionNode, dotted
from scaffold.watch import Batch, Field

#: Factors of h * w, h and w in a number of entries.
_FACTORS = tuple(product(range(3), repeat=3))


@dataclass(frozen=True, slots=True)
class TokenEntries:
    """An input with `count` entries for each item, by the columns h and w of `grid`. `values` are for `item.tokens`."""

    grid: str
    count: str
    values: Mapping[str, str]
    made: SourceLine


def entries_of_tokens(subject: Subject, batches: Sequence[Batch], field: Field) -> TokenEntries | None:
    """The number and the maker of an item's entries in an input of integers, if there are more than its tokens."""
    made = _maker(subject)
    if made is None or field.kind != "flat":
        return None
    for at in dict.fromkeys(leaf.at for leaf in batches[0].inputs):
        items = [
            (*map(int, row), length)
            for batch in batches
            for leaf in batch.inputs
            if leaf.at == at and isinstance(leaf.value, list) and leaf.shape[1:] == (2,)
            for row, length in zip(leaf.value, batch.lengths(field.key), strict=False)
        ]
        fitting = [
            (factors, rests.pop())
            for factors in _FACTORS
            if len(rests := {n - factors[0] * h * w - factors[1] * h - factors[2] * w for h, w, n in items}) == 1
        ]
        if len(fitting) == 1 and fitting[0][0][0] and fitting[0] != ((1, 0, 0), 0):
            (area, rows, columns), more = fitting[0]
            terms = [(area, "h * w"), (rows, "h"), (columns, "w")]
            text = " + ".join(f"{n} * {term}" if n > 1 else term for n, term in terms if n)
            count, (module, function, place) = f"{text} + {more}" if more else text, made
            values = {"input": field.key, "count": count, "module": module, "function": function}
            return TokenEntries(at, count, values, place)
    return None


def _maker(subject: Subject) -> tuple[str, str, SourceLine] | None:
    """The module and name of the one function that the processor calls on the two numbers of a grid, and where."""
    info = subject.model.info
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
