"""Tells whether all that a method returns has memory of its own, so that whoever overwrites its arguments changes none.

A replay overwrites the output of the one before: results that may be views of it are copied. A value has memory of its
own where the tree's source shows how it was made; everything else may be a view.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from scaffold.cut.extract import Extraction
from scaffold.descriptor.expressions import Call
from scaffold.syntax import FunctionNode, bind_call, name_path, nodes_above, parents_of, sets, statements
from scaffold.tower.names import stores
from scaffold.tower.source import Module, Owner, Program

#: Kinds of values: one that may be a view of an argument, a list of tensors with memory of their own, and such a tensor
#: or a tuple of some. The least kind of several values holds for all of them.
_VIEW, _LIST, _OWN = range(3)

#: Functions that copy what they get, unless they write into `out`, and those that give views of what they get.
_COPIES = {f"torch.{name}" for name in ("cat", "concat", "stack", "hstack", "vstack", "matmul", "bmm")}
_VIEWS = {"split", "chunk", "unbind", "view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "to"}
#: Layers that give new tensors, of torch and of vLLM's file.
_LINEAR = ("nn.Linear", "torch.nn.Linear")
_LINEAR_FILE = "vllm/model_executor/layers/linear.py"
_PARALLEL = ("ColumnParallelLinear", "MergedColumnParallelLinear", "ReplicatedLinear", "RowParallelLinear")

#: The way to a statement: each block around it, with the index there and the statement at that place.
_Place: TypeAlias = "tuple[tuple[Sequence[ast.stmt], int, ast.stmt | None], ...]"


def returns_own_memory(program: Program, owner: Owner, extraction: Extraction) -> bool:
    """Whether the last method behind the encoder returns no view of its arguments, for objects of the class `owner`."""
    name = extraction.loop.name if extraction.loop is not None else extraction.after
    assert name is not None
    found = program.method(owner, name)
    if found is not None:
        return _Method(program, found[0], owner, found[2], {}, ()).result() > _VIEW
    edit = next(edit for edit in extraction.edits if name in edit.adds)
    module = program.module(edit.file)
    assert module is not None
    made = [node for node in ast.parse(textwrap.dedent(edit.source)).body if isinstance(node, FunctionNode)]
    function = next(node for node in made if node.name == name)
    return _Method(program, module, owner, function, {}, ()).result() > _VIEW


def gives_own_memory(program: Program, owner: Owner, call: Call) -> bool:
    """Whether a call of a descriptor gives no view of its arguments, for objects of the class `owner`."""
    text = f"def behind(self, {', '.join(sorted(call.names))}):\n    return {call.python()}"
    (function,) = ast.parse(text).body
    assert isinstance(function, FunctionNode)
    return _Method(program, owner[0], owner, function, {}, ()).result() > _VIEW


class _Method:
    """A method of an object of the class `owner`. `known` are arguments that are constants, `callers` those around."""

    def __init__(
        self,
        program: Program,
        module: Module,
        owner: Owner,
        function: FunctionNode,
        known: Mapping[str, object],
        callers: tuple[FunctionNode, ...],
    ) -> None:
        self.program, self.module, self.owner, self.function = program, module, owner, function
        self.callers = (*callers, function)
        self.known = {name: value for name, value in known.items() if name not in stores(function)}
        self.places = {place[-1][2]: place for place in self._walk(function.body, ())}
        self.parents = parents_of(function)
        #: Variables of comprehensions around an expression, and lists whose items are being looked at.
        self.bound: list[str] = []
        self.filled: list[str] = []

    def result(self) -> int:
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Yield, ast.YieldFrom, ast.Match)
        if self.function.decorator_list or any(isinstance(one, inner) for one in self.parents):
            return _VIEW
        ends = [(node.value, place) for node, place in self.places.items() if isinstance(node, ast.Return)]
        return min((self.kind(value, place) for value, place in ends), default=_VIEW)

    def _walk(self, body: Sequence[ast.stmt], outside: _Place) -> Iterator[_Place]:
        for index, node in enumerate(body):
            place: _Place = (*outside, (body, index, node))
            yield place
            for block in self._blocks(node):
                yield from self._walk(block, place)

    def _blocks(self, node: ast.stmt) -> list[list[ast.stmt]]:
        """The blocks of a statement that may run."""
        if isinstance(node, ast.If):
            decided = _decided(node.test, self.known)
            return [node.body] * (decided is not False) + [node.orelse] * (decided is not True)
        handlers = [one.body for one in getattr(node, "handlers", ())]
        return [getattr(node, name, []) for name in ("body", "orelse", "finalbody")] + handlers

    def kind(self, node: ast.expr | None, place: _Place) -> int:
        """The kind of an expression at a place."""

        def least(*nodes: ast.expr) -> int:
            return min((self.kind(one, place) for one in nodes), default=_OWN)

        match node:
            case None | ast.Constant() | ast.BinOp(op=ast.MatMult() | ast.Div() | ast.FloorDiv() | ast.Pow()):
                return _OWN
            case ast.Name() if node.id not in self.bound:
                found = self._variable(node.id, place)
                return _VIEW if found == _LIST and not self._is_filled_with_own(node.id) else found
            case ast.Tuple():
                return least(*node.elts)
            case ast.List():
                return min(_LIST, least(*node.elts))
            case ast.ListComp() | ast.GeneratorExp():
                names, outer = stores(node), self.bound
                self.bound = [*outer, *names]
                found, self.bound = least(node.elt), outer
                return min(_LIST, found)
            case ast.IfExp():
                decided = _decided(node.test, self.known)
                return least(*[node.body] * (decided is not False), *[node.orelse] * (decided is not True))
            case ast.Subscript():
                return least(node.value)
            case ast.Call():
                return self._call(node, place)
        return _VIEW

    def _call(self, node: ast.Call, place: _Place) -> int:
        path = name_path(node.func)
        text = ".".join(path)
        if text == "list" and not node.args:
            return _LIST
        if text in _COPIES:
            return _VIEW if "out" in [one.arg for one in node.keywords] else _OWN
        if (text in ("list", "tuple") or (path[:-1] == ["torch"] and path[-1] in _VIEWS)) and node.args:
            return self.kind(node.args[0], place)
        if path[:1] == ["self"] and len(path) > 1:
            return _OWN if self._is_linear(path[1:]) else self._method(node, path[1:])
        viewed = isinstance(node.func, ast.Attribute) and node.func.attr in _VIEWS
        return self.kind(node.func.value, place) if viewed and isinstance(node.func, ast.Attribute) else _VIEW

    def _variable(self, name: str, place: _Place) -> int:
        """The kind of a variable: that of the assignments that come last, on each way to a place."""
        for depth in reversed(range(len(place))):
            body, end, _ = place[depth]
            for index in reversed(range(end)):
                node = body[index]
                if name not in stores(node):
                    continue
                here: _Place = (*place[:depth], (body, index, node))
                match node:
                    case ast.Assign(targets=[ast.Name() | ast.Tuple()]) | ast.AnnAssign(target=ast.Name()):
                        return self.kind(node.value, here) if name not in stores(node.value or node) else _VIEW
                    case ast.If() if name not in stores(node.test):
                        ways = [way for way in self._blocks(node) if not (way and isinstance(way[-1], _LEAVING))]
                        return min((self._variable(name, (*here, (way, len(way), None))) for way in ways), default=_OWN)
                return _VIEW
            # A loop, or what else has blocks, may have set it before.
            around = place[depth - 1][2] if depth else None
            if name in stores(around.test if isinstance(around, ast.If) else around or ast.Pass()):
                return _VIEW
        return _VIEW

    def _is_filled_with_own(self, name: str) -> bool:
        """Whether nothing but tensors with memory of their own comes into a list, which nobody else gets."""
        if name in self.filled:
            return True
        self.filled.append(name)
        uses = [one for one in self.parents if isinstance(one, ast.Name) and one.id == name]
        known = all(isinstance(one.ctx, ast.Store) or self._is_harmless(one) for one in uses)
        self.filled.pop()
        return known

    def _is_harmless(self, use: ast.Name) -> bool:
        above = [use, *nodes_above(self.parents, use)]
        place = next(self.places[node] for node in above if node in self.places)
        match above[1:4]:
            case [ast.Attribute(attr="append"), ast.Call(args=[item], keywords=[]), ast.Expr()]:
                return self.kind(item, place) == _OWN
            case [ast.Return(), *_]:
                return True
            case [ast.Call(func=func), *_]:
                return ast.unparse(func) in {*_COPIES, "len", "list", "tuple"}
        return False

    def _method(self, node: ast.Call, path: Sequence[str]) -> int:
        """The kind of the result of a method of the model or of a part of it."""
        found = self.program.run_by(path, self._part)
        if found is None or found[0][2] in self.callers:
            return _VIEW
        (module, _, function), owner, _ = found
        bound = bind_call(function, node.args, {one.arg or "**": one.value for one in node.keywords}, skip_first=True)
        given = {name: value for name, value in (bound.defaults | bound.given).items() if value is not None}
        known = {name: value.value for name, value in given.items() if isinstance(value, ast.Constant)}
        starred = bound.rest or bound.extra or any(isinstance(one, ast.Starred) for one in node.args)
        return _Method(self.program, module, owner, function, {} if starred else known, self.callers).result()

    def _made(self, owner: Owner, name: str) -> tuple[Owner | None, str]:
        """The class whose calls are all that `self.NAME` is ever set to, and its name where the tree lacks it."""
        found: set[tuple[Owner | None, str]] = set()
        for module, one in self.program.lineage(owner):
            for node in (node for node in statements(one) if sets(node, name)):
                match node:
                    case ast.Assign(targets=[_], value=ast.Call(func=func)):
                        home, text = self._maker(owner, module, func)
                        made = self.program.resolve(home, text)
                        class_ = (made[0], made[1]) if made and isinstance(made[1], ast.ClassDef) else None
                        found.add((class_, "" if made else text))
                    case _:
                        return None, ""
        return found.pop() if len(found) == 1 else (None, "")

    def _maker(self, owner: Owner, module: Module, called: ast.expr) -> tuple[Module, str]:
        """The class that a call makes an object of: itself, or that which a method of the object returns one of."""
        path = name_path(called)
        method = self.program.method(owner, path[1]) if len(path) == 2 and path[0] == "self" else None
        match method[2].body if method is not None else []:
            case [*_, ast.Return(value=ast.Call(func=func))] as body if method is not None and len(body) == 1:
                return method[0], ast.unparse(func)
        return module, ast.unparse(called)

    def _part(self, path: Sequence[str]) -> Owner | None:
        """The class of a part of the object."""
        owner: Owner | None = self.owner
        for name in path:
            owner = self._made(owner, name)[0] if owner is not None else None
        return owner

    def _is_linear(self, path: Sequence[str]) -> bool:
        holder = self._part(path[:-1])
        made, name = self._made(holder, path[-1]) if holder is not None else (None, "")
        return name in _LINEAR if made is None else made[0].file == _LINEAR_FILE and made[1].name in _PARALLEL


#: Statements behind which a block does not go on.
_LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def _decided(test: ast.expr, known: Mapping[str, object]) -> bool | None:
    """Whether a test of texts holds; None where it reads anything else."""

    def text(node: ast.expr) -> object:
        return node.value if isinstance(node, ast.Constant) else known.get(getattr(node, "id", ""))

    match test:
        case ast.Compare(ops=[ast.Eq()], comparators=[right]):
            first, second = text(test.left), text(right)
            return first == second if isinstance(first, str) and isinstance(second, str) else None
        case ast.Compare(ops=[ast.In()], comparators=[right]):
            first, second = text(test.left), text(right)
            return first in second if isinstance(first, str) and isinstance(second, str) else None
        case ast.Call(func=ast.Attribute(value=value, attr="startswith"), args=[start], keywords=[]):
            first, second = text(value), text(start)
            return first.startswith(second) if isinstance(first, str) and isinstance(second, str) else None
    return None
