"""The methods of an explicit port of rows: what computes the arguments of the layers, and what follows the tower.

A graph holds the one call of the encoder as it is. The statements of its method in front of that call become a method,
which a port runs for each batch; what follows the tower in the model becomes another, as for units.

Where the layers run in the same method as the statements in front of them, a graph holds the loop over them, which
becomes a method, too. The descriptor then has the calls that lead there, and those that follow.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from scaffold.cut.extract import (
    Extraction,
    Form,
    PreparedCall,
    PreparedLoop,
    _callee,
    _Extractor,
    _Method,
    _Misfit,
    _names,
    _Regrouped,
)
from scaffold.cut.hoist import hoisted_source, hoisted_tree, method_lines
from scaffold.cut.loops import loop_method
from scaffold.cut.result import find_change
from scaffold.cut.way import Station, Way
from scaffold.descriptor.expressions import Call
from scaffold.descriptor.port import LONGEST, LOOP_METHOD
from scaffold.diagnostics import Diagnostic
from scaffold.protocol import SourceTree
from scaffold.syntax import (
    FunctionNode,
    annotations_of,
    bind_call,
    declared_parameters,
    end_of,
    find_class,
    find_method,
    first_line,
    indentation_of,
)
from scaffold.tower.parts import MethodEdit
from scaffold.tower.source import Owner


def find_layers(
    tree: SourceTree, family: Sequence[Owner], way: Way, form: Form, before: str, filled: bool
) -> Extraction | Diagnostic:
    """The methods of an explicit port of rows; a note where this tree's code has another form. Raises VCG465.

    `filled`: attention leaves no row of its result unwritten.
    """
    try:
        if not filled:
            method = way.stations[-1]
            raise _Misfit(_Method(method, *method_lines(tree, *method.place)), "this release leaves rows unwritten")
        return _LayersExtractor(tree, family, way, form, before).find()
    except _Misfit as misfit:
        return misfit.note(tree, form)


def find_looped_layers(
    tree: SourceTree,
    way: Way,
    form: Form,
    before: str,
    call: Call,
    filled: bool,
    known: Mapping[str, str] = MappingProxyType({}),
) -> Extraction | Diagnostic:
    """The methods of an explicit port of rows whose layers run in a loop; a note where this tree has another form.

    `call` is that of the method which has the loop, as a port makes it. `known` are the types of variables. Where the
    layers take the longest sequence of late, the loop's method does, too, and the method that has it does not.
    """
    station = next(one for one in way.stations if one.sites)
    inner, helper, optional = _outlined(tree, way, station, known)
    try:
        if not filled:
            raise _Misfit(inner, "this release leaves rows unwritten")
        return _looped(tree, way, inner, (helper, optional), before, call)
    except _Misfit as misfit:
        return misfit.note(tree, form)


def _outlined(tree: SourceTree, way: Way, station: Station, known: Mapping[str, str]) -> tuple[_Method, str, bool]:
    """The method with the layers, which calls a method in the place of its loop, the source of that one, and whether
    it takes the longest sequence where its call gives none. No source where an earlier port made it."""
    function, lines = method_lines(tree, *station.place)
    loop, start = station.loop, first_line(function)
    if loop is None:
        owner = find_class(tree.parse(station.file), station.class_name)
        made = find_method(owner, LOOP_METHOD) if owner is not None else None
        return _Method(station, function, lines), "", made is not None and LONGEST in _defaults(made)
    optional = any(one.place == station.place for one in way.hoisted)
    told, moved = method_lines(hoisted_tree(tree, way.hoisted), *station.place)
    first, last = loop.line - start, loop.end_line - start
    handed = [name for name in loop.arguments if name != LONGEST or not optional]
    call = f"{indentation_of(lines[first])}{loop.result} = self.{LOOP_METHOD}({', '.join(handed)})"
    text = textwrap.dedent("\n".join([*lines[:first], call, *lines[last + 1 :]]))
    (changed,) = ast.parse(text).body
    assert isinstance(changed, FunctionNode)
    [site] = [node for node in ast.walk(changed) if _callee(node) == f"self.{LOOP_METHOD}"]
    assert isinstance(site, ast.Call)
    station = replace(station, sites=(end_of(site),), loop=None)
    helper = loop_method(told, loop, moved[first : last + 1], known, LONGEST if optional else None)
    return _Method(station, changed, text.split("\n")), helper, optional


def _looped(tree: SourceTree, way: Way, inner: _Method, loop: tuple[str, bool], before: str, call: Call) -> Extraction:
    helper, optional = loop
    if inner.tail is None:
        raise _Misfit(inner, "no statement follows the loop over the layers")
    made, taken, added = _prepared(inner, inner.tail, before, "Inputs of the layers.")
    caller = ast.parse(call.python(), mode="eval").body
    assert isinstance(caller, ast.Call)
    keywords = {keyword.arg or "**": keyword.value for keyword in caller.keywords}
    given = bind_call(inner.function, caller.args, keywords, skip_first=True).given
    handed = [name for name in taken if name in given]
    if [name for name in taken if name not in given and name not in _defaults(inner.function)]:
        raise _Misfit(inner, "the statements in front of the layers read what the descriptor's call leaves out")
    path, texts = _callee(caller), [ast.unparse(given[name]) for name in handed]
    arguments = ", ".join(texts[:1] + [f"{name}={text}" for name, text in zip(handed[1:], texts[1:], strict=True)])
    encode = ast.parse(ast.unparse(inner.leading[0]), mode="eval").body
    assert isinstance(encode, ast.Call)
    if optional:
        encode.keywords.append(ast.keyword(LONGEST, ast.Name(LONGEST, ast.Load())))
    encode = _Fixed(path, _unset(inner, caller)).visit(encode)
    known = {*made, *path.split("."), *([LONGEST] if optional else [])}
    if others := sorted({one.id for one in _names([encode])} - known):
        raise _Misfit(inner, f"the layers read `{others[0]}`, which nothing in front of them makes")
    edits = []
    if added:
        new, _, changed = added.partition("\n\ndef ")
        text = f"{new}\n\n{helper}\ndef {changed}"
        edits.append(MethodEdit(*inner.station.place, (before, LOOP_METHOD), text))
    further = [one for one in way.hoisted if one.place != inner.station.place]
    hoisted = hoisted_tree(tree, further)
    edits += [MethodEdit(*one.place, (), hoisted_source(hoisted, one)) for one in further]
    own, told = inner.station.place[1:], way.parameters.items()
    return Extraction(
        tuple(edits),
        (inner.station.place, *(one.place for one in further)),
        None,
        (),
        None,
        split=True,
        regroups=False,
        prepared=PreparedLoop(
            before,
            f"{path}.{before}({arguments})",
            made,
            encode,
            _uploads(tree, inner, before, given),
            _is_invariant(inner, given),
            {(owner, LOOP_METHOD) if (owner, name) == own else (owner, name): names for (owner, name), names in told},
        ),
    )


#: Further parts of an expression that computes sizes, of each item one by one.
_HOST_OF_ITEMS = (ast.ListComp, ast.comprehension, ast.Tuple, ast.UnaryOp, ast.unaryop)


class _LayersExtractor(_Extractor):
    """`before` is the name of the method that computes the arguments of the layers."""

    def __init__(self, tree: SourceTree, family: Sequence[Owner], way: Way, form: Form, before: str) -> None:
        super().__init__(tree, family, way, form)
        self.before = before

    def find(self) -> Extraction:
        if len(self.methods) != 2:
            raise _Misfit(self.methods[-1], "other methods than the model's and the tower's lead to the encoder")
        outer, inner = self.methods
        place, tower = inner.tail, outer.tail
        if place is None or tower is None or (outer.station.file, outer.station.class_name) not in self.owners:
            raise _Misfit(outer if tower is None else inner, "no statement keeps what the encoder's one call gives")
        self._check_tower(inner)
        owner = find_class(self.tree.parse(inner.station.file), inner.station.class_name)
        named = (inner.station.function, self.before)
        self.tower_methods = [one for one in owner.body if getattr(one, "name", None) in named] if owner else []
        call = outer.leading[0]
        assert isinstance(call, ast.Call)
        given = _unset(inner, call)
        made, taken, added = _prepared(inner, place, self.before)
        if set(taken) & given.keys():
            raise _Misfit(inner, "the statements before the encoder's call read what the model does not hand over")
        live = self._live(outer)
        # All in one, since a parser that only hands on inputs is left out for all of them.
        values = [*call.args, *(one.value for one in call.keywords)]
        known = [self._argument(outer, name) for name in live]
        texts = self._unparsed([*known, *(self._handed_over(outer, value) for value in values)])
        arguments, handed = texts[: len(live)], texts[len(live) :]
        words = [*("" for _ in call.args), *(f"{one.arg}=" for one in call.keywords)]
        path, given_to = _callee(call), ", ".join(map("".join, zip(words, handed, strict=True)))
        encode = inner.leading[0]
        assert isinstance(encode, ast.Call)
        filled = _Fixed(path, given).visit(ast.parse(ast.unparse(encode), mode="eval").body)
        prepare, whole = f"{path}.{self.before}({given_to})", f"{path}({given_to})"
        edits = (MethodEdit(*inner.station.place, (self.before,), added),) if added else ()
        return Extraction(
            (*edits, *self._after_edits(outer, live)),
            tuple(method.station.place for method in self.methods),
            self.form.after,
            tuple(arguments),
            self.parsed,
            split=True,
            regroups=False,
            prepared=PreparedCall(self.before, prepare, made, filled, whole, self._backend(inner, path)),
        )

    def _handed_over(self, outer: _Method, value: ast.expr) -> str:
        found = self._given(outer, value, frozenset())
        if found is None:
            raise _Misfit(outer, f"the tower gets `{ast.unparse(value)}`, which is no input of the model")
        return found

    def _unpacked_as(self, method: _Method, name: str, seen: frozenset[tuple[str, str]]) -> str | None:
        return None  # A port of rows has no statement for it.

    def _is_host(self, node: ast.AST) -> bool:
        shape = isinstance(node, ast.Attribute) and node.attr == "shape"
        return shape or isinstance(node, _HOST_OF_ITEMS) or super()._is_host(node)

    def _features_type(self, method: _Method) -> str:
        returns = self.methods[-1].function.returns
        return ast.unparse(returns) if returns is not None else "torch.Tensor"

    def _check_tower(self, inner: _Method) -> None:
        """The tower gives the features of its layers for each item, and nothing else."""
        (function,) = ast.parse(textwrap.dedent(inner.text)).body
        assert isinstance(function, FunctionNode)
        called = _callee(inner.leading[0])
        if find_change(_Selected().visit(_Regrouped().visit(function)), called) is not None:
            raise _Misfit(inner, f"`{inner.station.function}` changes what it gets of `{called}`")

    def _backend(self, inner: _Method, path: str) -> str:
        """The attribute of attention with its backend that the statements in front of the encoder's call read.

        It says how offsets are padded, which come in two sections for FlashInfer.
        """
        for function in (node for node in self.tower_methods if isinstance(node, FunctionNode)):
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr == "attn_backend":
                    kept = {
                        one.targets[0].id: one.value
                        for one in ast.walk(function)
                        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
                    }
                    return ast.unparse(_Fixed(path, {}).visit(_Fixed("self", kept).visit(copy.deepcopy(node))))
        raise _Misfit(inner, "nothing in front of the encoder's call asks which attention backend needs lengths")


class _Selected(ast.NodeTransformer):
    """Features in the place of the choice of a layer, which is the last one, and of their axis for a batch."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(
                func=ast.Name(id="resolve_visual_encoder_outputs"), args=[features, ast.Constant(value=None)]
            ):
                return features
            case ast.Call(func=ast.Attribute(value=features, attr="squeeze"), args=[ast.Constant(value=0)]):
                return features
        return node


class _Fixed(ast.NodeTransformer):
    """The encoder's call as the model sees it, with the values that its tower's parameters have."""

    def __init__(self, path: str, values: dict[str, ast.expr]) -> None:
        self.path, self.values = path, values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "self":
            return ast.parse(self.path, mode="eval").body
        # A copy: these are parts of trees that others read.
        return copy.deepcopy(self.values[node.id]) if node.id in self.values else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(
                left=ast.Constant(value=None),
                ops=[ast.Is() | ast.IsNot() as op],
                comparators=[ast.Constant(value=None)],
            ):
                return ast.Constant(isinstance(op, ast.Is))
        return node


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _uploads(tree: SourceTree, inner: _Method, before: str, given: Mapping[str, ast.expr]) -> bool:
    """Whether a method, or the one that an earlier port made of it, copies the offsets that it is given to the device,
    by vLLM's function for it."""
    from scaffold.tower.slicing import uploads_itself

    offsets = {name for name, value in given.items() if ast.unparse(value) == "offsets"}
    owner = find_class(tree.parse(inner.station.file), inner.station.class_name)
    made = find_method(owner, before) if owner is not None else None
    nodes = [node for one in (inner.function, made) if one is not None for node in ast.walk(one)]
    return any(uploads_itself(node) in offsets for node in nodes if isinstance(node, ast.stmt))


def _is_invariant(inner: _Method, given: Mapping[str, ast.expr]) -> bool:
    """Whether a list of tuples is no list of the type that a parameter for the sizes has."""
    notes = annotations_of(inner.function)
    types = [notes.get(name) for name, value in given.items() if ast.unparse(value) == "sizes"]
    lists = [one for note in types if note is not None for one in ast.walk(note) if isinstance(one, ast.Subscript)]
    return any(ast.unparse(one.value) == "list" and isinstance(one.slice, ast.BinOp) for one in lists)


def _unset(inner: _Method, call: ast.Call) -> dict[str, ast.expr]:
    """The parameters of the tower that the model does not hand over, with their defaults."""
    keywords = {keyword.arg or "**": keyword.value for keyword in call.keywords}
    bound = bind_call(inner.function, call.args, keywords, skip_first=True)
    return {name: value for name, value in _defaults(inner.function).items() if name not in bound.given}


def _defaults(function: FunctionNode) -> dict[str, ast.expr]:
    """The parameters that a caller may leave out, with their defaults."""
    return {one.arg: value for one, value in declared_parameters(function) if value is not None}


def _prepared(
    inner: _Method, place: int, before: str, gives: str = "Inputs of the layers, and the sizes of the items."
) -> tuple[tuple[str, ...], list[str], str]:
    """The variables that the new method gives, those that it takes, and the source of both; no source where an
    earlier port made it."""
    function = inner.function
    first = next(at for at, node in enumerate(function.body) if not _is_docstring(node))
    body, rest = function.body[first : place - 1], function.body[place - 1 :]
    if not body:
        raise _Misfit(inner, "nothing stands before the encoder's call")
    if len(body) == 1 and _callee(getattr(body[0], "value", None)) == f"self.{before}":
        names = _names(body)
        made = tuple(one.id for one in names if isinstance(one.ctx, ast.Store))
        return made, [one.id for one in names if isinstance(one.ctx, ast.Load) and one.id != "self"], ""
    if any(isinstance(node, ast.Return | ast.Yield) for one in body for node in ast.walk(one)):
        raise _Misfit(inner, "the statements before the encoder's call may leave its method")
    stored = dict.fromkeys(one.id for one in _names(body) if isinstance(one.ctx, ast.Store))
    later = list(dict.fromkeys(one.id for one in _names(rest) if isinstance(one.ctx, ast.Load)))
    made = tuple(name for name in later if name in stored)
    read = {one.id for one in _names(body)}
    taken = [name for name in inner.parameters if name in read and name != "self"]
    notes, defaults = annotations_of(function), _defaults(function)
    parameters = []
    for name in taken:
        note, default = notes.get(name), defaults.get(name)
        typed = f"{name}: {ast.unparse(note)}" if note is not None else name
        equals = " = " if note is not None else "="
        parameters.append(f"{typed}{equals}{ast.unparse(default)}" if default is not None else typed)
    lines = list(inner.lines)
    start, end = body[0].lineno - inner.first, rest[0].lineno - inner.first
    # A comment in front of a statement goes with it.
    while lines[start - 1].strip().startswith("#"):
        start -= 1
    while lines[end - 1].strip().startswith("#"):
        end -= 1
    moved = textwrap.indent(textwrap.dedent("\n".join(lines[start:end])).strip("\n"), "    ")
    indent = " " * body[0].col_offset
    call = f"{indent}{', '.join(made)} = self.{before}({', '.join(taken)})"
    changed = textwrap.dedent("\n".join([*lines[:start], call, *lines[end:]]))
    header = f"def {before}({', '.join(['self', *parameters])}) -> tuple[Any, ...]:"
    why = f'    """{gives}"""'
    return made, taken, f"{header}\n{why}\n{moved}\n    return {', '.join(made)}\n\n{changed}\n"
