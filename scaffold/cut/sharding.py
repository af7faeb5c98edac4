"""The parameter that keeps a model's own data parallelism out of a captured graph, on each method that leads there.

A model reads a switch, such as `self.use_data_parallel`, where it splits a batch over all ranks. The manager has given
each rank its items already, and a graph that waits for other ranks may wait for ever. So the methods between the port
and the switch get a last parameter of the switch's name: None, the default, leaves the switch as it is.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from scaffold.cut.hoist import documented, is_none, method_lines
from scaffold.edit.operations import Edit, ReplaceMethod
from scaffold.protocol import SourceTree
from scaffold.syntax import FunctionNode, call_name, end_of, self_attribute, sets
from scaffold.tower.source import Method, Module, Owner, Program

_ANNOTATION = "bool | None"
_DOCUMENTATION = "Whether all ranks share the batch; None: as configured."

#: A method: its file, class and name.
Place: TypeAlias = tuple[str, str, str]


#: vLLM's linear layers whose weights are split over ranks, unless `disable_tp` says otherwise.
_SPLIT_LAYERS = ("ColumnParallelLinear", "RowParallelLinear", "QKVParallelLinear")


def splits_weights(node: ast.AST) -> bool:
    """Whether a node makes a linear layer whose weights ranks share, whatever the configuration says."""
    if not isinstance(node, ast.Call) or not (call_name(node) or "").endswith(_SPLIT_LAYERS):
        return False
    return not any(keyword.arg == "disable_tp" for keyword in node.keywords)


@dataclass(frozen=True)
class Sharding:
    """The methods that get the parameter `name`, with their edits by file and their calls that pass it, and those of a
    port.
    """

    name: str
    edits: dict[str, tuple[Edit, ...]]
    forwards: dict[Place, frozenset[str]]
    calls: frozenset[str]

    @property
    def methods(self) -> tuple[Place, ...]:
        return tuple(self.forwards)

    def off(self, code: str) -> str:
        """An expression of a port, with the parameter in its calls."""
        expression = ast.parse(code, mode="eval")
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in self.calls:
                node.keywords.append(ast.keyword(self.name, ast.Constant(value=False)))
        return ast.unparse(expression)


def find_sharding(
    tree: SourceTree, model: Owner, heirs: Sequence[Owner], forward: str, switches: Sequence[str]
) -> Sharding | None:
    """The methods between `forward`, the call of a port, and its switches.

    None where the switches have several names, nothing tells a tower's class, no method reads a switch, or one uses the
    name for something else.
    """
    names = {path.rpartition(".")[2] for path in switches}
    if len(names) != 1:
        return None
    (name,) = names
    holders = {path.rpartition(".")[0] for path in switches}
    found = _Search(tree, name, holders)
    calls = [node for node in ast.walk(ast.parse(forward, mode="eval")) if isinstance(node, ast.Call)]
    classes = [model, *heirs]
    if not all(found.knows(owner) for owner in classes):
        return None
    reached = [(ast.unparse(call.func), called) for call in calls for called in found.called(call, "self")]
    passed = {text for text, called in reached if any(found.leads(owner, *called) for owner in classes)}
    known = -1
    while known != found.size:  # a method that one class runs may pass the parameter because of another class
        known = found.size
        for owner in classes:
            for text, called in reached:
                if text in passed:
                    found.widen(owner, *called)
    if not passed or any(_is_taken(method, name) for method in found.widened.values()):
        return None
    edits: dict[str, list[Edit]] = {}
    for (file, class_name, function), calls_on in sorted(found.forwards.items()):
        source = _source(tree, (file, class_name, function), name, calls_on)
        edits.setdefault(file, []).append(ReplaceMethod(class_name, function, source))
    by_file = {file: tuple(listed) for file, listed in edits.items()}
    forwards = {place: frozenset(texts) for place, texts in sorted(found.forwards.items())}
    return Sharding(name, by_file, forwards, frozenset(passed))


class _Search:
    """Follows calls of the model and of its parts that have a switch, for each class that the model may be of."""

    def __init__(self, tree: SourceTree, name: str, holders: set[str]) -> None:
        self.program, self.name, self.holders = Program(tree), name, holders
        #: Methods that get the parameter, and those of their calls that pass it.
        self.widened: dict[Place, FunctionNode] = {}
        self.forwards: dict[Place, set[str]] = {}

    @property
    def size(self) -> int:
        """Grows with each method and call that is found."""
        return len(self.widened) + sum(map(len, self.forwards.values()))

    def knows(self, owner: Owner) -> bool:
        """Whether the class of each part with a switch is known."""
        return all(self._parts(owner, path) for path in self.holders)

    def called(self, call: ast.Call, path: str) -> Iterator[tuple[str, str]]:
        """The method that a call in a method of `path` may run, with the path of the object that has it."""
        text = ast.unparse(call.func)
        if text.startswith("self."):
            text = f"{path}.{text.removeprefix('self.')}"
            holder, _, method = text.rpartition(".")
            if text in self.holders:
                yield text, "forward"
            elif holder in ("self", *self.holders):
                yield holder, method

    def leads(self, owner: Owner, path: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> bool:
        """Whether a method reads a switch, or calls one that does, where the model is of the class `owner`."""
        if (path, name) in seen:
            return False
        seen |= {(path, name)}
        for _, _, method in self._methods(owner, path, name):
            for node in ast.walk(method):
                if path in self.holders and isinstance(node, ast.Attribute) and self_attribute(node) == self.name:
                    return True
                if isinstance(node, ast.Call):
                    for called in self.called(node, path):
                        if self.leads(owner, *called, seen):
                            return True
        return False

    def widen(self, owner: Owner, path: str, name: str) -> None:
        """Note a method and those below it that lead to a switch, in every class of the object."""
        for module, holder, method in self._methods(owner, path, name):
            place = (module.file, holder.name, method.name)
            self.widened[place] = method
            forwards = self.forwards.setdefault(place, set())
            for node in ast.walk(method):
                if isinstance(node, ast.Call):
                    for called in self.called(node, path):
                        text = ast.unparse(node.func)
                        if called != (path, name) and (text in forwards or self.leads(owner, *called)):
                            forwards.add(text)
                            self.widen(owner, *called)

    def _methods(self, owner: Owner, path: str, name: str) -> Iterator[Method]:
        found = (self.program.method(part, name) for part in self._parts(owner, path))
        return (method for method in found if method is not None)

    def _parts(self, owner: Owner, path: str) -> list[Owner]:
        """The classes that a part of the model may be of; none where one is not known."""
        if path == "self":
            return [owner]
        attribute = path.removeprefix("self.")
        for module, member in self.program.lineage(owner):
            made = [
                node.value
                for node in ast.walk(member)
                if isinstance(node, ast.Assign) and sets(node, attribute) and not is_none(node.value)
            ]
            if made:
                found = [part for value in made for part in self._made(owner, module, value)]
                return [part for part in found if part is not None] if None not in found else []
        return []

    def _made(self, owner: Owner, module: Module, value: ast.expr) -> Iterator[Owner | None]:
        """The classes of an expression's value: of a call of a class, or of all that a method gives."""
        maker = self_attribute(value.func) if isinstance(value, ast.Call) else None
        method = self.program.method(owner, maker) if maker is not None else None
        if method is not None:
            for node in ast.walk(method[2]):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield from self._made(owner, method[0], node.value)
            return
        found = self.program.resolve(module, ast.unparse(value.func)) if isinstance(value, ast.Call) else None
        yield (found[0], found[1]) if found is not None and isinstance(found[1], ast.ClassDef) else None


def _is_widened(function: FunctionNode, name: str) -> bool:
    """Whether an earlier port gave the method its parameter."""
    parameters = function.args.kwonlyargs or function.args.args
    last = parameters[-1]
    return last.arg == name and last.annotation is not None and ast.unparse(last.annotation) == _ANNOTATION


def _is_taken(function: FunctionNode, name: str) -> bool:
    used = any(getattr(node, "id", None) == name or getattr(node, "arg", None) == name for node in ast.walk(function))
    return used and not _is_widened(function, name)


def _source(tree: SourceTree, place: Place, name: str, passes: set[str]) -> str:
    """The method with its parameter, without indentation."""
    from scaffold.cut.rewriting import Added, hoisted_text

    function, lines = method_lines(tree, *place)
    if _is_widened(function, name):
        return textwrap.dedent("\n".join(lines)) + "\n"
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    ends = (end_of(node) for node in calls if ast.unparse(node.func) in passes)
    added = Added.to(function, lines, (name,), _ANNOTATION, ends)
    return documented(_guarded(hoisted_text(added, None), name), name, _DOCUMENTATION)


def _guarded(text: str, name: str) -> str:
    """The method that reads its parameter instead of the switch, which is the parameter's value where that is None."""
    (function,) = ast.parse(text).body
    assert isinstance(function, FunctionNode)
    lines = text.splitlines(keepends=True)
    reads = [node for node in ast.walk(function) if isinstance(node, ast.Attribute) and self_attribute(node) == name]
    if not reads:
        return text
    for node in sorted(reads, key=end_of, reverse=True):
        line = lines[node.lineno - 1].encode()
        lines[node.lineno - 1] = (line[: node.col_offset] + name.encode() + line[node.end_col_offset :]).decode()
    first = min(reads, key=end_of).lineno
    statement = max((one for one in function.body if one.lineno <= first), key=lambda one: one.lineno)
    guard = f"if {name} is None:\n    {name} = self.{name}\n"
    lines.insert(statement.lineno - 1, textwrap.indent(guard, " " * statement.col_offset))
    return "".join(lines)
