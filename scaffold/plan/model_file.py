"""The model file of a port: the protocol's methods in its class, and what they need and no longer need.

An implementation that is there already is recognised by meaning: a second run of ours changes nothing, one that was
written by hand goes with `replace` only.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.edit.operations import AddBase, AddImport, Edit, PutMethods
from scaffold.edit.snippets import same_meaning
from scaffold.plan.leftovers import find_leftovers
from scaffold.plan.model import FilePlan
from scaffold.protocol.profile import PROTOCOL
from scaffold.syntax import FunctionNode

if TYPE_CHECKING:
    from scaffold.plan.methods import Methods
    from scaffold.protocol import ModelAnchor, ProtocolProfile, SourceTree

_MODELS = "vllm/model_executor/models/"


def plan_model(
    tree: SourceTree,
    profile: ProtocolProfile,
    model: ModelAnchor,
    methods: Methods,
    tower: tuple[Edit, ...],
    replace: bool,
) -> tuple[FilePlan, tuple[Diagnostic, ...]]:
    """The edits of the model's file, those for the `tower` among them, and notes on what they leave behind.

    Raises VCG520 where it has or inherits an implementation that only `replace` may swap.
    """
    if model.protocol_methods and not replace and not _has_methods(tree, model, methods.source):
        raise DiagnosticError(_hand_written(tree, model))
    _refuse_inherited(tree, profile, model, methods.source, replace)
    interfaces = ".interfaces" if model.path.startswith(_MODELS) else profile.interfaces_module
    # The methods of every layout name torch.
    foreign = [(module, name) for module, name in methods.imports if f"{module.replace('.', '/')}.py" != model.path]
    edits: list[Edit] = [AddImport("torch"), *(AddImport(module, name) for module, name in foreign)]
    edits += [edit for edit in tower if edit not in edits]
    edits += [AddImport(interfaces, PROTOCOL), AddBase(model.class_name, PROTOCOL)]
    remove: tuple[str, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    if replace and model.protocol_methods:
        others = [*(name for _, name in methods.imports), *(edit.source for edit in tower if hasattr(edit, "source"))]
        leftovers = find_leftovers(tree, model, methods.source, others)
        remove, notes = (*model.protocol_methods, *leftovers.methods), leftovers.notes
        edits += leftovers.edits
    edits.append(PutMethods(model.class_name, methods.source, remove=remove))
    verb = "replace the implementation of" if remove else "implement"
    reason = f"{verb} {PROTOCOL} in {model.class_name}"
    return FilePlan(model.path, tuple(edits), reason, class_name=model.class_name), notes


def _has_methods(tree: SourceTree, model: ModelAnchor, source: str) -> bool:
    """Whether the class has each function of `source`, and no other protocol method: a second run of ours."""
    wanted, present = (
        {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        for body in (ast.parse(source).body, _owner(tree, model).body)
    )
    return set(model.protocol_methods) <= wanted.keys() <= present.keys() and all(
        same_meaning(present[name], node) for name, node in wanted.items()
    )


def _owner(tree: SourceTree, model: ModelAnchor) -> ast.ClassDef:
    """The class statement that `model` was read from."""
    nodes = ast.walk(tree.parse(model.path))
    return next(node for node in nodes if isinstance(node, ast.ClassDef) and node.lineno == model.line)


def _refuse_inherited(
    tree: SourceTree, profile: ProtocolProfile, model: ModelAnchor, source: str, replace: bool
) -> None:
    """Protocol methods that a base has only `replace` may override, and none may be left to work beside the port's."""
    from scaffold.tower.source import Program

    program = Program(tree)
    _, *bases = program.lineage(program.owner(model.path, model.class_name))
    demanded = {method.name for method in profile.methods}
    inherited = {
        node.name: (module.file, owner.name)
        for module, owner in reversed(bases)
        for node in owner.body
        if owner.name != PROTOCOL and isinstance(node, FunctionNode) and node.name in demanded
    }
    defined = {node.name for node in ast.parse(source).body if isinstance(node, FunctionNode)}
    left = sorted(inherited.keys() - defined - profile.uncalled)
    if not left and (replace or not inherited or model.protocol_methods):
        return
    path, base = inherited[left[0] if left else min(inherited)]
    beside = f", and the port has no {' and '.join(left)}" if left else ""
    way = "" if left else f", or add --replace to give {model.class_name} methods of its own"
    raise DiagnosticError(
        Diagnostic(
            "VCG520",
            f"{model.class_name} inherits an implementation of {PROTOCOL} from {base}{beside}",
            tree.span(model.path, model.line),
            f"port {base} ({path}) for all its subclasses{way}",
        )
    )


def _hand_written(tree: SourceTree, model: ModelAnchor) -> Diagnostic:
    first = min((model.method(name) for name in model.protocol_methods), key=lambda span: span.line if span else 0)
    assert first is not None
    return Diagnostic(
        "VCG520",
        f"{model.class_name} already implements {PROTOCOL} ({len(model.protocol_methods)} methods)",
        tree.span(model.path, first.line),
        "add --replace to swap these methods for the generated ones, or --diff --replace to see the swap first",
    )
