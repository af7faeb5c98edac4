"""Modules of a class: where `self.NAME` is made, of which class, and what its constructor is given."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from scaffold.draft.values import SourceLine
from scaffold.syntax import FunctionNode, bind_call, call_name, name_path, positional_parameters, self_attribute
from scaffold.tower.source import Owner, Program

_STUBS = {"StageMissingLayer", "PPMissingLayer"}
_LINEAR_INPUT = {"nn.Linear": "in_features"}


@dataclass(frozen=True, slots=True)
class Part:
    """`self.NAME = ...` of a class. `made` is the call that makes it, `cls` its class if the tree has it."""

    name: str
    place: SourceLine
    made: ast.Call | None
    cls: Owner | None


def assigned(program: Program, owner: Owner, name: str) -> tuple[ast.expr, SourceLine, Owner] | None:
    """The value that a class gives to `self.NAME`, its place, and the class that does.

    `__init__` is looked at before other methods, and a class before its bases; what stands for a part that a process
    lacks comes last.
    """
    missing = None
    for module, cls in program.lineage(owner):
        methods = [node for node in cls.body if isinstance(node, FunctionNode)]
        for method in sorted(methods, key=lambda node: node.name != "__init__"):
            for node in ast.walk(method):
                value = _value_of(node, name)
                if value is not None:
                    found = value, SourceLine(module.file, value.lineno), (module, cls)
                    if not stands_for_nothing(value):
                        return found
                    missing = missing or found
    return missing


def stands_for_nothing(value: ast.expr) -> bool:
    """Whether a value is a stub for a part that this process does not have."""
    return isinstance(value, ast.Call) and call_name(value) in _STUBS


def _value_of(node: ast.AST, name: str) -> ast.expr | None:
    """The value of `self.NAME = value`."""
    if isinstance(node, ast.Assign):
        return node.value if any(self_attribute(target) == name for target in node.targets) else None
    return node.value if isinstance(node, ast.AnnAssign) and self_attribute(node.target) == name else None


def part_of(program: Program, owner: Owner, name: str) -> Part | None:
    """The module `self.NAME` of a class; None when `__init__` does not set it."""
    found = assigned(program, owner, name)
    if found is None:
        return None
    value, place, home = found
    made = value if isinstance(value, ast.Call) else None
    return Part(name, place, made, _class_of(program, home, made) if made else None)


def _class_of(program: Program, owner: Owner, made: ast.Call) -> Owner | None:
    func = made.func
    if isinstance(func, ast.Name):
        found = program.resolve(owner[0], func.id)
        return (found[0], found[1]) if found is not None and isinstance(found[1], ast.ClassDef) else None
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "self":
        method = program.method(owner, func.attr)
        for node in ast.walk(method[2]) if method else ():
            if method and isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                cls = _class_of(program, (method[0], method[1]), node.value)
                if cls is not None:
                    return cls
    return None


def model_path(program: Program, owner: Owner, name: str) -> str | None:
    """An attribute path of the class for a value that `__init__` computes, where it is a plain path.

    `config.text_config.hidden_size` is `self.config.text_config.hidden_size` when `self.config = config`. None of
    anything but names: `config.get_text_config().hidden_size` is no path.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    root, _, rest = name.partition(".")
    if root == "self":
        return name if rest else None
    found = program.method(owner, "__init__")
    for node in ast.walk(found[2]) if found else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == root:
            for target in node.targets:
                if isinstance(target, ast.Attribute) and self_attribute(target):
                    return f"self.{target.attr}{'.' * bool(rest)}{rest}"
    return None


def outer_path(program: Program, owner: Owner, part: Part, attribute: str) -> tuple[str, SourceLine] | None:
    """Where the owner reads what its module keeps as `self.ATTRIBUTE`: from the configuration that it passes on."""
    if part.cls is None:
        return None
    found = assigned(program, part.cls, attribute)
    if found is None:
        return None
    value, place, _ = found
    root, _, rest = ast.unparse(value).partition(".")
    init = program.method(part.cls, "__init__")
    if name_path(value) and init is not None and part.made is not None and rest:
        given = arguments(part.made, init[2]).get(root)
        path = model_path(program, owner, ast.unparse(given)) if given is not None and name_path(given) else None
        if path is not None:
            return f"{path}.{rest}", place
    return f"self.{part.name}.{attribute}", place


def chain_path(program: Program, owner: Owner, parts: tuple[Part, ...], text: str) -> str | None:
    """A value of the innermost of nested modules as a path of the owner, through what each constructor is given."""
    for part in reversed(parts):
        root, dot, rest = text.partition(".")
        init = program.method(part.cls, "__init__") if part.cls else None
        given = arguments(part.made, init[2]).get(root) if init and part.made else None
        if given is None or not name_path(given):
            return None
        text = f"{ast.unparse(given)}{dot}{rest}"
    return model_path(program, owner, text)


def arguments(made: ast.Call, init: FunctionNode) -> dict[str, ast.expr]:
    """The arguments of a constructor's call by parameter."""
    keywords = {keyword.arg: keyword.value for keyword in made.keywords if keyword.arg is not None}
    return bind_call(init, made.args, keywords, skip_first=True).given


def parameters(program: Program, owner: Owner, method: str) -> list[str]:
    """Names of a method's positional parameters after self; none when there is no such method."""
    found = program.method(owner, method)
    return positional_parameters(found[2])[1:] if found else []


def joined_features(program: Program, part: Part) -> SourceLine | None:
    """Where a module's `forward` joins what it returns on the axis of features: it is wider than one of its results."""
    found = program.method(part.cls, "forward") if part.cls is not None else None
    if found is None:
        return None
    returned = {
        node.value.id
        for node in ast.walk(found[2])
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
    }
    for node in ast.walk(found[2]):
        value = node.value if isinstance(node, (ast.Assign, ast.Return)) else None
        kept = isinstance(node, ast.Return) or (
            isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id in returned for target in node.targets)
        )
        if kept and isinstance(value, ast.Call) and call_name(value) in ("cat", "concat"):
            axes = [*value.args[1:], *(keyword.value for keyword in value.keywords if keyword.arg == "dim")]
            if axes and ast.unparse(axes[0]) in ("1", "-1"):
                return SourceLine(found[0].file, value.lineno)
    return None


def linear_width(part: Part) -> str | None:
    """The attribute that holds the input width of a linear module: of torch's, or of vLLM's parallel ones."""
    name = ast.unparse(part.made.func) if part.made else ""
    return _LINEAR_INPUT.get(name) or (
        "input_size" if name.endswith("ParallelLinear") or name == "ReplicatedLinear" else None
    )
