"""The question that vLLM asks first: whether a model has encoder CUDA graphs at all.

Releases answer by the class alone, so that a model whose tower no graph can hold gets a manager, which fails at its
capture and stops an engine that started before. Where a port has such models, the answer is the model's, too.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.edit.operations import ReplaceFunction
from scaffold.plan.file_plans import FilePlan
from scaffold.protocol.profile import INTERFACES, PROTOCOL
from scaffold.render import render_template

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree

#: The function that answers, and the attribute that a model may have as a property.
QUESTION = "supports_encoder_cudagraph"


def plan_question(tree: SourceTree) -> FilePlan | Diagnostic | None:
    """The edit after which the answer is the model's, too; None where it is already, a warning where no run of
    ours may change it: it has another form, or the run is for another package."""
    functions = [node for node in tree.parse(INTERFACES).body if isinstance(node, ast.FunctionDef)]
    found = [node for node in functions if node.name == QUESTION and not node.decorator_list]
    code = [ast.unparse(node) for node in found[0].body] if found else []
    if any(f".{QUESTION}" in line for line in code):
        return None
    if tree.package is not None or code != [f"return isinstance(model, {PROTOCOL})"]:
        line = found[0].lineno if found else 1
        state = "has another form here" if tree.package is None else "does not ask a model here"
        return Diagnostic(
            "VCG428",
            f"`{QUESTION}` {state}: a model that says no may get a manager all the same",
            tree.span(INTERFACES, line),
            "let it read the attribute of that name of a model, or leave cudagraph_mm_encoder off for such models",
            Severity.WARNING,
        )
    text = tree.read(INTERFACES).splitlines()
    header = "\n".join(text[found[0].lineno - 1 : found[0].body[0].lineno - 1])
    source = f"{header}\n{render_template('common/question.py.jinja')}"
    return FilePlan(INTERFACES, (ReplaceFunction(QUESTION, source),), "let a model say that it has no graphs")
