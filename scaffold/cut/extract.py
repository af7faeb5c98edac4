"""The parts of a model's own code that an explicit port has: the calls that a graph holds, and what follows them.

A port repeats the calls, and the model's code keeps its own. The statements behind them become a method, which takes
the features and what they read beside them. The model's code calls it, so a port runs nothing twice. Statements keep
their order.
"""

from __future__ import annotations

import ast
import copy
import itertools
import textwrap
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scaffold.cut.hoist import method_lines
from scaffold.cut.items import ItemLoop, find_item_loop
from scaffold.cut.result import find_change
from scaffold.descriptor.expressions import Call, ExpressionError, parse_call
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.edit.operations import AddImport, ReplaceMethod
from scaffold.syntax import (
    FunctionNode,
    annotations_of,
    bind_call,
    end_of,
    find_method,
    nodes_above,
    parents_of,
    statements,
)
from scaffold.tower.names import stores
from scaffold.tower.parts import MethodEdit

if TYPE_CHECKING:
    from scaffold.cut.way import Station, Way
    from scaffold.edit.operations import Edit
    from scaffold.protocol import SourceTree
    from scaffold.tower.source import Owner

#: The inputs of a batch in the protocol's method that puts results together, and other variables of it.
_INPUTS = "batch_mm_kwargs"
_TAKEN = (_INPUTS, "outputs", "indices", "dest", "clone", "features", "num_patches", "num_chunks", "index", "embeds")

#: Functions that compute sizes on the host, and the other nodes of such an expression.
_FUNCTIONS = ("len", "list", "map", "sum")
_HOST = (ast.Name, ast.Constant, ast.Subscript, ast.Call, ast.Lambda, ast.arguments, ast.arg, ast.IfExp, ast.Compare,
         ast.BinOp, ast.operator, ast.cmpop, ast.expr_context)  # fmt: skip

#: The pixels in the place of a call's own argument.
_PIXELS = "pixels"
#: All that a graph holds, as one call.
_HELD = "self._held"
#: The pixels in what a graph holds.
_PARAMETER = "pixel_values"


@dataclass(frozen=True)
class Prepared:
    """How a port of rows calls the parts of a tower around its layers.

    `prepare` calls the method `before`, which gives the variables `made`, in this order. `encode` is a call of the
    layers, which reads some of them: a graph holds it.
    """

    before: str
    prepare: str
    made: tuple[str, ...]
    encode: ast.expr


@dataclass(frozen=True)
class PreparedCall(Prepared):
    """The encoder has a call of its own. `whole` gives the same features of inputs. `backend` tells FlashInfer's
    attention from others."""

    whole: str
    backend: str


@dataclass(frozen=True)
class PreparedLoop(Prepared):
    """The layers run in a loop. `uploads`: the statements of `before` copy offsets from the host to the device.

    `invariant`: a parameter that takes the sizes has another type of list than one of tuples, by its annotation.
    `parameters` are those for sequences that methods get, by class and name.
    """

    uploads: bool
    invariant: bool
    parameters: Mapping[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True)
class Extraction:
    """The new source of methods on a way, and how a port calls what they became.

    `after` is the method of what follows the encoder, if anything does, with the `arguments` that a port hands to
    it beside the features, which come in at `place`. `parsed` is a variable that they read, and its value: what the
    model parses the inputs of a batch into, which may be None by its type where it `may_be_nothing`. `unpacked` are
    variables that a method of the model gives of it, and the call. `split`: it takes the features of each item,
    else those of the batch. `regroups`: the model takes an axis of the pixels away, if there is one. A graph holds
    `held`, an expression of `pixel_values`, which may be None by its type where that is `optional`. `returns` is
    the type of what `after` gives. It takes the features of one item where the model encodes one after another in a
    `loop`.
    """

    edits: tuple[MethodEdit, ...]
    methods: tuple[tuple[str, str, str], ...]
    after: str | None
    arguments: tuple[str, ...]
    parsed: tuple[str, str] | None
    split: bool
    regroups: bool
    held: str = ""
    returns: str = ""
    prepared: Prepared | None = None
    unpacked: tuple[str, str] | None = None
    place: int = 0
    optional: bool = False
    loop: ItemLoop | None = None
    may_be_nothing: bool = True

    def by_file(self) -> dict[str, tuple[Edit, ...]]:
        """The edits of each file."""
        found: dict[str, list[Edit]] = {}
        for edit in self.edits:
            replaced = ReplaceMethod(edit.class_name, edit.replaces, edit.source)
            typing = [AddImport("typing", "Any")] if "[Any" in edit.source else []
            typing += [AddImport("collections.abc", "Iterable")] if "Iterable[" in edit.source else []
            found.setdefault(edit.file, []).extend((AddImport("torch"), *typing, replaced))
        return {file: tuple(dict.fromkeys(edits)) for file, edits in found.items()}


@dataclass(frozen=True)
class Form:
    """The `call` that a graph of an explicit port holds, and the name of the method that follows it, if any does.

    `entry` leads to the encoder. `asked` is the place in a descriptor. A graph of rows holds the encoder's own call.
    `beside` are the names of what the encoder gets with each unit, in the order of its call. `items` is the name of the
    method that follows a loop over items.
    """

    entry: Call
    call: Call | None
    after: str | None
    asked: Span
    beside: tuple[str, ...] = ()
    items: str | None = None


def find_extraction(tree: SourceTree, family: Sequence[Owner], way: Way, form: Form) -> Extraction | Diagnostic:
    """The methods that an explicit port makes of those on a way; a note where this tree's code has another form.

    `family` are the model's class and its bases. Raises VCG465 where what follows the encoder reads a value that is no
    input of the model.
    """
    try:
        return _Extractor(tree, family, way, form).run()
    except _Misfit as misfit:
        return misfit.note(tree, form)


def find_calls(tree: SourceTree, way: Way, beside: Sequence[str] = ()) -> tuple[Call, ...]:
    """The calls of the model on its units around those of the encoder, as a descriptor says them; the inner first.

    `beside` names what the encoder gets with each unit.
    """
    found: dict[str, Call] = {}
    for station in way.stations:
        method = _Method(station, *method_lines(tree, *station.place))
        for site, units in zip(method.calls(station.sites), station.units, strict=False):
            for run in runs_of(method.function, site, units, beside):
                with suppress(ExpressionError):
                    found.setdefault(run.call, parse_call(run.call))
    return tuple(found.values())


def find_tails(tree: SourceTree, family: Sequence[Owner], way: Way) -> tuple[str, ...]:
    """The methods of the model whose results those on a way return: one may be all that follows the encoder.

    A module of the model is no method, though it is called as one.
    """
    functions = [method_lines(tree, *one.place)[0] for one in way.stations]
    called = [_callee(one.body[-1].value) for one in functions if isinstance(one.body[-1], ast.Return)]
    own = dict.fromkeys(name.removeprefix("self.") for name in called if name.startswith("self."))
    return tuple(name for name in own if any(find_method(owner, name) for _, owner in family))


@dataclass(frozen=True)
class Run:
    """The expression that gives what a graph holds.

    `call` is what it computes of `pixels`, as a descriptor says it, and `body` the same of `pixel_values` before a
    conversion of their type.
    """

    whole: ast.expr
    call: str
    body: str


@dataclass(frozen=True)
class _Method:
    """A method on the way, its lines in the file, and the calls in it that lead to the encoder."""

    station: Station
    function: FunctionNode
    lines: list[str]
    runs: tuple[Run, ...] = ()

    @property
    def first(self) -> int:
        return (self.function.end_lineno or 0) - len(self.lines) + 1

    @property
    def parameters(self) -> list[str]:
        spec = self.function.args
        named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
        return [parameter.arg for parameter in named]

    def calls(self, ends: Sequence[tuple[int, int]]) -> list[ast.Call]:
        found = [node for node in ast.walk(self.function) if isinstance(node, ast.Call)]
        return [node for end in ends for node in found if end_of(node) == end]

    @property
    def leading(self) -> list[ast.expr]:
        """The calls that lead on, or all that a graph holds around them."""
        held = [run.whole for run in self.runs] or self.calls(self.station.sites)
        return [*held, *self.calls(self.station.forwards)]

    @property
    def tail(self) -> int | None:
        """The place of the first statement behind the one that calls the encoder, if there is only one such call."""
        for place, node in enumerate(self.function.body[:-1], 1):
            below = self.function.body[place].lineno > (node.end_lineno or 0)
            if isinstance(node, ast.Assign) and [node.value] == self.leading and _target(node) and below:
                return place
        return None

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def is_bare(self, node: ast.stmt) -> bool:
        """Whether no comment is above a statement."""
        return not self.lines[node.lineno - self.first - 1].lstrip().startswith("#")

    def lines_of(self, nodes: Sequence[ast.stmt]) -> list[str]:
        """The lines of statements."""
        return [line for node in nodes for line in self.lines[node.lineno - self.first : self._below(node)]]

    def lines_before(self, last: ast.stmt, without: Sequence[ast.stmt]) -> list[str]:
        """The lines up to a statement, with that, but without some statements and a second empty line there."""
        dropped = {place for node in without for place in range(node.lineno - self.first, self._below(node))}
        kept = [line for place, line in enumerate(self.lines[: self._below(last)]) if place not in dropped]
        pairs = zip(kept, ["x", *kept], strict=False)
        return [line for line, above in pairs if line.strip() or above.strip() or not dropped]

    def lines_below(self, last: ast.stmt) -> list[str]:
        """The lines behind a statement."""
        return self.lines[self._below(last) :]

    def _below(self, node: ast.stmt) -> int:
        return (node.end_lineno or 0) - self.first + 1

    def offset(self, line: int, column: int) -> int:
        """The place of a line and column of the file in the bytes of the text."""
        return sum(len(text.encode()) + 1 for text in self.lines[: line - self.first]) + column

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        return self.offset(*end_of(node))


class _Misfit(Exception):
    """The model's code has another form than an explicit port needs."""

    def __init__(self, method: _Method, reason: str) -> None:
        super().__init__(reason)
        self.method, self.reason = method, reason

    def note(self, tree: SourceTree, form: Form) -> Diagnostic:
        return Diagnostic(
            "VCG466",
            f"the port runs the model's code again for each batch: {self.reason}",
            form.asked,
            severity=Severity.INFO,
            notes=(f"look at {tree.span(self.method.station.file, self.method.function.lineno)}",),
        )


class _Extractor:
    def __init__(self, tree: SourceTree, family: Sequence[Owner], way: Way, form: Form) -> None:
        self.tree, self.form = tree, form
        self.module, self.owner = family[0]
        self.owners = {(module.file, owner.name) for module, owner in family}
        self.functions = [node for _, owner in family for node in owner.body if isinstance(node, FunctionNode)]
        self.names = {node.name for node in self.functions}
        #: A method is before those that it calls.
        self.methods = [_Method(one, *method_lines(tree, *one.place)) for one in reversed(way.stations)]
        self.parsed: tuple[str, str] | None = None
        self.unpacked: tuple[str, str] | None = None
        #: The loop over items, and the method that has it.
        self.loop: ItemLoop | None = None
        self.around: _Method | None = None
        if form.call is not None:
            self._find_runs(form.call)
        #: The method of the model that a graph holds, where that is all.
        self.own = form.call.path if form.call is not None and self._is_own(form.call) else ""

    def run(self) -> Extraction:
        held = [run.body for method in self.methods for run in method.runs]
        if not held:
            raise _Misfit(self.methods[-1], "the calls that a graph holds are not one after the other here")
        cut = self._find_tail() if self.form.after else None
        if cut is not None and self.form.items is not None:
            self.loop, self.around = self._find_loop(cut, self.form.items)
        sunk = self._sunk(cut) if cut is not None else []
        live = self._live(cut, sunk) if cut is not None else []
        place = len(live)
        if cut is not None and self._is_cut(cut):
            live, place = self._called(cut, live)
        last = self.methods.index(cut) if cut is not None else len(self.methods)
        for index, method in enumerate(self.methods):
            if method is not cut and method is not self.around:
                self._check_result(method, inner=index > last)
        arguments = self._unparsed([self._argument(cut, name) for name in live]) if cut is not None else []
        return Extraction(
            (*self._loop_edits(), *self._after_edits(cut, live, sunk)) if cut is not None else (),
            tuple(method.station.place for method in self.methods),
            self.form.after,
            tuple(arguments),
            self.parsed,
            cut is not None and not cut.station.sites and _callee(cut.leading[0]) != self.own,
            any(_regroups(node) for method in self.methods for node in ast.walk(method.function)),
            held[0],
            ast.unparse(cut.function.returns) if cut is not None and cut.function.returns else "",
            unpacked=self.unpacked,
            place=place,
            optional=self._may_be_none(held[0]),
            loop=self.loop,
            may_be_nothing=self._may_be_nothing(),
        )

    # -- what a graph holds

    def _find_runs(self, call: Call) -> None:
        """Give each method its runs; none where a method has no call that a graph holds, or uses parts of it."""
        wanted = ast.unparse(ast.parse(call.python(), mode="eval"))
        found, first = [], None
        for method in self.methods:
            station, runs = method.station, []
            sites = zip(method.calls(station.sites), station.units, strict=False)
            for site, units in sites if (station.file, station.class_name) in self.owners else ():
                runs_here = runs_of(method.function, site, units, self.form.beside)
                run = next((one for one in runs_here if one.call == wanted), None)
                first = first or run
                if run is not None and first is not None and run.body == first.body:
                    runs.append(run)
            found.append(_Method(station, method.function, method.lines, tuple(runs)))
        if all(method.runs for method in found if method.station.sites):
            self.methods = found

    def _is_own(self, call: Call) -> bool:
        """Whether the call is all that the model does with the pixels, and calls a method of the model alone."""
        alone = ast.unparse(ast.parse(call.python({_PIXELS: _PARAMETER}), mode="eval"))
        bodies = {run.body for method in self.methods for run in method.runs}
        return call.path.removeprefix("self.") in self.names and not [*call.calls()][1:] and bodies == {alone}

    def _may_be_none(self, held: str) -> bool:
        """Whether a method of that name in the model's file may give None, as its annotation says."""
        called = _callee(ast.parse(held, mode="eval").body).rpartition(".")[2]
        files = {method.station.file for method in self.methods}
        nodes = itertools.chain.from_iterable(statements(self.tree.parse(file)) for file in files)
        methods = [node for node in nodes if isinstance(node, FunctionNode) and node.name == called and node.returns]
        return any(ast.unparse(node.returns or node).endswith("| None") for node in methods)

    # -- what follows it

    def _find_tail(self) -> _Method:
        """The method whose last statements become one."""
        for method in self.methods:
            if method.tail is None:
                continue
            if self.form.after in self.names and not self._is_cut(method):
                raise _Misfit(method, f"the model has a method `{self.form.after}` of its own")
            return method
        raise _Misfit(self.methods[0], "no statement before others keeps what the encoder's one call gives")

    def _find_loop(self, cut: _Method, name: str) -> tuple[ItemLoop, _Method]:
        """The loop over items that calls the method which is `cut`, and its own method. A port has these items, too."""
        for method in self.methods[: self.methods.index(cut)]:
            if [_callee(one) for one in method.leading] != [f"self.{cut.function.name}"]:
                continue
            loop = find_item_loop(method.function, method.lines, method.leading[0], name)
            if loop is None or (loop.source and name in self.names):
                continue
            if self._given(method, ast.Name(loop.items, ast.Load()), frozenset()) == loop.items:
                return loop, method
        raise _Misfit(self.methods[0], f"it has no loop over items whose rest can be a method `{name}`")

    def _loop_edits(self) -> tuple[MethodEdit, ...]:
        if self.loop is None or self.around is None or not self.loop.source:
            return ()
        station = self.around.station
        adds = (self.loop.name,)
        return (MethodEdit(station.file, station.class_name, station.function, adds, self.loop.source),)

    def _is_cut(self, method: _Method) -> bool:
        """Whether the last statements are a call of a method: the model's own, or one that an earlier port made."""
        last = method.function.body[method.tail or 0 :]
        return [_callee(getattr(node, "value", None)) for node in last] == [f"self.{self.form.after}"]

    def _called(self, method: _Method, live: Sequence[str]) -> tuple[list[str], int]:
        """The variables that this call hands over beside the features, and the place of those."""
        call = getattr(method.function.body[-1], "value", None)
        given = [*map(ast.unparse, call.args)] if isinstance(call, ast.Call) and not call.keywords else []
        features = _target(method.function.body[(method.tail or 0) - 1])
        takes = next([arg.arg for arg in one.args.args] for one in self.functions if one.name == self.form.after)
        if sorted(given) != sorted([*live, features]) or takes != ["self", *given]:
            raise _Misfit(method, f"`{self.form.after}` calls its parameters otherwise than `{method.function.name}`")
        return [name for name in given if name != features], given.index(features)

    def _sunk(self, method: _Method) -> list[ast.Assign]:
        """The statements before the encoder's call that compute sizes for the last statements alone, on the host.

        They pass only statements that give variables values: another one may change what they read.
        """
        found: list[ast.Assign] = []
        body = method.function.body[: method.tail if not self._is_cut(method) else 0]
        for index, node in reversed([*enumerate(body[:-1])]):
            called = {_callee(one) for one in ast.walk(node) if isinstance(one, ast.Call)}
            if not isinstance(node, ast.Assign) or not _target(node) or not called or not called <= {*_FUNCTIONS}:
                continue
            passed = {one.id for other in body[index + 1 :] if other not in found for one in _names([other])}
            read = {one.id for one in _names([node])} - called
            below = body[index + 1].lineno > (node.end_lineno or 0)
            free = below and method.is_bare(node) and all(map(_target, body[index + 1 :])) and not passed & read
            if free and all(map(self._is_host, ast.walk(node.value))):
                found.insert(0, node)
        return found

    def _live(self, method: _Method, sunk: Sequence[ast.stmt] = ()) -> list[str]:
        """The names that the last statements read and others have set, but that of the features."""
        place = method.tail
        before = [node for node in method.function.body[:place] if node not in sunk]
        after = [*sunk, *method.function.body[place:]]
        stored = [node.id for node in _names(before) if isinstance(node.ctx, ast.Store)]
        others = {node.id for node in _names(after)} - {"self", _target(before[-1])}
        return [
            name for name in dict.fromkeys([*method.parameters, *stored]) if name in others and _is_read(after, name)
        ]

    def _argument(self, method: _Method, name: str) -> str:
        """The expression that a port hands over for a name that lives across the encoder's call. Raises VCG465."""
        found = self._given(method, ast.Name(name, ast.Load()), frozenset())
        if found is not None:
            return found
        place = next(node for node in _names([method.function]) if node.id == name)
        raise DiagnosticError(
            Diagnostic(
                "VCG465",
                f"`{name}` lives across the encoder's call in `{method.function.name}`, and is no input of the model",
                self.tree.span(method.station.file, place.lineno),
                "delete `explicit` from the descriptor, which then is for the plugin's adapter alone",
                notes=(f"asked for by {self.form.asked}",),
            )
        )

    def _given(self, method: _Method, node: ast.expr, seen: frozenset[tuple[str, str]]) -> str | None:
        """The part of a batch's inputs, or of what the model parses them into, that an expression of a method is."""
        function = method.function
        match node:
            case ast.Name(id=name) if (function.name, name) in seen:
                return None
            case ast.Name(id=name) if self.loop is not None and (method, name) == (self.around, self.loop.item):
                return name
            case ast.Name(id=name):
                seen |= {(function.name, name)}
                stored = [one for one in _names([function]) if one.id == name and isinstance(one.ctx, ast.Store)]
                values = [
                    one.value for one in ast.walk(function) if isinstance(one, ast.Assign) and _target(one) == name
                ]
                if name in method.parameters:
                    return None if stored else self._handed(method, name, seen)
                if len(stored) == 1 and not values:
                    return self._unpacked_as(method, name, seen)
                if not len(stored) == len(values) == 1:
                    return None
                call = self._parse_call(method, values[0])
                return self._parsed_as(name, call) if call else self._given(method, values[0], seen)
            case ast.Subscript(value=owner, slice=ast.Constant(value=str())) | ast.Attribute(value=owner):
                found = self._given(method, owner, seen)
            case ast.Call(func=ast.Attribute(value=owner, attr="get" | "tolist"), args=args, keywords=[]) if all(
                isinstance(one, ast.Constant) for one in args
            ):
                found = self._given(method, owner, seen)
            case _:
                return self._computed(method, node, seen)
        text = ast.unparse(node)
        return f"{found}{text.removeprefix(ast.unparse(owner))}" if found is not None else None

    def _is_host(self, node: ast.AST) -> bool:
        """Whether a part of an expression reads no data of a tensor."""
        return isinstance(node, _HOST)

    def _computed(self, method: _Method, node: ast.expr, seen: frozenset[tuple[str, str]]) -> str | None:
        """A value that functions of Python compute of inputs, on the host, with these in the place of variables."""
        if not all(self._is_host(one) for one in ast.walk(node)):
            return None
        called = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
        own = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
        own |= {one.id for one in _names([node]) if isinstance(one.ctx, ast.Store)}
        values: dict[str, ast.expr] = {}
        for name in {one.id for one in _names([node]) if one not in called and one.id not in own}:
            found = self._given(method, ast.Name(name, ast.Load()), seen)
            if found is None:
                return None
            values[name] = ast.parse(found, mode="eval").body
        if not all(isinstance(one, ast.Name) and one.id in _FUNCTIONS for one in called):
            return None
        return ast.unparse(_Filled(values).visit(ast.parse(ast.unparse(node), mode="eval")))

    def _parsed_as(self, name: str, value: str) -> str | None:
        """The variable of a port that holds parsed inputs; it has one."""
        self.parsed = self.parsed or (name, value)
        return name if self.parsed == (name, value) and name not in _TAKEN else None

    def _unpacked_as(self, method: _Method, name: str, seen: frozenset[tuple[str, str]]) -> str | None:
        """The variable of a port, where a call of a method of the model gives it with others, of what the port has."""
        for node in ast.walk(method.function):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=elts)], value=ast.Call(args=args, keywords=[]) as call):
                    names = [one.id for one in elts if isinstance(one, ast.Name)]
                    own = _callee(call).removeprefix("self.") in self.names
                    given = [self._given(method, one, seen) for one in args] if name in names and own else [None]
                    found = [one for one in given if one is not None]
                    if len(names) < len(elts) or len(found) < len(given):
                        continue
                    value = f"{_callee(call)}({', '.join(found)})"
                    kept = self.unpacked[0].split(", ") if self.unpacked else ["_"] * len(names)
                    same = self.unpacked is None or self.unpacked[1] == value
                    if not same or name in _TAKEN or (self.parsed is not None and name == self.parsed[0]):
                        return None
                    shown = [one if one == name else old for one, old in zip(names, kept, strict=True)]
                    self.unpacked = ", ".join(shown), value
                    return name
        return None

    def _unparsed(self, arguments: list[str]) -> list[str]:
        """The arguments with inputs in the place of parsed ones, if the parser makes all that they read of inputs."""
        if self.parsed is None or self.unpacked is not None or self.loop is not None:
            return arguments
        inputs = _Given(self.parsed[0], self._handed_on())
        nodes = [inputs.visit(ast.parse(argument, mode="eval")) for argument in arguments]
        if any(one.id == self.parsed[0] for one in _names(nodes)):
            return arguments
        self.parsed = None
        return [ast.unparse(node) for node in nodes]

    @property
    def parser(self) -> str:
        """The method that parses inputs; empty where a port has none."""
        return self.parsed[1].partition("(")[0].removeprefix("self.") if self.parsed else ""

    def _may_be_nothing(self) -> bool:
        """Whether the parser of inputs may give None by its annotation, or has none."""
        returns = [one.returns for one in self.functions if one.name == self.parser]
        text = ast.unparse(returns[0]) if returns and returns[0] is not None else "None"
        return "None" in text or "Optional" in text

    def _handed_on(self) -> dict[str, ast.expr]:
        """The entries of parsed inputs that an expression makes of inputs alone, by key.

        The parser takes the inputs out of its keyword arguments, and hands such expressions to a class of the file
        without methods. It may be that of a base class, too, which it calls.
        """
        given: dict[str, set[str]] = {}
        for parser in (one for one in self.functions if one.name == self.parser):
            # A base of another file may mean something else by a name.
            here = parser in self.owner.body
            kept, stored, inputs = parser.args.kwarg, Counter(stores(parser)), {}
            for one in (node for node in ast.walk(parser) if isinstance(node, ast.Assign)):
                key = _key(one.value, kept.arg if kept is not None else "")
                if key and stored[_target(one)] == 1:
                    inputs[_target(one)] = ast.Subscript(ast.Name(_INPUTS, ast.Load()), ast.Constant(key), ast.Load())
            for call in (node for node in ast.walk(parser) if isinstance(node, ast.Call)):
                for keyword in call.keywords if _callee(call) in self._records() else ():
                    given.setdefault(keyword.arg or "", set()).add(self._of_inputs(keyword.value, inputs, here=here))
            if f"super().{self.parser}(" not in ast.unparse(parser):
                break
        alone = {name: texts.pop() for name, texts in given.items() if len(texts) == 1}
        return {name: ast.parse(text, mode="eval").body for name, text in alone.items() if text}

    def _of_inputs(self, node: ast.expr, inputs: Mapping[str, ast.expr], *, here: bool) -> str:
        """An expression of a parser with inputs in the place of variables; empty where it reads anything else but what
        the file of the port imports."""
        names = {one.id for one in _names([node])} - {*stores(node)} - inputs.keys()
        known = names <= (self.module.imports.keys() if here else set())
        return ast.unparse(_Filled(inputs).visit(copy.deepcopy(node))) if known else ""

    def _records(self) -> set[str]:
        """The classes without methods beside the model's own and its bases."""
        files = {file for file, _ in self.owners}
        classes = [one for file in files for one in self.tree.parse(file).body if isinstance(one, ast.ClassDef)]
        return {one.name for one in classes if not any(isinstance(node, FunctionNode) for node in one.body)}

    def _parse_call(self, method: _Method, node: ast.expr) -> str:
        """A call of the model that parses all inputs, if the expression is one in the entry that gets them."""
        function, kept = method.function, method.function.args.kwarg
        every = kept is not None and ast.unparse(node).endswith(f"(**{kept.arg})")
        if kept is None or not every or not _callee(node).startswith("self.") or not self._is_entry(method):
            return ""
        calls = [one for one in ast.walk(function) if isinstance(one, ast.keyword) and one.arg is None]
        whole = {id(one.value) for one in calls}
        if any(one.id == kept.arg and id(one) not in whole for one in _names([function])):
            return ""
        return f"{_callee(node)}(**{_INPUTS})"

    def _is_entry(self, method: _Method) -> bool:
        return method.function.name == self.form.entry.path.removeprefix("self.")

    def _handed(self, method: _Method, name: str, seen: frozenset[tuple[str, str]]) -> str | None:
        """The value of a parameter: parsed inputs in an entry, else an argument of the call that leads here."""
        if self._is_entry(method):
            value = self.form.entry.args[0]
            if method.parameters[1:2] != [name] or not isinstance(value, Call):
                return None
            return self._parsed_as(name, value.python({"**inputs": f"**{_INPUTS}"}))
        for caller in self.methods:
            for call in caller.calls(caller.station.forwards):
                if _callee(call) == f"self.{method.function.name}":
                    keywords = {keyword.arg or "**": keyword.value for keyword in call.keywords}
                    bound = bind_call(method.function, call.args, keywords, skip_first=True)
                    return self._given(caller, bound.given[name], seen) if name in bound.given else None
        return None

    def _after_method(self, method: _Method, live: Sequence[str], sunk: Sequence[ast.stmt]) -> str:
        """The method of the last statements, without indentation; `sunk` ones come first."""
        place, function = method.tail or 0, method.function
        types = annotations_of(function)
        parameters = ["self"]
        for name in live:
            written = types.get(name) or self._parsed_type(method, name)
            parameters.append(f"{name}: {ast.unparse(written) if written else 'torch.Tensor'}")
        parameters.append(f"{_target(function.body[place - 1])}: {self._features_type(method)}")
        returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
        below = "\n".join([*method.lines_of(sunk), *method.lines_below(function.body[place - 1])])
        body = textwrap.indent(textwrap.dedent(below).strip("\n"), "    ")
        why = f'    """Finish `{function.name}` from the encoder\'s features."""'
        return f"def {self.form.after}({', '.join(parameters)}){returns}:\n{why}\n{body}\n"

    def _parsed_type(self, method: _Method, name: str) -> ast.expr | None:
        """The type of a variable that keeps parsed inputs, which may be None where they are none, or a part of them."""
        values = [
            one.value for one in ast.walk(method.function) if isinstance(one, ast.Assign) and _target(one) == name
        ]
        if values and _callee(values[0]) == "list":
            return ast.parse("list[int]", mode="eval").body
        if values and isinstance(values[0], ast.ListComp):
            pairs = isinstance(values[0].elt, ast.Tuple) and len(values[0].elt.elts) == 2
            return ast.parse("list[tuple[int, int]]" if pairs else "list[int]", mode="eval").body
        if values and isinstance(values[0], ast.Subscript):
            return self._entry_type(method, values[0].slice)
        called = _callee(values[0]).removeprefix("self.") if values else ""
        found = next((one.returns for one in self.functions if one.name == called), None)
        if self.unpacked is not None and name in self.unpacked[0].split(", "):
            called = self.unpacked[1].partition("(")[0].removeprefix("self.")
            types = next((one.returns for one in self.functions if one.name == called), None)
            each = types.slice.elts if isinstance(types, ast.Subscript) and isinstance(types.slice, ast.Tuple) else []
            return dict(zip(self.unpacked[0].split(", "), each, strict=False)).get(name)
        return found.left if isinstance(found, ast.BinOp) and ast.unparse(found.right) == "None" else found

    def _entry_type(self, method: _Method, key: ast.expr) -> ast.expr | None:
        """The type of an entry of parsed inputs, which the classes of the file agree upon."""
        name = key.value if isinstance(key, ast.Constant) else None
        owners = [node for node in self.tree.parse(method.station.file).body if isinstance(node, ast.ClassDef)]
        found = {
            ast.unparse(node.annotation)
            for owner in owners
            for node in owner.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
        }
        match ast.parse(found.pop(), mode="eval").body if len(found) == 1 else None:
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[first, *_])):
                return first
            case other:
                return other

    def _features_type(self, method: _Method) -> str:
        """The type of what the call gives: that of the method which it calls, or one tensor."""
        called = _callee(method.leading[0]) if not method.runs else ""
        returns = [one.function.returns for one in self.methods if f"self.{one.function.name}" == called]
        return ast.unparse(returns[0]) if returns and returns[0] is not None else "torch.Tensor"

    # -- the methods

    def _after_edits(
        self, method: _Method, live: Sequence[str], sunk: Sequence[ast.stmt] = ()
    ) -> tuple[MethodEdit, ...]:
        """The edit that makes a method of the last and `sunk` statements, which take `live`; none if they are."""
        if self._is_cut(method):
            return ()
        assert method.tail is not None
        assert self.form.after is not None
        last, station = method.function.body[method.tail - 1], method.station
        call = f"self.{self.form.after}({', '.join([*live, _target(last)])})"
        kept = "\n".join(method.lines_before(last, sunk))
        source = textwrap.dedent(f"{kept}\n{' ' * last.col_offset}return {call}\n")
        text = f"{source}\n{self._after_method(method, live, sunk)}"
        return (MethodEdit(station.file, station.class_name, station.function, (self.form.after,), text),)

    def _check_result(self, method: _Method, *, inner: bool) -> None:
        """A method on the way gives what it gets, since a port does not run it.

        Units of an item may go into one, behind the encoder also those of a batch into items: a port does the same.
        """
        text, called = method.text.encode(), _callee(method.leading[0])
        runs = sorted(method.runs, key=lambda run: method.start(run.whole), reverse=True)
        for run in runs:  # another branch may have the same call for something else
            text = text[: method.start(run.whole)] + f"{_HELD}()".encode() + text[method.end(run.whole) :]
        (function,) = ast.parse(textwrap.dedent(text.decode())).body
        assert isinstance(function, FunctionNode)
        if inner or any(_flattened(node) or _is_table(node) or _unbound(node) for node in ast.walk(function)):
            function = _Regrouped().visit(function)
        if find_change(function, _HELD if method.runs else called) is not None:
            raise _Misfit(method, f"`{method.station.function}` changes what it gets of `{called}`")


class _Filled(ast.NodeTransformer):
    """Expressions in the place of variables."""

    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.values.get(node.id, node)


class _Given(ast.NodeTransformer):
    """Expressions of inputs in the place of entries of what the model parses them into."""

    def __init__(self, parsed: str, made: Mapping[str, ast.expr]) -> None:
        self.parsed, self.made = parsed, made

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(value=ast.Name(id=self.parsed), slice=ast.Constant(value=str(key))) if key in self.made:
                return copy.deepcopy(self.made[key])
        return self.generic_visit(node)


class _Regrouped(ast.NodeTransformer):
    """Units in the place of what groups them anew: items of units, rows of items."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Attribute(value=table, attr="unsqueeze"), args=[ast.Constant(value=0)]) if _is_table(
                table
            ):
                rows: ast.AST = self.visit(table)
                return rows  # a batch of one item has them
        self.generic_visit(node)
        if ast.unparse(node.func) == "torch.split":
            return node.args[0]
        if (items := _unbound(node)) is not None:
            return items
        match node.func:
            case ast.Attribute(value=value, attr="split" | "view" | "reshape"):
                return value
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        self.generic_visit(node)
        return _flattened(node) or node

    def visit_Assert(self, node: ast.Assert) -> None:
        """It changes no value."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Sizes are no values."""
        return ast.Constant(0) if node.attr == "shape" else self.generic_visit(node)


def _regroups(node: ast.AST) -> bool:
    """Whether a statement gives a variable its own entries with other axes."""
    match node:
        case ast.Assign(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="reshape" | "view" | "flatten"))
        ):
            return _target(node) == name
    return False


def _key(node: ast.expr, inputs: str) -> str:
    """The key of the input that an expression takes out of `inputs`."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=name), attr="pop" | "get"), args=[ast.Constant(value=str(key)), *_]
        ) if name == inputs:
            return key
    return ""


def _flattened(node: ast.AST) -> ast.expr | None:
    """The items of which a list has the rows: `[item.flatten(0, 1) for item in items]`."""
    match node:
        case ast.ListComp(
            elt=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="flatten"), args=[ast.Constant(value=0), _]),
            generators=[ast.comprehension(target=ast.Name(id=item), iter=items, ifs=[])],
        ) if name == item:
            return items
    return None


def _unbound(node: ast.AST) -> ast.expr | None:
    """The units of which a call makes a tuple: `features.unbind(dim=0)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=units, attr="unbind"), args=args, keywords=keywords):
            axes = [*args, *(keyword.value for keyword in keywords)]
            return units if all(ast.unparse(axis) == "0" for axis in axes) else None
    return None


def _is_table(node: ast.AST) -> bool:
    """Whether an expression is a tensor as the rows of all items: `x.view(-1, columns)`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="view" | "reshape"), args=[first, _], keywords=[]):
            return ast.unparse(first) == "-1"
    return False


def runs_of(function: FunctionNode, site: ast.Call, units: Sequence[int | str], beside: Sequence[str]) -> Iterator[Run]:
    """The calls of parts of the model around a call of the encoder, which has at `units` its pixels and the variables
    that are called `beside`; the inner first.

    A conversion of the pixels' type in front of it is part of each.
    """
    given: dict[int | str, ast.expr] = dict(enumerate(site.args))
    given |= {keyword.arg or "**": keyword.value for keyword in site.keywords}
    parents = parents_of(function)
    pixels, own = given[units[0]], _parts_of_model(function)
    variables = [one.id for one in (given[unit] for unit in units[1:]) if isinstance(one, ast.Name)]
    if len(variables) != len(beside):
        return
    statement = next(one for one in nodes_above(parents, site) if isinstance(one, ast.stmt))
    made = _preceding(parents, statement)
    if isinstance(pixels, ast.Name) and made is not None and _target(made) == pixels.id and _converted(made.value, own):
        uses = [one for one in _names([statement]) if one.id == pixels.id]
        if uses == [pixels] and _comes_first(statement, pixels):
            pixels = made.value
    inner: ast.expr = ast.Name(_PARAMETER, ast.Load())
    if _converted(pixels, own) and isinstance(pixels, ast.Call):
        converted = ast.Call(ast.Attribute(inner, "to", ast.Load()), pixels.args, pixels.keywords)
        inner = _Filled(own).visit(copy.deepcopy(converted))
    named = {given[unit]: ast.Name(name, ast.Load()) for unit, name in zip(units[1:], beside, strict=True)}
    call, body = (_replaced(site, {given[units[0]]: new, **named}) for new in (ast.Name(_PIXELS, ast.Load()), inner))
    node: ast.expr = site
    while True:
        yield Run(node, ast.unparse(call), ast.unparse(body))
        parent = parents[node]
        if isinstance(parent, ast.Call) and node in parent.args:
            others = [one for one in (*parent.args, *(one.value for one in parent.keywords)) if one is not node]
            if any(one.id not in ("self", "torch") for one in _names(others)):
                return
            call, body, node = _replaced(parent, {node: call}), _replaced(parent, {node: body}), parent
            continue
        following = _following(parents, parent) if isinstance(parent, ast.Assign) else None
        # A value may get the name of what it is made of.
        uses = [
            one
            for one in (_names([following]) if following is not None else [])
            if one.id == _target(parent) and isinstance(one.ctx, ast.Load)
        ]
        if not isinstance(parent, ast.Assign) or following is None or len(uses) != 1:
            return
        if not _comes_first(following, uses[0]):
            return
        node = uses[0]


def _converted(node: ast.expr, own: Container[str]) -> ast.expr | None:
    """The tensor whose type `tensor.to(...)` converts to one that the model knows; `own` variables keep parts of it."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="to"), args=args, keywords=keywords):
            known = _names([*args, *(keyword.value for keyword in keywords)])
            return of if all(one.id in ("self", "torch") or one.id in own for one in known) else None
    return None


def _parts_of_model(function: FunctionNode) -> dict[str, ast.expr]:
    """Variables that always keep an attribute of the model, such as the type of its weights."""
    stored = Counter(stores(function))
    return {
        _target(node): node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and stored[_target(node)] == 1
        and isinstance(node.value, ast.Attribute)
        and ast.unparse(node.value).startswith("self.")
    }


def _neighbours(parents: dict[ast.AST, ast.AST], node: ast.stmt) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """The pairs of statements in the block of one that follow each other on lines of their own."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parents[node], field, None)
        for statement, following in itertools.pairwise(block if isinstance(block, list) else []):
            if following.lineno > (statement.end_lineno or 0):
                yield statement, following


def _preceding(parents: dict[ast.AST, ast.AST], node: ast.stmt) -> ast.Assign | None:
    """The assignment before a statement."""
    before = next((one for one, following in _neighbours(parents, node) if following is node), None)
    return before if isinstance(before, ast.Assign) else None


def _replaced(call: ast.Call, new: Mapping[ast.expr, ast.expr]) -> ast.Call:
    """A call with other arguments."""
    keywords = [ast.keyword(one.arg, new.get(one.value, one.value)) for one in call.keywords]
    return ast.Call(call.func, [new.get(one, one) for one in call.args], keywords)


def _following(parents: dict[ast.AST, ast.AST], node: ast.stmt) -> ast.stmt | None:
    """The simple statement behind one."""
    behind = next((one for statement, one in _neighbours(parents, node) if statement is node), None)
    return behind if isinstance(behind, ast.Assign | ast.Return | ast.Expr) else None


def _comes_first(node: ast.AST, use: ast.Name) -> bool:
    """Whether nothing that a statement computes before a name has an effect."""
    parts: list[ast.AST] = []
    if isinstance(node, ast.Assign | ast.Return | ast.Expr | ast.Attribute | ast.Starred):
        parts = [node.value] if node.value is not None else []
    elif isinstance(node, ast.Call):
        parts = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Tuple | ast.List):
        parts = [*node.elts]
    for part in parts:
        if use in ast.walk(part):
            return part is use or _comes_first(part, use)
        if not all(
            isinstance(one, ast.Name | ast.Attribute | ast.Constant | ast.expr_context) for one in ast.walk(part)
        ):
            return False
    return False


def _is_read(statements: Sequence[ast.stmt], name: str) -> bool:
    """Whether statements read a variable before one of them sets it anew."""
    for node in statements:
        uses = [one for one in _names([node]) if one.id == name]
        if any(isinstance(one.ctx, ast.Load) for one in uses) or (uses and not isinstance(node, ast.Assign)):
            return True
        if uses:
            return False
    return False


def _names(nodes: Sequence[ast.AST]) -> list[ast.Name]:
    """All names in the order of the text."""
    found = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)]
    return sorted(found, key=end_of)


def _target(node: ast.AST) -> str:
    """The one variable that a statement sets."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _callee(node: ast.AST | None) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""
