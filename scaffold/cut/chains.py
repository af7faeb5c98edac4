"""The calls of several encoders, one after the other, as a function of pixels: what a cut captures for two shapes.

The statements from the first call through the last one stay as they are, and move as one. They may read the pixels and
what they compute themselves. A model has them once for each shape, perhaps with other names: the method has the names
of the first place.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from scaffold.cut.loops import Misfit
from scaffold.descriptor.port import CHAIN_METHOD
from scaffold.diagnostics import Span
from scaffold.protocol.tree import holds_models
from scaffold.syntax import FunctionNode, annotations_of, assigned_to, find_method
from scaffold.tower.names import bound_by, parameters_of
from scaffold.tower.parts import Form, Label
from scaffold.tower.values import Value
from scaffold.tower.waits import WAITS

if TYPE_CHECKING:
    from scaffold.tower.source import Module, Owner, Program

#: Syntax with names of its own, or that leaves a function.
_APART = (
    ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr,
    ast.Await, ast.Yield, ast.YieldFrom,
)  # fmt: skip

#: A tensor that follows from pixels.
_PIXELS = Value(Label.DATA, Form.TENSOR, host=False)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Chain:
    """A run of statements by its lines in the file, the name of the pixels that it reads, and that of its result.

    `steps` are the statements without the names that they use for values. `adds`: the method is made of this one.
    """

    line: int
    end_line: int
    argument: str
    result: str
    steps: tuple[str, ...]
    adds: bool = True
    method: ClassVar[str] = CHAIN_METHOD

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self.argument,)


def starts_of(function: FunctionNode) -> Iterator[tuple[list[ast.stmt], int]]:
    """Every statement of a method, as its block and its place in there, but those of functions and classes inside."""
    pending: list[ast.AST] = [function]
    while pending:
        node = pending.pop()
        for field in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(node, field, None) or []
            for index, statement in enumerate(block):
                yield block, index
                pending += [] if isinstance(statement, _SCOPES) else [statement]


def find_chain(function: FunctionNode, run: Sequence[ast.stmt]) -> Chain | Misfit:
    """A run of statements as a function of the first argument of its first call, or why it cannot be one."""
    values: dict[str, str] = {}
    local = parameters_of(function) | bound_by(ast.walk(function))
    shared = next((node for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal)), None)
    if shared is not None:
        return Misfit(shared, "the method sets variables of others")
    steps: list[str] = []
    argument = ""
    for number, statement in enumerate(run):
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
            return Misfit(statement, "a statement between the calls sets no variable")
        if not argument:
            call = statement.value
            given = [*call.args, *(keyword.value for keyword in call.keywords)] if isinstance(call, ast.Call) else []
            if len(given) != 1 or not isinstance(given[0], ast.Name):
                return Misfit(statement, "the pixels are no variable")
            argument = given[0].id
            values[argument] = "<pixels>"
        for node in ast.walk(statement.value):
            if isinstance(node, _APART):
                return Misfit(node, "it has variables of its own, or waits")
            if isinstance(node, ast.Name) and node.id != "self" and node.id in local - values.keys():
                return Misfit(node, f"it also reads `{node.id}`")
        steps.append(_without_names(statement.value, values))
        values[target.id] = f"<{number}>"
    result = _target(run[-1]).id
    inside = {id(node) for statement in run for node in ast.walk(statement)}
    around = {node.id: node for node in ast.walk(function) if isinstance(node, ast.Name) and id(node) not in inside}
    stored = [node for node in map(_target, run) if node.id != result]
    for node in stored:
        if node.id in around or node.id in parameters_of(function):
            return Misfit(node, f"`{node.id}` is used outside of it, too")
    return Chain(run[0].lineno, run[-1].end_lineno or run[-1].lineno, argument, result, tuple(steps))


def find_wait(program: Program, owner: Owner, run: Sequence[ast.stmt], method: str) -> tuple[str, Span] | None:
    """The first thing that no graph holds in a part which a run of statements of `method` calls: a message and a place.

    A function may make a part, and a class inside of it may be its own. So all counts that the part's assignment names
    in the files of models, directly or not: what waits by its name, and what the `forward` of a class does with its
    tensors.
    """
    from scaffold.tower.interpret import Interpreter

    calls = (node for statement in run for node in ast.walk(statement) if isinstance(node, ast.Call))
    parts = {ast.unparse(call.func) for call in calls}
    pending: list[tuple[Module, ast.AST]] = [
        (module, statement)
        for module, cls in program.lineage(owner)
        for statement in ast.walk(cls)
        if parts & set(map(ast.unparse, assigned_to(statement)))
    ]
    seen: set[ast.AST] = set()
    while pending:
        module, part = pending.pop()
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                what = f"`{module.segment(node)}` waits for the GPU in a part of `{method}`, where a graph cannot"
                return what, module.span(node)
            made = program.resolve(module, node.id) if isinstance(node, ast.Name) else None
            if made is not None and made[1] not in seen and holds_models(made[0].file):
                seen.add(made[1])
                pending.append(made)
        if isinstance(part, ast.ClassDef) and (forward := find_method(part, "forward")) is not None:
            interpreter = Interpreter(program)
            interpreter.run(module, (module, part), forward, dict.fromkeys(_tensors(forward), _PIXELS))
            for hazard in interpreter.hazards.values():
                what = f"`{hazard.what}` in a part of `{method}`: {hazard.reason}"
                return what, Span(hazard.shown, hazard.line, 1, hazard.line, 2)
    return None


def chain_method(chain: Chain, lines: list[str]) -> str:
    """The function's source, without indentation; `lines` are the run's own."""
    body = textwrap.indent(textwrap.dedent("\n".join(lines)), "    ")
    return (
        f"def {CHAIN_METHOD}(self, {chain.argument}: torch.Tensor) -> torch.Tensor:\n"
        f'    """Features of images or crops of one shape."""\n{body}\n    return {chain.result}\n'
    )


def _target(statement: ast.stmt) -> ast.Name:
    assert isinstance(statement, ast.Assign)
    [target] = statement.targets
    assert isinstance(target, ast.Name)
    return target


def _without_names(value: ast.expr, values: dict[str, str]) -> str:
    class Renamed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return ast.Name(values.get(node.id, node.id), node.ctx)

    return ast.dump(Renamed().visit(ast.parse(ast.unparse(value), mode="eval")))


def _tensors(function: FunctionNode) -> list[str]:
    """The parameters that are tensors by their annotation. A model gives the others no values of its pixels."""
    given = annotations_of(function).items()
    return [name for name, kind in given if kind is not None and "Tensor" in ast.unparse(kind)]
