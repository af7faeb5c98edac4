"""The processor that a descriptor reads constants from: is it in this tree, with these attributes and methods?

A port writes the default of an attribute where the constructor has one. To read another one it makes a processor, and
so does every adapter: without arguments, so the constructor may require none. A static method needs no processor.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from scaffold.descriptor.sections import Count
from scaffold.diagnostics import DiagnosticError
from scaffold.plan.file_plans import Fact
from scaffold.syntax import (
    FunctionNode,
    assigned_to,
    find_class,
    find_method,
    positional_parameters,
    required_parameters,
    self_attribute,
    sets,
)
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.descriptor import AnyPort
    from scaffold.protocol import SourceTree


def check_processor(port: AnyPort, tree: SourceTree) -> tuple[Fact, ...]:
    """Where the processor's class stands. Raises VCG438 when the tree lacks the class or an attribute."""
    processor = port.processor
    if processor is None:
        return ()
    path, owner = _class_of(port, tree)
    if owner is None:
        help = "look for the image processor that the model's module imports"
        message = f"{tree.display(path)} has no class {processor.class_}"
        raise DiagnosticError.of("VCG438", message, port.span("processor.class"), help)
    place = (f"the class is at {tree.display(path)}:{owner.lineno}",)

    def refused(message: str, at: str, help: str) -> DiagnosticError:
        message = f"{processor.class_} {message}"
        return DiagnosticError.of("VCG438", message, port.span(f"processor.{at}"), help, notes=place)

    attributes = {name: value for name, value in processor.values.items() if isinstance(value, str)}
    if attributes and (required := _required(Program(tree), path, processor.class_)):
        raise refused(
            f"cannot be made without {', '.join(required)}, and a port gives no arguments",
            "class",
            "say the constants under `let`, as attributes of the model's configuration",
        )
    known = _attributes(owner)
    for name, attribute in attributes.items():
        if attribute not in known:
            sets = f"it sets {', '.join(sorted(known)) or 'none'}"
            raise refused(f"sets no attribute {attribute} in this tree", f"values.{name}", sets)
    counts = {name: value for name, value in processor.values.items() if isinstance(value, Count)}
    static = {node.name for node in owner.body if isinstance(node, ast.FunctionDef) and _is_static(node)}
    for name, count in counts.items():
        if count.method not in static:
            has = f"it has {', '.join(sorted(static)) or 'none'}"
            message = f"has no static method {count.method} of one argument in this tree"
            raise refused(message, f"values.{name}", has)
    return (Fact("processor", processor.class_, f"{path}:{owner.lineno}"),)


def known_constants(port: AnyPort, tree: SourceTree) -> dict[str, int]:
    """The attributes that the processor's constructor sets to a whole number by default, by the descriptor's names."""
    owner = _class_of(port, tree)[1] if port.processor is not None else None
    init = find_method(owner, "__init__") if owner is not None else None
    if port.processor is None or init is None:
        return {}
    named = [name for name, value in port.processor.values.items() if isinstance(value, str)]
    found = {name: _default(init, str(port.processor.values[name])) for name in named}
    return {name: value for name, value in found.items() if value is not None}


def _default(init: FunctionNode, attribute: str) -> int | None:
    """The default of the parameter that a constructor sets an attribute to."""
    defaults = dict(zip(reversed(positional_parameters(init)), reversed(init.args.defaults), strict=False))
    given = [
        defaults.get(node.value.id)
        for node in init.body
        if isinstance(node, ast.Assign) and sets(node, attribute) and isinstance(node.value, ast.Name)
    ]
    values = [one.value for one in given if isinstance(one, ast.Constant) and type(one.value) is int]
    return values[0] if len(values) == 1 else None


def _class_of(port: AnyPort, tree: SourceTree) -> tuple[str, ast.ClassDef | None]:
    """The file of the processor and its class there."""
    assert port.processor is not None
    path = port.processor_module.replace(".", "/") + ".py"
    return path, find_class(tree.parse(path), port.processor.class_) if tree.exists(path) else None


def _is_static(function: ast.FunctionDef) -> bool:
    """Whether a method is called with one argument and no processor."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return (
        decorators == ["staticmethod"] and bool(positional_parameters(function)) and not required_parameters(function)
    )


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
