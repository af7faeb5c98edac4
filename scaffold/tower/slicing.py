"""Cuts a tower's `forward` in two: what follows from the grid, and what follows from the pixels.

The rules, in the order in which they are applied to a statement:

* only metadata: it moves; only configuration: it goes where it is read, to both sides if needed; the rest stays;
* a block under a configuration condition is split under the same condition;
* a loop over blocks that touches data stays whole, so that a choice per layer (`cu_now = cu_seqlens`) stays there;
* a child module that gets metadata as arguments, and would need host values of it, is cut in its own right.

Everything else is refused with the line and the reason (VCG451 to VCG458): a guess would be captured and replayed.
"""

from __future__ import annotations

import ast
import difflib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from types import MappingProxyType

from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.protocol.tree import SourceTree
from scaffold.syntax import (
    FunctionNode,
    annotations_of,
    assigned_to,
    bind_call,
    call_name,
    declared_parameters,
    parents_of,
    positional_parameters,
    self_attribute,
)
from scaffold.tower.interpret import Facts, Interpreter, RawHazard, annotation_form, root_name
from scaffold.tower.names import exposed_reads, loads, must_writes, stores
from scaffold.tower.parts import (
    ChildSlice,
    Crossing,
    Evidence,
    Form,
    Hazard,
    Kind,
    Label,
    Parameter,
    Piece,
    Place,
    Replacement,
    TowerSlice,
    Upload,
    flatten,
)
from scaffold.tower.source import Method, Module, Owner, Program
from scaffold.tower.values import CONST, Role, Value

METADATA_METHOD = "prepare_encoder_metadata"
METADATA_ARGUMENT = "encoder_metadata"
#: vLLM's function that copies a tensor to the device without a wait (0.24 on; before, it takes lists alone).
UPLOAD = ("vllm.utils.torch_utils", "async_tensor_h2d")
#: The device of what a metadata method makes on the host.
HOST = '"cpu"'

_KINDS = {
    Role.ROWS: Kind.ROWS,
    Role.LENGTHS: Kind.LENGTHS,
    Role.PERMUTATION: Kind.PERMUTATION,
    Role.BOUND: Kind.HOST_BOUND,
    Role.ENDS: Kind.CUMULATIVE,
    Role.CUMULATIVE: Kind.CUMULATIVE,
    Role.TWO_SECTION: Kind.TWO_SECTION,
}


def slice_tower(
    tree: SourceTree,
    module_path: str,
    class_name: str,
    *,
    entry: str = "forward",
    data: Sequence[str] = ("x",),
    metadata: Sequence[str] = ("grid_thw",),
    names: Mapping[str, str] = MappingProxyType({}),
) -> TowerSlice:
    """Slice the method `entry` of a tower.

    `module_path` is relative to the tree's root; the class is there or is imported there. `data` and `metadata` are
    names of the entry's parameters. `names` maps variables that cross, in the tower or in a child module, to the keys
    that they get in the metadata. A tower that was split already is recognised (`already_split`) and keeps its keys.
    Raises `DiagnosticError` VCG410 to VCG412
    when the module cannot be read, VCG450 or VCG451 when class, method or parameter do not exist, VCG452 to VCG458 when
    there is no clean cut.
    """
    program = Program(tree)
    tree.parse(module_path)  # reports an unreadable file with its own code
    module = program.module(module_path)
    assert module is not None
    owner = program.resolve_class(module, class_name)
    if owner is None:
        raise _no_class(program, module, class_name, (entry, *data, *metadata))
    return _renamed(_slice_class(program, owner, (entry, tuple(data), tuple(metadata)), {}), names)


def _no_class(program: Program, module: Module, class_name: str, call: tuple[str, ...]) -> DiagnosticError:
    """VCG450. The way out is the name that was meant, or the classes that take such a `call`: a method, parameters."""
    entry, *parameters = call
    owners = {name: (module, node) for name, node in module.classes.items()}
    methods = ((name, program.method(owner, entry)) for name, owner in owners.items())
    takes = [
        f"`{name}`"
        for name, method in methods
        if method is not None and len(has := positional_parameters(method[2])) > 2 and {*parameters} <= {*has}
    ]
    close = difflib.get_close_matches(class_name, module.classes, n=1)
    taken = " and ".join(f"`{name}`" for name in parameters) or "two arguments"
    if close:
        help_text = f"did you mean `{close[0]}`?"
    elif takes:
        help_text = f"name a class whose `{entry}` takes {taken}; here these are {', '.join(takes)}."
    else:
        help_text = f"no class here has a `{entry}` that takes {taken}: name a module that defines or imports one."
    return DiagnosticError.of(
        "VCG450",
        f"there is no class `{class_name}` in {module.shown}",
        module.span(module.tree),
        f"{help_text} A descriptor may leave `tower.class` out: the model's `__init__` says it, too",
    )


def _entry_methods(program: Program, owner: Owner) -> list[str]:
    """Public methods of a class that take two arguments or more, which pixels and a grid are."""
    found = (program.method(owner, name) for name in sorted(program.members(owner)) if not name.startswith("_"))
    methods = (method[2] for method in found if method is not None)
    return [method.name for method in methods if len(positional_parameters(method)) > 2]


def _renamed(tower: TowerSlice, names: Mapping[str, str]) -> TowerSlice:
    """The slice with other keys for some crossings."""
    if tower.already_split or not names:
        return tower
    crossings = tuple(
        replace(crossing, key=names[crossing.key]) if crossing.key in names else crossing
        for crossing in tower.crossings
    )
    return replace(
        tower,
        crossings=crossings,
        children=tuple(replace(child, slice=_renamed(child.slice, names)) for child in tower.children),
        keys=tuple(names.get(key, key) for key in tower.keys),
    )


def _slice_class(
    program: Program,
    owner: Owner,
    names: tuple[str, tuple[str, ...], tuple[str, ...]],
    values: dict[str, Value],
    depth: int = 0,
) -> TowerSlice:
    """Slice one class. `names` are the entry method, its data parameters and its metadata parameters."""
    entry, data, metadata = names
    found = program.method(owner, entry)
    if found is None:
        named = ", ".join(f"`{name}`" for name in _entry_methods(program, owner)) or "none with two parameters"
        raise DiagnosticError.of(
            "VCG450",
            f"class `{owner[1].name}` has no method `{entry}`",
            owner[0].span(owner[1]),
            "name the method that takes pixels and grid, as `tower.entry` in the descriptor or with "
            f"`inspect --entry`; the class has {named}",
        )
    module, holder, function = found
    base = TowerSlice(
        file=module.file,
        shown=module.shown,
        source=module.text,
        class_name=holder.name,
        entry=entry,
        data=data,
        metadata=metadata,
        parameters=_parameters(function),
        keys=(),
        class_members=program.members(owner),
    )
    _check_names(f"{owner[1].name}.{entry}", base, module.span(function))
    method = program.method(owner, METADATA_METHOD)
    if method is not None and any(parameter.name == METADATA_ARGUMENT for parameter in base.parameters):
        if METADATA_ARGUMENT not in loads(function):
            raise DiagnosticError.of(
                "VCG461",
                f"`{owner[1].name}.{entry}` takes `{METADATA_ARGUMENT}` and ignores it",
                module.span(function.args),
                f"the metadata method is that of `{method[1].name}`, another tower: split this one itself, or "
                "switch its encoder graphs off",
            )
        return _already_split(program, base, function, method)
    _check_roles(f"{owner[1].name}.{entry}", base, module.span(function.args))
    slicer = _Slicer(program, module, owner, function, base, values, depth)
    result = slicer.run()
    devices = slicer.offset_devices(result)
    if devices:
        again = _Slicer(program, module, owner, function, base, values, depth, devices).run()
        on_host = {one.name for one in again.crossings if one.host and one.kind is Kind.CUMULATIVE}
        made = {one.name for one in result.crossings if one.host is False} & on_host
        if made:
            return replace(again, on_host=frozenset(made))
    return result


def uploads_itself(statement: ast.stmt) -> str | None:
    """The variable that a statement copies to the device and binds again, by vLLM's function for it."""
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call) and statement.value.args:
        name = ast.unparse(statement.targets[0])
        if call_name(statement.value) == UPLOAD[1] and ast.unparse(statement.value.args[0]) == name:
            return name
    return None


def _check_names(what: str, tower: TowerSlice, place: Span) -> None:
    """Data and metadata are parameters. Raises VCG451."""
    known = [parameter.name for parameter in tower.parameters]
    for name in (*tower.data, *tower.metadata):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise DiagnosticError.of(
                "VCG451",
                f"`{what}` has no parameter `{name}`; it takes {', '.join(known)}",
                place,
                f"did you mean `{close[0]}`?" if close else "name the tower's data and metadata parameters",
            )


def _check_roles(what: str, tower: TowerSlice, place: Span) -> None:
    """Every parameter has its role: data, metadata, or a default. Raises VCG451."""
    for parameter in tower.parameters:
        if parameter.name not in (*tower.data, *tower.metadata) and parameter.default is None:
            raise DiagnosticError.of(
                "VCG451",
                f"parameter `{parameter.name}` of `{what}` is neither data nor metadata",
                place,
                "say which it is: data follows the pixels, metadata follows the grid",
            )


def _parameters(function: FunctionNode) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(arg.arg, _text(arg.annotation), _text(default), arg in function.args.kwonlyargs)
        for arg, default in declared_parameters(function)
        if arg.arg not in ("self", "cls")
    )


def _text(node: ast.expr | None) -> str | None:
    return ast.unparse(node) if node is not None else None


def _already_split(program: Program, base: TowerSlice, entry: FunctionNode, found: Method) -> TowerSlice:
    """Read the keys of an existing metadata method, and interpret it for their kinds.

    Keys are those of the dict that it returns and of stores into that dict.
    """
    module, cls, method = found
    stored = _stored(method)
    parameters = _parameters(method)
    interpreter = Interpreter(program)
    env = {
        parameter.name: Value(Label.META, Form.PYTHON) if parameter.default is None else CONST
        for parameter in parameters
        if parameter.name != "device"
    }
    interpreter.run(module, (module, cls), method, env)
    indexing = _indexing_keys(module, entry)
    names = {node.id: key for key, node in stored.items() if isinstance(node, ast.Name)}
    crossings = []
    for key, node in sorted(stored.items(), key=lambda item: (item[1].lineno, item[1].col_offset)):
        value = interpreter.values.get(node, CONST)
        kind = _KINDS.get(value.role)
        evidence = value.trail
        if key in indexing:
            kind, evidence = Kind.PERMUTATION, (*evidence, indexing[key])
        crossings.append(
            Crossing(
                name=key,
                key=key,
                kind=kind or Kind.ROWS,
                form=value.form,
                nullable=value.nullable,
                evidence=evidence,
                defined_at=(node.lineno,),
                used_at=(),
                certain=kind is not None,
                source=_source_key(interpreter, names, stored, value.source, key),
            )
        )
    crossings += [
        crossing for child in _merged_children(program, (module, cls), method) for crossing in child.crossings
    ]
    hazards = [*_hazards_of_split_entry(program, base, (module, cls), entry)]
    hazards += [_hazard(raw, moved=True) for raw in interpreter.hazards.values()]
    return replace(
        base,
        keys=tuple(crossing.key for crossing in crossings),
        hazards=_sorted_hazards(hazards),
        already_split=True,
        metadata_method=method.name,
        method_parameters=parameters,
        crossings=tuple(crossings),
    )


def _stored(method: FunctionNode) -> dict[str, ast.expr]:
    """The value that a metadata method puts under each key of the dict that it returns."""
    returned = {
        node.value.id for node in ast.walk(method) if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
    }
    stored: dict[str, ast.expr] = {}
    for node in ast.walk(method):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            stored |= _entries(node.value)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in assigned_to(node):
                if isinstance(target, ast.Name) and target.id in returned and isinstance(node.value, ast.Dict):
                    stored |= _entries(node.value)
                if (
                    isinstance(target, ast.Subscript)
                    and isinstance(target.value, ast.Name)
                    and target.value.id in returned
                    and isinstance(target.slice, ast.Constant)
                    and isinstance(target.slice.value, str)
                ):
                    stored[target.slice.value] = node.value
    return stored


def _merged_children(program: Program, owner: Owner, method: FunctionNode) -> Iterator[TowerSlice]:
    """Split children whose metadata a method takes into its own: `metadata = self.CHILD.prepare...; {**metadata}`."""
    taken = {
        ast.unparse(value)
        for node in ast.walk(method)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    }
    for node in ast.walk(method):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        func = node.value.func
        attribute = self_attribute(func.value) if isinstance(func, ast.Attribute) else None
        child = program.attribute_class(owner, attribute) if attribute is not None else None
        if child is not None and ast.unparse(node.targets[0]) in taken and METADATA_METHOD in program.members(child):
            found = _slice_class(program, child, ("forward", (), ()), {})
            if found.already_split:
                yield found


def _hazards_of_split_entry(program: Program, base: TowerSlice, owner: Owner, entry: FunctionNode) -> Iterator[Hazard]:
    """The hazards that are left in a tower that is split already, while it is captured with its metadata given."""
    names = [parameter.name for parameter in base.parameters]
    data = [name for name in base.data if name in names] or names[:1]
    env: dict[str, Value] = {}
    for parameter in base.parameters:
        if parameter.name in data:
            env[parameter.name] = Value(Label.DATA, Form.TENSOR, host=False)
        elif parameter.name == METADATA_ARGUMENT or parameter.default is None:
            env[parameter.name] = Value(Label.META)
        else:
            env[parameter.name] = CONST
    interpreter = Interpreter(program)
    interpreter.run(owner[0], owner, entry, env)
    eager: set[ast.stmt] = set()
    for node in ast.walk(entry):
        if isinstance(node, ast.If) and ast.unparse(node.test) == f"{METADATA_ARGUMENT} is None":
            eager |= {inner for statement in node.body for inner in _statements(statement)}
    for raw in interpreter.hazards.values():
        if raw.anchor not in eager:
            yield _hazard(raw, moved=False)


def _hazard(raw: RawHazard, *, moved: bool) -> Hazard:
    return Hazard(raw.what, raw.reason, raw.shown, raw.line, raw.text, moved, raw.via, raw.labels, raw.waits)


def _sorted_hazards(hazards: Iterable[Hazard]) -> tuple[Hazard, ...]:
    """One of each, what stays first, by place."""
    unique = {(h.file, h.line, h.what, h.moved): h for h in hazards}
    return tuple(sorted(unique.values(), key=lambda h: (h.moved, h.file, h.line, h.what)))


def _entries(node: ast.Dict) -> dict[str, ast.expr]:
    return {
        key.value: value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _indexing_keys(module: Module, entry: FunctionNode) -> dict[str, Evidence]:
    """Keys of the metadata dict that the entry uses to index something along its rows."""
    names: dict[str, str] = {}
    for node in ast.walk(entry):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            key = _metadata_key(node.value)
            if key is not None:
                names[node.targets[0].id] = key
    found: dict[str, Evidence] = {}
    for node in ast.walk(entry):
        if isinstance(node, ast.Subscript) and _metadata_key(node) is None:
            first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
            key = names.get(first.id) if isinstance(first, ast.Name) else _metadata_key(first)
            if key is not None:
                found[key] = Evidence(module.shown, node.lineno, "indexes rows of data")
    return found


def _metadata_key(node: ast.expr) -> str | None:
    """The key that `encoder_metadata["key"]` reads."""
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == METADATA_ARGUMENT
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, str)
    ):
        return node.slice.value
    return None


def _source_key(
    interpreter: Interpreter, names: dict[str, str], stored: dict[str, ast.expr], source: str | None, own: str
) -> str | None:
    """The key of the offsets that a value was computed from: through aliases, and offsets rebuilt from a variable."""
    seen: set[str] = set()
    while source is not None and source not in seen:
        seen.add(source)
        if source in names and names[source] != own:
            return names[source]
        for key, node in stored.items():
            if key != own and interpreter.values.get(node, CONST).source == source:
                role = interpreter.values[node].role
                if role in (Role.CUMULATIVE, Role.TWO_SECTION):
                    return key
        source = interpreter.frame.env.get(source, CONST).source
    return None


@dataclass(eq=False)
class _Use:
    """One read of a metadata variable by a staying leaf, or by the condition of a block that stays in part.

    `before` is the number of leaves that come before the read.
    """

    name: str
    node: ast.Name
    statement: ast.stmt
    before: int
    value: Value


def _iterated(node: ast.expr) -> str | None:
    """The variable that a loop runs over, also as `enumerate(name)`."""
    if isinstance(node, ast.Call) and call_name(node) == "enumerate" and len(node.args) == 1:
        node = node.args[0]
    return node.id if isinstance(node, ast.Name) else None


def _appends_to(call: ast.Call, name: str | None) -> bool:
    func = call.func
    return isinstance(func, ast.Attribute) and func.attr == "append" and _iterated(func.value) == name


@dataclass(frozen=True)
class _DataUses:
    """The lines of a statement where a name indexes data, or is added to it or multiplied."""

    indexing: dict[str, tuple[int, ...]] = field(default_factory=dict)
    added: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(eq=False)
class _Slicer:
    """The slice of one function in the making."""

    program: Program
    module: Module
    owner: Owner
    function: FunctionNode
    base: TowerSlice
    values: dict[str, Value]
    depth: int
    #: Devices of what makes offsets: the host takes their place. Uploads of offsets are put off.
    devices: frozenset[ast.expr] = frozenset()
    children: list[ChildSlice] = field(default_factory=list)
    dead: list[ast.expr] = field(default_factory=list)
    shortened: list[ast.Call] = field(default_factory=list)
    data_uses: dict[ast.stmt, _DataUses] = field(default_factory=dict)

    # ------------------------------------------------------------------ the stages

    def run(self) -> TowerSlice:
        """Interpret, place, find the crossings, check that the order may change."""
        self.interpreter = Interpreter(self.program, self.devices)
        env: dict[str, Value] = {}
        annotations = annotations_of(self.function)
        for parameter in self.base.parameters:
            form = annotation_form(annotations[parameter.name])
            if parameter.name in self.base.data:
                env[parameter.name] = Value(Label.DATA, Form.TENSOR, host=False)
            elif parameter.name in self.base.metadata:
                given = self.values.get(parameter.name, Value(form=form))
                env[parameter.name] = replace(given, labels=Label.META, trail=())
            else:
                env[parameter.name] = CONST
        self.interpreter.run(self.module, self.owner, self.function, env)
        body = self.function.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        pieces = self._place_all(body)
        pieces = self._share_constants(pieces)
        self._find_children(pieces)
        self._find_dead_arguments(pieces)
        self._check_order(pieces)
        self._check_named(pieces)
        uses = list(self._uses(pieces))
        crossings = self._crossings(pieces, uses)
        moved = self._moved_nodes(pieces)
        declassified = self._declassify(moved)
        constants = self._constants(pieces)
        uploads = self._uploads(moved)
        hazards = self._hazards(moved, {(upload.function, upload.index) for upload in uploads})
        child_keys = [key for child in self.children for key in child.slice.keys]
        return replace(
            self.base,
            keys=tuple(crossing.key for crossing in crossings) + tuple(child_keys),
            metadata_method=METADATA_METHOD,
            crossings=tuple(crossings),
            pieces=pieces,
            declassified=declassified,
            dead_arguments=tuple(self.dead),
            shortened=tuple(self.shortened),
            children=tuple(self.children),
            hazards=hazards,
            constants=constants,
            uploads=uploads,
        )

    def offset_devices(self, found: TowerSlice) -> frozenset[ast.expr]:
        """Devices and uploads that put values on the device from which only offsets and their longest sequence follow.

        The metadata method makes these of the grid on the host, since their lengths are values: no step waits there.
        None where the tree has no function that uploads them.
        """
        leaves = [leaf for leaf in flatten(found.pieces) if leaf.place in (Place.MOVE, Place.BOTH)]
        handed = {name for child in self.children for _, node in child.arguments for name in loads(node)}
        kinds = {one.name: one.kind for one in found.crossings}
        devices: set[ast.expr] = set()
        for index, leaf in enumerate(leaves if self._can_upload() else ()):
            made = {*leaf.moved_writes}
            for later in leaves[index + 1 :]:
                if made & {name.id for name in exposed_reads([later.node])}:
                    made |= later.moved_writes
            reach = {kinds[name] for name in made & kinds.keys()}
            if Kind.CUMULATIVE not in reach or reach - {Kind.CUMULATIVE, Kind.HOST_BOUND} or made & handed:
                continue
            if isinstance(leaf.node, ast.Assign) and uploads_itself(leaf.node) is not None:
                devices |= {leaf.node.value} if leaf in found.pieces else set()
            elif not any(isinstance(node, ast.keyword) and node.arg == "non_blocking" for node in ast.walk(leaf.node)):
                inside = set(ast.walk(leaf.node))
                devices |= {one.node for one in found.declassified if one.text == "device"} & inside
        return frozenset(devices)

    def _can_upload(self) -> bool:
        module = self.program.module(f"{UPLOAD[0].replace('.', '/')}.py")
        function = module.functions.get(UPLOAD[1]) if module is not None else None
        taken = function.args.args[0].annotation if function is not None else None
        return taken is not None and "torch.Tensor" in ast.unparse(taken)

    def _uploads(self, moved: set[ast.stmt]) -> tuple[Upload, ...]:
        """Indices on the host that a method of this class makes and looks up in tables of the device: `table[index]`.

        Only where each is made before in the same block, and read no more but as an index.
        """
        found: dict[tuple[FunctionNode, str], Upload | None] = {}
        known = self.interpreter.host_indices
        for raw in self.interpreter.hazards.values() if self._can_upload() else ():
            node = raw.node
            function = known.get(node) if isinstance(node, ast.Subscript) else None
            if raw.anchor not in moved or function not in self.module.classes[self.base.class_name].body:
                continue
            assert isinstance(node, ast.Subscript)
            assert function is not None, "a class has no None"
            above = parents_of(function)
            place: ast.AST = node
            while not isinstance(place, ast.stmt):
                place = above[place]
            block: list[ast.stmt] = getattr(above[place], "body", [])
            before = block[: block.index(place)] if place in block else []
            index, table = ast.unparse(node.slice), ast.unparse(node.value)
            first = place.lineno if block is function.body else 0
            indices = {id(one.slice) for one in known}
            reads = (one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == index)
            fits = (
                isinstance(node.value, ast.Name)
                and index in must_writes(before)
                and (before[-1].end_lineno or 0) < place.lineno
                and all(isinstance(one.ctx, ast.Store) or id(one) in indices or one.lineno < first for one in reads)
            )
            found.setdefault((function, index), Upload(function, place, index, table) if fits else None)
        return tuple(filter(None, found.values()))

    def _refuse(self, code: str, message: str, node: ast.AST, help_text: str, *notes: str) -> DiagnosticError:
        where = f" (`{self.owner[1].name}.{self.base.entry}`)"
        return DiagnosticError.of(code, message + where, self.module.span(node), help_text, notes=notes)

    # ------------------------------------------------------------------ placing

    def _label(self, node: ast.stmt) -> Label:
        return reduce(or_, (facts.label for facts in self._facts(node)), Label.NONE)

    def _place_all(self, statements: Sequence[ast.stmt]) -> tuple[Piece, ...]:
        return tuple(self._place(statement) for statement in statements)

    def _place(self, node: ast.stmt) -> Piece:
        label = self._label(node)
        returns = any(isinstance(inner, ast.Return) for inner in _statements(node))
        meta, touched = bool(label & Label.META), bool(label & (Label.DATA | Label.SHAPE))
        if not meta:
            static = not touched and not returns and not _has_effect(node)
            return Piece(node, Place.BOTH if static else Place.STAY, label)
        if not touched and not returns:
            return Piece(node, Place.MOVE, label, moved_writes=self._writes(node))
        if isinstance(node, ast.If):
            return self._place_if(node, label)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            if any(leaf.place is Place.MOVE for leaf in flatten(self._place_all(node.body))):
                raise self._refuse(
                    "VCG452",
                    "a `with` block has statements of metadata and of data",
                    node,
                    "compute the metadata in front of it",
                )
            return Piece(node, Place.STAY, label)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            header_node = node.test if isinstance(node, ast.While) else node.iter
            header = self.interpreter.values.get(header_node, CONST).labels
            if isinstance(node, ast.While):
                header = self.interpreter.condition(header_node)
            if header & Label.META and isinstance(node, ast.For) and self._is_filled_by_layers(_iterated(node.iter)):
                return Piece(node, Place.STAY, label, reason="a loop over the outputs of layers stays whole")
            if header & Label.META:
                raise self._refuse(
                    "VCG452",
                    "a loop over metadata touches data",
                    node,
                    "a captured graph has the loop of the capture. If the loop cuts data into items and joins them, "
                    "replace it by one gather with an index built from the grid, or add the concatenated metadata once",
                )
            return Piece(node, Place.STAY, label, reason="a loop over modules that touches data stays whole")
        if label & Label.DATA or returns:
            return Piece(node, Place.STAY, label)
        raise self._refuse(
            "VCG453",
            "a statement mixes metadata with the shape of data",
            node,
            "in a captured graph the shape is the captured one, not the item's. Take the number from metadata instead, "
            "for example `cos.shape[0]` or the last entry of `cu_seqlens`",
            f"`{self.module.segment(node).splitlines()[0].strip()}`",
        )

    def _is_filled_by_layers(self, name: str | None) -> bool:
        """Whether a list has one entry for each module of some: its length is that of the capture for every batch.

        It begins empty, only `append` changes it, and neither data nor metadata decides how often.
        """
        uses = [part for part in ast.walk(self.function) if isinstance(part, ast.Name) and part.id == name]
        fills = [call for call in ast.walk(self.function) if isinstance(call, ast.Call) and _appends_to(call, name)]
        known = {id(call.func.value) for call in fills if isinstance(call.func, ast.Attribute)}
        for part in ast.walk(self.function):
            if isinstance(part, ast.Assign) and isinstance(part.value, ast.List) and not part.value.elts:
                known |= {id(target) for target in part.targets}
            elif isinstance(part, ast.For):
                known |= {id(inner) for inner in ast.walk(part.iter) if _iterated(part.iter) == name}
        return bool(fills) and all(id(use) in known for use in uses) and self._run_alike(self.function.body, fills)

    def _run_alike(self, body: Sequence[ast.stmt], calls: Sequence[ast.Call]) -> bool:
        """Whether calls in these statements are reached as often for every batch."""
        varies = Label.META | Label.DATA
        for statement in body:
            if not any(call is inner for call in calls for inner in ast.walk(statement)):
                continue
            if isinstance(statement, ast.If):
                header = self.interpreter.condition(statement.test)
            elif isinstance(statement, ast.For):
                header = self.interpreter.values.get(statement.iter, CONST).labels
            elif isinstance(statement, ast.Expr):
                continue
            else:
                return False
            if header & varies or not self._run_alike([*statement.body, *statement.orelse], calls):
                return False
        return True

    def _place_if(self, node: ast.If, label: Label) -> Piece:
        condition = self.interpreter.condition(node.test)
        if condition & Label.DATA:
            return Piece(node, Place.STAY, label)
        if condition & Label.META:
            raise self._refuse(
                "VCG452",
                "a branch on metadata touches data",
                node,
                "a captured graph keeps the branch of the capture. Make both branches one computation on tensors, or "
                "move the metadata part of the branch out of it",
            )
        bodies = self._place_all(node.body), self._place_all(node.orelse)
        writes = (piece.moved_writes for body in bodies for piece in flatten(body))
        return Piece(node, Place.SPLIT, label, bodies, frozenset().union(*writes))

    def _writes(self, node: ast.stmt) -> frozenset[str]:
        return frozenset(name for facts in self._facts(node) for name in facts.writes | facts.mutates)

    def _mutates(self, node: ast.stmt) -> frozenset[str]:
        return frozenset(name for facts in self._facts(node) for name in facts.mutates)

    def _facts(self, node: ast.stmt) -> Iterator[Facts]:
        """The effects of a statement and of those nested in it."""
        known = self.interpreter.facts
        return (known[inner] for inner in _statements(node) if inner in known)

    def _share_constants(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """Give each configuration statement to the side that reads it, or to both."""
        moved: set[str] = set()
        staying: set[str] = set()

        def settle(group: tuple[Piece, ...]) -> tuple[Piece, ...]:
            result: list[Piece] = []
            for piece in reversed(group):
                if piece.place is Place.SPLIT:
                    bodies = tuple(settle(body) for body in reversed(piece.bodies))
                    header = set(loads(_condition(piece)))
                    if any(leaf.place is not Place.STAY for body in bodies for leaf in flatten(body)):
                        moved.update(header)
                    staying.update(header)
                    result.append(replace(piece, bodies=tuple(reversed(bodies))))
                    continue
                reads = {*loads(piece.node), *self._mutates(piece.node)}
                written = must_writes([piece.node])
                if piece.place is not Place.BOTH:
                    moved.difference_update(written)
                    staying.difference_update(written)
                    if piece.place is Place.MOVE:
                        moved.update(reads)
                    else:
                        # A name that is metadata when it is read comes through the cut: it needs no definition here.
                        staying.update(reads - self._metadata_reads(piece.node))
                    result.append(piece)
                    continue
                writes = self._writes(piece.node)
                to_moved, to_staying = bool(writes & moved), bool(writes & staying)
                moved.difference_update(written)
                staying.difference_update(written)
                if to_moved:
                    moved.update(reads)
                if to_staying or not to_moved:
                    staying.update(reads)
                if to_moved and to_staying:
                    place = Place.BOTH
                else:
                    place = Place.MOVE if to_moved else Place.STAY
                result.append(replace(piece, place=place, moved_writes=writes if to_moved else frozenset()))
            return tuple(reversed(result))

        return settle(pieces)

    def _metadata_reads(self, node: ast.stmt) -> set[str]:
        values = self.interpreter.values
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        return {n.id for n in names if n in values and values[n].labels == Label.META} - self._writes(node)

    # ------------------------------------------------------------------ children

    def _find_children(self, pieces: tuple[Piece, ...]) -> None:
        for leaf in flatten(pieces):
            if leaf.place is not Place.STAY or isinstance(leaf.node, (ast.For, ast.While, ast.If, ast.Try)):
                continue
            for call in ast.walk(leaf.node):
                if isinstance(call, ast.Call) and self_attribute(call.func) is not None:
                    self._try_child(leaf, call)

    def _try_child(self, leaf: Piece, call: ast.Call) -> None:
        assert isinstance(call.func, ast.Attribute)
        attribute = call.func.attr
        if self.program.method(self.owner, attribute) is not None:
            return
        child = self.program.attribute_class(self.owner, attribute)
        if child is None or "model_executor/layers/" in child[0].file:
            return
        found = self.program.method(child, "forward")
        if found is None or self.depth >= 3:
            return
        bound = bind_call(found[2], call.args, {one.arg or "**": one.value for one in call.keywords}, skip_first=True)
        if bound.rest or any(isinstance(arg, ast.Starred) for arg in call.args):
            return
        names = [name for name in annotations_of(found[2]) if name in bound.given]
        value_of = {name: self.interpreter.values.get(bound.given[name], CONST) for name in names}
        metadata = tuple(name for name, value in value_of.items() if value.labels == Label.META)
        data = tuple(name for name, value in value_of.items() if value.labels & (Label.DATA | Label.SHAPE))
        if not metadata or not data:
            return
        needs = any(value_of[name].form is not Form.TENSOR for name in metadata)
        try:
            inner = _slice_class(self.program, child, ("forward", data, metadata), value_of, self.depth + 1)
        except DiagnosticError as error:
            if needs:
                raise DiagnosticError(
                    [
                        Diagnostic(
                            "VCG457",
                            f"child module `{attribute}` gets metadata that is no tensor, and cannot be split itself",
                            self.module.span(call),
                            "split the child by hand into a part that follows from the grid and one that follows from "
                            "the pixels, then run again",
                        ),
                        *error.diagnostics,
                    ]
                ) from error
            return
        if inner.already_split:
            return
        # Tensors that only pass through need no cut; a child that would compute on the host does.
        moves = bool(inner.children) or any(piece.place is Place.MOVE for piece in flatten(inner.pieces))
        if not moves or not (needs or any(hazard.moved for hazard in inner.hazards)):
            return
        self.children.append(ChildSlice(attribute, call, leaf.node, inner, bound.given))

    def _find_dead_arguments(self, pieces: tuple[Piece, ...]) -> None:
        """Metadata arguments that a followed call takes and does nothing with: its result has no metadata."""
        taken = {id(child.call) for child in self.children}
        risky = {raw.anchor for raw in self.interpreter.hazards.values() if raw.labels & Label.META}
        for leaf in flatten(pieces):
            for call in ast.walk(leaf.node) if leaf.place is Place.STAY else ():
                if not isinstance(call, ast.Call) or call not in self.interpreter.followed or id(call) in taken:
                    continue
                arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
                labels = [self.interpreter.values.get(argument, CONST).labels for argument in arguments]
                result = self.interpreter.values.get(call, CONST).labels
                if result & Label.META or any(label & Label.META and label != Label.META for label in labels):
                    continue
                if leaf.node in risky:
                    continue
                self.dead += [a for a, label in zip(arguments, labels, strict=True) if label == Label.META]
                if arguments and arguments[-1] in self.dead and not call.keywords:
                    parameters = self.interpreter.followed[call].args
                    given = len(call.args) + (self_attribute(call.func) is not None)
                    optional = given - len([*parameters.posonlyargs, *parameters.args]) + len(parameters.defaults)
                    if optional > 0 and ast.unparse(parameters.defaults[optional - 1]) == "None":
                        self.shortened.append(call)

    # ------------------------------------------------------------------ does a name hold what crosses?

    def _check_named(self, pieces: tuple[Piece, ...]) -> None:
        """Refuse metadata that a data expression makes: the graph would compute it, of padded buffers."""
        handed = {expression for child in self.children for _, expression in child.arguments} | {*self.dead}
        found = self.interpreter.hazards.values()
        risky = sorted(raw.line for raw in found if not raw.via and raw.labels == Label.META)
        for leaf in flatten(pieces):
            for statement in _statements(leaf.node) if leaf.place is Place.STAY else ():
                local = self._writes(leaf.node) if statement is not leaf.node else frozenset()
                for expression in _parts(statement):
                    self._check_part(expression, local, handed, risky)

    def _check_part(self, node: ast.expr, local: frozenset[str], handed: set[ast.expr], risky: Sequence[int]) -> None:
        """`local` are names that the statement itself writes, `handed` what goes to a child module, and `risky` the
        sorted lines where metadata must not be captured."""
        if node in handed or isinstance(node, (ast.Name, ast.Constant)):
            return
        value = self.interpreter.values.get(node)
        if (
            value is not None
            and value.labels == Label.META
            and value.form in (Form.TENSOR, Form.UNKNOWN)
            and isinstance(node, (ast.Call, ast.BinOp, ast.Subscript, ast.UnaryOp, ast.Attribute, ast.IfExp))
            and local.isdisjoint(loads(node))
            and not _is_choice(node)
            and not self._crosses_as_it_is(node, risky)
        ):
            raise self._refuse(
                "VCG456",
                f"`{ast.unparse(node)}` follows from the grid, and no variable holds it",
                node,
                "compute it in a statement of its own, which can move: `name = ...`",
            )
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            local |= {name for generator in node.generators for name in stores(generator.target)}
        if isinstance(node, ast.Lambda):
            local |= {arg.arg for arg in node.args.args}
        for part in _parts(node):
            self._check_part(part, local, handed, risky)

    def _crosses_as_it_is(self, node: ast.expr, risky: Sequence[int]) -> bool:
        """Arithmetic on tensor variables, or slices of them, can run in the graph: their own names are better keys."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name):
                value = self.interpreter.values.get(inner, CONST)
                if value.labels & Label.META and value.form is not Form.TENSOR:
                    return False
            elif isinstance(inner, (ast.Call, ast.IfExp, ast.Compare, ast.Attribute)):
                return False
        return bisect_left(risky, node.lineno) == bisect_right(risky, node.end_lineno or node.lineno)

    # ------------------------------------------------------------------ crossings

    def _uses(self, pieces: tuple[Piece, ...]) -> Iterator[_Use]:
        """Reads of metadata variables by staying statements, apart from those that a staying statement defined."""
        local: set[str] = set()
        handed = [*self.dead, *(expression for child in self.children for _, expression in child.arguments)]
        inside = {id(node) for expression in handed for node in ast.walk(expression)}
        position = 0

        def crossing(names: list[ast.Name], statement: ast.stmt) -> Iterator[_Use]:
            for name in names:
                value = self.interpreter.values.get(name)
                if id(name) in inside or value is None or not value.labels & Label.META or name.id in local:
                    continue
                if not value.labels & (Label.DATA | Label.SHAPE):
                    yield _Use(name.id, name, statement, position, value)

        def walk(group: tuple[Piece, ...]) -> Iterator[_Use]:
            nonlocal position, local
            for piece in group:
                if piece.place is Place.SPLIT:
                    if any(leaf.place in (Place.STAY, Place.BOTH) for leaf in flatten((piece,))):
                        yield from crossing(exposed_reads([ast.Expr(_condition(piece))]), piece.node)
                    entry, ends = set(local), []
                    for body in piece.bodies:
                        local = set(entry)
                        yield from walk(body)
                        ends.append(local)
                    local = set.intersection(*ends)
                    continue
                if piece.place in (Place.MOVE, Place.BOTH):
                    local -= piece.moved_writes
                elif piece.place is Place.STAY:
                    yield from crossing(exposed_reads([piece.node]), piece.node)
                    local |= must_writes([piece.node])
                position += 1

        yield from walk(pieces)

    def _crossings(self, pieces: tuple[Piece, ...], uses: list[_Use]) -> list[Crossing]:
        leaves = flatten(pieces)
        writers: dict[str, list[int]] = {}
        for index, leaf in enumerate(leaves):
            if leaf.place in (Place.MOVE, Place.BOTH):
                for name in leaf.moved_writes:
                    writers.setdefault(name, []).append(index)
        groups: dict[str, list[_Use]] = {}
        for use in uses:
            later = [index for index in writers.get(use.name, []) if index >= use.before]
            if later:
                raise self._refuse(
                    "VCG455",
                    f"`{use.name}` gets a value after data has used another one",
                    leaves[later[0]].node,
                    "give the later value a name of its own",
                )
            groups.setdefault(use.name, []).append(use)
        found: list[tuple[int, Crossing]] = []
        for name, members in groups.items():
            made = [leaves[index].node for index in writers.get(name, [])]
            value = members[0].value
            for use in members[1:]:
                role, nullable = max(value.role, use.value.role), value.nullable or use.value.nullable
                value = replace(value, role=role, nullable=nullable)
            self._check_form(name, value, members[0].node, is_made=bool(made))
            if not made:
                for use in members:
                    self._check_followed(use)
            kind, evidence, certain = self._kind(name, value, [use.statement for use in members])
            always = not made or any(
                piece.place in (Place.MOVE, Place.BOTH) and name in must_writes([piece.node]) for piece in pieces
            )
            plain_form, pad_before = self._padding_point(pieces, name) if _is_offsets(kind) else (None, None)
            crossing = Crossing(
                name=name,
                key=name,
                kind=kind,
                form=value.form,
                nullable=value.nullable or not always,
                evidence=evidence,
                defined_at=tuple(node.lineno for node in made),
                used_at=tuple(dict.fromkeys(use.node.lineno for use in members)),
                certain=certain,
                source=value.source if value.source != name else None,
                always=always,
                host=value.host,
                users=tuple(dict.fromkeys(use.statement for use in members)),
                definer=made[-1] if made else None,
                plain_form=plain_form,
                pad_before=pad_before,
            )
            found.append((crossing.defined_at[0] if crossing.defined_at else 0, crossing))
        found.sort(key=lambda item: (item[0], item[1].used_at[0]))
        return [crossing for _, crossing in found]

    def _padding_point(self, pieces: tuple[Piece, ...], name: str) -> tuple[Form | None, ast.stmt | None]:
        """Form of the finished plain offsets `name`, and the top-level statement in front of which they are padded.

        The offsets are finished when the zero is in front. Maxima and lengths are computed from those of the grid:
        empty sequences change no maximum, and their lengths are zeros. None means the end of the moved statements.
        """
        form: Form | None = None
        point: ast.stmt | None = None
        for piece in pieces:
            if piece.place not in (Place.MOVE, Place.BOTH, Place.SPLIT):
                continue
            values = [self.interpreter.values.get(r, CONST) for r in exposed_reads([piece.node]) if r.id == name]
            plain = any(v.role is Role.CUMULATIVE and v.form is Form.TENSOR for v in values)
            after = self.interpreter.after.get((piece.node, name), CONST)
            if plain and piece.moved_writes != {name}:
                form, point = Form.TENSOR, None  # read as they are; padding comes later
            elif plain and point is None:
                form, point = Form.TENSOR, piece.node
            if point is None and name in piece.moved_writes and after.role is Role.CUMULATIVE:
                form = after.form
        return form, point

    def _check_form(self, name: str, value: Value, node: ast.Name, *, is_made: bool) -> None:
        if value.form in (Form.PYTHON, Form.NUMPY):
            what = "a numpy array" if value.form is Form.NUMPY else "a Python value"
            raise self._refuse(
                "VCG456",
                f"`{name}` is {what} built from the grid, and data needs it",
                node,
                "a captured graph freezes it. Pass a tensor, or move the computation that needs the value out of the "
                "captured part",
            )
        if not is_made and name in self.base.metadata and value.form is not Form.TENSOR:
            raise self._refuse(
                "VCG456",
                f"the metadata parameter `{name}` itself reaches data, and it may be a list",
                node,
                "compute what data needs from it as a tensor first",
            )

    def _check_followed(self, use: _Use) -> None:
        """A metadata parameter that is handed on as it is must go where its use can be seen."""
        for call in ast.walk(use.statement):
            if not isinstance(call, ast.Call) or call in self.interpreter.followed:
                continue
            if any(use.node is argument for argument in [*call.args, *(keyword.value for keyword in call.keywords)]):
                raise self._refuse(
                    "VCG456",
                    f"the metadata parameter `{use.name}` goes to `{ast.unparse(call.func)}`, which is not readable",
                    use.node,
                    "its class is not visible in `__init__`; slice that class itself, or pass it tensors",
                )

    def _kind(self, name: str, value: Value, statements: list[ast.stmt]) -> tuple[Kind, tuple[Evidence, ...], bool]:
        evidence, line = value.trail, statements[0].lineno
        statements = list(dict.fromkeys(statements))
        indexing = next((at for node in statements for at in self._data_uses(node).indexing.get(name, ())), None)
        if indexing is not None:
            return Kind.PERMUTATION, (*evidence, Evidence(self.module.shown, indexing, "indexes rows of data")), True
        kind = _KINDS.get(value.role)
        if kind is not None:
            return kind, evidence, True
        added = next((at for node in statements for at in self._data_uses(node).added.get(name, ())), None)
        if added is not None:
            return Kind.ROWS, (*evidence, Evidence(self.module.shown, added, "added to rows of data")), True
        return (
            Kind.ROWS,
            (*evidence, Evidence(self.module.shown, line, "no evidence; assumed to follow the rows")),
            False,
        )

    def _data_uses(self, statement: ast.stmt) -> _DataUses:
        """The uses of names with data in a statement; asked for every name in it."""
        if statement not in self.data_uses:
            uses = _DataUses()
            for node in ast.walk(statement):
                if isinstance(node, ast.Subscript) and self._is_data(node.value):
                    first = node.slice.elts[:1] if isinstance(node.slice, ast.Tuple) else [node.slice]
                    for name in (part.id for part in first if isinstance(part, ast.Name)):
                        uses.indexing.setdefault(name, (node.lineno,))
                elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
                    sides = (node.left, node.right)
                    if any(self._is_data(side) for side in sides):
                        for name in (side.id for side in sides if isinstance(side, ast.Name)):
                            uses.added.setdefault(name, (node.lineno,))
            self.data_uses[statement] = uses
        return self.data_uses[statement]

    def _is_data(self, node: ast.expr) -> bool:
        return bool(self.interpreter.values.get(node, CONST).labels & Label.DATA)

    # ------------------------------------------------------------------ is the new order the old meaning?

    def _check_order(self, pieces: tuple[Piece, ...]) -> None:
        """Refuse moves that would change what a statement sees."""
        owner: dict[str, Place] = {}
        read_by_data: dict[str, ast.stmt] = {}
        mutable: dict[str, set[Place]] = {}
        for leaf in flatten(pieces):
            mutated = self._mutates(leaf.node)
            for variable in mutated:
                mutable.setdefault(variable, set()).add(leaf.place)
            if leaf.place is Place.MOVE:
                self._check_moved(leaf, owner, read_by_data, mutated)
            elif leaf.place is Place.BOTH:
                for variable in leaf.moved_writes:
                    mutable.setdefault(variable, set()).add(Place.BOTH)
            elif leaf.place is Place.STAY:
                for variable in mutated:
                    if owner.get(variable) is Place.MOVE:
                        raise self._refuse(
                            "VCG455",
                            f"the captured part writes into metadata `{variable}` in place",
                            leaf.node,
                            "write to a copy: the value is a buffer of the captured graph",
                        )
                for name in exposed_reads([leaf.node]):
                    read_by_data.setdefault(name.id, leaf.node)
                for variable in self._writes(leaf.node) - mutated:
                    owner[variable] = Place.STAY
            for variable in leaf.moved_writes:
                owner[variable] = leaf.place
        for variable, places in mutable.items():
            if Place.BOTH in places and len(places) > 1:
                node = next(leaf.node for leaf in flatten(pieces) if variable in self._writes(leaf.node))
                raise self._refuse(
                    "VCG454",
                    f"`{variable}` collects values of metadata and of data",
                    node,
                    "use one list for metadata and another for data",
                )

    def _check_moved(
        self, leaf: Piece, owner: dict[str, Place], read_by_data: dict[str, ast.stmt], mutated: frozenset[str]
    ) -> None:
        static = {id(name) for node in self.interpreter.static_reads for name in ast.walk(node)}
        for name in exposed_reads([leaf.node]):
            if id(name) not in static and owner.get(name.id) is Place.STAY:
                raise self._refuse(
                    "VCG454",
                    f"metadata reads `{name.id}`, which a statement that stays in the captured part defines",
                    name,
                    "compute it before, in statements that only depend on the grid",
                )
        for variable in mutated:
            if variable in read_by_data and owner.get(variable) is Place.MOVE:
                raise self._refuse(
                    "VCG455",
                    f"metadata `{variable}` is changed in place after data has used it",
                    leaf.node,
                    f"write the change to a new variable; line {read_by_data[variable].lineno} uses the old value",
                )

    # ------------------------------------------------------------------ what else the split needs to know

    def _moved_nodes(self, pieces: tuple[Piece, ...]) -> set[ast.stmt]:
        moved: set[ast.stmt] = set()
        for leaf in flatten(pieces):
            if leaf.place in (Place.MOVE, Place.BOTH):
                moved.update(_statements(leaf.node))
        return moved

    def _declassify(self, moved: set[ast.stmt]) -> tuple[Replacement, ...]:
        roots: list[ast.AST] = [*moved]
        roots += [expression for child in self.children for _, expression in child.arguments]
        inside = {id(node): node for root in roots for node in ast.walk(root)}
        result = []
        for node, (attribute, _) in self.interpreter.static_reads.items():
            if id(node) not in inside:
                continue
            if attribute == "new":
                replacement = f"torch.empty(0, dtype={self._dtype()}, device=device)"
            elif attribute == "device":
                replacement = HOST if node in self.devices else "device"
            elif attribute == "dtype":
                replacement = self._dtype()
            else:
                raise self._refuse(
                    "VCG453",
                    f"metadata reads `.{attribute}` of data",
                    node,
                    "read it from the module's weights instead",
                )
            result.append(Replacement(node, replacement))
        # The metadata method takes the device as a parameter, and that of the weights is only its default.
        if "device" in self.base.class_members:
            own = (node for node in inside.values() if isinstance(node, ast.expr) and self_attribute(node) == "device")
            result += [Replacement(node, HOST if node in self.devices else "device") for node in own]
        return tuple(sorted(result, key=lambda read: (read.node.lineno, read.node.col_offset)))

    def _dtype(self) -> str:
        return "self.dtype" if "dtype" in self.base.class_members else "next(self.parameters()).dtype"

    def _constants(self, pieces: tuple[Piece, ...]) -> tuple[Parameter, ...]:
        reads: set[str] = set()
        for leaf in flatten(pieces):
            if leaf.place in (Place.MOVE, Place.BOTH):
                reads.update(loads(leaf.node))
        for piece in _all(pieces):
            if piece.place is Place.SPLIT and piece.moved_writes:
                reads.update(loads(_condition(piece)))
        return tuple(
            parameter
            for parameter in self.base.parameters
            if parameter.name in reads and parameter.name not in (*self.base.data, *self.base.metadata)
        )

    def _hazards(
        self, moved: set[ast.stmt], uploaded: Collection[tuple[FunctionNode | None, str]]
    ) -> tuple[Hazard, ...]:
        child_of = {child.statement: child for child in self.children}
        taken_out = {id(n) for child in self.children for _, argument in child.arguments for n in ast.walk(argument)}
        hazards: list[Hazard] = []
        for raw in self.interpreter.hazards.values():
            child = child_of.get(raw.anchor)
            if child is not None and raw.via and raw.via[0].startswith(f"{child.slice.class_name}."):
                continue
            found = _hazard(raw, moved=raw.anchor in moved or id(raw.site) in taken_out)
            if isinstance(raw.node, ast.Subscript):
                place = self.interpreter.host_indices.get(raw.node), ast.unparse(raw.node.slice)
                found = replace(found, waits=found.waits and place not in uploaded)
            hazards.append(found)
        for child in self.children:
            hazards += [replace(h, via=(f"{child.slice.class_name}.forward", *h.via)) for h in child.slice.hazards]
        return _sorted_hazards(hazards)


# ---------------------------------------------------------------------- reading the AST


def _is_offsets(kind: Kind) -> bool:
    return kind in (Kind.CUMULATIVE, Kind.TWO_SECTION)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """A statement and those nested in it, without the bodies of nested functions."""
    if isinstance(node, ast.stmt):
        yield node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield from _statements(child)


def _condition(piece: Piece) -> ast.expr:
    """The condition of a block that is split."""
    assert isinstance(piece.node, ast.If)
    return piece.node.test


def _has_effect(node: ast.stmt) -> bool:
    """Whether a configuration statement does something besides binding names."""
    return any(
        isinstance(inner, (ast.Expr, ast.Raise, ast.Assert, ast.Global, ast.Delete)) for inner in _statements(node)
    )


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a statement or an expression is made of, without those of nested statements."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, (ast.keyword, ast.comprehension, ast.withitem)):
            yield from _parts(child)


def _is_choice(node: ast.expr) -> bool:
    """`a.shape`-like reads stay in place: naming them would let a number cross."""
    return isinstance(node, ast.Attribute) and root_name(node) is not None and root_name(node) != f"self.{node.attr}"


def _all(pieces: tuple[Piece, ...]) -> Iterator[Piece]:
    for piece in pieces:
        yield piece
        for body in piece.bodies:
            yield from _all(body)
