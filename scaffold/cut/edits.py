"""The parameter `encode` on the methods of a way, in their own text: comments and layout stay."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from scaffold.cut.loops import loop_method
from scaffold.cut.way import ENCODE, EVERY, asks_for_encode, called, end_of
from scaffold.descriptor.port import LOOP_METHOD, PRIVATE_ENTRY, PUBLIC_ENTRY
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.edit.operations import AddImport, ReplaceMethod
from scaffold.syntax import FunctionNode, find_class, find_method, first_line
from scaffold.tower.model import MethodEdit

if TYPE_CHECKING:
    import libcst as cst

    from scaffold.cut.loops import Loop
    from scaffold.cut.way import Station, Way
    from scaffold.edit.operations import Edit
    from scaffold.protocol import SourceTree

_DOCUMENTATION = "What is called in the place of the encoder, if anything."


def cut_methods(tree: SourceTree, way: Way, result: str = "torch.Tensor") -> tuple[MethodEdit, ...]:
    """The methods of a way with the parameter, which returns a `result`. Raises VCG444 where one cannot have it."""
    arguments = "..." if way.every else f"[{', '.join(['torch.Tensor'] * way.units)}]"
    annotation = f"Callable[{arguments}, {result}] | None"
    return tuple(
        MethodEdit(
            station.file,
            station.class_name,
            station.function,
            (LOOP_METHOD,) if station.loop else (PRIVATE_ENTRY,) if station.function == PUBLIC_ENTRY else (),
            _source(tree, station, annotation),
        )
        for station in way.stations
    )


def cut_edits(tree: SourceTree, way: Way, result: str = "torch.Tensor") -> dict[str, tuple[Edit, ...]]:
    """The edits of a way, by file. Raises as `cut_methods` does."""
    edits: dict[str, list[Edit]] = {}
    for method in cut_methods(tree, way, result):
        found = edits.setdefault(method.file, [AddImport("torch")])
        wanted = [("collections.abc", "Callable"), *([("typing", "Any")] if LOOP_METHOD in method.adds else [])]
        found += [AddImport(*names) for names in wanted if not _imports(tree.parse(method.file), names[1])]
        found.append(ReplaceMethod(method.class_name, method.replaces, method.source))
    return {file: tuple(dict.fromkeys(found)) for file, found in edits.items()}


def _imports(module: ast.Module, name: str) -> bool:
    return any(
        alias.asname is None and alias.name == name
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def _source(tree: SourceTree, station: Station, callable_type: str) -> str:
    """The method with its parameter, without indentation."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

    owner = find_class(tree.parse(station.file), station.class_name)
    function = find_method(owner, station.function) if owner is not None else None
    assert function is not None, "found before"
    start = first_line(function)
    lines = tree.read(station.file).removeprefix("\ufeff").splitlines()[start - 1 : function.end_lineno]
    text = textwrap.dedent("\n".join(lines)) + "\n"
    if _is_cut(function, station, callable_type):
        return text
    if _uses(function):
        raise DiagnosticError(
            Diagnostic(
                "VCG444",
                f"`{station.class_name}.{station.function}` has a variable `{ENCODE}` already",
                tree.span(station.file, function.lineno),
                "undo an earlier port of another descriptor with `vitcg-scaffold revert`, or rename it: the port needs "
                "the name for a parameter",
            )
        )
    helper = ""
    if station.loop is not None:
        first, last = station.loop.line - start, station.loop.end_line - start
        helper = "\n" + loop_method(function, station.loop, lines[first : last + 1])
        lines[first : last + 1] = [_call(station.loop, lines[first])]
        text = textwrap.dedent("\n".join(lines)) + "\n"
    shift = len(lines[0]) - len(lines[0].lstrip())
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    places, parents = wrapper.resolve(PositionProvider), wrapper.resolve(ParentNodeProvider)

    def key(node: cst.CSTNode) -> tuple[int, int]:
        # libcst counts characters, `ast` bytes; both from the same line of the same text.
        position = places[node].end
        prefix = text.splitlines()[position.line - 1][: position.column]
        return start + position.line - 1, shift + len(prefix.encode())

    def is_argument(node: cst.CSTNode) -> bool:
        return isinstance(parents[node], cst.Arg)

    changed = _documented(wrapper.module.visit(_add_parameter(station, callable_type, key, is_argument)).code)
    if station.function != PUBLIC_ENTRY:
        return changed + helper
    arguments = function.args
    if [*arguments.posonlyargs, *arguments.args[1:], *arguments.kwonlyargs] or not arguments.kwarg or arguments.vararg:
        raise DiagnosticError(
            Diagnostic(
                "VCG444",
                f"`{station.class_name}.{PUBLIC_ENTRY}` takes more than keyword arguments",
                tree.span(station.file, function.lineno),
                "name the method below it as `entry`: the call that makes embeddings of a modality's parsed input",
            )
        )
    name = arguments.kwarg.arg
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    annotation = f": {ast.unparse(arguments.kwarg.annotation)}" if arguments.kwarg.annotation else ""
    return (
        f"def {PUBLIC_ENTRY}(self, **{name}{annotation}){returns}:\n"
        f"    return self.{PRIVATE_ENTRY}(**{name})\n\n"
        f"{changed.replace(f'def {PUBLIC_ENTRY}(', f'def {PRIVATE_ENTRY}(', 1)}"
    )


def _call(loop: Loop, first: str) -> str:
    """The call that replaces the loop, whose first line is given."""
    arguments = ", ".join(loop.arguments)
    call = f"(self.{LOOP_METHOD} if {ENCODE} is None else {ENCODE})({arguments})"
    return f"{_indentation(first)}{loop.result} = {call}"


def _uses(function: FunctionNode) -> list[ast.Name | ast.arg]:
    return [
        node
        for node in ast.walk(function)
        if (isinstance(node, ast.Name) and node.id == ENCODE) or (isinstance(node, ast.arg) and node.arg == ENCODE)
    ]


def _is_cut(function: FunctionNode, station: Station, callable_type: str) -> bool:
    """Whether an earlier port gave the method its parameter, for the very same calls."""
    parameters = function.args.kwonlyargs or function.args.args
    last = parameters[-1] if parameters else None
    if last is None or last.arg != ENCODE or last.annotation is None:
        return False
    sites: list[tuple[int, int]] = []
    forwards: list[tuple[int, int]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.IfExp) and asks_for_encode(node) and isinstance(node.body, ast.Call):
            sites.append(end_of(node.body))
        if isinstance(node, ast.Call):
            if called(node) is not node.func:
                sites.append(end_of(node))
            if any(keyword.arg == ENCODE and ast.unparse(keyword.value) == ENCODE for keyword in node.keywords):
                forwards.append(end_of(node))
    return (
        ast.dump(last.annotation) == ast.dump(ast.parse(callable_type, mode="eval").body)
        and sorted(sites) == sorted(station.sites)
        and sorted(forwards) == sorted(station.forwards)
        and len(_uses(function)) == 1 + 2 * len(sites) + len(forwards)
    )


def _documented(source: str) -> str:
    """The method with the parameter in its docstring, if that one lists the others."""
    (function,) = ast.parse(source).body
    assert isinstance(function, FunctionNode)
    if "Args:" not in (ast.get_docstring(function) or ""):
        return source
    lines, text = source.splitlines(keepends=True), function.body[0]
    section = next(number for number in range(text.lineno - 1, text.end_lineno or 0) if "Args:" in lines[number])
    indentation = _indentation(lines[section + 1])
    last = section + 1
    while lines[last].strip() and len(_indentation(lines[last])) >= len(indentation):
        last += 1
    return "".join([*lines[:last], f"{indentation}{ENCODE}: {_DOCUMENTATION}\n", *lines[last:]])


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _add_parameter(
    station: Station,
    callable_type: str,
    key: Callable[[cst.CSTNode], tuple[int, int]],
    is_argument: Callable[[cst.CSTNode], bool],
) -> cst.CSTTransformer:
    import libcst as cst

    sites, forwards = dict(zip(station.sites, station.units, strict=True)), set(station.forwards)

    class AddParameter(cst.CSTTransformer):
        def __init__(self) -> None:
            super().__init__()
            self.depth = 0

        def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
            self.depth += 1

        def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
            self.depth -= 1
            if self.depth:
                return updated_node
            parameters = updated_node.params
            new = cst.Param(
                cst.Name(ENCODE), cst.Annotation(cst.parse_expression(callable_type)), default=cst.Name("None")
            )
            keyword_only = bool(parameters.kwonly_params) or isinstance(parameters.star_arg, cst.Param)
            group = "kwonly_params" if keyword_only else "params"
            return updated_node.with_changes(
                params=parameters.with_changes(**{group: [*getattr(parameters, group), new]})
            )

        def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
            place = key(original_node)
            if place in forwards:
                tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
                argument = cst.Arg(cst.Name(ENCODE), keyword=cst.Name(ENCODE), equal=tight)
                return updated_node.with_changes(args=[*updated_node.args, argument])
            if place not in sites:
                return updated_node
            if sites[place] == EVERY:
                # The arguments stay where they are, whatever they are.
                return updated_node.with_changes(func=_unless(updated_node.func, cst.Name(ENCODE)))
            units = [cst.Arg(_argument(updated_node, which)) for which in sites[place]]
            features = cst.Call(cst.Name(ENCODE), units)
            return _unless(updated_node, features, parentheses=not is_argument(original_node))

    return AddParameter()


def _unless(node: cst.BaseExpression, other: cst.BaseExpression, *, parentheses: bool = True) -> cst.IfExp:
    """`(node if encode is None else other)`."""
    import libcst as cst

    test = cst.parse_expression(f"{ENCODE} is None")
    left, right = ([cst.LeftParen()], [cst.RightParen()]) if parentheses else ([], [])
    return cst.IfExp(test=test, body=node, orelse=other, lpar=left, rpar=right)


def _argument(call: cst.Call, which: int | str) -> cst.BaseExpression:
    """The value of an argument by its position or keyword."""
    for index, argument in enumerate(call.args):
        name = argument.keyword.value if argument.keyword is not None else None
        if which in (index, name) and (name is not None) == isinstance(which, str):
            return argument.value
    raise AssertionError("the call was matched before")
