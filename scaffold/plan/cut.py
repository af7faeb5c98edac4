"""The cut's part of a port: the parameter `encode` on the way from the entries to the encoder's call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scaffold.descriptor import RowsPort
from scaffold.descriptor.port import ATTENTION, CHUNK, PUBLIC_ENTRY
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.plan.file_plans import Fact
from scaffold.plan.names import misspelt_names
from scaffold.protocol import find_subclasses
from scaffold.syntax import assigned_to, dotted, find_class, find_method
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.cut import Extraction, Station, Way
    from scaffold.cut.hoist import Hoisted
    from scaffold.descriptor import ReentryPort
    from scaffold.protocol import ModelAnchor, SourceTree, Subclass

#: A fact about a method, by the number of parameters that it gets.
_GETS = {1: "gets the longest sequence", 2: "gets offsets of sequences"}
#: The attribute of a class that can encode items on each rank by itself.
_DATA_PARALLEL = "supports_encoder_tp_data"


def plan_way(port: ReentryPort, tree: SourceTree, model: ModelAnchor) -> Way:
    """The way of a port in this tree. Raises VCG443 to VCG446."""
    from scaffold.cut import find_way

    places = map(port.span, _entry_keys(port))
    entries = dict(zip((entry.entry.path for entry in port.modalities.values()), places, strict=True))
    at = port.span(port.encoder_key)
    try:
        way = find_way(
            tree, model.path, model.class_name, entries, port.encoder, at, port.loop, port.through, port.per_item
        )
    except DiagnosticError as error:
        first, *others = error.diagnostics
        near = next(misspelt_names(port, tree, model, ("forward.call", "forward.encoder", *_entry_keys(port))), None)
        if near is not None and first.code == "VCG443":
            first = replace(first, span=near.span, help=near.help)
        raise DiagnosticError([first, *others]) from None
    problems = [
        *_overridden(port, tree, way, model),
        *_ungated(port, tree, model),
        *_unknown(port, way),
        *_without(port, way),
    ]
    if port.packs_rows and not _knows_sequences(port, tree, model):
        problems.append(
            Diagnostic(
                "VCG446",
                "attention of this encoder is not told where sequences end: it gets no offsets",
                port.span(port.encoder_key),
                f"port the model into a release whose encoder runs {ATTENTION}",
            )
        )
    if problems:
        raise DiagnosticError(problems)
    return way


def _entry_keys(port: ReentryPort) -> tuple[str, ...]:
    return tuple(f"modalities.{name}.entry" for name in port.modalities)


def _knows_sequences(port: ReentryPort, tree: SourceTree, model: ModelAnchor) -> bool:
    """Whether a part of the encoder runs vLLM's attention on sequences; also where the encoder's class is not known."""
    from scaffold.cut import runs_attention

    program = Program(tree)
    owner = program.part_class(program.owner(model.path, model.class_name), str(port.encoder).split(".")[1:])
    return owner is None or runs_attention(program, owner)


def way_facts(way: Way) -> tuple[Fact, ...]:
    return tuple(
        Fact(
            "on the way", f"{station.class_name}.{station.function}".removeprefix("."), f"{station.file}:{station.line}"
        )
        for station in way.stations
    ) + tuple(
        Fact(_GETS[len(method.names)], f"{method.class_name}.{method.function}", method.file) for method in way.hoisted
    )


def extraction_facts(way: Way, extraction: Extraction) -> tuple[Fact, ...]:
    """The methods on the way, and those that are made of parts of them."""
    added = [(edit, name) for edit in extraction.edits for name in edit.adds]
    return (
        *way_facts(way),
        *(Fact("extracted from", f"{edit.class_name}.{edit.replaces}", f"{edit.file}: {name}") for edit, name in added),
    )


def _overridden(port: ReentryPort, tree: SourceTree, way: Way, model: ModelAnchor) -> Iterator[Diagnostic]:
    """Subclasses of a class on the way that run a method of their own, or of another base, where a parameter is handed
    on."""
    from scaffold.cut import Station

    program = Program(tree)
    entries = {entry.entry.path.removeprefix("self.") for entry in port.modalities.values()} - {PUBLIC_ENTRY}
    heirs = {(heir.path, heir.class_name) for heir in find_subclasses(tree, dotted(model.path), model.class_name)}
    on_the_way = {(other.file, other.class_name, other.function) for other in way.changed}
    seen: set[tuple[str, str, str]] = set()
    for station, root in _handed(way, tree):
        own = root == (station.file, station.class_name)
        held = station.held if own and isinstance(station, Station) else frozenset()
        heirs_of = find_subclasses(tree, dotted(root[0]), root[1])
        found = (
            (heir, program.method(program.owner(heir.path, heir.class_name), station.function)) for heir in heirs_of
        )
        for heir, (module, owner, method) in ((heir, one) for heir, one in found if one is not None):
            # Only the port itself hands the parameter to an entry, and only that of the ported class and its heirs.
            alone = station.function in entries and (
                (heir.path, heir.class_name) not in heirs or heir.class_name in port.model.optout
            )
            place = (module.file, owner.name, station.function)
            if place in on_the_way | seen or alone or (held and _is_apart(tree, heir, held)):
                continue
            seen.add(place)
            yield Diagnostic(
                "VCG444",
                f"{owner.name} overrides `{station.class_name}.{station.function}`, which gets a parameter",
                tree.span(module.file, method.lineno),
                f"port {heir.class_name} by itself, or give an entry below the method",
                notes=(f"asked for by {port.span(port.encoder_key)}",),
            )


def _handed(way: Way, tree: SourceTree) -> Iterator[tuple[Station | Hoisted, tuple[str, str]]]:
    """Methods that get a parameter, each with the classes (file, name) whose subclasses may be handed it.

    That is a method's own class, and every class with a method on the way that calls it: there `self` may be an object
    of another subclass.
    """
    for method in (method for method in way.changed if method.class_name):
        yield method, (method.file, method.class_name)
        for station in (station for station in way.stations if station.class_name != method.class_name):
            owner = find_class(tree.parse(station.file), station.class_name)
            function = find_method(owner, station.function) if owner is not None else None
            calls = (node.func for node in ast.walk(function or ast.Pass()) if isinstance(node, ast.Call))
            if f"self.{method.function}" in map(ast.unparse, calls):
                yield method, (station.file, station.class_name)


def _is_apart(tree: SourceTree, heir: Subclass, held: frozenset[str]) -> bool:
    """Whether all objects of a class go into attributes of other names than these, so that no call on the way gets one.

    Nothing but the assignments that make one may name the class, and its file may not assign to these attributes.
    """
    for path in tree.modules_with(heir.class_name):
        mentions = tree.cached(("mentions", path), lambda path=path: _mentions(tree, path))  # type: ignore[misc]
        if heir.class_name in mentions.named or held & mentions.stored:
            return False
    return True


@dataclass(frozen=True)
class _Mentions:
    """The names in a file, without those that only make an object for an attribute, and the attributes that it sets."""

    named: frozenset[str]
    stored: frozenset[str]


def _mentions(tree: SourceTree, path: str) -> _Mentions:
    """A node names a class by its name, in an import, as an attribute of its module or in a text."""
    nodes = list(ast.walk(tree.parse(path)))
    stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    made = {
        id(node.value.func)
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and all(isinstance(target, ast.Attribute) for target in node.targets)
    }
    spelled = (
        node.id if isinstance(node, ast.Name) else
        node.attr if isinstance(node, ast.Attribute) else
        node.name if isinstance(node, ast.alias) else
        node.value if isinstance(node, ast.Constant) else ""
        for node in nodes if id(node) not in made
    )  # fmt: skip
    return _Mentions(frozenset(name for name in spelled if isinstance(name, str)), frozenset(stored))


def _unknown(port: ReentryPort, way: Way) -> Iterator[Diagnostic]:
    """Names of `forward.unread` that the loop over the layers does not take, or hands from layer to layer. Several
    results of a loop of which `forward` does not say so.
    """
    if not isinstance(port, RowsPort):
        return
    loops = [station.loop for station in way.stations if station.loop is not None]
    if not loops:
        return  # an earlier port made a method of it
    taken = [name for loop in loops for name in loop.arguments if name not in loop.results]
    for loop in loops:
        if len(loop.results) > 1 and not port.forward.several:
            yield Diagnostic(
                "VCG443",
                f"the loop over the layers gives several values: {', '.join(f'`{name}`' for name in loop.results)}",
                port.span(port.encoder_key),
                "write `several: true` beside it",
            )
    for index, name in enumerate(port.forward.unread):
        if name not in taken:
            yield Diagnostic(
                "VCG443",
                f"the loop over the layers takes no `{name}`",
                port.span(f"forward.unread.{index}"),
                f"it takes {', '.join(f'`{name}`' for name in taken)}",
            )


def _without(port: ReentryPort, way: Way) -> Iterator[Diagnostic]:
    """Subclasses that implement what is abstract on the way, do not lead to the encoder, and would inherit the port."""
    for class_name, problems in way.without:
        if class_name not in port.model.optout:
            yield from problems
            yield Diagnostic(
                "VCG444",
                f"{class_name} would inherit a port that it has no encoder for",
                port.span("model.class"),
                f"list {class_name} under model.optout",
            )


def is_data_parallel(node: ast.stmt) -> bool:
    """Whether a statement of a class says that its encoder can run data-parallel."""
    named = any(isinstance(target, ast.Name) and target.id == _DATA_PARALLEL for target in assigned_to(node))
    value = getattr(node, "value", None)
    return named and isinstance(value, ast.Constant) and bool(value.value)


def _ungated(port: ReentryPort, tree: SourceTree, model: ModelAnchor) -> Iterator[Diagnostic]:
    """A class that may run its encoder data-parallel, without a gate."""
    owner = find_class(tree.parse(model.path), model.class_name)
    if owner is None or port.gate is not None or (port.packs_rows and CHUNK not in port.modalities):
        return  # The tokens of an image's rows are known, and looked at when a model starts; those of frames are not.
    for node in owner.body:
        if is_data_parallel(node):
            yield Diagnostic(
                "VCG445",
                f"{model.class_name} can run its encoder data-parallel, where nothing can gather a cut's features",
                tree.span(model.path, node.lineno),
                "add `gates: {modalities: not self.use_data_parallel}`, or what the class calls it",
                notes=(f"asked for by {port.span('layout')}",),
            )
