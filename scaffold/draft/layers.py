"""The layers that a model takes of an encoder's result, a list with the features of each, and how it joins these."""

from __future__ import annotations

import ast
import re

from scaffold.draft.common import TEXT_WIDTH, function_of, waiting_call
from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Candidate, Question, Sheet, SourceLine
from scaffold.draft.ways import LEAVES, uses_of
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


def put_joined_width(subject: Subject, recording: Recording, batch: Batch, sheet: Sheet) -> None:
    """Ask for the columns of embeddings that several results make side by side, where something shows these."""
    width, joined = batch.results[0].shape[-1], _joined_results(subject)
    held = {path: n for path, n in recording.numbers.items() if TEXT_WIDTH.fullmatch(path)}
    wide = [path for path, n in held.items() if isinstance(n, int) and width > n and not width % n]
    if len(wide) != 1 or joined is None:
        return
    what = "columns of the embeddings, which the model makes of several layers side by side"
    candidate = Candidate(f"{wide[0]} * ({joined[0]})", "so many results beside each other", joined[1])
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


def _joined_results(subject: Subject) -> tuple[str, SourceLine] | None:
    """How many results the model joins along the columns: as many as loops over its own lists have appended."""
    for module, cls in subject.program.lineage(subject.model.owner):
        for function in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
            for node in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                lists = _appended_in(function, _joined_list(node))
                if lists:
                    return " + ".join(f"len({name})" for name in lists), SourceLine(module.file, node.lineno)
    return None


def _joined_list(node: ast.Call) -> str:
    """`parts` of `torch.cat([... for i in range(len(parts))], dim=-1)`, else empty."""
    if ast.unparse(node.func) != "torch.cat" or not node.args:
        return ""
    last = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "dim"] == ["-1"]
    made = node.args[0]
    if not (last and isinstance(made, (ast.ListComp, ast.GeneratorExp)) and len(made.generators) == 1):
        return ""
    over = made.generators[0].iter
    for name in ("range", "len"):
        over = over.args[0] if isinstance(over, ast.Call) and ast.unparse(over.func) == name else over
    return over.id if isinstance(over, ast.Name) and not made.generators[0].ifs else ""


def _appended_in(function: ast.FunctionDef, name: str) -> tuple[str, ...]:
    """The attributes that the loops around `name.append(...)` go over; none where a loop may append another number."""
    found = []
    loops = {id(inner): node for node in function.body if isinstance(node, ast.For) for inner in node.body}
    for node in ast.walk(function):
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == name:
            loop = loops.get(id(node))
            if loop is None or called.attr != "append" or any(isinstance(part, LEAVES) for part in ast.walk(loop)):
                return ()
            over = ast.unparse(loop.iter).removeprefix("enumerate(").removesuffix(")")
            if not re.fullmatch(r"self(\.\w+)+", over):
                return ()
            found.append(over)
    return tuple(found)
