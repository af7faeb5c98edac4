"""The loop over an encoder's layers as a function of what it reads: what a cut captures where there is no call.

The statements stay as they are, and move as one. The variables that the loop reads become the function's parameters;
what it hands from layer to layer is its result, one value or several. A loop with any other effect is refused.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from scaffold.descriptor.port import ATTENTION, LONGEST, LOOP_METHOD
from scaffold.syntax import Bound, FunctionNode, annotations_of, bind_call, values_of
from scaffold.tower.names import bound_by, exposed_reads, mentions, must_writes, parameters_of, stores
from scaffold.tower.parts import Form, Label
from scaffold.tower.values import Role, Value

if TYPE_CHECKING:
    from scaffold.tower.interpret import RawHazard
    from scaffold.tower.source import Owner, Program

#: Syntax that leaves the loop, or waits in it.
_EXITS = {ast.Return: "returns", ast.Break: "ends early", ast.Yield: "yields", ast.YieldFrom: "yields",
          ast.Await: "waits"}  # fmt: skip
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: Syntax that binds names in ways that a function of its own would change.
_SCOPES = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Delete)


@dataclass(frozen=True)
class Loop:
    """A loop by its lines in the file, and the names that it reads; those of its results come first."""

    line: int
    end_line: int
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    adds: ClassVar[bool] = True
    method: ClassVar[str] = LOOP_METHOD

    @property
    def result(self) -> str:
        """The results, as an assignment and a `return` have them."""
        return ", ".join(self.results)


@dataclass(frozen=True)
class Misfit:
    """Why a loop, or a run of statements, cannot be a function, at a node of it."""

    node: ast.AST
    reason: str


def find_misfit(function: FunctionNode, loop: ast.For, *, several: bool = False) -> Misfit | None:
    """The first reason why a loop of a method cannot be a function, with `several` results perhaps; None if it can."""
    return next(_misfits(function, loop, several=several), None)


def outline(function: FunctionNode, loop: ast.For) -> Loop:
    """The loop of a method as a function. It has no misfit."""
    results = _results(function, loop)
    reads = [node.id for node in exposed_reads([loop]) if node.id in _locals(function, loop) - {"self"}]
    arguments = tuple(dict.fromkeys([*results, *reads]))
    return Loop(loop.lineno, loop.end_lineno or loop.lineno, arguments, tuple(results))


def find_hazard(
    program: Program,
    owner: Owner,
    function: FunctionNode,
    loop: ast.For,
    outlined: Loop,
    constants: Collection[str] = (),
) -> RawHazard | None:
    """The first thing in the layers that a capture does not survive: what waits for the GPU, or depends on its values.

    All that the loop reads beside its results, `constants` and what is annotated as a switch is taken for offsets on
    the GPU, which the longest item may follow from. An argument that a caller may leave out is taken for None, too:
    layers may compute it then. The longest sequence is an exception: a graph hands it to layers that get none.
    """
    from scaffold.tower.interpret import Interpreter

    arguments, offsets = outlined.arguments, Value(Label.META, Form.TENSOR, Role.CUMULATIVE, host=False)
    values = dict.fromkeys(arguments, offsets)
    values |= dict.fromkeys(outlined.results, Value(Label.DATA, Form.TENSOR, host=False))
    values |= dict.fromkeys((*constants, *_switches(function)), Value())
    parameters = ast.arguments([], [ast.arg(name) for name in ("self", *arguments)], None, [], [], None, [])
    method = ast.FunctionDef(LOOP_METHOD, parameters, [loop], [], lineno=loop.lineno, col_offset=loop.col_offset)
    bound: Bound[ast.expr] = bind_call(function, (), {}, skip_first=True)
    defaults = {name: default for name, default in bound.defaults.items() if default is not None}
    optional = [name for name in arguments if name in defaults and ast.unparse(defaults[name]) == "None"]
    optional = [name for name in optional if name not in (LONGEST, *outlined.results, *_switches(function))]
    for absent in ({}, *({name: Value(form=Form.NONE)} for name in optional)):
        interpreter = Interpreter(program)
        interpreter.run(owner[0], owner, method, {**values, **absent})
        for hazard in interpreter.hazards.values():
            return hazard
    return None


def runs_attention(program: Program, encoder: Owner) -> bool:
    """Whether a class, or one that it names, runs vLLM's attention of encoders, which is told where sequences end."""
    seen: list[ast.ClassDef] = []
    waiting = [encoder]
    while waiting:
        module, cls = waiting.pop()
        seen.append(cls)
        for name in mentions(cls):
            if name == ATTENTION:
                return True
            made = program.resolve(module, name)
            if made is not None and isinstance(made[1], ast.ClassDef) and made[1] not in seen:
                waiting.append((made[0], made[1]))
    return False


def loop_method(
    function: FunctionNode,
    loop: Loop,
    lines: list[str],
    known: Mapping[str, str] = MappingProxyType({}),
    optional: str | None = None,
) -> str:
    """The function's source, without indentation; `lines` are the loop's own.

    `known` are types of names. The `optional` one is a last parameter whose default is None.
    """
    body = textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")
    given = annotations_of(function).items()
    types = {name: ast.unparse(annotation) for name, annotation in given if annotation is not None}
    types |= dict.fromkeys(loop.results, "torch.Tensor")
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in loop.results:
            types[node.target.id] = ast.unparse(node.annotation)
    types |= known
    taken = [f"{name}: {types.get(name, 'Any')}" for name in loop.arguments if name != optional]
    parameters = ", ".join([*taken, *([f"{optional}: torch.Tensor | None = None"] if optional else [])])
    given_back = ", ".join(types[name] for name in loop.results)
    returns = given_back if len(loop.results) == 1 else f"tuple[{given_back}]"
    return (
        f"def {LOOP_METHOD}(self, {parameters}) -> {returns}:\n"
        f'    """The layers, one after the other."""\n{body}\n    return {loop.result}\n'
    )


def _misfits(function: FunctionNode, loop: ast.For, *, several: bool) -> Iterator[Misfit]:
    outside = _statements_around(function, loop)
    if outside is None:
        yield Misfit(loop, "it runs inside of another loop, of `try` or of `with`")
        return
    yield from _effects(function, loop)
    results = _results(function, loop)
    if len(results) != 1 and not (several and results):
        given = f"it hands on {', '.join(f'`{name}`' for name in results)}" if results else "it hands on nothing"
        yield Misfit(loop, f"{given}, and a graph gives one tensor")
        return
    reads = {node.id: node for node in exposed_reads([loop])}
    for name in results:
        if name not in reads:
            yield Misfit(loop, f"`{name}`, which is used behind it, does not go from layer to layer")
    written = must_writes(outside) | parameters_of(function)
    for name in sorted(reads.keys() & _locals(function, loop) - written):
        yield Misfit(reads[name], f"`{name}` may have no value before it")


def _effects(function: FunctionNode, loop: ast.For) -> Iterator[Misfit]:
    """The effects of the loop beside writing names. Adding to a tuple is none: it makes another one."""
    reads = {node.id for node in exposed_reads([loop])}
    for node in ast.walk(loop):
        if type(node) in _EXITS:
            yield Misfit(node, f"it {_EXITS[type(node)]}")
        elif isinstance(node, _SCOPES):
            yield Misfit(node, "it has definitions or deletions of its own")
        elif isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield Misfit(node, f"it changes `{ast.unparse(node)}`")
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in reads:
            if _is_tuple(function, loop, node.target.id):
                continue
            yield Misfit(node, f"it changes `{node.target.id}` in place")
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            yield Misfit(node, f"`{ast.unparse(node)}` has an effect beside the features")


def _switches(function: FunctionNode) -> set[str]:
    """Parameters that are no tensors by their annotation: a port sees one value of each when a model starts, and leaves
    calls with another one to the model."""
    given = annotations_of(function).items()
    return {name for name, kind in given if kind is not None and ast.unparse(kind) in ("bool", "bool | None")}


def _is_tuple(function: FunctionNode, loop: ast.For, name: str) -> bool:
    """Whether a variable is a tuple before the loop, by all that is assigned to it there."""
    around = list(_outside(function, loop))
    made = values_of(name, around)
    stored = [node for node in around if isinstance(node, ast.Name) and node.id == name]
    stored = [node for node in stored if isinstance(node.ctx, ast.Store)]
    alone = len(stored) == len(made) and name not in parameters_of(function)
    return alone and bool(made) and all(isinstance(value, ast.Tuple) for value in made)


def _results(function: FunctionNode, loop: ast.For) -> list[str]:
    """Names that the loop writes and that the rest of the method has, too."""
    around = {node.id for node in _outside(function, loop) if isinstance(node, ast.Name)}
    around = around - _layer_names(function, loop) | parameters_of(function)
    return list(dict.fromkeys(name for name in stores(loop) if name in around))


def _layer_names(function: FunctionNode, loop: ast.For) -> set[str]:
    """Names that the loop gives its layers, and that else only loops have which give theirs the same: no value goes
    from one to the other."""
    inside: set[int] = set()
    for other in ast.walk(function):
        if isinstance(other, ast.For) and isinstance(other.target, ast.Name) and loop not in ast.walk(other):
            parts = [node for part in (other.target, *other.body) for node in ast.walk(part)]
            if not any(isinstance(node, (*_SCOPES, *_COMPREHENSIONS)) for node in parts):
                inside |= {id(node) for node in parts if isinstance(node, ast.Name) and node.id == other.target.id}
    elsewhere = {node.id for node in _outside(function, loop) if isinstance(node, ast.Name) and id(node) not in inside}
    read = {node.id for node in exposed_reads([loop])}
    return {loop.target.id} - elsewhere - read if isinstance(loop.target, ast.Name) else set()


def _locals(function: FunctionNode, loop: ast.For) -> set[str]:
    """Parameters and variables of the method around the loop."""
    return parameters_of(function) | bound_by(_outside(function, loop))


def _outside(function: FunctionNode, loop: ast.For) -> Iterator[ast.AST]:
    """Every node of the method's body but those of the loop, and names that a comprehension has for itself."""
    pending: list[tuple[ast.AST, frozenset[str]]] = [(node, frozenset()) for node in function.body if node is not loop]
    while pending:
        node, own = pending.pop()
        if isinstance(node, ast.Name) and node.id in own:
            continue
        yield node
        first = node.generators[0].iter if isinstance(node, _COMPREHENSIONS) else None
        inner = own
        if isinstance(node, _COMPREHENSIONS):
            targets = (part for generator in node.generators for part in ast.walk(generator.target))
            inner = own | {part.id for part in targets if isinstance(part, ast.Name)}
            pending.append((node.generators[0].iter, own))  # made before there is such a name
        for child in ast.iter_child_nodes(node):
            if child is loop:
                continue
            if isinstance(child, ast.comprehension) and child.iter is first:
                pending += [(part, inner) for part in (child.target, *child.ifs)]
            else:
                pending.append((child, inner))


def _statements_around(function: FunctionNode, loop: ast.For) -> list[ast.stmt] | None:
    """The statements that run before the loop, in order; None where it is inside of more than branches."""

    def before(block: list[ast.stmt]) -> list[ast.stmt] | None:
        for index, node in enumerate(block):
            if node is loop:
                return block[:index]
            if loop in ast.walk(node):
                if not isinstance(node, ast.If):
                    return None
                branch = node.body if any(loop in ast.walk(part) for part in node.body) else node.orelse
                inside = before(branch)
                return None if inside is None else [*block[:index], *inside]
        raise AssertionError("the loop is in the method")

    return before(function.body)
