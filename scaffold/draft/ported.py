"""The ports that a model has already: its own, a base's, a mixin that leaves methods to it, or a shipped descriptor."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable
from itertools import takewhile

from scaffold.descriptor import AnyPort, load_descriptor, shipped_names
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity
from scaffold.draft.locate import Subject, locate
from scaffold.draft.sheet import SourceLine
from scaffold.protocol.profile import PROTOCOL, read_protocol
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import FunctionNode, dotted, find_method, last_name, self_attribute
from scaffold.tower.source import Owner

_EMBED = "embed_multimodal"


def inherited_port(tree: SourceTree, reference: str) -> Diagnostic | None:
    """That the port of a base serves a model, so that nothing is to be done; None where it may need one of its own.

    That is so where the model's own code is on the way from `embed_multimodal` to the encoder. Raises VCG480 to VCG482.
    """
    subject = locate(tree, reference)
    holder, name = _port_holder(subject), subject.class_name
    if holder is None or holder == subject.owner:
        return None
    entered = {id(method) for method in subject.program.entered(subject.owner, _EMBED)}
    own = takewhile(lambda one: one != holder, subject.program.lineage(subject.owner))
    if any(id(node) in entered for _, cls in own for node in cls.body):
        return None
    return Diagnostic(
        "VCG485",
        f"{name} inherits the port of {holder[1].name}: nothing is to be done",
        subject.tree.span(subject.file, subject.place.line),
        f"vLLM captures its encoder with the methods of {holder[1].name}, and faults of that port are faults here, "
        f"too: `fix` lists them. If {name} makes another tower, check the port with `verify`, or draft one of its "
        "own: add --force",
        Severity.INFO,
    )


def _port_holder(subject: Subject) -> Owner | None:
    """The class that speaks the protocol: the model's, or its nearest base that does. A mixin alone is none."""
    classes = [one for one in subject.program.lineage(subject.owner) if one[1].name != PROTOCOL]
    said = [one for one in classes if find_method(one[1], "get_encoder_cudagraph_config") is not None]
    # A host of a mixin, which lists the protocol, has this method alone.
    return next((one for one in classes if one in said or _lists_protocol(one[1])), None) if said else None


def hosted_mixin(subject: Subject) -> str | None:
    """The base that has methods of the protocol, and leaves to the model what a graph captures."""
    classes = (cls for _, cls in subject.program.lineage(subject.owner))
    return next((cls.name for cls in classes if _lists_protocol(cls)), None) if _port_holder(subject) is None else None


def fitting_mixin(subject: Subject, inputs: Iterable[str]) -> tuple[str, SourceLine, str] | None:
    """A base for the model, where it is, and why: a class of the tree that has all methods of the protocol but one.

    It speaks of the model's `inputs` by their names, and reads no attribute of a host that this model lacks.
    """
    tree = subject.tree
    try:
        profile = read_protocol(tree)
    except DiagnosticError:  # `new` says what is wrong with it
        return None
    needed = {method.name for method in profile.methods if not method.has_default} - profile.uncalled
    has = {self_attribute(target) for _, target, _ in subject.assigned() if isinstance(target, ast.expr)}
    has |= {getattr(node, "name", None) for _, cls in subject.program.lineage(subject.owner) for node in cls.body}
    for path in tree.modules_with(PROTOCOL):
        for cls in (node for node in tree.parse(path).body if isinstance(node, ast.ClassDef)):
            own = {node.name for node in cls.body if isinstance(node, FunctionNode)}
            left = needed - own
            if [last_name(base) for base in cls.bases] != [PROTOCOL] or len(left) != 1:
                continue
            words = {node.value for node in ast.walk(cls) if isinstance(node, ast.Constant)}
            read = {self_attribute(node) for node in ast.walk(cls) if isinstance(node, ast.Attribute)} - {None}
            if {*inputs} <= words and read - own - {method.name for method in profile.methods} <= has:
                why = f"a base that has all methods but {left.pop()}, and reads nothing that the model lacks"
                return f"{dotted(path)}.{cls.name}", SourceLine(path, cls.lineno), why
    return None


def _lists_protocol(cls: ast.ClassDef) -> bool:
    return any(last_name(base) == PROTOCOL for base in cls.bases)


def has_port(subject: Subject) -> Diagnostic | None:
    """That the class, or the nearest of its bases that does, speaks the protocol already."""
    holder = _port_holder(subject)
    if holder is None:
        return None
    (module, cls), own = holder, holder == subject.owner
    return Diagnostic(
        "VCG485",
        f"{subject.class_name} {'has a port already' if own else f'inherits the port of {cls.name}'}",
        subject.tree.span(module.file, cls.lineno),
        "`new` replaces it with --replace"
        if own
        else f"port {cls.name} for all its subclasses; `new` gives this one its own with --replace",
        Severity.WARNING,
    )


def find_shipped(tree: SourceTree, reference: str, target: str) -> Diagnostic | None:
    """That a descriptor of a model, or of the nearest of its bases that has one, comes with the tool (VCG488).

    `target` is the tree as `--vllm` names it, for the command that the message gives. Raises VCG480 to VCG482.
    """
    model = locate(tree, reference)
    found = _shipped(model)
    if found is None:
        return None
    port, own = found
    base = f", a base of {model.class_name}, which inherits that port" if not own else ""
    alone = ""
    if _is_adapters(port):
        alone = ". It is for the plugin's adapter; docs/models.md says what a port for a tree costs or lacks"
    return Diagnostic(
        "VCG488",
        f"the descriptor `{port.name}` comes with the tool and ports {port.class_name}{base}",
        help=f"`vitcg-scaffold plan {port.name} --vllm {shlex.quote(target)}` needs no draft{alone}",
        severity=Severity.INFO,
    )


def for_adapters_alone(subject: Subject) -> bool:
    """Whether the descriptor that comes with the tool for this model gives no port in a tree."""
    found = _shipped(subject)
    return found is not None and _is_adapters(found[0])


def _shipped(model: Subject) -> tuple[AnyPort, bool] | None:
    """The shipped descriptor of a model, or of the nearest of its bases that has one, and whether it is its own."""
    ports = [load_descriptor(name) for name in shipped_names()]
    for module, cls in model.program.lineage(model.owner):
        own = cls is model.owner[1]
        for port in ports:
            if f"{port.module.replace('.', '/')}.py" != module.file or model.class_name in port.model.optout:
                continue
            if port.class_name == cls.name or (own and port.architecture in model.architectures):
                return port, own
    return None


def _is_adapters(port: AnyPort) -> bool:
    return port.reenters and port.explicit is None and port.in_tree is None
