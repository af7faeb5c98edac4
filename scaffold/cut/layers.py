"""The methods of an explicit port of rows: what computes the arguments of the layers, and what follows the tower.

A graph holds the one call of the encoder as it is. The statements of its method in front of that call become a method,
which a port runs for each batch; what follows the tower in the model becomes another, as for units.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from scaffold.cut.extract import Extraction, Form, Prepared, _callee, _Method, _Misfit, _Regrouped
from scaffold.cut.hoist import method_lines
from scaffold.cut.prepared import Fixed, PreparedExtractor
from scaffold.cut.result import find_change
from scaffold.cut.way import Way
from scaffold.diagnostics import Diagnostic
from scaffold.protocol import SourceTree
from scaffold.syntax import FunctionNode, find_class
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


#: Further parts of an expression that computes sizes, of each item one by one.
_HOST_OF_ITEMS = (ast.ListComp, ast.comprehension, ast.Tuple, ast.UnaryOp, ast.unaryop)


class _LayersExtractor(PreparedExtractor):
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
        given = self._unset(inner, call)
        made, taken, added = self._prepared(inner, place)
        if set(taken) & given.keys():
            raise _Misfit(inner, "the statements before the encoder's call read what the model does not hand over")
        live = self._live(outer)
        # All in one, since a parser that only hands on inputs is left out for all of them.
        values = [*call.args, *(one.value for one in call.keywords)]
        known = [self._argument(outer, name) for name in live]
        texts = self._unparsed([*known, *(self._handed_over(outer, value) for value in values)])
        arguments, handed = texts[: len(live)], texts[len(live) :]
        extraction = Extraction(
            self._edits(inner, added, outer, live),
            tuple(method.station.place for method in self.methods),
            self.form.after,
            tuple(arguments),
            self.parsed,
            split=True,
            regroups=False,
        )
        words = [*("" for _ in call.args), *(f"{one.arg}=" for one in call.keywords)]
        path, given_to = _callee(call), ", ".join(map("".join, zip(words, handed, strict=True)))
        encode = inner.leading[0]
        assert isinstance(encode, ast.Call)
        filled = Fixed(path, given).visit(ast.parse(ast.unparse(encode), mode="eval").body)
        prepare, whole = f"{path}.{self.before}({given_to})", f"{path}({given_to})"
        around = Prepared(self.before, prepare, made, filled, whole, self._backend(inner, path))
        return replace(extraction, prepared=around)

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

        A graph gives no lengths, so one kernel alone may need them: FlashInfer, with which the class has no graphs.
        """
        for function in (node for node in self.tower_methods if isinstance(node, FunctionNode)):
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr == "attn_backend":
                    kept = {
                        one.targets[0].id: one.value
                        for one in ast.walk(function)
                        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
                    }
                    return ast.unparse(Fixed(path, {}).visit(Fixed("self", kept).visit(copy.deepcopy(node))))
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
