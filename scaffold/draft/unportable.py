"""Models that no layout will ever express, each for one reason: said before anything else is looked at."""

from __future__ import annotations

import ast

from scaffold.draft.inputs import beyond
from scaffold.draft.locate import served_classes
from scaffold.draft.subject import Subject
from scaffold.draft.values import SourceLine
from scaffold.syntax import FunctionNode, assigned_to

_TRANSFORMERS = "vllm/model_executor/models/transformers/"
_RAW_ONLY = "supports_multimodal_raw_input_only"


def refuse_unportable(subject: Subject) -> None:
    """Raise VCG483 for a model whose encoder is not this class's, or not vLLM's."""
    model = subject.model
    if model.file.startswith(_TRANSFORMERS):
        what = "its encoder is code of Hugging Face Transformers, which vLLM runs as it is: none is in the tree"
        raise beyond(subject.tree, model.place, what)
    for module, cls in subject.program.lineage(model.owner):
        for node in cls.body:
            named = {target.id for target in assigned_to(node) if isinstance(target, ast.Name)}
            value = getattr(node, "value", None)
            if _RAW_ONLY in named and isinstance(value, ast.Constant) and value.value is True:
                what = "its inputs go into the model as they are, and nothing is encoded before it"
                raise beyond(subject.tree, SourceLine(module.file, node.lineno), what)
    for node in model.owner[1].body:
        if isinstance(node, FunctionNode) and node.name == "__new__":
            names = f"{', '.join(sorted(served_classes(model.owner)))}" or "the class that it makes"
            what = f"`{model.class_name}` makes models of other classes; draft the one that is served, as FILE:CLASS"
            raise beyond(subject.tree, SourceLine(model.file, node.lineno), f"{what}: {names}")
