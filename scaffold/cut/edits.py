"""The parameter `encode` on the methods of a way, in their own text: comments and layout stay."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import TYPE_CHECKING

from scaffold.cut.chains import Chain, chain_method
from scaffold.cut.hoist import documented, hoisted_source, hoisted_tree, method_lines, with_documentation
from scaffold.cut.loops import loop_method
from scaffold.cut.way import ENCODE, EVERY, asks_for_encode, called
from scaffold.descriptor.port import LOOP_METHOD, PRIVATE_ENTRY, PUBLIC_ENTRY
from scaffold.diagnostics import DiagnosticError
from scaffold.edit.operations import AddImport, ReplaceFunction, ReplaceMethod
from scaffold.syntax import FunctionNode, end_of, first_line, indentation_of
from scaffold.tower.parts import MethodEdit

if TYPE_CHECKING:
    from scaffold.cut.hoist import Hoisted
    from scaffold.cut.loops import Loop
    from scaffold.cut.way import Station, Way
    from scaffold.edit.operations import Edit
    from scaffold.protocol import SourceTree

_DOCUMENTATION = "What is called in the place of the encoder, if anything."


def cut_methods(tree: SourceTree, way: Way, result: str = "torch.Tensor") -> tuple[MethodEdit, ...]:
    """The methods of a way with the parameter, which returns a `result`. Raises VCG444 where one cannot have it.

    Those with parameters for sequences are among them.
    """
    arguments = "..." if way.every else f"[{', '.join(['torch.Tensor'] * way.units)}]"
    annotation = f"Callable[{arguments}, {result}] | None"
    tree = hoisted_tree(tree, way.hoisted)
    hoisted = {one.place: one for one in way.hoisted}
    edits = [
        MethodEdit(
            station.file,
            station.class_name,
            station.function,
            _added(station),
            _source(tree, station, annotation, hoisted.get(station.place)),
        )
        for station in way.stations
    ]
    on_the_way = {station.place for station in way.stations}
    between = [one for one in way.hoisted if one.place not in on_the_way]
    return (*edits, *(MethodEdit(*one.place, (), hoisted_source(tree, one)) for one in between))


def _added(station: Station) -> tuple[str, ...]:
    """The methods that come with that of a station."""
    if station.outlined is not None:
        return (station.outlined.method,) if station.outlined.adds else ()
    return (PRIVATE_ENTRY,) if station.function == PUBLIC_ENTRY else ()


def cut_edits(tree: SourceTree, way: Way, result: str = "torch.Tensor") -> dict[str, tuple[Edit, ...]]:
    """The edits of a way, by file. Raises as `cut_methods` does."""
    edits: dict[str, list[Edit]] = {}
    for method in cut_methods(tree, way, result):
        found = edits.setdefault(method.file, [AddImport("torch")])
        # A loop's method has `Any` for what has no annotation.
        typed = LOOP_METHOD in method.adds and re.search(r"\bAny\b", method.source)
        wanted = [("collections.abc", "Callable"), *([("typing", "Any")] if result == "Any" or typed else [])]
        found += [AddImport(*names) for names in wanted if not _imports(tree.parse(method.file), names[1])]
        found.append(
            ReplaceMethod(method.class_name, method.replaces, method.source)
            if method.class_name
            else ReplaceFunction(method.replaces, method.source)
        )
    return {file: tuple(dict.fromkeys(found)) for file, found in edits.items()}


def _imports(module: ast.Module, name: str) -> bool:
    return any(
        alias.asname is None and alias.name == name
        for node in module.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    )


def _source(tree: SourceTree, station: Station, callable_type: str, hoisted: Hoisted | None) -> str:
    """The method with its parameter, without indentation."""
    from scaffold.cut.rewriting import Added, cut_text

    function, lines = method_lines(tree, station.file, station.class_name, station.function)
    start = first_line(function)
    if _is_cut(function, station, callable_type):
        return textwrap.dedent("\n".join(lines)) + "\n"
    if _uses(function):
        raise DiagnosticError.of(
            "VCG444",
            f"`{'.'.join(filter(None, (station.class_name, station.function)))}` has a variable `{ENCODE}` already",
            tree.span(station.file, function.lineno),
            "undo an earlier port of another descriptor with `vitcg-scaffold revert`, or rename it: the port needs "
            "the name for a parameter",
        )
    helper = ""
    outlined = station.outlined
    if outlined is not None:
        first, last = outlined.line - start, outlined.end_line - start
        moved = lines[first : last + 1]
        if isinstance(outlined, Chain):
            helper = "\n" + chain_method(outlined, moved) if outlined.adds else ""
        else:
            helper = "\n" + loop_method(function, outlined, moved)
        lines[first : last + 1] = [_call(outlined, lines[first])]
    added = Added.to(function, lines, (ENCODE,), callable_type, station.forwards)
    sites = () if outlined is not None else tuple(zip(station.sites, station.units, strict=True))
    changed = cut_text(added, sites, EVERY)
    changed = with_documentation(changed, hoisted) if hoisted is not None else changed
    changed = documented(changed, ENCODE, _DOCUMENTATION)
    if station.function != PUBLIC_ENTRY:
        return changed + helper
    arguments = function.args
    if [*arguments.posonlyargs, *arguments.args[1:], *arguments.kwonlyargs] or not arguments.kwarg or arguments.vararg:
        raise DiagnosticError.of(
            "VCG444",
            f"`{station.class_name}.{PUBLIC_ENTRY}` takes more than keyword arguments",
            tree.span(station.file, function.lineno),
            "name the method below it as `entry`: the call that makes embeddings of a modality's parsed input",
        )
    name = arguments.kwarg.arg
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    annotation = f": {ast.unparse(arguments.kwarg.annotation)}" if arguments.kwarg.annotation else ""
    return (
        f"def {PUBLIC_ENTRY}(self, **{name}{annotation}){returns}:\n"
        f"    return self.{PRIVATE_ENTRY}({ENCODE}=None, **{name})\n\n"
        f"{changed.replace(f'def {PUBLIC_ENTRY}(', f'def {PRIVATE_ENTRY}(', 1)}"
    )


def _call(loop: Loop | Chain, first: str) -> str:
    """The call that replaces a loop or a chain, whose first line is given."""
    arguments = ", ".join(loop.arguments)
    call = f"(self.{loop.method} if {ENCODE} is None else {ENCODE})({arguments})"
    return f"{indentation_of(first)}{loop.result} = {call}"


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
