"""The layers that a model takes of an encoder's result, a list with the features of each, and how it joins these."""

from __future__ import annotations

import ast

from scaffold.draft.common import TEXT_WIDTH, function_of, waiting_call
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.ways import uses_of
from scaffold.syntax import call_name, name_path, parents_of, self_attribute
from scaffold.watch import Batch, Frame, Recording


def layers_of(subject: Subject, frame: Frame) -> tuple[str, ...]:
    """The layers that the model's method takes of the list which the call of a frame gives, as a descriptor says them.

    None if it does anything else with the list.
    """
    found = function_of(subject, frame) if frame.part == "" else None
    if found is None:
        return ()
    function, call = found[1], waiting_call(frame, found[1])
    parents = parents_of(function)
    taken = [parents.get(id(node)) for node in uses_of(call, function, parents) if node is not call] if call else []
    layers = [_layer(function, node.slice) if isinstance(node, ast.Subscript) else None for node in taken]
    return tuple(dict.fromkeys(text for text in layers if text)) if layers and all(layers) else ()


def put_joined_width(recording: Recording, batch: Batch, sheet: Sheet) -> None:
    """Ask for the columns of embeddings that parts make side by side, if so many are in lists of the model itself."""
    width, lists = batch.results[0].shape[-1], [one for one in recording.repeated if "." not in one.name]
    held = {path: n for path, n in recording.numbers.items() if TEXT_WIDTH.fullmatch(path) and isinstance(n, int)}
    wide = [path for path, n in held.items() if width > n and width == n * sum(one.count for one in lists)]
    if len(wide) == 1:
        what = "columns of the embeddings, which the model makes of several layers side by side"
        counts = " + ".join(f"len(self.{one.name})" for one in lists)
        candidate = Candidate(f"{wide[0]} * ({counts})", "the results of these parts beside each other")
        sheet.ask(Question("output.hidden_size", what, (candidate,)))


def _layer(function: ast.AST, index: ast.expr) -> str | None:
    """A layer that is an attribute of the model or a number, or a column of a table that the method goes over."""
    if isinstance(index, ast.Constant) and isinstance(index.value, int):
        return str(index.value)
    path = name_path(index)
    if path[:1] == ["self"] and len(path) > 1:
        return ".".join(path)
    for loop in ast.walk(function) if isinstance(index, ast.Name) else ():
        if not isinstance(loop, ast.For):
            continue
        row, table = loop.target, loop.iter
        if call_name(table) == "enumerate" and isinstance(table, ast.Call) and isinstance(row, ast.Tuple):
            row, table = row.elts[1], table.args[0]
        names = [ast.unparse(part) for part in row.elts] if isinstance(row, ast.Tuple) else []
        attribute = self_attribute(table)
        if attribute and ast.unparse(index) in names:
            return f"{{table: self.{attribute}, column: {names.index(ast.unparse(index))}}}"
    return None
