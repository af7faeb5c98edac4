"""The layers that a model takes of an encoder's result, a list with the features of each, and how it joins these."""

from __future__ import annotations

import ast

from scaffold.draft.reentry import joined_results
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.steps import layer_of
from scaffold.draft.subject import Subject
from scaffold.draft.watched import TEXT_WIDTH, function_of
from scaffold.syntax import assigned_to, parents_of
from scaffold.watch import Batch, Frame, Recording


def layers_of(subject: Subject, frame: Frame) -> tuple[str, ...]:
    """The layers that the model's method takes of the list which the call of a frame gives, as a descriptor says them.

    None if it does anything else with the list.
    """
    found = function_of(subject, frame) if frame.part == "" else None
    if found is None:
        return ()
    function, place = found[1], (frame.place.line, frame.place.column)
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    call = next((node for node in calls if (node.lineno, node.col_offset) == place), None)
    parents = parents_of(function)
    above = parents.get(id(call))
    names = {to.id for to in assigned_to(above) if isinstance(to, ast.Name)} if above is not None else set()
    uses = (node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id in names)
    taken = [parents.get(id(node)) for node in uses if isinstance(node.ctx, ast.Load)]
    layers = [layer_of(function, node.slice) if isinstance(node, ast.Subscript) else None for node in taken]
    return tuple(dict.fromkeys(text for text in layers if text)) if layers and all(layers) else ()


def put_joined_width(subject: Subject, recording: Recording, batch: Batch, sheet: Sheet) -> bool:
    """Ask for the columns of embeddings that several results make side by side; False where nothing shows these."""
    width, joined = batch.results[0].shape[-1], joined_results(subject.program, subject.model)
    held = {path: n for path, n in recording.numbers.items() if TEXT_WIDTH.fullmatch(path)}
    wide = [path for path, n in held.items() if isinstance(n, int) and width > n and not width % n]
    if len(wide) != 1 or joined is None:
        return False
    what = "columns of the embeddings, which the model makes of several layers side by side"
    candidate = Candidate(f"{wide[0]} * ({joined[0]})", "so many results beside each other", joined[1])
    sheet.ask(Question("output.hidden_size", what, (candidate,)))
    return True
