"""The image processor that a descriptor reads constants from: is it in this tree, with these attributes?

A port makes it without arguments, so its constructor may require none.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.plan.model import Fact
from scaffold.syntax import assigned_to, find_class, required_parameters, self_attribute
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import SourceTree


def check_processor(port: AnyPort, tree: SourceTree) -> tuple[Fact, ...]:
    """Where the processor's class stands. Raises VCG438 when the tree lacks the class or an attribute."""
    processor = port.processor
    if processor is None:
        return ()
    path = port.processor_module.replace(".", "/") + ".py"
    owner = find_class(tree.parse(path), processor.class_) if tree.exists(path) else None
    if owner is None:
        raise DiagnosticError(
            Diagnostic(
                "VCG438",
                f"{tree.display(path)} has no class {processor.class_}",
                port.span("processor.class"),
                "look for the image processor that the model's module imports",
            )
        )
    if required := _required(Program(tree), path, processor.class_):
        raise DiagnosticError(
            Diagnostic(
                "VCG438",
                f"{processor.class_} cannot be made without {', '.join(required)}, and a port gives no arguments",
                port.span("processor.class"),
                "say the constants under `let`, as attributes of the model's configuration",
                notes=(f"the class is at {tree.display(path)}:{owner.lineno}",),
            )
        )
    known = _attributes(owner)
    for name, attribute in processor.values.items():
        if attribute not in known:
            raise DiagnosticError(
                Diagnostic(
                    "VCG438",
                    f"{processor.class_} sets no attribute {attribute} in this tree",
                    port.span(f"processor.values.{name}"),
                    f"it sets {', '.join(sorted(known)) or 'none'}",
                    notes=(f"the class is at {tree.display(path)}:{owner.lineno}",),
                )
            )
    return (Fact("processor", processor.class_, f"{path}:{owner.lineno}"),)


def _required(program: Program, path: str, class_name: str) -> list[str]:
    """Parameters of the constructor that a call without arguments leaves open."""
    init = program.method(program.owner(path, class_name), "__init__")
    return [] if init is None else required_parameters(init[2])


def _attributes(owner: ast.ClassDef) -> set[str]:
    """Names that the class defines in its body, and those that its methods set on `self`."""
    names = {node.name for node in owner.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("__")}
    for node in ast.walk(owner):
        for target in assigned_to(node):
            own = self_attribute(target)
            if own is not None:
                names.add(own)
            elif isinstance(target, ast.Name) and node in owner.body:
                names.add(target.id)
    return names
