"""The four places of a port: model class, generation test, docs table, example list.

Everything is read from the tree through anchors; nothing is applied here. A place that the tree does not have by
nature (an installed package has no tests) is left out with a note; a place that it should have and has not is an error
of the anchor.
"""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit.operations import (
    AddBase,
    AddImport,
    DropImport,
    Edit,
    PutMethods,
)
from scaffold.edit.snippets import same_meaning
from scaffold.plan.code import identifiers
from scaffold.plan.entries import plan_entries
from scaffold.plan.heirs import heir_notes, plan_optouts
from scaffold.plan.methods import refusal, render_methods
from scaffold.plan.model import Fact, FilePlan, Plan
from scaffold.plan.processor import check_processor
from scaffold.plan.towers import TowerPlan, plan_tower
from scaffold.protocol import (
    absent_reason,
    find_model,
)
from scaffold.protocol.profile import PROTOCOL
from scaffold.protocol.tree import source_lines

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import ModelAnchor, ProtocolProfile, SourceTree

_MODELS = "vllm/model_executor/models/"


def plan_changes(spec: AnyPort, tree: SourceTree, profile: ProtocolProfile, *, replace: bool = False) -> Plan:
    """The edits that port `spec` into `tree`.

    Raises `DiagnosticError`: VCG437 or VCG441 when the protocol cannot express it, VCG42x when an anchor is missing or
    ambiguous, VCG520 when the class implements the protocol by other code than ours and `replace` was not asked for.
    """
    if problem := refusal(spec, profile.dialect):
        raise DiagnosticError(problem)
    model = find_model(tree, spec.module, spec.class_name)
    tower = plan_tower(spec, tree, model)
    optouts = plan_optouts(spec, tree, profile, replace=replace)
    ported = _plan_model(spec, tree, profile, model, tower, replace)
    files = [dataclasses.replace(ported, edits=(*ported.edits, *optouts.pop(model.path, ())))]
    files += [FilePlan(path, edits, f"keep a subclass of {spec.class_name} out") for path, edits in optouts.items()]
    files += [
        FilePlan(path, edits, f"split the tower of {spec.class_name}")
        for path, edits in tower.edits.items()
        if path != model.path
    ]
    notes: list[Diagnostic] = [*tower.notes, *heir_notes(spec, tree, model)]
    facts = [
        Fact("protocol", profile.generation.name, f"{profile.interfaces_module}, line {profile.line}"),
        Fact("model", model.class_name, f"{model.path}:{model.line}"),
        *tower.evidence,
        *check_processor(spec, tree),
    ]
    entries = plan_entries(spec, tree)
    files += entries.files
    facts += entries.facts
    notes += entries.notes
    reason = absent_reason(tree)
    if reason is not None:
        notes.append(Diagnostic("VCG426", f"only the model class is ported: {reason}", severity=Severity.INFO))
    return Plan(spec, profile, tuple(files), tuple(notes), tuple(facts), tower.split)


def _plan_model(
    spec: AnyPort,
    tree: SourceTree,
    profile: ProtocolProfile,
    model: ModelAnchor,
    tower: TowerPlan,
    replace: bool,
) -> FilePlan:
    methods = render_methods(spec, profile, tower.facts)
    if model.protocol_methods and not replace and not _has_methods(tree, model, methods.source):
        raise DiagnosticError(_hand_written(tree, model))
    interfaces = ".interfaces" if model.path.startswith(_MODELS) else profile.interfaces_module
    remove = (*model.protocol_methods, *model.helpers) if replace else ()
    edits: list[Edit] = [AddImport(module, name) for module, name in methods.imports]
    edits += tower.edits.get(model.path, ())
    edits += [
        AddImport(interfaces, PROTOCOL),
        AddBase(spec.class_name, PROTOCOL),
        PutMethods(spec.class_name, methods.source, remove=remove),
        *_orphaned_imports(tree, model, remove, methods.source),
    ]
    verb = "replace the implementation of" if remove else "implement"
    return FilePlan(
        model.path,
        tuple(edits),
        f"{verb} {PROTOCOL} in {spec.class_name}",
        class_name=spec.class_name,
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
