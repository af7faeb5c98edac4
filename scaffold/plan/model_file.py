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
from scaffold.plan.methods import render_methods
from scaffold.plan.model import FilePlan
from scaffold.protocol.profile import PROTOCOL
from scaffold.protocol.tree import source_lines

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.plan.towers import TowerPlan
    from scaffold.protocol import ModelAnchor, ProtocolProfile, SourceTree

_MODELS = "vllm/model_executor/models/"


def plan_model(
    port: AnyPort,
    tree: SourceTree,
    profile: ProtocolProfile,
    model: ModelAnchor,
    tower: TowerPlan,
    replace: bool,
) -> FilePlan:
    """The edits of the model's file. Raises VCG520 where it has an implementation that only `replace` may swap."""
    methods = render_methods(port, profile, tower.facts)
    if model.protocol_methods and not replace and not _has_methods(tree, model, methods.source):
        raise DiagnosticError(_hand_written(tree, model))
    interfaces = ".interfaces" if model.path.startswith(_MODELS) else profile.interfaces_module
    remove = (*model.protocol_methods, *model.helpers) if replace else ()
    edits: list[Edit] = [AddImport(module, name) for module, name in methods.imports]
    edits += tower.edits.get(model.path, ())
    edits += [
        AddImport(interfaces, PROTOCOL),
        AddBase(port.class_name, PROTOCOL),
        PutMethods(port.class_name, methods.source, remove=remove),
        *_orphaned_imports(tree, model, remove, methods.source),
    ]
    verb = "replace the implementation of" if remove else "implement"
    return FilePlan(
        model.path,
        tuple(edits),
        f"{verb} {PROTOCOL} in {port.class_name}",
        class_name=port.class_name,
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


def _hand_written(tree: SourceTree, model: ModelAnchor) -> Diagnostic:
    first = min((model.method(name) for name in model.protocol_methods), key=lambda span: span.line if span else 0)
    assert first is not None
    return Diagnostic(
        "VCG520",
        f"{model.class_name} already implements {PROTOCOL} ({len(model.protocol_methods)} methods)",
        tree.span(model.path, first.line),
        "add --replace to swap these methods for the generated ones, or --diff --replace to see the swap first",
    )
