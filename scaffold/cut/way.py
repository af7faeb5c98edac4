"""The way from a model's entry to the call of its encoder, found in source: which functions lie on it, which calls."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, TypeAlias

from scaffold.cut.chains import Chain, find_chain, find_wait, starts_of
from scaffold.cut.hoist import SEQUENCES, Hoisted, find_computed, has_room, hoisted_tree, takes_sequences
from scaffold.cut.loops import Loop, Misfit, find_hazard, find_misfit, outline
from scaffold.cut.result import find_change
from scaffold.descriptor.expressions import Attribute, Call, Literal, Name
from scaffold.descriptor.port import ATTENTION, CHAIN_METHOD, LONGEST, LOOP_METHOD, PRIVATE_ENTRY, PUBLIC_ENTRY
from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.protocol import find_subclasses
from scaffold.syntax import FunctionNode, bind_call, dotted, end_of, find_class, find_method, name_path
from scaffold.tower.names import stores

if TYPE_CHECKING:
    from scaffold.descriptor.expressions import Argument
    from scaffold.protocol import SourceTree, Subclass
    from scaffold.tower.source import Module, Owner, Program

#: A place of the model: the attributes that lead to it from the model itself, which is ().
Place: TypeAlias = tuple[str, ...]

#: The parameter that the methods on the way get: a function of units [n, ...], perhaps several tensors, to features.
ENCODE = "encode"

#: In the place of the units' argument: all arguments of a call are handed over.
EVERY = ("*",)

#: Query, key and value: what attention gets where all rows are one sequence.
_ATTENDED = 3

#: vLLM's helpers that give each rank some of the items. Graphs hold the items of one rank: a gate turns them off there.
_SHARDS = "run_dp_sharded"

_ONE_WAY = "`{}` leads to the encoder in one place only"
_HELP = "write it as the model calls its encoder, seen from the model class; `entry` must lead to it"


@dataclass(frozen=True)
class Station:
    """A method on the way. `sites` are its calls of the encoder, `forwards` those that lead on.

    A function of a module, which gets the model's parts as arguments, has no class: `class_name` is empty.

    `units` are the arguments of each site that have an entry for each unit, by position or keyword, the pixels first;
    `EVERY` stands for all arguments.

    Calls are `(line, column)` of their ends in the file's syntax tree, columns in bytes: `a(x).b(y)` has two calls that
    start in the same place. A `loop` over the encoder's
    layers, or a `chain` of calls of several encoders, stands for a call of it, and is the only site.

    `held` are the attributes in which the model has the parts whose method it is; none are those of the model itself.
    """

    file: str
    class_name: str
    function: str
    line: int
    sites: tuple[tuple[int, int], ...]
    units: tuple[tuple[int | str, ...], ...]
    forwards: tuple[tuple[int, int], ...]
    loop: Loop | None = None
    chain: Chain | None = None
    held: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def aside(cls, file: str, class_name: str, function: FunctionNode) -> Station:
        """A method that gets the parameter because others of its name do, and has no use for it."""
        return cls(file, class_name, function.name, function.lineno, (), (), ())

    @property
    def place(self) -> tuple[str, str, str]:
        """The file, class and name of the method."""
        return self.file, self.class_name, self.function

    @property
    def outlined(self) -> Loop | Chain | None:
        """The statements that a call of a method replaces."""
        return self.loop or self.chain


@dataclass(frozen=True)
class Way:
    """Every method from the entries to the encoder's calls, which come first."""

    stations: tuple[Station, ...]
    #: Calls of the encoder with other arguments: what they encode is not cut, and such a batch is the model's own.
    notes: tuple[Diagnostic, ...] = ()
    #: Methods from the loop to the attention that get parameters for sequences. Stations are as with them.
    hoisted: tuple[Hoisted, ...] = ()
    #: Subclasses that implement an abstract method on the way or inherit it, by file and name, and why those without a
    #: way have none.
    heirs: tuple[tuple[str, str], ...] = ()
    without: tuple[tuple[str, tuple[Diagnostic, ...]], ...] = ()

    @property
    def changed(self) -> tuple[Station | Hoisted, ...]:
        """Every method that gets a parameter. A station may be hoisted, too."""
        return (*self.stations, *self.hoisted)

    @property
    def parameters(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The parameters for sequences of each method that gets some, by class and name."""
        return {(one.class_name, one.function): one.names for one in self.hoisted}

    @property
    def every(self) -> bool:
        """Whether all arguments of the encoder are handed over."""
        return any(EVERY in station.units for station in self.stations)

    @property
    def units(self) -> int:
        """How many arguments of the encoder have an entry for each unit."""
        return next(len(units) for station in self.stations for units in station.units)

    @property
    def sites(self) -> int:
        """How many calls of the encoder are cut."""
        return sum(len(station.sites) for station in self.stations)


@dataclass(frozen=True)
class _Frame:
    """A method as it is reached: what `self` and its other names stand for in the model.

    A function of a module has no owner, and what its `place` is does not matter.
    """

    module: Module
    owner: ast.ClassDef | None
    function: FunctionNode
    holder: Owner
    place: Place
    names: Mapping[str, Place]

    @property
    def class_name(self) -> str:
        return self.owner.name if self.owner is not None else ""

    @property
    def shown(self) -> str:
        """The method's name, with that of its class."""
        return f"{self.class_name}.{self.function.name}".removeprefix(".")

    @property
    def key(self) -> tuple[int, Place, tuple[tuple[str, Place], ...]]:
        return id(self.function), self.place, tuple(sorted(self.names.items()))


def find_way(
    tree: SourceTree,
    path: str,
    class_name: str,
    entries: Mapping[str, Span],
    call: Call | str,
    span: Span,
    loop: str | None = None,
    through: str | None = None,
    per_item: bool = False,
) -> Way:
    """The methods from `entries` (paths such as `self._process_image_input`) to `call`, the encoder's call.

    `call` is seen from the class `class_name` of the file `path`, with `pixels` in the place of the units; a path such
    as `self.vision_tower.transformer` stands for every call of that. With `loop`, seen from there (`self.layers`), it
    is the loop over that instead, in a method of that part; `per_item`: the layers get parameters for offsets and the
    longest sequence, which the model leaves out. With `through`, the last part that is called
    (`self.projector`), it is every run of statements from `call` to the call of that.

    Where a method of the class is abstract, these are the ways of the subclasses that implement it. The abstract method
    gets the parameter, too, and so does every implementation.

    Raises VCG443 where no entry leads there, or where the call on the way has other arguments; VCG448 where the loop or
    the run cannot be a method of its own; VCG449 where `embed_multimodal` changes what an entry makes.
    """
    from scaffold.tower.source import Program

    program = Program(tree)
    module = program.module(path)
    assert module is not None, "read before"
    owner = find_class(module.tree, class_name)
    assert owner is not None, "found before"
    search = _Search(program, (module, owner), call, span, loop, through, per_item)
    for entry, place in entries.items():
        frame = search.method((module, owner), (), entry.removeprefix("self."), {})
        if frame is None or not search.leads(frame):
            if search.abstract:
                return _joined(
                    tree,
                    search,
                    lambda heir: find_way(tree, heir.path, heir.class_name, entries, call, span, loop, through),
                    find_subclasses(tree, dotted(path), class_name),
                )
            raise DiagnosticError(
                search.problems
                or [
                    Diagnostic("VCG443", f"`{entry}` does not lead to {search.goal}", place, _HELP),
                    *search.left,
                ]
            )
        search.check_result(entry, place)
    if search.problems:
        raise DiagnosticError(search.problems)
    if search.hoisted:
        hoisted = tuple(search.hoisted.values())
        way = find_way(hoisted_tree(tree, hoisted), path, class_name, entries, call, span, loop, through)
        return replace(way, hoisted=hoisted)
    return Way(tuple(search.stations.values()), tuple(search.left))


def _joined(tree: SourceTree, search: _Search, find: Callable[[Subclass], Way], heirs: Iterable[Subclass]) -> Way:
    """The ways of the subclasses that implement what is abstract. Raises as `find` where none of them has one."""
    program, names = search.program, [frame.function.name for frame in search.abstract]
    aside = [Station.aside(frame.module.file, frame.class_name, frame.function) for frame in search.abstract]
    ways: dict[tuple[str, str], Way] = {}
    without: list[tuple[str, tuple[Diagnostic, ...]]] = []
    for heir in heirs:
        owner = program.owner(heir.path, heir.class_name)
        found = [method for name in names if (method := program.method(owner, name)) is not None]
        if all(_is_abstract(function) for _, _, function in found) or _makes_others(owner[1]):
            continue
        try:
            ways[heir.path, heir.class_name] = find(heir)
        except DiagnosticError as error:
            without.append((heir.class_name, error.diagnostics))
            aside += [Station.aside(module.file, definer.name, function) for module, definer, function in found]
    if not ways:
        raise DiagnosticError(list(dict.fromkeys(problem for _, problems in without for problem in problems)))
    stations: dict[tuple[str, str, str], Station] = {}
    for station in (station for way in ways.values() for station in way.stations):
        if stations.setdefault(station.place, station) != station:
            search.refuse(tree.span(station.file, station.line), _ONE_WAY.format(station.function))
            raise DiagnosticError(search.problems)
    for station in aside:
        stations.setdefault(station.place, station)
    return Way(
        tuple(stations.values()),
        tuple(dict.fromkeys(note for way in ways.values() for note in way.notes)),
        tuple(dict.fromkeys(method for way in ways.values() for method in way.hoisted)),
        tuple(ways),
        tuple(without),
    )


class _Search:
    def __init__(
        self,
        program: Program,
        model: Owner,
        call: Call | str,
        span: Span,
        loop: str | None,
        through: str | None,
        per_item: bool,
    ) -> None:
        self.program = program
        self.model = model
        self.call = call
        self.span = span
        self.target: Place = tuple((call if isinstance(call, str) else call.path).split(".")[1:])
        if loop and self.target[-1:] == (LOOP_METHOD,):  # a call of what the loop becomes
            self.target = self.target[:-1]
        #: The layers that the loop iterates over, if there is one.
        self.layers: Place | None = (*self.target, *loop.split(".")[1:]) if loop else None
        #: The callee there: the encoder, or the method that an earlier port made of the loop.
        self.called: Place = (*self.target, LOOP_METHOD) if loop else self.target
        owner = ".".join(("self", *self.target))
        self.goal = f"a loop over `{loop}` in `{owner}`" if loop else f"`{_text(call)}`"
        #: The last part that a chain of calls goes through, if there is one.
        self.last: Place | None = tuple(through.split(".")[1:]) if through else None
        self.per_item = per_item
        self.first_chain: tuple[_Frame, Chain] | None = None
        #: Methods of the model that were reached and that only subclasses implement.
        self.abstract: list[_Frame] = []
        self.stations: dict[int, Station] = {}
        self.problems: list[Diagnostic] = []
        self.left: list[Diagnostic] = []
        self.hoisted: dict[int, Hoisted] = {}
        self._asked: set[int] = set()
        self._declined: list[str] = []
        self._known: dict[object, bool] = {}

    def leads(self, frame: _Frame) -> bool:
        """Whether a method leads to the encoder; if so it is a station."""
        if frame.key in self._known:
            return self._known[frame.key]
        self._known[frame.key] = False  # a recursion leads nowhere new
        if not frame.place and frame.owner is not None and _is_abstract(frame.function):
            self.abstract.append(frame)
        names = {**frame.names, **dict(_aliases(frame))}
        sites: list[tuple[ast.Call, tuple[int | str, ...]]] = []
        forwards: list[ast.Call] = []
        loops = self._loops(frame, names)
        chains = self._chains(frame, names)
        for node in _calls(frame.function.body):
            place = _place(called(node), frame.place, names)
            if self.last is not None and place == (CHAIN_METHOD,):  # an earlier port
                sites.append((node, (0,)))
                continue
            if any(node in ast.walk(statement) for run in chains for statement in run):
                continue
            if place == self.called and self.last is not None:
                self._leave(node, frame, f"no call of `self.{'.'.join(self.last)}` follows in its block")
                continue
            if place == self.called:
                units = self._units(node, frame, names)
                if units is not None:
                    sites.append((node, units))
                continue
            following = self._callee(node, place, frame, names)
            if following is not None and self.leads(following):
                forwards.append(node)
        if loops and not sites:  # else an earlier port has made a method of one of them
            self._known[frame.key] = True
            last = len(loops) - 1 if all(map(_is_sliced, loops)) else 0
            others = loops[last + 1 :]
            self._keep_loop(frame, loops[last], [*others, *forwards], names)
        elif chains:
            self._known[frame.key] = True
            self._keep_chain(frame, chains, [*(node for node, _ in sites), *forwards], names)
        elif sites or forwards:
            self._known[frame.key] = True
            if not _is_stub(frame.function):
                self._keep(frame, sites, forwards)
        return self._known[frame.key]

    def check_result(self, entry: str, place: Span) -> None:
        """`embed_multimodal` returns what `entry` makes."""
        found = self.program.method(self.model, PUBLIC_ENTRY)
        if found is None or entry in (f"self.{PUBLIC_ENTRY}", f"self.{PRIVATE_ENTRY}"):
            return
        if _is_stub(found[2]):  # an earlier port moved its body
            found = self.program.method(self.model, PRIVATE_ENTRY) or found
        module, _, function = found
        change = find_change(function, entry)
        if change is None:
            return
        does = "does not call" if change is function else "changes what it gets of"
        self.problems.append(
            Diagnostic(
                "VCG449",
                f"`{PUBLIC_ENTRY}` {does} `{entry}`",
                module.span(change),
                f"write `entry: self.{PUBLIC_ENTRY}(**inputs)`: its body moves into a method of its own",
                notes=(f"asked for by {place}",),
            )
        )

    def _loops(self, frame: _Frame, names: Mapping[str, Place]) -> list[ast.For]:
        """The loops over the encoder's layers in a method of it."""
        if self.layers is None or frame.owner is None or frame.place != self.target:
            return []
        found = [node for node in ast.walk(frame.function) if isinstance(node, ast.For)]
        return [
            node
            for node in sorted(found, key=lambda node: node.lineno)
            if any(_place(unsliced(over), frame.place, names) == self.layers for over in iterated(node.iter))
        ]

    def _keep_loop(self, frame: _Frame, loop: ast.For, others: Sequence[ast.AST], names: Mapping[str, Place]) -> None:
        """Keep the loop over the encoder's layers; `others` is where else the encoder runs."""
        assert frame.owner is not None, "a loop is looked for in methods"
        # Where all arguments are handed over, the port sees what comes back.
        misfit = find_misfit(frame.function, loop, several=isinstance(self.call, str))
        if others:
            misfit = Misfit(others[0], "the encoder runs in another place of the method, too")
        elif LOOP_METHOD in self.program.members((frame.module, frame.owner)):
            misfit = Misfit(loop, f"`{frame.owner.name}` has a method `{LOOP_METHOD}` already")
        if misfit is not None:
            self._refuse_loop(frame, misfit.reason, frame.module.span(misfit.node))
            return
        outlined = outline(frame.function, loop)
        constants = self._constants(outlined)
        if constants is None:
            taken = ", ".join(f"`{name}`" for name in outlined.arguments)
            reason = f"it takes {taken}, the features first, and `{_text(self.call)}` gives something else"
            self._refuse_loop(frame, reason, frame.module.span(loop))
            return
        hazard = find_hazard(self.program, frame.holder, frame.function, loop, outlined, constants)
        if hazard is not None and not self._hands_on(frame, _calls([loop]), self._in_loop(loop, names)):
            place = Span(hazard.shown, hazard.line, 1, hazard.line, 2)
            self._refuse_loop(frame, f"{hazard.what}: {hazard.reason}", place)
            return
        if self.per_item and not self._tell(frame, _calls([loop]), self._in_loop(loop, names)):
            self._refuse_loop(frame, "attention of the layers cannot be told where items end", frame.module.span(loop))
            return
        self._keep(frame, [(loop, EVERY)], [], outlined)

    def _constants(self, loop: Loop) -> tuple[str, ...] | None:
        """The names that the loop reads of the model itself, as the call says; None where that has other arguments."""
        if isinstance(self.call, str):
            return ()
        given = self.call.args
        if self.call.keywords or len(given) != len(loop.arguments) or given[0] != Name("pixels"):
            return None
        named = zip(loop.arguments, given, strict=True)
        return tuple(name for name, argument in named if not isinstance(argument, Name))

    def _chains(self, frame: _Frame, names: Mapping[str, Place]) -> list[list[ast.stmt]]:
        """The runs of statements from the encoder's call to that of the last part, in a method of the model."""
        if self.last is None or frame.owner is None or frame.place:
            return []

        def calls(statement: ast.stmt, place: Place) -> ast.Call | None:
            value = statement.value if isinstance(statement, ast.Assign) else None
            fits = isinstance(value, ast.Call) and _place(value.func, frame.place, names) == place
            return value if fits and isinstance(value, ast.Call) else None

        found = []
        for block, index in starts_of(frame.function):
            first = calls(block[index], self.target)
            if first is None or self._units(first, frame, names) is None:
                continue
            length = next((n for n, node in enumerate(block[index:], 1) if calls(node, self.last)), None)
            if length is not None:
                found.append(block[index : index + length])
        return found

    def _keep_chain(
        self, frame: _Frame, chains: Sequence[list[ast.stmt]], others: Sequence[ast.AST], names: Mapping[str, Place]
    ) -> None:
        """Keep the one run of a method from the encoder's call to that of the last part."""
        assert frame.owner is not None, "chains are looked for in methods"
        chain = find_chain(frame.function, chains[0])
        others = [*(run[0] for run in chains[1:]), *others]
        if isinstance(chain, Chain) and self.first_chain is not None:
            home, first = self.first_chain
            if home.owner is not frame.owner or first.steps != chain.steps:
                chain = Misfit(chains[0][0], f"it is not the same as in `{home.shown}`")
            else:
                chain = replace(chain, adds=False)
        if others:
            chain = Misfit(others[0], "the encoder runs in another place of the method, too")
        elif CHAIN_METHOD in self.program.members((frame.module, frame.owner)):
            chain = Misfit(chains[0][0], f"`{frame.owner.name}` has a method `{CHAIN_METHOD}` already")
        if isinstance(chain, Misfit):
            what = f"the statements from `{_text(self.call)}` on in `{frame.shown}` cannot be captured: {chain.reason}"
            self._refuse_outlined(what, frame.module.span(chain.node))
            return
        owner = (frame.module, frame.owner)
        wait = None if self.first_chain else find_wait(self.program, owner, chains[0], frame.shown)
        if wait is not None:
            self._refuse_outlined(*wait)
        self.first_chain = self.first_chain or (frame, chain)
        self._keep(frame, [(chains[0][-1], (0,))], [], chain=chain)

    def _in_loop(self, loop: ast.For, names: Mapping[str, Place]) -> dict[str, Place]:
        """The parts that names stand for in the loop, where one is a layer."""
        assert self.layers is not None, "there is a loop over them"
        *_, layer = [node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)]
        return {**names, layer: self.layers}

    def _tell(self, frame: _Frame, calls: Iterable[ast.Call], names: Mapping[str, Place]) -> bool:
        """Whether a method can hand the offsets on in its calls that lead to attention, and has such calls.

        A call of attention must leave them out, so that all of its rows are one sequence.
        """
        found = []
        for node in calls:
            place = _place(node.func, frame.place, names)
            following = self._callee(node, place, frame, names)
            given = {keyword.arg or "**" for keyword in node.keywords}
            if place and self._is_attention(place):
                leaves = len(node.args) == _ATTENDED and not given
            elif following is not None and takes_sequences(following.function):
                bound = bind_call(following.function, node.args, dict.fromkeys(given), skip_first=True)
                leaves = not (set(SEQUENCES) & bound.given.keys()) and "**" not in given
            elif following is not None and self._is_told(following):
                leaves = "**" not in given
            else:
                continue
            if not leaves:
                self._decline(frame, "tells attention something else already")
                return False
            found.append(end_of(node))
        if found and has_room(frame.function, SEQUENCES):
            self.hoisted[id(frame.function)] = replace(_hoisted(frame, found), names=SEQUENCES)
        elif found:
            self._decline(frame, "has such names already, or a decorator")
        return id(frame.function) in self.hoisted

    def _is_told(self, frame: _Frame) -> bool:
        """Whether a method gets the offsets for attention that it leads to."""
        if id(frame.function) not in self._asked:
            self._asked.add(id(frame.function))
            self._tell(frame, _calls(frame.function.body), {**frame.names, **dict(_aliases(frame))})
        return id(frame.function) in self.hoisted

    def _is_attention(self, place: Place) -> bool:
        """Whether a part of the model is vLLM's attention of encoders."""
        holder = self.program.part_class(self.model, place)
        return holder is not None and holder[1].name == ATTENTION

    def _hands_on(self, frame: _Frame, calls: Iterable[ast.Call], names: Mapping[str, Place]) -> bool:
        """Whether calls of a method lead to one that computes the longest sequence, and all on the way have room."""
        found = []
        for node in calls:
            following = self._callee(node, _place(node.func, frame.place, names), frame, names)
            if following is not None and self._takes_bound(following):
                found.append(end_of(node))
        if found and has_room(frame.function):
            self.hoisted[id(frame.function)] = _hoisted(frame, found)
        elif found:
            self._decline(frame, "has that name already, or a decorator")
        return id(frame.function) in self.hoisted

    def _takes_bound(self, frame: _Frame) -> bool:
        """Whether a method computes the longest sequence or leads to one that does."""
        if id(frame.function) not in self._asked:
            self._asked.add(id(frame.function))
            if find_computed(frame.function) is not None:
                self.hoisted[id(frame.function)] = _hoisted(frame)
            elif LONGEST in stores(frame.function):
                self._decline(frame, "does not compute it once, of offsets that it is given, for attention alone")
            else:
                names = {**frame.names, **dict(_aliases(frame))}
                self._hands_on(frame, _calls(frame.function.body), names)
        return id(frame.function) in self.hoisted

    def _decline(self, frame: _Frame, reason: str) -> None:
        place = frame.module.span(frame.function)
        name = SEQUENCES[0] if self.per_item else LONGEST
        self._declined.append(f"{place}: no `{name}` is handed in: `{frame.shown}` {reason}")

    def _refuse_loop(self, frame: _Frame, reason: str, place: Span) -> None:
        self._refuse_outlined(f"the loop over the layers in `{frame.shown}` cannot be captured: {reason}", place)

    def _refuse_outlined(self, message: str, place: Span) -> None:
        self.problems.append(
            Diagnostic(
                "VCG448",
                message,
                place,
                "without `loop`, name a call of the encoder that can be, if there is one; else the model runs eagerly",
                notes=(*self._declined, f"asked for by {self.span}"),
            )
        )

    def _keep(
        self,
        frame: _Frame,
        sites: Sequence[tuple[ast.Call | ast.stmt, tuple[int | str, ...]]],
        forwards: Sequence[ast.Call],
        loop: Loop | None = None,
        chain: Chain | None = None,
    ) -> None:
        station = Station(
            frame.module.file,
            frame.class_name,
            frame.function.name,
            frame.function.lineno,
            tuple(end_of(node) for node, _ in sites),
            tuple(units for _, units in sites),
            tuple(map(end_of, forwards)),
            loop,
            chain,
            frozenset(frame.place[-1:]),
        )
        other = self.stations.get(id(frame.function), station)
        if other != station:
            self.refuse(frame.module.span(frame.function), _ONE_WAY.format(station.function))
        self.stations[id(frame.function)] = replace(other, held=other.held | station.held)

    def refuse(self, place: Span, message: str) -> None:
        self.problems.append(Diagnostic("VCG443", message, place, _HELP, notes=(f"asked for by {self.span}",)))

    def _units(self, node: ast.Call, frame: _Frame, names: Mapping[str, Place]) -> tuple[int | str, ...] | None:
        """Where a call of the encoder has the units, the pixels first. Its other arguments must be those of `call`."""
        if isinstance(self.call, str) or self.layers is not None:
            return EVERY
        given: dict[int | str, ast.expr] = dict(enumerate(node.args))
        given |= {keyword.arg or "**": keyword.value for keyword in node.keywords}
        wanted: dict[int | str, Argument] = dict(enumerate(self.call.args))
        wanted |= {keyword.name: keyword.value for keyword in self.call.keywords}
        units = {value.name: key for key, value in wanted.items() if isinstance(value, Name)}
        same = given.keys() == wanted.keys() and all(
            key in units.values() or _is(given[key], value, frame.place, names) for key, value in wanted.items()
        )
        if same:
            return (units.pop("pixels"), *units.values())
        self._leave(node, frame, "it has other arguments than forward.call")
        return None

    def _leave(self, node: ast.Call, frame: _Frame, reason: str) -> None:
        text = " ".join(frame.module.segment(node).split())
        self.left.append(
            Diagnostic(
                "VCG447",
                f"`{text}` is not cut: {reason}",
                frame.module.span(node),
                "check that no batch worth a graph takes this call: it runs eagerly, in the model's own code",
                Severity.INFO,
            )
        )

    def _callee(self, node: ast.Call, place: Place | None, frame: _Frame, names: Mapping[str, Place]) -> _Frame | None:
        """The method that a call reaches, with what its parameters stand for."""
        given = [_place(argument, frame.place, names) for argument in node.args]
        keywords = {keyword.arg: _place(keyword.value, frame.place, names) for keyword in node.keywords if keyword.arg}
        if _is_super(node.func) and frame.owner is not None:
            assert isinstance(node.func, ast.Attribute)
            found = self._inherited(frame, frame.owner, node.func.attr)
            return found and _framed(found, frame.holder, frame.place, given, keywords)
        if place is None:
            return self._function(node, frame, given, keywords)
        run = self.program.run_by(place, partial(self.program.part_class, self.model)) if place else None
        return run and _framed(run[0], run[1], tuple(run[2]), given, keywords)

    def _inherited(
        self, frame: _Frame, owner: ast.ClassDef, name: str
    ) -> tuple[Module, ast.ClassDef, FunctionNode] | None:
        """The method that a call of `super()` reaches from a method of `owner`."""
        after = dropwhile(lambda member: member[1] is not owner, self.program.lineage(frame.holder))
        found = (self.program.own_method(member, name) for member in islice(after, 1, None))
        return next((method for method in found if method is not None), None)

    def _function(
        self, node: ast.Call, frame: _Frame, given: list[Place | None], keywords: Mapping[str, Place | None]
    ) -> _Frame | None:
        """The function of a module that gets parts of the model."""
        if not isinstance(node.func, ast.Name) or not any((*given, *keywords.values())):
            return None
        if node.func.id.startswith(_SHARDS):
            return None
        found = self.program.resolve(frame.module, node.func.id)
        if found is None or isinstance(found[1], ast.ClassDef):
            return None
        bound = bind_call(found[1], given, keywords).given
        names = {name: value for name, value in bound.items() if value}
        return _Frame(found[0], None, found[1], frame.holder, (), names)

    def method(self, holder: Owner, place: Place, name: str, names: Mapping[str, Place]) -> _Frame | None:
        found = self.program.method(holder, name)
        return found and _Frame(*found, holder, place, names)


def _hoisted(frame: _Frame, calls: Sequence[tuple[int, int]] = ()) -> Hoisted:
    return Hoisted(frame.module.file, frame.class_name, frame.function.name, tuple(calls))


def _text(call: Call | str) -> str:
    return call if isinstance(call, str) else call.text or call.python()


def _framed(
    found: tuple[Module, ast.ClassDef, FunctionNode],
    holder: Owner,
    place: Place,
    given: list[Place | None],
    keywords: Mapping[str, Place | None],
) -> _Frame:
    bound = bind_call(found[2], given, keywords, skip_first=True).given
    return _Frame(*found, holder, place, {name: value for name, value in bound.items() if value is not None})


def called(call: ast.Call) -> ast.expr:
    """The callee of a call if `encode` is None, where an earlier port cut it."""
    return call.func.body if isinstance(call.func, ast.IfExp) and asks_for_encode(call.func) else call.func


def asks_for_encode(node: ast.IfExp) -> bool:
    """Whether it is `... if encode is None else ...`."""
    return ast.unparse(node.test) == f"{ENCODE} is None"


def _is_stub(function: FunctionNode) -> bool:
    """Whether an earlier port moved the body of `embed_multimodal` into a method of its own."""
    keywords = function.args.kwarg
    moved = f"return self.{PRIVATE_ENTRY}({ENCODE}=None, **{keywords.arg})" if keywords else ""
    return function.name == PUBLIC_ENTRY and [ast.unparse(statement) for statement in function.body] == [moved]


def _is_abstract(function: FunctionNode) -> bool:
    """Whether all that a method does is raise `NotImplementedError`."""
    *above, last = function.body
    documented = all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in above)
    raised = last.exc if isinstance(last, ast.Raise) else None
    raised = raised.func if isinstance(raised, ast.Call) else raised
    return documented and isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _makes_others(owner: ast.ClassDef) -> bool:
    """Whether calling a class makes objects of other classes alone: it has a `__new__` that calls no other."""
    new = find_method(owner, "__new__")
    return new is not None and not any(ast.unparse(call.func).endswith(".__new__") for call in _calls(new.body))


def _calls(body: Sequence[ast.stmt]) -> Iterator[ast.Call]:
    """Calls in a body, in the order of the text. Decorators and defaults run elsewhere."""
    for statement in body:
        found = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))


def iterated(node: ast.expr) -> list[ast.expr]:
    """The objects that a loop goes through: `self.layers` of `enumerate(self.layers)` and of `zip(x, self.layers)`."""
    counted = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("enumerate", "zip")
    return node.args if isinstance(node, ast.Call) and counted else [node]


def unsliced(node: ast.expr) -> ast.expr:
    """`self.layers` of `self.layers[:n]`."""
    return node.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice) else node


def _is_sliced(loop: ast.For) -> bool:
    return any(unsliced(over) is not over for over in iterated(loop.iter))


def _aliases(frame: _Frame) -> Iterator[tuple[str, Place]]:
    """Local names of parts of the model: `tower = self.vision_tower`, if nothing else is assigned to the name."""
    stored = Counter(stores(frame.function))
    for node in ast.walk(frame.function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            place = _place(node.value, frame.place, frame.names)
            if place and stored[node.targets[0].id] == 1:
                yield node.targets[0].id, place


def _place(node: ast.expr, own: Place, names: Mapping[str, Place]) -> Place | None:
    """The part of the model that an expression names, None where it names none."""
    path = name_path(node)
    if not path:
        return None
    if path[0] == "self":
        return (*own, *path[1:])
    return (*names[path[0]], *path[1:]) if path[0] in names else None


def _is(node: ast.expr, wanted: Argument, own: Place, names: Mapping[str, Place]) -> bool:
    """Whether an argument is what the descriptor says: an attribute of the model, or a literal."""
    if isinstance(wanted, Attribute):
        return _place(node, own, names) == tuple(wanted.path.split(".")[1:])
    if isinstance(wanted, Literal):
        try:
            value = ast.literal_eval(node)
        except ValueError:
            return False
        return type(value) is type(wanted.value) and bool(value == wanted.value)
    return False


def _is_super(node: ast.expr) -> bool:
    """Whether `super().name` is called, or `super(...).name`."""
    owner = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
