"""That a class implements a tree's protocol: names, parameters, kinds, order and defaults.

vLLM's own check is `isinstance` with a runtime-checkable protocol, which looks at names only: a method with the wrong
parameters passes it and fails in the middle of graph capture.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from scaffold.diagnostics import Diagnostic, Span
from scaffold.syntax import FunctionNode, statements

if TYPE_CHECKING:
    from scaffold.protocol.profile import ProtocolProfile
    from scaffold.protocol.signatures import Method, Parameter

_BUG = (
    "this is a defect of vitcg-scaffold, nothing was written: please report it with the descriptor and the vLLM release"
)
_BINDING = frozenset({"staticmethod", "classmethod", "property"})


def prove_conformance(
    source: str,
    class_name: str,
    profile: ProtocolProfile,
    path: str,
    mixin: str | None = None,
    given: frozenset[str] = frozenset(),
) -> tuple[Diagnostic, ...]:
    """That `class_name` itself, or the class of the module `mixin`, defines every method of the protocol as declared.

    Methods with a default body may be absent, those that nothing of the tree calls, and those that the tree's own bases
    of the class have (`given`). Annotations are not compared:
    they do not decide how a method can be called. No diagnostics, or VCG600 (no syntax tree), VCG610 (class or method
    missing), VCG611 (another signature).
    """
    try:
        tree = ast.parse(source.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        return (Diagnostic("VCG600", f"the result is not valid Python: {error}", Span(path, line, 1, line, 1), _BUG),)
    classes = [node for node in statements(tree) if isinstance(node, ast.ClassDef) and node.name == class_name]
    if len(classes) != 1:
        message = f"the class `{class_name}` is defined {len(classes)} times, not once"
        return (Diagnostic("VCG610", message, Span(path, 1, 1, 1, 1), _BUG),)
    node = classes[0]
    parts = [*(item for item in ast.parse(mixin or "").body if isinstance(item, ast.ClassDef)), node]
    methods = {item.name: item for part in parts for item in part.body if isinstance(item, FunctionNode)}
    found = []
    for method in profile.methods:
        implementation = methods.get(method.name)
        if implementation is None:
            if not method.has_default and method.name not in profile.uncalled | given:
                message = f"`{class_name}` does not define `{method}`, which the protocol of this tree demands"
                found.append(Diagnostic("VCG610", message, _span(path, node), _BUG))
            continue
        for difference in _differences(method, implementation):
            message = f"`{class_name}.{method.name}`: {difference}"
            declared = f"the protocol declares {method}"
            found.append(Diagnostic("VCG611", message, _span(path, implementation), _BUG, notes=(declared,)))
    return tuple(found)


def _span(path: str, node: ast.stmt) -> Span:
    column = node.col_offset + 1
    return Span(path, node.lineno, column, node.lineno, column)


def _differences(method: Method, node: FunctionNode) -> list[str]:
    """How an implementation differs from its declaration, in words."""
    found = []
    if isinstance(node, ast.AsyncFunctionDef) != method.is_async:
        found.append("one is async, the other is not")
    binding = {ast.unparse(item) for item in node.decorator_list} & _BINDING
    if binding != set(method.decorators) & _BINDING:
        found.append("it is bound to the class in another way (decorators)")
    has = _parameters(node)
    wants = [_wanted(parameter) for parameter in method.parameters]
    if has != wants:
        place = next((i for i, (a, b) in enumerate(zip(has, wants, strict=False)) if a != b), min(len(has), len(wants)))
        left = _describe(has[place]) if place < len(has) else "nothing"
        right = _describe(wants[place]) if place < len(wants) else "nothing"
        found.append(f"parameter {place + 1} is {left}, the protocol has {right}")
    return found


Signature = tuple[str, str, str | None]


def _wanted(parameter: Parameter) -> Signature:
    return parameter.name, parameter.kind.value, _expression(parameter.default)


def _expression(text: str | None) -> str | None:
    """A default in one spelling, whatever quotes and spaces it was written with."""
    return None if text is None else ast.unparse(ast.parse(text, mode="eval"))


def _parameters(node: FunctionNode) -> list[Signature]:
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [ast.unparse(item) for item in arguments.defaults]
    kinds = ["positional_only"] * len(arguments.posonlyargs) + ["positional_or_keyword"] * len(arguments.args)
    found: list[Signature] = [
        (item.arg, kind, default) for item, kind, default in zip(positional, kinds, defaults, strict=True)
    ]
    if arguments.vararg:
        found.append((arguments.vararg.arg, "var_positional", None))
    for item, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append((item.arg, "keyword_only", None if value is None else ast.unparse(value)))
    if arguments.kwarg:
        found.append((arguments.kwarg.arg, "var_keyword", None))
    return found


def _describe(signature: Signature) -> str:
    name, kind, default = signature
    return f"`{name}`" + (f" = {default}" if default is not None else "") + f" ({kind.replace('_', ' ')})"
