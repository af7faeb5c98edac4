"""Drafts `explicit` for layers in a loop from a recording: the calls that lead there, and those behind it.

Each argument of such a call is an input, a grid, an offset, a constant or the result of another call. One that is
nothing of these may still be any tensor, where the called method asks only whether it is None.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from scaffold.draft.common import function_of
from scaffold.draft.locate import Subject
from scaffold.syntax import FunctionNode, bind_call
from scaffold.watch import Batch, Call, Leaf

#: How a tensor is made of another one without a change of its elements.
_KEPT = ("same", "view", "copy", "cast")


@dataclass
class Calls:
    """Recorded calls as a descriptor writes them. `rows` are those of each image, `grid` and `pixels` inputs.

    `unread` are arguments that their method only asks whether they are None.
    """

    subject: Subject
    batches: Sequence[Batch]
    rows: Sequence[Sequence[int]]
    pixels: str
    grid: str
    unread: list[str] = field(default_factory=list)

    def leading_to(self, encoder: Sequence[Call]) -> str | None:
        """The encoder's call, with the calls that make its arguments; None where one of these is unknown."""
        return self._call(encoder, {})

    def behind(self, last: Sequence[int]) -> tuple[str | None, str] | None:
        """The call that a graph may hold behind the last layer, if there is one, and that which gives embeddings."""
        held, ends = None, [self._origin(*run) for run in zip(self.batches, last, strict=True)]
        while True:
            numbers = [number for run in zip(self.batches, ends, strict=True) if (number := self._reader(*run))]
            if len(numbers) != len(ends):
                return None
            runs = list(zip(self.batches, numbers, strict=True))
            made = [batch.calls[number] for batch, number in runs]
            if not self._has_rows(made):
                post = self._call(made, dict.fromkeys(ends, "items"))
                whole = all(self._gives(*run) for run in runs)
                return (held, post) if post is not None and whole else None
            held = self._call(made, dict.fromkeys(ends, held or "features"))
            if held is None:
                return None
            ends = [self._origin(*run) for run in runs]

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _call(self, calls: Sequence[Call], known: Mapping[int, str]) -> str | None:
        """A call of one part in all batches; `known` has words for the results of some calls, by their numbers."""
        if len({call.part for call in calls}) != 1:
            return None
        function = self._function(calls[0])
        defaults = bind_call(function, (), {}, skip_first=True).defaults if function is not None else {}
        names = list(dict.fromkeys(leaf.key for call in calls for leaf in call.arguments))
        given: list[str] = []
        for name in names:
            leaves = [[leaf for leaf in call.arguments if leaf.key == name] for call in calls]
            text, default = self._value(leaves, known), defaults.get(name)
            if default is not None and ast.unparse(default) == text:
                continue
            tensors = all(leaf.is_tensor for found in leaves for leaf in found)
            if text is None and tensors and function is not None and self._is_only_asked(function, name, calls[0]):
                self.unread.append(name)
                text = "offsets"
            named = function is None or name.isidentifier()
            if text is None or not named or text.startswith(("'", '"')):
                return None
            given.append(f"{name}={text}" if given and function is not None else text)
        return f"self.{calls[0].part}({', '.join(given)})"

    def _value(self, leaves: Sequence[Sequence[Leaf]], known: Mapping[int, str]) -> str | None:
        """The word of a descriptor for an argument in all batches; None where there is none."""
        if not all(leaves):
            return None
        tensors = [all(leaf.is_tensor for leaf in found) for found in leaves]
        if all(tensors):
            return self._tensor(leaves, known)
        first, values = leaves[0][0], [found[0].value for found in leaves]
        if all(leaf.type == "NoneType" for found in leaves for leaf in found):
            return "None"
        if any(tensors) or any(len(found) != 1 for found in leaves):
            return None
        if values == [self._grid(batch) for batch in self.batches]:
            return "sizes"
        constant = isinstance(first.value, bool | int | float | str) and all(value == first.value for value in values)
        return repr(first.value) if constant else None

    def _tensor(self, leaves: Sequence[Sequence[Leaf]], known: Mapping[int, str]) -> str | None:
        origins = [
            {self._origin(batch, number) for leaf in found for number in leaf.made_by}
            for batch, found in zip(self.batches, leaves, strict=True)
        ]
        words = {known.get(number, "") for found in origins for number in found}
        if len(words) == 1 and "" not in words and all(origins):
            several = all(len(found) == len(rows) for found, rows in zip(leaves, self.rows, strict=True))
            return words.pop() if several or all(len(found) == 1 for found in leaves) else None
        if any(len(found) != 1 for found in leaves):
            return None
        only = [found[0] for found in leaves]
        if [leaf.value for leaf in only] == [[0, *accumulate(rows)] for rows in self.rows]:
            return "offsets"
        if all(leaf.value == self._grid(batch) for leaf, batch in zip(only, self.batches, strict=True)):
            return "grid"
        if all(any(one.of == self.pixels and one.how in _KEPT for one in leaf.sources) for leaf in only):
            return "pixels"
        numbers = [leaf.made_by for leaf in only]
        if all(len(found) == 1 for found in numbers):
            made = [batch.calls[number] for batch, [number] in zip(self.batches, numbers, strict=True)]
            return self._call(made, known)
        return None

    # -- numbers of calls ----------------------------------------------------------------------------------------------

    def _origin(self, batch: Batch, number: int) -> int:
        """The call that made what a call gives: itself, or one whose result it passes on, whole or in parts."""
        results = batch.calls[number].results
        made = {one for leaf in results for one in leaf.made_by}
        if len(made) != 1:
            return number
        [inner] = made
        whole = sum(prod(leaf.shape) for leaf in batch.calls[inner].results)
        passes = inner != number and sum(prod(leaf.shape) for leaf in results) == whole
        return self._origin(batch, inner) if passes else number

    def _reader(self, batch: Batch, end: int) -> int | None:
        """The first call that gets the result of a call."""
        for number, call in enumerate(batch.calls[end + 1 :], end + 1):
            if any(self._origin(batch, one) == end for leaf in call.arguments for one in leaf.made_by):
                return number
        return None

    def _gives(self, batch: Batch, number: int) -> bool:
        """Whether the embeddings of all items are the results of a call."""
        results = [leaf for leaf in batch.results if leaf.is_tensor]
        return len(results) == len(batch.items) and all(number in leaf.made_by for leaf in results)

    def _has_rows(self, calls: Sequence[Call]) -> bool:
        """Whether each call gives one tensor with a row for each of the encoder's."""
        results = [
            [sum(rows) in leaf.shape for leaf in call.results] for call, rows in zip(calls, self.rows, strict=True)
        ]
        return all(found == [True] for found in results)

    def _grid(self, batch: Batch) -> object:
        return next((leaf.value for leaf in batch.inputs if leaf.at == self.grid), None)

    # -- the reads of a method -----------------------------------------------------------------------------------------

    def _function(self, call: Call) -> FunctionNode | None:
        """The method that a call runs, if it has called another part."""
        for batch in self.batches:
            for frame in batch.frames:
                if frame.part == call.part and frame.function.endswith("forward"):
                    return function_of(self.subject, frame)
        return None

    def _is_only_asked(self, function: FunctionNode, name: str, call: Call) -> bool:
        """Whether the statements that a call runs ask only whether a parameter is None, which it is not."""
        given = {leaf.key: leaf for leaf in call.arguments}
        known = {key: leaf.value if not leaf.is_tensor and "[" not in leaf.at else True for key, leaf in given.items()}
        return not any(_reads(node, name, known) for node in function.body)


def _reads(node: ast.AST, name: str, known: Mapping[str, object]) -> bool:
    """Whether a node that runs reads the value of a variable, with what is `known` of others."""
    if isinstance(node, ast.If) and (truth := _truth(node.test, known)) is not None:
        return any(_reads(one, name, known) for one in (node.body if truth else node.orelse))
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
        return False
    if isinstance(node, ast.Name):
        return node.id == name
    return any(_reads(one, name, known) for one in ast.iter_child_nodes(node))


def _truth(node: ast.expr, known: Mapping[str, object]) -> bool | None:
    """Whether a condition holds; None where that is not known."""
    match node:
        case ast.Name(id=name) if name in known:
            return bool(known[name])
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]) if (
            name in known
        ):
            return known[name] is None
        case ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]) if (
            name in known
        ):
            return known[name] is not None
        case ast.BoolOp(op=op, values=values):
            found = [_truth(value, known) for value in values]
            decides = isinstance(op, ast.Or)
            return decides if decides in found else None if None in found else not decides
    return None
