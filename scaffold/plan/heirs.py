"""Subclasses of the ported class answer to the protocol, too: which ones, which have another tower, which opt out.

A subclass cannot take a base back. So one that opts out has the protocol's attribute, which is false there, and which
the release's first question then reads (`scaffold.plan.question`).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit.operations import AddImport, DropDefinition, Edit, PutMethods
from scaffold.plan.leftovers import find_leftovers, find_tested
from scaffold.protocol import find_model, find_subclasses
from scaffold.protocol.registry import REGISTRY, read_registry
from scaffold.render import render_template
from scaffold.syntax import FunctionNode, made_by
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.cut import Way
    from scaffold.descriptor import AnyPort
    from scaffold.plan.methods import Methods
    from scaffold.plan.towers import TowerPlan
    from scaffold.protocol import ProtocolProfile, SourceTree, Subclass


@dataclass(frozen=True)
class Heirs:
    """The edits, by file, that keep `model.optout` out, and what the user should know of all subclasses.

    `architectures` are those of the registry that the port brings graphs: of its class, and of classes that inherit it,
    which had none.
    """

    edits: Mapping[str, tuple[Edit, ...]]
    notes: tuple[Diagnostic, ...]
    architectures: tuple[str, ...]


def plan_heirs(
    port: AnyPort, tree: SourceTree, profile: ProtocolProfile, plan: TowerPlan, methods: Methods, *, replace: bool
) -> Heirs:
    """The changes that subclasses of the ported class need. Opt-outs of classes that the release lacks are left out.

    Raises VCG428 where the port is a base's, unless `replace` asks for methods of the class's own, as it does where a
    base has a port. A package has no edit of vLLM's classes, so there the class may keep them.
    """
    heirs = find_subclasses(tree, port.module, port.class_name)
    edits: defaultdict[str, list[Edit]] = defaultdict(list)
    for heir in heirs:
        if heir.class_name in port.model.optout:
            source = render_template("common/optout.py.jinja", checks_types=plan.facts.checks_types)
            edits[heir.path] += [AddImport("typing", "ClassVar"), AddImport("typing", "Literal")]
            edits[heir.path].append(PutMethods(heir.class_name, source, first=True))
    of_base = [*_of_a_base(port, tree)]
    if of_base and not replace and tree.package is None:
        raise DiagnosticError([replace_fields(note, severity=Severity.ERROR) for note in of_base])
    others = {heir: tower for heir in heirs if (tower := _other_tower(port, tree, plan.class_name, heir)) is not None}
    notes = [*of_base, *_notes(port, tree, plan.class_name, heirs, others)]
    for heir in _overriding(tree, plan.way, heirs):
        name = f"{heir.class_name} ({heir.path}:{heir.line})"
        if not replace:
            notes.append(
                Diagnostic(
                    "VCG428",
                    f"{name} has an implementation of its own, which overrides the port",
                    port.span("model.class"),
                    "add --replace to take it out",
                    Severity.WARNING,
                )
            )
            continue
        tested = find_tested(tree, profile, find_model(tree, heir.path, heir.class_name), methods.brought)
        anchor, kept = tested.rest, tested.notes(tree)
        written = [methods.source, *(edit.source for edit in plan.edits.get(heir.path, ()) if hasattr(edit, "source"))]
        left = find_leftovers(tree, anchor, "", [*written, *(name for _, name in methods.imports)], tested.stays)
        gone = (*anchor.protocol_methods, *left.methods)
        edits[heir.path] += [*left.typing, *(DropDefinition(name, heir.class_name) for name in gone), *left.edits]
        notes += [*kept, *left.notes]
    served = [heir for heir in heirs if heir.class_name not in port.model.optout and heir not in others]
    own = find_model(tree, port.module, port.class_name).path, port.class_name
    brought = tuple(_without_a_port(tree, {own, *((heir.path, heir.class_name) for heir in served)}))
    return Heirs({path: tuple(items) for path, items in edits.items()}, tuple(notes), brought)


def _without_a_port(tree: SourceTree, places: Collection[tuple[str, str]]) -> Iterator[str]:
    """The architectures of the registry whose class is one of these, by file and name, and has no graphs yet."""
    program, named = Program(tree), {class_name for _, class_name in places}
    for name, entry in (read_registry(tree) if tree.exists(REGISTRY) else {}).items():
        # Only of these classes: to read every module of the registry takes as long as to plan the port.
        owner = program.class_at(f"{entry.dotted}.{entry.class_name}") if entry.class_name in named else None
        inherits = owner is not None and (owner[0].file, owner[1].name) in places
        if owner is not None and inherits and program.method(owner, "get_encoder_cudagraph_config") is None:
            yield name


def _overriding(tree: SourceTree, way: Way | None, heirs: tuple[Subclass, ...]) -> Iterator[Subclass]:
    """The subclasses that a way leads into, and bases of them, which implement the protocol by themselves."""
    program = Program(tree)
    lineages = [program.lineage(program.owner(*heir)) for heir in (way.heirs if way is not None else ())]
    inside = {(module.file, owner.name) for lineage in lineages for module, owner in lineage}
    for heir in heirs:
        place = (heir.path, heir.class_name)
        if place in inside and find_model(tree, *place).protocol_methods:
            yield heir


def _of_a_base(port: AnyPort, tree: SourceTree) -> Iterator[Diagnostic]:
    """That all the code which a port runs is that of a base, which has no port: it belongs there."""
    program = Program(tree)
    owner = program.owner(find_model(tree, port.module, port.class_name).path, port.class_name)
    entered = {id(method) for method in program.entered(owner, "embed_multimodal")}
    holders = [(module, cls) for module, cls in program.lineage(owner) if any(id(node) in entered for node in cls.body)]
    if not holders or program.method(owner, "get_encoder_cudagraph_config") is not None:
        return
    module, holder = holders[0]
    if holder.name == port.class_name:
        return
    yield Diagnostic(
        "VCG428",
        f"all that a port of {port.class_name} runs is code of {holder.name} ({module.file}:{holder.lineno})",
        port.span("model.class"),
        f"port {holder.name} instead: {port.class_name} inherits that port, as all its subclasses do. Add --replace to "
        f"give {port.class_name} methods of its own",
        Severity.WARNING,
    )


def _other_tower(port: AnyPort, tree: SourceTree, tower: str | None, heir: Subclass) -> str | None:
    """A subclass's own tower where the port asks its tower for metadata; None for the port's own."""
    own = _own_tower(tree, heir, port.tower) if port.tower else None
    return own if own != tower else None


def _notes(
    port: AnyPort, tree: SourceTree, tower: str | None, heirs: tuple[Subclass, ...], others: Mapping[Subclass, str]
) -> Iterator[Diagnostic]:
    """The classes that inherit the port, first the `others`, which have a tower of their own."""
    same: list[str] = []
    for heir in heirs:
        if heir.class_name in port.model.optout:
            continue
        name = f"{heir.class_name} ({heir.path}:{heir.line})"
        if heir not in others:
            same.append(name)
            continue
        yield Diagnostic(
            "VCG428",
            f"{name} inherits the port and has a tower of its own: {others[heir]} instead of {tower}",
            port.span("model.class"),
            f"a capture calls its metadata method with what {tower} takes: port it as well, or list it under "
            "model.optout",
            Severity.WARNING,
        )
    known = {heir.class_name for heir in heirs}
    for index, name in enumerate(port.model.optout):
        if name not in known:
            yield Diagnostic(
                "VCG428",
                f"{port.class_name} has no subclass {name} in this tree; there is nothing to keep out",
                port.span(f"model.optout.{index}"),
                "correct the name, or leave it for releases that have the class",
                Severity.INFO,
            )
    if same:
        yield Diagnostic(
            "VCG428",
            f"subclasses of {port.class_name} inherit the port: {', '.join(same)}",
            port.span("model.class"),
            "prove it in each: `verify --subclasses`, and list under model.optout those that fail",
            Severity.INFO,
        )


def _own_tower(tree: SourceTree, heir: Subclass, attribute: str) -> str | None:
    """The class of a subclass's own tower, by its name where it is defined.

    OpenCUA's tower is Qwen2.5-VL's, imported under another name. EXAONE 4.5's only builds that one with other values.
    """
    program = Program(tree)
    module, owner = program.owner(heir.path, heir.class_name)
    name = made_by(owner, attribute)
    found = program.resolve(module, name) if name else None
    if found is None or not isinstance(found[1], ast.ClassDef):
        return name
    lineage = program.lineage((found[0], found[1]))
    return next((node.name for _, node in lineage if _has_code(node)), name)


def _has_code(owner: ast.ClassDef) -> bool:
    """Whether a class has a method beside its `__init__`."""
    return any(isinstance(node, FunctionNode) and node.name != "__init__" for node in owner.body)
