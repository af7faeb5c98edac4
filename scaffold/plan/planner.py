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
    AddDictEntry,
    AddImport,
    AddListEntry,
    AddTableRow,
    DropImport,
    Edit,
    PutFunction,
    PutMethods,
)
from scaffold.edit.snippets import same_meaning
from scaffold.plan.code import identifiers
from scaffold.plan.entries import chat_template, docs_row, test_entry
from scaffold.plan.heirs import heir_notes, plan_optouts
from scaffold.plan.methods import can_render, render_methods
from scaffold.plan.model import Fact, FilePlan, Plan
from scaffold.plan.processor import check_processor
from scaffold.plan.towers import TowerPlan, plan_tower
from scaffold.plan.unread import refuse_unread
from scaffold.protocol import (
    absent_reason,
    find_docs_table,
    find_example_list,
    find_model,
    find_test_registry,
)
from scaffold.protocol.profile import PROTOCOL, source_lines

if TYPE_CHECKING:
    from scaffold.descriptor.spec import AdapterSpec, TestSpec
    from scaffold.protocol import ListAnchor, ModelAnchor, ProtocolProfile, RegistryAnchor, SourceTree, TableAnchor

_MODELS = "vllm/model_executor/models/"


def plan_changes(spec: AdapterSpec, tree: SourceTree, profile: ProtocolProfile, *, replace: bool = False) -> Plan:
    """The edits that port `spec` into `tree`.

    Raises `DiagnosticError`: VCG439 when the layout has no template, VCG42x when an anchor is missing or
    ambiguous, VCG520 when the class implements the protocol by other code than ours and `replace` was not asked for.
    """
    if not spec.paths and not can_render(spec, profile):  # what several paths need has a code of its own
        raise DiagnosticError(_no_template(spec))
    if unread := refuse_unread(spec):
        raise DiagnosticError(unread)
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
    registry, table, examples = find_test_registry(tree), find_docs_table(tree), find_example_list(tree)
    if registry is not None and spec.tests:
        files.append(_plan_tests(spec, registry))
        facts.append(Fact("generation test", registry.variable, f"{registry.path}:{registry.line}"))
    if table is not None and spec.docs_models:
        files.append(_plan_docs(spec, table))
        facts.append(Fact("docs table", f"{len(table.columns)} columns", f"{table.path}:{table.line}"))
    if examples is not None and spec.examples:
        files.append(_plan_examples(spec, examples))
        facts.append(Fact("example list", examples.variable, f"{examples.path}:{examples.line}"))
        notes.extend(_unknown_examples(spec, tree, examples))
    reason = absent_reason(tree)
    if reason is not None:
        notes.append(Diagnostic("VCG426", f"only the model class is ported: {reason}", severity=Severity.INFO))
    return Plan(spec, profile, tuple(files), tuple(notes), tuple(facts), tower.split)


def _no_template(spec: AdapterSpec) -> Diagnostic:
    if spec.after is not None and spec.layout == "packed":
        return Diagnostic(
            "VCG441",
            "this release has no hook for what runs after a replay: its manager takes graph outputs as embeddings",
            spec.span("post.call"),
            "port the model into 0.22 or later",
        )
    return Diagnostic(
        "VCG439",
        f"there is no template for the layout `{spec.layout}` yet",
        spec.span("layout"),
        "nothing is wrong with the descriptor; `validate` and `schema` work for it, generation does not",
    )


def _plan_model(
    spec: AdapterSpec,
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


def _plan_tests(spec: AdapterSpec, registry: RegistryAnchor) -> FilePlan:
    edits = [edit for test in spec.tests for edit in _test_edits(test, registry)]
    return FilePlan(registry.path, tuple(edits), f"run {spec.class_name} in the generation test")


def _test_edits(test: TestSpec, registry: RegistryAnchor) -> Iterator[Edit]:
    if any(entry.key == test.key or entry.model == test.model for entry in registry.entries):
        return  # It is tested already, under this or another key.
    template = chat_template(test)
    if template is not None and test.template_name not in registry.functions:
        yield PutFunction(template, before=registry.variable)
    entry = test_entry(test, registry)
    if "partial(dummy_hf_overrides" in entry:
        for module, name in (("functools", "partial"), ("...utils", "dummy_hf_overrides")):
            if name not in registry.imports:
                yield AddImport(module, name)
    yield AddDictEntry(registry.variable, test.key, entry)


def _plan_docs(spec: AdapterSpec, table: TableAnchor) -> FilePlan:
    cells = docs_row(spec, table)
    edits = (
        ()
        if any(row.architecture == spec.class_name for row in table.rows)
        else (AddTableRow(table.columns, cells[0], cells),)
    )
    return FilePlan(table.path, edits, "list the model as supported")


def _plan_examples(spec: AdapterSpec, examples: ListAnchor) -> FilePlan:
    known = [name for name in spec.examples if name in examples.example_keys]
    return FilePlan(
        examples.path,
        tuple(AddListEntry(examples.variable, name) for name in known),
        "allow encoder CUDA graphs in the example",
    )


def _unknown_examples(spec: AdapterSpec, tree: SourceTree, examples: ListAnchor) -> Iterator[Diagnostic]:
    for name in spec.examples:
        if name not in examples.example_keys:
            yield Diagnostic(
                "VCG427",
                f"{tree.display(examples.path)} has no example named {name!r}; its list gets no entry for it",
                spec.span("integration.example"),
                "name a key of model_example_map, or leave it: later releases may have it",
                Severity.WARNING,
            )
