"""Drafts `gates`: the condition under which a port has graphs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Candidate, Question, Sheet, SourceLine
from scaffold.tower.source import Module

_SHARDS = "supports_encoder_tp_data"
#: Methods of a processor that say how a batch is cut into items, and what they make of each input.
_FIELDS, _FIELD = "fields_config", "MultiModalFieldConfig."


@dataclass(frozen=True, slots=True)
class _Way:
    """How a branch of a processor's code cuts an input into items: `batched`, or a kind of `flat`."""

    kind: str
    place: SourceLine


def put_gate(subject: Subject, keys: Sequence[str], sheet: Sheet) -> None:
    """Where graphs are off: items may be cut in another way than drafted, or ranks encode items of their own.

    Such ranks gather embeddings by a number of tokens.
    """
    for key in keys:
        ways = _ways(subject, key, sheet)
        if ways is not None:
            other, _ = ways
            question = f"the condition under which `{key}` is cut as drafted, and not {other.kind} as at {other.place}"
            candidate = _own_switch(subject, *ways)
            candidates = (candidate,) if candidate else ()
            sheet.ask(Question("gates.modalities", question, candidates, (f"{other.place}: the other way",)))
            return
    said = next((one for one in subject.assigned() if isinstance(one[1], ast.Name) and one[1].id == _SHARDS), None)
    if said is None or ast.unparse(said[2]) != "True":
        return
    shards = SourceLine(said[0].file, said[1].lineno)
    for module, target, value in subject.assigned():
        if isinstance(target, ast.Attribute) and "mm_encoder_tp_mode" in ast.unparse(value):
            place = SourceLine(module.file, target.lineno)
            sheet.put("gates.modalities", f"not {ast.unparse(target)}", shards, place, why="data-parallel encoder")
            return
    question = "the condition under which the encoder is not data-parallel"
    candidate = Candidate("not self.use_data_parallel", "what most models call it")
    sheet.ask(Question("gates.modalities", question, (candidate,), (f"{shards}: the class supports it",)))


def _ways(subject: Subject, key: str, sheet: Sheet) -> tuple[_Way, _Way] | None:
    """How the processor cuts an input into items under a condition that no run met, and as it was drafted."""
    drafted = sheet.has(f"fields.{key}") and sheet.value(f"fields.{key}") == "batched"
    processor = subject.model.processor
    names = {name for name in subject.program.members(processor) if name.endswith(_FIELDS)}
    for module, _, method in filter(None, (subject.program.method(processor, name) for name in sorted(names))):
        for node in ast.walk(method):
            if not isinstance(node, ast.If):
                continue
            found = [next(_cuts(module, block, key), None) for block in (node.body, node.orelse)]
            ways = {way.kind == "batched": way for way in found if way is not None}
            if len(ways) > 1:
                return ways[not drafted], ways[drafted]
    return None


def _cuts(module: Module, block: Sequence[ast.stmt], key: str) -> Iterator[_Way]:
    """How statements cut an input: what they give its name, or its entry of a mapping."""
    for node in (inner for statement in block for inner in ast.walk(statement)):
        made: list[tuple[object, ast.expr | None]] = []
        if isinstance(node, ast.Dict):
            made = [
                (one.value, value) for one, value in zip(node.keys, node.values, strict=True)
                if isinstance(one, ast.Constant)
            ]  # fmt: skip
        elif isinstance(node, ast.keyword):
            made = [(node.arg or "", node.value)]
        elif isinstance(node, ast.Assign):
            named = (target.slice if isinstance(target, ast.Subscript) else target for target in node.targets)
            made = [(ast.unparse(target).strip("'"), node.value) for target in named]
        for name, value in made:
            called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
            if value is not None and name == key and called.startswith(_FIELD):
                yield _Way(called.removeprefix(_FIELD), SourceLine(module.file, value.lineno))


def _own_switch(subject: Subject, other: _Way, drafted: _Way) -> Candidate | None:
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
    for owner, target, value in subject.assigned():
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call) and ast.unparse(value.func) == function:
            place = SourceLine(owner.file, value.lineno)
            return Candidate(f"not {ast.unparse(target)}", f"made by {function}, too", place)
    return None


def _has(block: Sequence[ast.stmt], place: SourceLine) -> bool:
    return any(node.lineno <= place.line <= (node.end_lineno or node.lineno) for node in block)
