"""The statements in front of a call that a graph holds, as a method, which a port runs once for each batch."""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from scaffold.cut.chains import find_wait
from scaffold.cut.edits import place_of
from scaffold.cut.extract import (
    Extraction,
    Form,
    Prepared,
    _callee,
    _Extractor,
    _Method,
    _Misfit,
    _names,
    runs_of,
)
from scaffold.cut.result import find_change
from scaffold.cut.way import Way
from scaffold.descriptor.expressions import Call, Name
from scaffold.diagnostics import Diagnostic
from scaffold.protocol import SourceTree
from scaffold.syntax import FunctionNode, bind_call
from scaffold.tower.parts import MethodEdit
from scaffold.tower.source import Owner, Program


def find_prepared(
    tree: SourceTree, family: Sequence[Owner], way: Way, form: Form, before: str
) -> Extraction | Diagnostic:
    """The methods of an explicit port of units that the model prepares: what is in front of its encoder's call, and
    what follows the last part of `form.call`. A note where this tree's code has another form. Raises VCG465.

    `way` leads to the call of that in `form.call` which gets the units.
    """
    try:
        return _UnitsExtractor(tree, family, way, form, before).find()
    except _Misfit as misfit:
        return misfit.note(tree, form)


def encoder_of(call: Call) -> Call:
    """The call in a call of the model that gets the units."""
    return next(one for one in call.calls() if any(isinstance(v, Name) and v.name == "pixels" for v in one.values()))


class PreparedExtractor(_Extractor):
    """`before` is the name of the method, which says with `WHY` what it gives."""

    WHY: ClassVar[str] = "Inputs of the layers, and the sizes of the items."

    def __init__(self, tree: SourceTree, family: Sequence[Owner], way: Way, form: Form, before: str) -> None:
        super().__init__(tree, family, way, form)
        self.before = before

    def _handed_over(self, outer: _Method, value: ast.expr) -> str:
        found = self._given(outer, value, frozenset())
        if found is None:
            raise _Misfit(outer, f"the tower gets `{ast.unparse(value)}`, which is no input of the model")
        return found

    def _unset(self, inner: _Method, call: ast.Call) -> dict[str, ast.expr]:
        """The parameters of the tower that the model does not hand over, with their defaults."""
        keywords = {keyword.arg or "**": keyword.value for keyword in call.keywords}
        bound = bind_call(inner.function, call.args, keywords, skip_first=True)
        spec = inner.function.args
        defaults = dict(zip([one.arg for one in spec.args][::-1], spec.defaults[::-1], strict=False))
        defaults |= {one.arg: value for one, value in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if value}
        return {name: value for name, value in defaults.items() if name not in bound.given}

    def _prepared(self, inner: _Method, place: int) -> tuple[tuple[str, ...], list[str], str]:
        """The variables that the new method gives, those that it takes, and the source of both; no source where an
        earlier port made it."""
        function = inner.function
        first = next(at for at, node in enumerate(function.body) if not _is_docstring(node))
        body, rest = function.body[first : place - 1], function.body[place - 1 :]
        if not body:
            raise _Misfit(inner, "nothing stands before the encoder's call")
        if len(body) == 1 and _callee(getattr(body[0], "value", None)) == f"self.{self.before}":
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
        notes = {one.arg: one.annotation for one in ast.walk(function.args) if isinstance(one, ast.arg)}
        parameters = [f"{name}: {ast.unparse(note)}" if (note := notes.get(name)) else name for name in taken]
        lines = list(inner.lines)
        start, end = body[0].lineno - inner.first, rest[0].lineno - inner.first
        # A comment in front of a statement goes with it.
        while lines[start - 1].strip().startswith("#"):
            start -= 1
        while lines[end - 1].strip().startswith("#"):
            end -= 1
        moved = textwrap.indent(textwrap.dedent("\n".join(lines[start:end])).strip("\n"), "    ")
        indent = " " * body[0].col_offset
        call = f"{indent}{', '.join(made)} = self.{self.before}({', '.join(taken)})"
        changed = textwrap.dedent("\n".join([*lines[:start], call, *lines[end:]]))
        header = f"def {self.before}({', '.join(['self', *parameters])}) -> tuple[Any, ...]:"
        why = f'    """{self.WHY}"""'
        return made, taken, f"{header}\n{why}\n{moved}\n    return {', '.join(made)}\n\n{changed}\n"

    def _edits(self, inner: _Method, added: str, outer: _Method, live: Sequence[str]) -> tuple[MethodEdit, ...]:
        """Those that make the methods in front of the encoder's call and behind it, where no earlier port made them."""
        made = (MethodEdit(*place_of(inner.station), (self.before,), added),) if added else ()
        return (*made, *self._after_edits(outer, live))


class _UnitsExtractor(PreparedExtractor):
    WHY = "Inputs of the encoder, from those of the model."

    def __init__(self, tree: SourceTree, family: Sequence[Owner], way: Way, form: Form, before: str) -> None:
        assert form.call is not None
        super().__init__(tree, family, way, replace(form, call=None), before)
        self.call, self.encoder = form.call, encoder_of(form.call)

    def find(self) -> Extraction:
        if len(self.methods) == 1 or any(len(method.leading) != 1 for method in self.methods):
            raise _Misfit(self.methods[-1], "more than one call leads to the encoder, or that of the entry itself")
        outer, inner = self.methods[0], self.methods[-1]
        for method in self.methods[1:]:
            self._check_kept(method)
        above = self.methods[-2]
        call, encode = above.leading[0], inner.leading[0]
        assert isinstance(call, ast.Call)
        assert isinstance(encode, ast.Call)
        assert inner.tail is not None
        unset = self._unset(inner, call)
        made, taken, added = self._prepared(inner, inner.tail)
        # The part of the model whose method it is: the call has the method's name, or for `forward` the part's own.
        owner, _, name = _callee(call).rpartition(".")
        path = owner if name == inner.station.function else _callee(call)
        pixels = self._units_of(inner, Fixed(path, unset).visit(copy.deepcopy(encode)), made)
        prepare, whole = self._calls(above, inner, call, f"{path}.{self.before}", taken, unset)
        cut = self._cut(outer)
        live = self._live(cut)
        arguments, place = self._unparsed([self._argument(cut, name) for name in live]), len(live)
        edits = self._edits(inner, added, cut, live)
        if self._is_cut(cut):
            live, place = self._called(cut, live)
            arguments = self._unparsed([self._argument(cut, name) for name in live])
        held = ast.parse(self.call.python({"pixels": pixels}), mode="eval").body
        return Extraction(
            edits,
            tuple(method.station.place for method in self.methods),
            self.form.after,
            tuple(arguments),
            self.parsed,
            split=False,
            regroups=False,
            prepared=Prepared(self.before, prepare, made, held, whole, pixels=pixels),
            unpacked=self.unpacked,
            place=place,
        )

    def _check_kept(self, method: _Method) -> None:
        """A method between the entry and the encoder gives what it gets, as a tensor of all units."""
        (function,) = ast.parse(textwrap.dedent(method.text)).body
        assert isinstance(function, FunctionNode)
        called, inner = _callee(method.leading[0]), method is self.methods[-1]
        if find_change(function, called) is not None or (inner and method.tail is None):
            raise _Misfit(method, f"`{method.station.function}` changes what it gets of `{called}`")
        if not inner and (method.station.file, method.station.class_name) not in self.owners:
            raise _Misfit(method, f"`{method.station.function}` is another method between the model and its encoder")

    def _units_of(self, inner: _Method, found: ast.Call, made: Sequence[str]) -> str:
        """The variable of the units, in the encoder's call as the model sees it. That must be the descriptor's."""
        given: dict[int | str, ast.expr] = dict(enumerate(found.args))
        given |= {keyword.arg or "**": keyword.value for keyword in found.keywords}
        wanted: dict[int | str, object] = dict(enumerate(self.encoder.args))
        wanted |= {keyword.name: keyword.value for keyword in self.encoder.keywords}
        key = next(key for key, value in wanted.items() if value == Name("pixels"))
        pixels = ast.unparse(given[key]) if key in given else ""
        same = ast.unparse(ast.parse(self.encoder.python({"pixels": pixels or "pixels"}), mode="eval"))
        if ast.unparse(found) != same or not {pixels, *self.form.beside} <= {*made}:
            raise _Misfit(inner, f"`{ast.unparse(found)}` is not the descriptor's call, on what stands before it")
        program = Program(self.tree)
        owner = program.owner(inner.station.file, inner.station.class_name)
        wait = find_wait(program, owner, inner.function.body[(inner.tail or 0) - 1 :][:1], inner.station.function)
        if wait is not None:
            raise _Misfit(inner, f"no graph holds the encoder's call: {wait[0]}")
        return pixels

    def _calls(
        self,
        above: _Method,
        inner: _Method,
        call: ast.Call,
        before: str,
        taken: Sequence[str],
        unset: dict[str, ast.expr],
    ) -> tuple[str, str]:
        """The call of the new method, and that of all which a graph gives, on inputs."""
        values = [*call.args, *(one.value for one in call.keywords)]
        texts = self._unparsed([self._handed_over(above, value) for value in values])
        if self.parsed is not None or self.unpacked is not None:
            raise _Misfit(above, f"`{inner.station.function}` gets more than inputs of the model")
        keywords = {keyword.arg or "**": keyword.value for keyword in call.keywords}
        given = bind_call(inner.function, call.args, keywords, skip_first=True).given
        handed = {id(value): text for value, text in zip(values, texts, strict=True)}
        prepare = ", ".join(handed[id(given[name])] if name in given else ast.unparse(unset[name]) for name in taken)
        words = [*("" for _ in call.args), *(f"{one.arg}=" for one in call.keywords)]
        eager = f"{_callee(call)}({', '.join(map(''.join, zip(words, texts, strict=True)))})"
        return f"{before}({prepare})", self.call.python().replace(self.encoder.python(), eager)

    def _cut(self, outer: _Method) -> _Method:
        """The entry, with what a graph holds of it as the one call that leads to the encoder."""
        site = outer.leading[0]
        assert isinstance(site, ast.Call)
        units = (0 if site.args else next((one.arg for one in site.keywords if one.arg), 0),)
        runs = [*runs_of(outer.function, site, units, ())] if site.args or site.keywords else []
        wanted = self.call.python().replace(self.encoder.python(), runs[0].call) if runs else ""
        run = next((one for one in runs if one.call == ast.unparse(ast.parse(wanted, mode="eval"))), None)
        if run is None:
            raise _Misfit(outer, "the calls that a graph holds are not one after the other here")
        cut = _Method(replace(outer.station, forwards=()), outer.function, outer.lines, (run,))
        if cut.tail is None:
            raise _Misfit(outer, "no statement before others keeps what the encoder's one call gives")
        if self.form.after in self.names and not self._is_cut(cut):
            raise _Misfit(outer, f"the model has a method `{self.form.after}` of its own")
        return cut


class Fixed(ast.NodeTransformer):
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
