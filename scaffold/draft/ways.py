"""Whether the generator finds the way from calls that give the embeddings of a modality to the encoder."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from scaffold.cut import Way, find_way
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.draft.locate import Subject
from scaffold.syntax import parents_of

#: The whole model as an entry.
ALL = "self.embed_multimodal(**inputs)"
NOWHERE = Span("<draft>", 1, 1, 1, 1)
#: Statements that leave a loop or a function.
_LEAVES = (ast.Break, ast.Continue, ast.Return)


def unconditional(call: ast.AST, function: ast.AST) -> bool:
    """Whether only modalities and missing inputs decide on a call: around it, and on a return before it."""
    parents = parents_of(function)
    node: ast.AST | None = call
    while node is not None:
        above = parents.get(id(node))
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


def entry_to(
    subject: Subject, entries: Iterable[str], encoder: Call | str, *, beside: Iterable[str] = (), **form: Any
) -> tuple[str, list[Diagnostic]]:
    """The first of the entries from which, and from those `beside`, the generator finds the encoder, or one call of it.

    It is empty where there is none. With it come the reasons that keep the generator from those before (VCG483).
    """
    reasons: list[Diagnostic] = []
    for entry in entries:
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
