"""Drafts `gates`: the condition under which a port has graphs."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from scaffold.draft.inputs import other_way
from scaffold.draft.sheet import Candidate, Question, Sheet
from scaffold.draft.subject import Subject
from scaffold.draft.values import FieldConfig, SourceLine
from scaffold.syntax import assigned_to

_SHARDS = "supports_encoder_tp_data"


def put_gate(subject: Subject, keys: Sequence[str], sheet: Sheet) -> None:
    """Where graphs are off: items may be cut in another way than drafted, or ranks encode items of their own.

    Such ranks gather embeddings by a number of tokens.
    """
    for key in keys:
        ways = other_way(subject.program, subject.model, key)
        if ways is not None:
            other, _ = ways
            question = f"the condition under which `{key}` is cut as drafted, and not {other.kind} as at {other.place}"
            candidate = _own_switch(subject, *ways)
            candidates = (candidate,) if candidate else ()
            sheet.ask(Question("gates.modalities", question, candidates, (f"{other.place}: the other way",)))
            return
    said = _class_variable(subject, _SHARDS)
    if said is None or ast.unparse(said[0]) != "True":
        return
    shards = said[1]
    for module, cls in subject.program.lineage(subject.model.owner):
        for node in ast.walk(cls):
            value = getattr(node, "value", None)
            for target in assigned_to(node):
                if (
                    isinstance(target, ast.Attribute)
                    and value is not None
                    and "mm_encoder_tp_mode" in ast.unparse(value)
                ):
                    place = SourceLine(module.file, target.lineno)
                    sheet.put(
                        "gates.modalities", f"not {ast.unparse(target)}", shards, place, why="data-parallel encoder"
                    )
                    return
    question = "the condition under which the encoder is not data-parallel"
    candidate = Candidate("not self.use_data_parallel", "what most models call it")
    sheet.ask(Question("gates.modalities", question, (candidate,), (f"{shards}: the class supports it",)))


def _class_variable(subject: Subject, name: str) -> tuple[ast.expr, SourceLine] | None:
    """The value of a class variable where the class or the nearest of its bases sets it."""
    for module, cls in subject.program.lineage(subject.model.owner):
        for node in cls.body:
            value = getattr(node, "value", None)
            if value is not None and any(isinstance(to, ast.Name) and to.id == name for to in assigned_to(node)):
                return value, SourceLine(module.file, node.lineno)
    return None


def _own_switch(subject: Subject, other: FieldConfig, drafted: FieldConfig) -> Candidate | None:
    """The model's attribute for the condition that its processor asks: the same function makes both."""
    module = subject.program.module(other.place.file)
    tests = [
        node.test
        for node in ast.walk(module.tree if module is not None else ast.Module([], []))
        if isinstance(node, ast.If) and _has(node.body, other.place) and _has(node.orelse, drafted.place)
    ]
    asked = tests[-1] if tests else None
    if not isinstance(asked, ast.Attribute) or ast.unparse(asked.value) != "self.info" or subject.model.info is None:
        return None
    found = subject.program.method(subject.model.info, asked.attr)
    returned = [node.value for node in ast.walk(found[2]) if isinstance(node, ast.Return)] if found else []
    if len(returned) != 1 or not isinstance(returned[0], ast.Call):
        return None
    function = ast.unparse(returned[0].func)
    for owner, cls in subject.program.lineage(subject.model.owner):
        for node in ast.walk(cls):
            value = getattr(node, "value", None)
            if isinstance(value, ast.Call) and ast.unparse(value.func) == function:
                for target in assigned_to(node):
                    if isinstance(target, ast.Attribute):
                        place = SourceLine(owner.file, value.lineno)
                        return Candidate(f"not {ast.unparse(target)}", f"made by {function}, too", place)
    return None


def _has(block: Sequence[ast.stmt], place: SourceLine) -> bool:
    return any(node.lineno <= place.line <= (node.end_lineno or node.lineno) for node in block)
