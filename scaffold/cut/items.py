"""A loop over the items of a batch that encodes one item after another, and what follows it for all of them.

The loop begins with a call for each item. The rest becomes a method that goes over the results. Eager code hands it a
generator, so each item is still encoded in its turn. A port hands it what it makes of the features of a whole batch.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from scaffold.syntax import FunctionNode
from scaffold.tower.names import mentions, parameters_of, stores

#: Names for the method's parameter, which the loop goes over.
_PARAMETERS = ("encoded", "encoded_items")


@dataclass(frozen=True)
class ItemLoop:
    """`for ITEM in ITEMS: x = self.METHOD(ITEM)` with what follows it as the method `name`, which gets all results.

    `source` are the changed method and the new one, without indentation; empty where the model has both already.
    """

    name: str
    item: str
    items: str
    source: str = ""

    def over(self, each: str, values: str, parts: str) -> str:
        """The call of the method with an expression of each item and of `values`, its entry of `parts`."""
        return f"self.{self.name}({each} for {self.item}, {values} in zip({self.items}, {parts}))"


def find_item_loop(function: FunctionNode, lines: Sequence[str], call: ast.expr, name: str) -> ItemLoop | None:
    """The loop of a method that makes `call` first for each item, or the `name` that has the rest of it already.

    None where the method has another form. `lines` are those of the method.
    """
    match function.body[-1]:
        case ast.Return(value=ast.Call(func=func, args=[ast.GeneratorExp(elt=made, generators=[only])], keywords=[])):
            found = _over(only.target, only.iter, call)
            own = ast.unparse(func) == f"self.{name}" and made is call and not only.ifs
            return ItemLoop(name, *found) if found is not None and own else None
    for place, node in enumerate(function.body):
        match node:
            case ast.For(body=[ast.Assign(targets=[ast.Name(result)], value=made), _, *_], orelse=[]) if made is call:
                found = _over(node.target, node.iter, call)
                start = _start(function, place, found) if found is not None else None
                source = _source(function, lines, node, start, result, name) if start is not None else None
                return ItemLoop(name, *found, source) if found is not None and source is not None else None
    return None


def _over(target: ast.expr, items: ast.expr, call: ast.expr) -> tuple[str, str] | None:
    """The names of an item and of all of them, where the call gets an item and nothing else."""
    match target, items, call:
        case ast.Name(item), ast.Name(every), ast.Call(args=[ast.Name(given)], keywords=[]) if given == item:
            return item, every
    return None


def _start(function: FunctionNode, place: int, names: tuple[str, str]) -> int | None:
    """The first of the last statements, which read nothing that others have made but the results of the items."""
    body = function.body
    loop = body[place]
    assert isinstance(loop, ast.For)
    given = {*names, *parameters_of(function)} - {"self"}
    for start in range(1, place + 1):
        moved = [*body[start:place], *loop.body[1:], *body[place + 1 :]]
        made = {name for node in body[:start] for name in stores(node)}
        returns = any(isinstance(one, ast.Return) for node in moved[:-1] for one in ast.walk(node))
        if isinstance(body[-1], ast.Return) and not returns and not (given | made) & {*chain(*map(mentions, moved))}:
            return start
    return None


def _source(
    function: FunctionNode, lines: Sequence[str], loop: ast.For, start: int, result: str, name: str
) -> str | None:
    """The text of both methods; None where comments would be lost, or a name is taken."""
    first = (function.end_lineno or 0) - len(lines) + 1
    call = loop.body[0]
    assert isinstance(call, ast.Assign)
    parameter = next((one for one in _PARAMETERS if one not in mentions(function)), None)
    if parameter is None or call.lineno != loop.lineno + 1 or (call.end_lineno or 0) >= loop.body[1].lineno:
        return None
    above = (function.body[start - 1].end_lineno or 0) - first + 1
    kept, moved = lines[:above], [*lines[above : loop.lineno - first], *lines[(call.end_lineno or 0) - first + 1 :]]
    head = f"{' ' * loop.col_offset}for {result} in {parameter}:"
    moved.insert(loop.lineno - first - above, head)
    each = f"{ast.unparse(call.value)} for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
    before = textwrap.dedent("\n".join([*kept, f"{' ' * loop.col_offset}return self.{name}({each})"]))
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    body = textwrap.indent(textwrap.dedent("\n".join(moved)).strip("\n"), "    ")
    return (
        f"{before}\n\ndef {name}(self, {parameter}: Iterable[torch.Tensor]){returns}:\n"
        f'    """Finish `{function.name}` from what each item was encoded to."""\n{body}\n'
    )
