"""The model file of a port: the protocol's methods in its class, and what they need and no longer need.

An implementation that is there already is recognised by meaning: a second run of ours changes nothing. Where a
third of its methods are ours, it is our port in another state. One by hand goes with `replace` only.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Sequence
from dataclasses import replace as replace_fields
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from scaffold.descriptor.port import MODALITIES
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.edit.faults import different_definition
from scaffold.edit.operations import AddBase, AddImport, Edit, PutMethods
from scaffold.edit.snippets import member_name, same_meaning
from scaffold.plan.code import identifiers
from scaffold.plan.file_plans import FilePlan, Present
from scaffold.plan.leftovers import class_of, find_leftovers, find_tested
from scaffold.plan.methods import MODELS
from scaffold.protocol.profile import PROTOCOL
from scaffold.render import render_template
from scaffold.syntax import FunctionNode, dotted, find_method
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.plan.methods import Methods, Mixin
    from scaffold.protocol import ModelAnchor, ProtocolProfile, SourceTree


#: The method in which a port names its modalities.
_CONFIG = "get_encoder_cudagraph_config"
#: One method in so many that is ours tells a port of ours.
_PART = 3


def plan_mixin(tree: SourceTree, mixin: Mixin) -> FilePlan:
    """The file of the mixin. Raises VCG525 where the tree has another one: other models would change with it."""
    path, source = mixin.path, render_template("common/licence.py.jinja") + mixin.source
    if tree.exists(path) and not same_meaning(_in_one_order(tree.parse(path)), _in_one_order(ast.parse(source))):
        raise DiagnosticError.of(
            "VCG525",
            f"{PurePosixPath(path).name} is there and is not what this version of the tool writes",
            tree.span(path, 1),
            "delete it, and port each model that imports it again with --replace",
        )
    return FilePlan(path, (), f"hold what all ports of this layout have in common ({mixin.class_name})", source=source)


def beside_bases(
    tree: SourceTree, profile: ProtocolProfile, model: ModelAnchor, methods: Methods, named: ModelAnchor | None
) -> Methods:
    """The methods that are left to a class whose bases bring the others: a mixin for hosts of one kind of tower.

    All methods where no base brings any, or where nothing is left, so that a base has a whole port. The class gets the
    base that the descriptor `named`, unless it lists the protocol, which no base may follow that has it.
    """
    program = Program(tree)
    _, *bases = program.lineage(program.owner(model.path, model.class_name))
    named = None if model.lists_protocol else named
    bases += [program.owner(named.path, named.class_name)] if named else []
    demanded = {method.name for method in profile.methods}
    parts = [
        owner
        for _, owner in bases
        if owner.name != PROTOCOL and any(getattr(node, "name", None) in demanded for node in owner.body)
    ]
    given = frozenset(node.name for owner in parts for node in owner.body if isinstance(node, FunctionNode))
    needed = {method.name for method in profile.methods if not method.has_default} - profile.uncalled
    kept = needed - given
    if methods.mixin is not None or not parts or not kept:
        return methods
    lines, texts, end = methods.source.splitlines(keepends=True), dict[str, str](), 0
    for node in ast.parse(methods.source).body:
        texts[member_name(node) or ""] = "".join(lines[end : node.end_lineno])
        end = node.end_lineno or end
    names = sorted(kept & texts.keys())
    for name in names:  # which grows by the helpers that it calls
        called = set(identifiers(texts[name])) - demanded - set(names)
        names += [helper for helper in texts if helper in called]
    source = "".join(text for name, text in texts.items() if name in names)
    words = set(identifiers(source))
    imports = tuple((module, name) for module, name in methods.imports if name in words)
    return replace_fields(methods, source=source, imports=imports, given=given & demanded, base=named)


def _in_one_order(module: ast.Module) -> ast.Module:
    """A module with its imports in the order of their text: a package may sort them in another one than vLLM."""
    imports = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    others = [node for node in module.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    return ast.Module([*sorted(imports, key=ast.unparse), *others], [])


def plan_model(
    tree: SourceTree,
    profile: ProtocolProfile,
    model: ModelAnchor,
    methods: Methods,
    tower: tuple[Edit, ...],
    replace: bool,
    other: Sequence[Diagnostic],
) -> tuple[FilePlan, Present, tuple[Diagnostic, ...]]:
    """The edits of the model's file, those for the `tower` among them, what it has, and notes on what they leave.

    Raises VCG520 where it has or inherits an implementation that only `replace` may swap, with what is known of an
    `other` encoder that it serves, and VCG529 where a test names a method that must go.
    """
    tested = find_tested(tree, profile, model, methods.brought)
    model = tested.rest
    present = _present(tree, model, methods.source)
    if present is Present.FOREIGN and not replace:
        raise DiagnosticError([_hand_written(tree, model, methods), *other])
    if not methods.given:
        _refuse_inherited(tree, profile, model, methods, replace)
    near = model.path.startswith(MODELS)
    interfaces = ".interfaces" if near else profile.interfaces_module
    # The methods of every layout name torch.
    foreign = [(module, name) for module, name in methods.imports if f"{module.replace('.', '/')}.py" != model.path]
    edits: list[Edit] = [AddImport("torch"), *(AddImport(module, name) for module, name in foreign)]
    edits += [edit for edit in tower if edit not in edits]
    if not methods.given:
        edits += [AddImport(interfaces, PROTOCOL), AddBase(model.class_name, PROTOCOL)]
    if shared := methods.mixin or methods.base:
        file = PurePosixPath(shared.path)
        module = f".{file.stem}" if file.parent == PurePosixPath(model.path).parent else dotted(shared.path)
        # Ours comes before the protocol's own methods, and those of a base that has another port. A class of the tree
        # comes in the protocol's place: a protocol makes no module.
        first = shared is methods.mixin
        edits += [AddImport(module, shared.class_name), AddBase(model.class_name, shared.class_name, first=first)]
    remove: tuple[str, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    if model.protocol_methods and (replace or present is Present.CHANGED):
        # An `__init__` that keeps a value more uses what it used before: to set an attribute is no use of it.
        sources = [edit.source for edit in tower if hasattr(edit, "source") and getattr(edit, "name", "") != "__init__"]
        others = [*(name for _, name in methods.imports), *sources]
        leftovers = find_leftovers(tree, model, methods.source, others, tested.stays)
        remove, notes = (*model.protocol_methods, *leftovers.methods), (*tested.notes(tree), *leftovers.notes)
        edits = [*leftovers.typing, *edits, *leftovers.edits]
    edits.append(PutMethods(model.class_name, methods.source, remove=remove))
    _refuse_clash(tree, profile, model, methods, set(remove))
    verb = "replace the implementation of" if remove else "implement"
    reason = f"{verb} {PROTOCOL} in {model.class_name}"
    return FilePlan(model.path, tuple(edits), reason, class_name=model.class_name), present, notes


def _present(tree: SourceTree, model: ModelAnchor, source: str) -> Present:
    """The implementation that the class has, compared with the methods in `source`.

    A part of our methods stays, whatever somebody edits. In 0.30 and 0.33 shipped descriptors meet 35 ports by hand:
    none has a single method with the meaning of ours.
    """
    if not model.protocol_methods:
        return Present.NOTHING
    from scaffold.edit.classes import holds_methods  # needs libcst, which a build of the wheel lacks

    wanted, there = (
        {name: node for node in body if (name := member_name(node))}
        for body in (ast.parse(source).body, class_of(tree, model).body)
    )
    same = [name for name, node in wanted.items() if name in there and same_meaning(there[name], node)]
    if len(same) == len(wanted) and wanted.keys() >= set(model.protocol_methods):
        whole = holds_methods(tree.read(model.path), model.path, model.class_name, source)
        return Present.GENERATED if whole else Present.CHANGED
    return Present.CHANGED if len(same) * _PART >= len(wanted) else Present.FOREIGN


def _refuse_clash(
    tree: SourceTree, profile: ProtocolProfile, model: ModelAnchor, methods: Methods, removed: set[str]
) -> None:
    """A helper of the mixin must not take the place of the model's own method of that name, nor the other way round."""
    if methods.mixin is None:
        return
    helpers = methods.mixin.methods - methods.names - {method.name for method in profile.methods} - removed
    program = Program(tree)
    for module, owner in program.lineage(program.owner(model.path, model.class_name)):
        for node in owner.body:
            if isinstance(node, FunctionNode) and node.name in helpers and owner.name != methods.mixin.class_name:
                raise different_definition(module.file, "method", f"{owner.name}.{node.name}", node.lineno)


def _refuse_inherited(
    tree: SourceTree, profile: ProtocolProfile, model: ModelAnchor, methods: Methods, replace: bool
) -> None:
    """Protocol methods that a base has only `replace` may override, and none may be left to work beside the port's."""
    program = Program(tree)
    _, *bases = program.lineage(program.owner(model.path, model.class_name))
    brought = {PROTOCOL, *([methods.mixin.class_name] if methods.mixin else [])}
    demanded = {method.name for method in profile.methods}
    inherited = {
        node.name: (module.file, owner.name)
        for module, owner in reversed(bases)
        for node in owner.body
        if owner.name not in brought and isinstance(node, FunctionNode) and node.name in demanded
    }
    left = sorted(inherited.keys() - methods.brought - profile.uncalled)
    if not left and (replace or not inherited or model.protocol_methods):
        return
    path, base = inherited[left[0] if left else min(inherited)]
    beside = f", and the port has no {' and '.join(left)}" if left else ""
    way = (
        f"port {base} ({path}) for all its subclasses"
        if left
        else f"nothing is to be done: the port of {base} ({path}) serves {model.class_name}, too. If that makes "
        "another tower or encodes in another way, add --replace to give it methods of its own"
    )
    raise DiagnosticError.of(
        "VCG520",
        f"{model.class_name} inherits an implementation of {PROTOCOL} from {base}{beside}",
        tree.span(model.path, model.line),
        way,
    )


def other_encoder(port: AnyPort, tree: SourceTree, model: ModelAnchor) -> list[Diagnostic]:
    """That a port of sound takes the place of one of images, or the other way round."""
    config = find_method(class_of(tree, model), _CONFIG)
    if config is None:
        return []
    said = {node.value for node in ast.walk(config) if isinstance(node, ast.Constant)}
    lost = [name for name in MODALITIES if name in said and (name == "audio") is not ("audio" in port.modalities)]
    if not lost:
        return []
    return [
        Diagnostic(
            "VCG520",
            f"{model.class_name} has graphs of its {' and '.join(lost)}, which this port of another encoder replaces",
            tree.span(model.path, config.lineno),
            "keep both: leave the tree as it is, and make an adapter, which the plugin serves beside that port: "
            f"`vitcg-scaffold new {shlex.quote(port.file)} --into generated`",
            severity=Severity.WARNING,
        )
    ]


def _hand_written(tree: SourceTree, model: ModelAnchor, methods: Methods) -> Diagnostic:
    first = min((model.method(name) for name in model.protocol_methods), key=lambda span: span.line if span else 0)
    assert first is not None
    return Diagnostic(
        "VCG520",
        f"{model.class_name} already implements {PROTOCOL} ({len(model.protocol_methods)} methods)",
        tree.span(model.path, first.line),
        "add --replace to swap these methods for the generated ones, or --diff --replace to see the swap first"
        if methods.mixin is None
        else "keep them, since the generated port would run the model's code twice (VCG466); or see what `fix` repairs",
    )
