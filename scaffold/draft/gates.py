"""Drafts `gates`: the condition under which a port has graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from scaffold.draft.locate import Subject
from scaffold.draft.sheet import Candidate, Sheet, SourceLine

_SHARDS = "supports_encoder_tp_data"
#: Methods of a processor that say how a batch is cut into items.
_FIELDS = "fields_config"


def put_gate(subject: Subject, keys: Sequence[str], sheet: Sheet) -> None:
    """Where graphs are off: items may be cut in another way than drafted, or ranks encode items of their own.

    Such ranks gather embeddings by a number of tokens.
    """
    for key in keys:
        if (found := _ways(subject, key, sheet.value(f"fields.{key}"))) is not None:
            other, place, asked = found
            candidate = _own_switch(subject, asked) if asked is not None else None
            question = f"the condition under which `{key}` is cut as drafted, and not {other} as at {place}"
            sheet.ask("gates.modalities", question, filter(None, [candidate]), f"{place}: the other way")
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
    sheet.ask("gates.modalities", question, [candidate], f"{shards}: the class supports it")


def _ways(subject: Subject, key: str, drafted: str) -> tuple[str, SourceLine, ast.expr | None] | None:
    """Another way to cut an input into items, where no run met its condition: the way, its line and that condition.

    None where no branches of the processor's code cut the input in two ways, one as drafted. The condition is None
    where the other way is what else is done.
    """
    processor = subject.processor
    names = {name for name in subject.program.members(processor) if name.endswith(_FIELDS)}
    for module, _, method in filter(None, (subject.program.method(processor, name) for name in sorted(names))):
        for node in (node for node in ast.walk(method) if isinstance(node, ast.If)):
            ways = [next(_cuts(block, key), ("", 0)) for block in (node.body, node.orelse)]
            other = [one for one in ways if one[0] and (one[0] == "batched") != (drafted == "batched")]
            if all(way for way, _ in ways) and len(other) == 1:
                [(way, line)] = other
                return way, SourceLine(module.file, line), node.test if ways[0] == other[0] else None
    return None


def _cuts(block: Sequence[ast.stmt], key: str) -> Iterator[tuple[str, int]]:
    """How statements cut an input, with the line: `key=CUT(...)`, `"key": CUT(...)` or `fields["key"] = CUT(...)`."""
    cut = re.compile(rf"\b{re.escape(key)}\b['\"\]]*\s*[=:]\s*MultiModalFieldConfig\.(\w+)")
    for statement in block:
        found = cut.search(ast.unparse(statement))
        calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
        if found is not None:
            yield found[1], next(one.lineno for one in calls if ast.unparse(one.func).endswith(f".{found[1]}"))


def _own_switch(subject: Subject, asked: ast.expr) -> Candidate | None:
    """The model's attribute for the condition that its processor asks of its `info`: the same function makes both."""
    name = ast.unparse(asked).removeprefix("self.info.")
    found = subject.program.method(subject.info, name) if subject.info is not None else None
    returned = [node.value for node in ast.walk(found[2]) if isinstance(node, ast.Return)] if found else []
    makers = [ast.unparse(value.func) for value in returned if isinstance(value, ast.Call)]
    for owner, target, value in subject.assigned() if len(returned) == len(makers) == 1 else ():
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call) and ast.unparse(value.func) == makers[0]:
            place = SourceLine(owner.file, value.lineno)
            return Candidate(f"not {ast.unparse(target)}", f"made by {makers[0]}, too", place)
    return None
