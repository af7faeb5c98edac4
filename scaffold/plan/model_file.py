"""The model file of a port: the protocol's methods in its class, and what they need and no longer need.

An implementation that is there already is recognised by meaning: a second run of ours changes nothing, one that was
written by hand goes with `replace` only.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.edit.operations import AddBase, AddImport, DropImport, Edit, PutMethods
from scaffold.edit.snippets import same_meaning
from scaffold.plan.code import identifiers
from scaffold.plan.model import FilePlan
from scaffold.protocol.profile import PROTOCOL
from scaffold.protocol.tree import source_lines
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
) -> FilePlan:
    """The edits of the model's file, those for the `tower` among them.

    Raises VCG520 where it has or inherits an implementation that only `replace` may swap.
    """
    if model.protocol_methods and not replace and not _has_methods(tree, model, methods.source):
        raise DiagnosticError(_hand_written(tree, model))
    _refuse_inherited(tree, profile, model, methods.source, replace)
    interfaces = ".interfaces" if model.path.startswith(_MODELS) else profile.interfaces_module
    remove = (*model.protocol_methods, *model.helpers) if replace else ()
    edits: list[Edit] = [AddImport(module, name) for module, name in methods.imports]
    edits += tower
    edits += [
        AddImport(interfaces, PROTOCOL),
        AddBase(model.class_name, PROTOCOL),
        PutMethods(model.class_name, methods.source, remove=remove),
        *_orphaned_imports(tree, model, remove, methods.source),
    ]
    verb = "replace the implementation of" if remove else "implement"
    return FilePlan(
        model.path,
        tuple(edits),
        f"{verb} {PROTOCOL} in {model.class_name}",
        class_name=model.class_name,
    )


def _orphaned_imports(
    tree: SourceTree, model: ModelAnchor, remove: tuple[str, ...], source: str
) -> Iterator[DropImport]:
    """Imports of single names that nothing but the methods in `remove` uses, from statements with other names."""
    if not remove:
        return
    lines = source_lines(tree, model.path)
    inside = Counter(
        name
        for node in _owner(tree, model).body
        if isinstance(node, ast.FunctionDef) and node.name in remove
        for name in identifiers(lines.text(node))
    )
    everywhere, still = Counter(identifiers(tree.read(model.path))), set(identifiers(source))
    for node in tree.parse(model.path).body:
        if isinstance(node, ast.ImportFrom) and len(node.names) > 1:
            for alias in node.names:
                # Once where it is imported, else in the methods that go only; a word in a comment counts as a use.
                used = alias.asname is None and inside[alias.name] > 0 and alias.name not in still
                if used and everywhere[alias.name] == inside[alias.name] + 1:
                    yield DropImport("." * node.level + (node.module or ""), alias.name)


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
    left = sorted(inherited.keys() - {node.name for node in ast.parse(source).body if isinstance(node, FunctionNode)})
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
