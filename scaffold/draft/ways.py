"""Entries: calls that give the embeddings of a modality, and whether the generator finds the way from there.

The recording says which call leads to the encoder, and the source of what its arguments are made.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from scaffold.cut import Way, find_way
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.draft.common import waiting_call
from scaffold.draft.locate import Subject
from scaffold.syntax import FunctionNode, parents_of, self_attribute, values_of
from scaffold.tower.names import mentions
from scaffold.watch import Frame

#: The whole model as an entry.
ALL = "self.embed_multimodal(**inputs)"
NOWHERE = Span("<draft>", 1, 1, 1, 1)
#: Statements that leave a loop or a function.
_LEAVES = (ast.Break, ast.Continue, ast.Return)


def entry_to(
    subject: Subject,
    frame: Frame | None,
    encoder: Call | str,
    *,
    beside: Iterable[str] = (),
    conditional: bool = False,
    **form: Any,
) -> tuple[str, list[Diagnostic]]:
    """The first entry from which, and from those `beside`, the generator finds the encoder, or one call of it.

    That is what `embed_multimodal` hands on as it is at this frame of a recording, if anything, or all of it. Inputs of
    another type may be handed on elsewhere if it may be `conditional`. The entry is empty where there is none. With it
    come the reasons that keep the generator from those before (VCG483).
    """
    reasons: list[Diagnostic] = []
    narrow = _narrow_entry(subject, frame, conditional=conditional) if frame is not None else None
    for entry in filter(None, (narrow, ALL)):
        try:
            way_to(subject, [*beside, entry], encoder, **form)
        except DiagnosticError as error:
            reasons += map(_as_reason, error.diagnostics)
        else:
            return entry, reasons
    return "", reasons


def way_to(subject: Subject, entries: Iterable[str], encoder: Call | str, **form: Any) -> Way:
    """The way from these entries to the encoder, as the generator finds it. Raises what `find_way` raises."""
    spans = {parse_call(entry).path: NOWHERE for entry in entries}
    return find_way(subject.tree, subject.file, subject.class_name, spans, encoder, NOWHERE, **form)


def _as_reason(problem: Diagnostic) -> Diagnostic:
    """A problem that keeps the generator from a way, as a reason against the model."""
    span = problem.span if problem.span != NOWHERE else None
    return Diagnostic("VCG483", f"the model is beyond the layouts: {problem.message}", span, problem.help)


def _narrow_entry(subject: Subject, frame: Frame, *, conditional: bool) -> str | None:
    """The call in `embed_multimodal`, if each argument is made of the batch alone."""
    found = subject.program.method(subject.owner, "embed_multimodal")
    if found is None or frame.part != "":
        return None
    node = waiting_call(frame, found[2])
    if node is None or not (conditional or _unconditional(node, found[2])):
        return None
    variable = found[2].args.kwarg.arg if found[2].args.kwarg else ""
    texts = [_made_of_batch(subject, frame, found[2], argument) for argument in node.args]
    if None in texts or any(one.arg or ast.unparse(one.value) != variable for one in node.keywords):
        return None
    return f"{ast.unparse(node.func)}({', '.join([*map(str, texts), *['**inputs'] * len(node.keywords)])})"


def _made_of_batch(subject: Subject, frame: Frame, function: FunctionNode, argument: ast.expr) -> str | None:
    """An argument of a call, as made of the batch alone; an entry of a mapping by modalities, as that was made.

    A variable that names the modality has the value of the run.
    """
    variable = function.args.kwarg.arg if function.args.kwarg else ""
    inner = _maker(function, argument)
    if isinstance(inner, ast.Subscript):
        parsed, key = _maker(function, inner.value), ast.unparse(inner.slice)
        key = next((repr(leaf.value) for leaf in frame.values if leaf.at == key), key)
        name = self_attribute(parsed.func) if isinstance(parsed, ast.Call) else None
        found = subject.program.method(subject.owner, name) if name is not None else None
        if found is None:
            return None
        makers = [
            (_maker(found[2], one.value), found[2].args.kwarg)
            for one in ast.walk(found[2])
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript)
            and ast.unparse(one.targets[0].slice) == key
        ]  # fmt: skip
        if len(makers) != 1 or makers[0][1] is None:
            return None
        inner, variable = makers[0][0], makers[0][1].arg
    if mentions(inner) != {"self", variable}:
        return None
    return ast.unparse(inner).replace(f"**{variable}", "**inputs")


def _maker(function: FunctionNode, value: ast.expr) -> ast.expr:
    """The only value that a variable gets, or the expression itself; of a loop over items the entry of a key."""
    if not isinstance(value, ast.Name):
        return value
    for loop in ast.walk(function):
        over = loop.iter if isinstance(loop, ast.For) else None
        if isinstance(loop, ast.For) and isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute):
            names = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
            if over.func.attr == "items" and len(names) == 2 and ast.unparse(names[1]) == value.id:
                return ast.Subscript(over.func.value, names[0])
    made = values_of(value.id, ast.walk(function))
    return made[0] if len(made) == 1 else value


def _unconditional(call: ast.AST, function: ast.AST) -> bool:
    """Whether only modalities and missing inputs decide on a call: around it, and on a return before it."""
    parents = parents_of(function)
    node: ast.AST | None = call
    while node is not None:
        above = parents.get(node)
        tests = [above.test] if isinstance(above, (ast.If, ast.IfExp)) else []
        for block in (getattr(above, name, None) for name in ("body", "orelse")):
            if isinstance(block, list) and node in block:
                before = (other for other in block[: block.index(node)] if isinstance(other, ast.If))
                tests += [one.test for one in before if any(isinstance(inner, _LEAVES) for inner in ast.walk(one))]
        if not all(_of_modality(test) for test in tests):
            return False
        node = above
    return True


def _of_modality(test: ast.expr) -> bool:
    """Whether a condition asks for a modality, or whether something is there."""
    bare = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(bare, ast.Compare):
        return not isinstance(bare.left, ast.Call) and all(
            isinstance(value, (ast.Constant, ast.Name, ast.Tuple)) for value in bare.comparators
        )
    return isinstance(bare, ast.Name)
