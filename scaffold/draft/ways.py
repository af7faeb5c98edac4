"""Calls that give the embeddings of a modality, and whether the generator finds the way from them to the encoder."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from scaffold.cut import find_way
from scaffold.descriptor.expressions import Call, parse_call
from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.draft.locate import Subject
from scaffold.syntax import assigned_to, parents_of

#: The whole model as an entry.
ALL = "self.embed_multimodal(**inputs)"
NOWHERE = Span("<draft>", 1, 1, 1, 1)
#: Statements that leave a loop or a function.
_LEAVES = (ast.Break, ast.Continue, ast.Return)
#: Around a list of embeddings they change nothing of it.
_AS_LIST = {"tuple", "list", "extend"}


def handed_on(call: ast.AST, function: ast.AST) -> bool:
    """Whether the result of a call is what the function gives, as a list or in a list of all modalities."""
    parents = parents_of(function)
    return all(_in_list(node, parents) for node in uses_of(call, function, parents))


def uses_of(call: ast.AST, function: ast.AST, parents: dict[int, ast.AST]) -> list[ast.AST]:
    """The call itself, or where the name stands that it is assigned to."""
    above = parents.get(id(call))
    names = {target.id for target in assigned_to(above) if isinstance(target, ast.Name)} if above is not None else set()
    if not names:
        return [call]
    inside = ast.walk(function)
    return [
        node for node in inside if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]


def _in_list(node: ast.AST, parents: dict[int, ast.AST]) -> bool:
    above = parents.get(id(node))
    if isinstance(above, ast.Call) and node in above.args:
        name = ast.unparse(above.func).rpartition(".")[2]
        return name in _AS_LIST and (name == "extend" or _in_list(above, parents))
    return isinstance(above, (ast.Return, ast.AugAssign))


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


def problems_of_way(
    subject: Subject,
    entries: Iterable[str],
    encoder: Call | str,
    loop: str | None = None,
    through: str | None = None,
    per_item: bool = False,
) -> list[Diagnostic]:
    """The problems that keep the generator from the way of these entries to the encoder, or to one call of it."""
    tree, model = subject.tree, subject.model
    spans = {parse_call(entry).path: NOWHERE for entry in entries}
    try:
        find_way(tree, model.file, model.class_name, spans, encoder, NOWHERE, loop, through, per_item)
    except DiagnosticError as error:
        return list(error.diagnostics)
    return []


def as_reason(problem: Diagnostic) -> Diagnostic:
    """A problem that keeps the generator from a way, as a reason against the model."""
    span = problem.span if problem.span != NOWHERE else None
    return Diagnostic("VCG483", f"the model is beyond the layouts: {problem.message}", span, problem.help)
