"""Evaluates methods of a tree symbolically: by their syntax, with inputs that have a key and no content.

One pass over a function, each loop body once. A condition that the values decide takes its branch; one that they do
not decide takes both, one after the other. Conditions on data parallelism count as false, and inputs named `*_embeds`
as absent: a graph is captured for pixels on one device.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from scaffold.draft.values import (
    BatchInputs,
    Closure,
    FieldConfig,
    Input,
    Items,
    Mapped,
    Op,
    Plain,
    Ref,
    SourceLine,
    Term,
    inputs_of,
)
from scaffold.syntax import FunctionNode, bind_call, call_name, decorator_names, positional_parameters
from scaffold.tower.names import stores
from scaffold.tower.source import Module, Owner, Program

_DEPTH = 14
_FIELD_CONFIG = "MultiModalFieldConfig"
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Div: "/",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitOr: "|",
}
_LITERAL_COMPARE: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(slots=True)
class Scope:
    """One evaluated function: its module, the class that defines it, and its variables."""

    module: Module
    owner: Owner | None
    variables: dict[str, Term]
    depth: int
    returns: list[Term] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """The events on the way.

    These are calls of parts of the model on data, splits of their results, constructed classes, inputs that were read
    and those that must be None, switches that were passed over, and every function entered. `replaced` are ways to cut
    an input into items that a branch replaced by another.
    """

    calls: list[Op] = field(default_factory=list)
    splits: list[Op] = field(default_factory=list)
    tables: list[Mapped] = field(default_factory=list)
    inputs: dict[str, Input] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    switches: list[Ref] = field(default_factory=list)
    replaced: list[tuple[FieldConfig, FieldConfig]] = field(default_factory=list)
    visited: list[tuple[Module, FunctionNode]] = field(default_factory=list)


class Evaluator:
    """Evaluates methods of one class. `sizes` are keys that describe items: with them a method is looked into, while
    one that gets pixels only stays a call, so that a descriptor can name it."""

    def __init__(
        self, program: Program, cls: Owner, *, sizes: frozenset[str] = frozenset(), deep: bool = False
    ) -> None:
        self._program, self._cls, self._sizes, self._deep = program, cls, sizes, deep
        self.trace = History()

    def method(self, name: str, /, **arguments: Term) -> Term | None:
        """The value that `self.NAME(...)` returns, None when the class has no such method."""
        found = self._program.method(self._cls, name)
        if found is None:
            return None
        module, owner, node = found
        return self._call(Closure(module, (module, owner), node, {}, bound=True), [], dict(arguments), 0)

    def variables(self, name: str, /, **arguments: Term) -> dict[str, Term]:
        """All variables of `self.NAME(...)` after its last statement; none when the class has no such method."""
        found = self._program.method(self._cls, name)
        if found is None:
            return {}
        module, owner, node = found
        closure = Closure(module, (module, owner), node, {}, bound=True)
        frame = Scope(module, closure.owner, self._bind(closure, [], dict(arguments)), 0)
        self._block(node.body, frame)
        return frame.variables

    def of_module(self, name: Ref) -> Term | None:
        """The value that the module of a name assigns to it at its top."""
        module = self._program.module(name.place.file) if name.place is not None else None
        for node in module.tree.body if module is not None else ():
            if isinstance(node, ast.Assign) and name.path in map(ast.unparse, node.targets):
                assert module is not None, "its statements"
                return self._value(node.value, Scope(module, None, {}, 0))
        return None

    # --- functions --------------------------------------------------------------------------------------------------

    def _bind(self, function: Closure, args: list[Term], keywords: dict[str, Term]) -> dict[str, Term]:
        spec, names = function.node.args, positional_parameters(function.node)
        bound = bool(function.bound and names and "staticmethod" not in decorator_names(function.node))
        call = bind_call(function.node, args, keywords, skip_first=bound)
        variables = dict(function.variables)
        if bound:
            variables[names[0]] = Ref(function.receiver)
        for name, default in call.defaults.items():
            variables[name] = Op("parameter", (Plain(name),)) if default is None else _constant(default)
        variables |= call.given
        if spec.vararg:
            variables[spec.vararg.arg] = Items(list(call.rest))
        if spec.kwarg:
            variables[spec.kwarg.arg] = keywords.get("**", BatchInputs())
        return variables

    def _call(self, function: Closure, args: list[Term], keywords: dict[str, Term], depth: int) -> Term:
        if depth > _DEPTH:
            return Op("too deep", tuple(args))
        values = [value for value in self._returned(function, args, keywords, depth) if value != Plain(None)]
        return self._chosen(values) if values else Plain(None)

    def _chosen(self, values: list[Term]) -> Term:
        """The value of a function that returns one of several."""
        return values[-1]

    def _returned(self, function: Closure, args: list[Term], keywords: dict[str, Term], depth: int) -> list[Term]:
        """The value of every `return` of a function."""
        self.trace.visited.append((function.module, function.node))
        frame = Scope(function.module, function.owner, self._bind(function, args, keywords), depth)
        self._block(function.node.body, frame)
        return frame.returns

    # --- statements -------------------------------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt], frame: Scope) -> bool:
        """Whether a return, raise, continue or break left the block."""
        return any(self._statement(statement, frame) for statement in statements)

    def _statement(self, node: ast.stmt, frame: Scope) -> bool:
        if isinstance(node, ast.Return):
            frame.returns.append(self._value(node.value, frame) if node.value else Plain(None))
            return True
        if isinstance(node, (ast.Raise, ast.Continue, ast.Break)):
            return True
        if isinstance(node, ast.If):
            return self._branch(node, frame)
        if isinstance(node, ast.For):
            self._loop(node, frame)
        elif isinstance(node, ast.While):
            self._block(node.body, frame)
        elif isinstance(node, (ast.With, ast.Try)):
            return self._block(node.body, frame)
        elif isinstance(node, FunctionNode):
            frame.variables[node.name] = Closure(frame.module, frame.owner, node, frame.variables)
        elif isinstance(node, ast.Assign):
            value = self._value(node.value, frame)
            for target in node.targets:
                self._assign(target, value, frame)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self._value(node.value, frame), frame)
        elif isinstance(node, ast.AugAssign):
            old, new = self._value(node.target, frame), self._value(node.value, frame)
            self._assign(node.target, self._binary(_BINARY.get(type(node.op), "?"), old, new, node, frame), frame)
        elif isinstance(node, ast.Expr):
            self._value(node.value, frame)
        elif isinstance(node, ast.Assert):
            self._refuse(node.test, frame)
        return False

    def _loop(self, node: ast.For, frame: Scope) -> None:
        """The body once for each key of a mapping with known keys, once for anything else."""
        over = self._value(node.iter, frame)
        if isinstance(over, Mapped):
            elements: list[Term] = [Plain(key) for key in list(over.entries)]
        elif entries := _items(over):
            elements = [Items([Plain(key), value]) for key, value in entries.items()]
        else:
            elements = [_each(over, self._place(node, frame))]
        for element in elements:
            self._assign(node.target, element, frame)
            self._block(node.body, frame)

    def _refuse(self, test: ast.expr, frame: Scope) -> None:
        """`assert NAME is None` of an input: the model does not take it."""
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is):
            value = self._value(test.left, frame)
            if isinstance(value, Input) and self._value(test.comparators[0], frame) == Plain(None):
                self.trace.refused.add(value.key)

    def _branch(self, node: ast.If, frame: Scope) -> bool:
        decided = self._truth(node.test, frame)
        if decided is not None:
            return self._block(node.body if decided else node.orelse, frame)
        left = self._block(node.body, frame)
        return self._block(node.orelse, frame) and left

    def _assign(self, target: ast.expr, value: Term, frame: Scope) -> None:
        if isinstance(target, ast.Name):
            before = frame.variables.get(target.id)
            if isinstance(before, FieldConfig) and isinstance(value, FieldConfig) and before.kind != value.kind:
                self.trace.replaced.append((before, value))
            frame.variables[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            known = value.values if isinstance(value, Items) and len(value.values) == len(target.elts) else None
            for index, element in enumerate(target.elts):
                part = known[index] if known else Op("[]", (value, Plain(index)), place=self._place(target, frame))
                self._assign(element.value if isinstance(element, ast.Starred) else element, part, frame)
        elif isinstance(target, ast.Subscript):
            table, key = self._value(target.value, frame), self._value(target.slice, frame)
            if isinstance(table, Mapped) and isinstance(key, Plain) and isinstance(key.value, str):
                table.entries[key.value] = value

    # --- conditions -------------------------------------------------------------------------------------------------

    def _truth(self, node: ast.expr, frame: Scope) -> bool | None:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._truth(node.operand, frame)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(part, frame) for part in node.values]
            decisive = isinstance(node.op, ast.Or)
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node, frame)
        return self._truth_of(self._value(node, frame))

    def _truth_of(self, value: Term) -> bool | None:
        if isinstance(value, Ref) and value.path.startswith("self.") and "data_parallel" in value.path:
            self.trace.switches.append(value)
            return False
        if isinstance(value, Plain):
            return bool(value.value)
        return True if isinstance(value, Mapped) and value.entries else None

    def _compare(self, node: ast.Compare, frame: Scope) -> bool | None:
        left, right = self._value(node.left, frame), self._value(node.comparators[0], frame)
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and right == Plain(None):
            absent = self._is_absent(left)
            return absent if isinstance(node.ops[0], ast.Is) or absent is None else not absent
        compare = _LITERAL_COMPARE.get(type(node.ops[0]))
        if compare is not None and isinstance(left, Plain) and isinstance(right, Plain):
            return compare(left.value, right.value)
        return None

    def _is_absent(self, value: Term) -> bool | None:
        """Whether a value is None: embeddings given instead of pixels are, everything else that is known is not."""
        if isinstance(value, Plain):
            return value.value is None
        if isinstance(value, Input):
            # Phi-4-MM calls its pixels `input_image_embeds`.
            return value.key.endswith("_embeds") and not value.key.startswith("input_")
        return None if isinstance(value, Op) and value.name == "parameter" else False

    # --- expressions ------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr, frame: Scope) -> Term:
        if isinstance(node, ast.Constant):
            return Plain(node.value)
        if isinstance(node, ast.Name):
            return frame.variables.get(node.id) or Ref(node.id, self._place(node, frame))
        if isinstance(node, ast.Attribute):
            return self._attribute(self._value(node.value, frame), node, frame)
        if isinstance(node, ast.Call):
            return self._evaluate_call(node, frame)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, frame)
        if isinstance(node, (ast.Tuple, ast.List)):
            values = [self._value(element, frame) for element in node.elts]
            if isinstance(node, ast.Tuple) and all(isinstance(value, Plain) for value in values):
                return Plain(tuple(value.value for value in values if isinstance(value, Plain)))
            return Items(values)
        if isinstance(node, ast.Dict):
            return self._dict(node, frame)
        if isinstance(node, ast.DictComp):
            return self._filtered(node, frame)
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, frame), self._value(node.right, frame)
            return self._binary(_BINARY.get(type(node.op), "?"), left, right, node, frame)
        if isinstance(node, ast.IfExp):
            decided = self._truth(node.test, frame)
            body, other = self._value(node.body, frame), self._value(node.orelse, frame)
            return (body if decided else other) if decided is not None else other if body == Plain(None) else body
        if isinstance(node, ast.NamedExpr):
            value = self._value(node.value, frame)
            self._assign(node.target, value, frame)
            return value
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            inner = Scope(frame.module, frame.owner, dict(frame.variables), frame.depth, frame.returns)
            for generator in node.generators:
                self._assign(generator.target, _each(self._value(generator.iter, inner), None), inner)
            return Items([self._value(node.elt, inner)])
        if isinstance(node, ast.Slice):
            parts = (node.lower, node.upper, node.step)
            return Op("slice", tuple(self._value(part, frame) if part else Plain(None) for part in parts))
        if isinstance(node, ast.Starred):
            return self._value(node.value, frame)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return Plain(-node.operand.value) if isinstance(node.operand.value, (int, float)) else Op("-", ())
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Op(type(node).__name__, tuple(self._value(child, frame) for child in children))

    def _attribute(self, value: Term, node: ast.Attribute, frame: Scope) -> Term:
        place = self._place(node, frame)
        if isinstance(value, Ref):
            return Ref(f"{value.path}.{node.attr}", place)
        if isinstance(value, Mapped) and value.made_by and node.attr in value.entries:
            return value.entries[node.attr]
        return Op(f".{node.attr}", (value,), place=place)

    def _input(self, value: Input) -> Input:
        return self.trace.inputs.setdefault(value.key, value) if value.columns is None else value

    def _dict(self, node: ast.Dict, frame: Scope) -> Term:
        table = Mapped({}, place=self._place(node, frame))
        for key, value in zip(node.keys, node.values, strict=True):
            found = self._value(value, frame)
            if key is None:
                table.entries.update(found.entries if isinstance(found, Mapped) else {})
            elif isinstance(key, ast.Constant):
                table.entries[str(key.value)] = found
        return table

    def _filtered(self, node: ast.DictComp, frame: Scope) -> Term:
        """`{key: value for key, value in inputs.items() if ...}` of the inputs: some of them, each under its key; or
        `{key: table[key] for key in ("a", "b")}`."""
        generator = node.generators[0]
        over = generator.iter
        keys = self._value(over, frame) if len(node.generators) == 1 and not generator.ifs else None
        if isinstance(keys, Plain) and isinstance(keys.value, tuple):
            table = Mapped({}, place=self._place(node, frame))
            for key in keys.value:
                inner = Scope(frame.module, frame.owner, dict(frame.variables), frame.depth, frame.returns)
                self._assign(generator.target, Plain(key), inner)
                name = self._value(node.key, inner)
                if isinstance(name, Plain):
                    table.entries[str(name.value)] = self._value(node.value, inner)
            return table
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr == "items":
            whole = self._value(over.func.value, frame)
            same = ast.unparse(generator.target).strip("()") == f"{ast.unparse(node.key)}, {ast.unparse(node.value)}"
            if isinstance(whole, BatchInputs) and same and len(node.generators) == 1:
                return whole
        return Op("DictComp", (self._value(over, frame),), place=self._place(node, frame))

    def _binary(self, name: str, left: Term, right: Term, node: ast.AST, frame: Scope) -> Term:
        if name == "|" and isinstance(left, Mapped) and isinstance(right, Mapped):
            return Mapped(left.entries | right.entries, place=left.place)
        return Op(name, (left, right), place=self._place(node, frame))

    def _subscript(self, node: ast.Subscript, frame: Scope) -> Term:
        value, key = self._value(node.value, frame), self._value(node.slice, frame)
        place = self._place(node, frame)
        if isinstance(key, Plain):
            if isinstance(value, BatchInputs) and isinstance(key.value, str):
                return self._input(Input(key.value, place=place))
            if isinstance(value, Mapped) and key.value in value.entries:
                return value.entries[str(key.value)]
            if isinstance(value, Items) and isinstance(key.value, int) and key.value in range(-1, len(value.values)):
                return value.values[key.value] if value.values else Op("[]", (value, key), place=place)
        if isinstance(value, Ref) and value.path == "dict":  # dict[str, Field](...)
            return value
        if isinstance(value, Items) and isinstance(key, Op) and key.name == "slice":
            return value
        return Op("[]", (value, key), place=place)

    # --- calls ------------------------------------------------------------------------------------------------------

    def _mapped(self, function: ast.Lambda, over: ast.expr, frame: Scope) -> Term:
        """`map(lambda x: ..., values)`; a body `a if x > b else c` keeps both values."""
        inner = Scope(frame.module, frame.owner, dict(frame.variables), frame.depth, frame.returns)
        inner.variables[function.args.args[0].arg] = _each(self._value(over, frame), None)
        body = function.body
        test = body.test if isinstance(body, ast.IfExp) else None
        if isinstance(body, ast.IfExp) and isinstance(test, ast.Compare) and [type(op) for op in test.ops] == [ast.Gt]:
            parts = (test.left, test.comparators[0], body.body, body.orelse)
            return Items([Op("if >", tuple(self._value(part, inner) for part in parts))])
        return Items([self._value(body, inner)])

    def _evaluate_call(self, node: ast.Call, frame: Scope) -> Term:
        mapped = node.args if call_name(node) == "map" and len(node.args) == 2 else []
        if mapped and isinstance(mapped[0], ast.Lambda) and len(mapped[0].args.args) == 1:
            return self._mapped(mapped[0], mapped[1], frame)
        args = [self._value(argument, frame) for argument in node.args]
        keywords: dict[str, Term] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, frame)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Mapped):
                keywords |= value.entries
            else:
                keywords["**"] = value
        if isinstance(node.func, ast.Attribute):
            if _is_super(node.func.value):
                return self._super(node.func.attr, args, keywords, frame)
            receiver = self._value(node.func.value, frame)
            known = self._of_container(receiver, node.func.attr, args, keywords, node, frame)
            if known is not None:
                return known
            function = self._attribute(receiver, node.func, frame)
        else:
            function = self._value(node.func, frame)
        return self._apply(function, args, keywords, node, frame)

    def _of_container(
        self, value: Term, method: str, args: list[Term], keywords: dict[str, Term], node: ast.Call, frame: Scope
    ) -> Term | None:
        """The result of a method of a mapping or list; None when it is not one of those that are known."""
        first = args[0] if args else Plain(None)
        if isinstance(value, BatchInputs) and method in ("pop", "get") and isinstance(first, Plain):
            default = args[1] if len(args) > 1 else Plain(None)
            return self._input(Input(str(first.value), _columns(default), self._place(node, frame)))
        if isinstance(value, Mapped):
            if method in ("get", "pop") and isinstance(first, Plain) and str(first.value) in value.entries:
                return value.entries[str(first.value)]
            if method == "update" and (isinstance(first, Mapped) or keywords):
                value.entries.update((first.entries if isinstance(first, Mapped) else {}) | keywords)
                return Plain(None)
            if method == "setdefault" and len(args) == 2:  # by any key: what it groups
                return value.entries.setdefault(str(first.value) if isinstance(first, Plain) else "*", args[1])
        if isinstance(value, Items) and method in ("append", "extend") and args:
            value.values.append(first)
            return Plain(None)
        return None

    def _apply(self, function: Term, args: list[Term], keywords: dict[str, Term], node: ast.Call, frame: Scope) -> Term:
        place = self._place(node, frame)
        if isinstance(function, Closure):
            return self._call(function, args, keywords, frame.depth + 1)
        if isinstance(function, Ref):
            return self._apply_named(function.path, args, keywords, place, frame)
        name = function.name if isinstance(function, Op) else "call"
        receiver = function.args if isinstance(function, Op) else (function,)
        made = Op(name, (*receiver, *args), tuple(keywords.items()), place)
        if name == ".split":
            self.trace.splits.append(made)
        return made

    def _apply_named(
        self, path: str, args: list[Term], keywords: dict[str, Term], place: SourceLine, frame: Scope
    ) -> Term:
        if path == "dict":
            table = Mapped({}, place=place)
            for value in args:
                table.entries.update(value.entries if isinstance(value, Mapped) else {})
            table.entries.update(keywords)
            return table
        head, _, last = path.rpartition(".")
        if head.rpartition(".")[2] == _FIELD_CONFIG:
            return _field(last, args, keywords, place)
        made = Op(path, tuple(args), tuple(keywords.items()), place)
        target = self._target(path, frame)
        if path.startswith("self."):
            if isinstance(target, Closure) and self._enters(made):
                return self._call(target, args, keywords, frame.depth + 1)
            if isinstance(target, Closure) and (checked := self._checked(target, args, keywords)) is not None:
                return checked
            if inputs_of(made):
                self.trace.calls.append(made)
            return made
        if isinstance(target, Mapped):  # a constructed class
            self.trace.tables.append(Mapped(dict(keywords), target.made_by, place))
            return self.trace.tables[-1]
        if isinstance(target, Closure) and target.bound and args and args[0] == Ref("self"):  # `Base.method(self, ...)`
            return self._call(target, args[1:], keywords, frame.depth + 1)
        if isinstance(target, Closure) and (self._deep or _has_container(made) or self._runs_part(made)):
            return self._call(target, args, keywords, frame.depth + 1)
        return made

    def _checked(self, method: Closure, args: list[Term], keywords: dict[str, Term]) -> Term | None:
        """The input that a method only checks: it is given back as it is, in one of the forms that it may have."""
        variables = self._bind(method, args, keywords)
        nodes = list(ast.walk(method.node))
        changed = stores(method.node)
        returned = (node.value for node in nodes if isinstance(node, ast.Return))
        names = (value.id for value in returned if isinstance(value, ast.Name) and value.id not in changed)
        given = map(variables.get, names)
        return next((value for value in given if isinstance(value, Input)), None)

    def _runs_part(self, made: Op) -> bool:
        """Whether a function gets inputs and a module of the model, which it may run on them."""
        given = [value.path.removeprefix("self.") for value in made.operands if isinstance(value, Ref)]
        return bool(inputs_of(made)) and any(self._program.attribute_class(self._cls, name) for name in given)

    def _enters(self, made: Op) -> bool:
        """Whether to look into a method of the class: not when it gets pixels and nothing of their sizes."""
        return self._deep or _has_container(made) or not inputs_of(made) or bool(self._sizes & set(inputs_of(made)))

    def _target(self, path: str, frame: Scope) -> Term | None:
        """The meaning of a dotted name: a function or method of the tree, or an empty `Mapped` for a class."""
        parts = path.split(".")
        owner = frame.owner
        if parts[0] != "self":
            parts[0] = _aliased(frame.module, parts[0])
        elif owner is not None and (frame.depth == 0 or _inherits(self._program, self._cls, owner)):
            owner = self._cls
        found = self._program.callee(frame.module, owner, parts)
        if found is not None:
            return Closure(found.module, found.definer, found.function, {}, bound=found.definer is not None)
        known = self._program.resolve(frame.module, parts[0]) if len(parts) == 1 else None
        return Mapped({}, known[1].name) if known is not None else None

    def _super(self, name: str, args: list[Term], keywords: dict[str, Term], frame: Scope) -> Term:
        if frame.owner is not None:
            method = self._program.method(frame.owner, name, inherited=True)
            if method is not None:
                owner, definer, node = method
                itself = frame.variables.get("self")
                receiver = itself.path if isinstance(itself, Ref) else "self"
                closure = Closure(owner, (owner, definer), node, {}, bound=True, receiver=receiver)
                return self._call(closure, args, keywords, frame.depth + 1)
        return Op(f"super.{name}", tuple(args), tuple(keywords.items()))

    @staticmethod
    def _place(node: ast.AST, frame: Scope) -> SourceLine:
        return SourceLine(frame.module.file, getattr(node, "lineno", 1))


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _items(value: Term) -> dict[str, Term]:
    """The entries of a mapping whose `items()` are gone through."""
    of = value.args[0] if isinstance(value, Op) and value.name == ".items" else None
    return of.entries if isinstance(of, Mapped) else {}


def _each(value: Term, place: SourceLine | None) -> Term:
    """An element of an iterated value."""
    if isinstance(value, Items) and len(value.values) == 1:
        return value.values[0]
    if isinstance(value, Items) and value.values and all(isinstance(part, Items) for part in value.values):
        return value.values[-1]  # tuples that are appended in several ways
    return Op("each", (value,), place=place)


def _constant(node: ast.expr) -> Term:
    return Plain(node.value) if isinstance(node, ast.Constant) else Op("default", ())


def _has_container(made: Op) -> bool:
    return any(isinstance(value, (Mapped, BatchInputs, Items)) for value in made.operands)


def _columns(default: Term) -> int | None:
    """Columns of an empty tensor that stands for a missing input: `torch.empty((0, 3))` has 3, `torch.empty(0)` 0."""
    if isinstance(default, Op) and default.name == "torch.empty" and default.args:
        shape = default.args[0]
        if isinstance(shape, Plain):
            if isinstance(shape.value, tuple) and len(shape.value) == 2 and isinstance(shape.value[1], int):
                return shape.value[1]
            if shape.value == 0:
                return 0
    return None


def _field(kind: str, args: list[Term], keywords: dict[str, Term], place: SourceLine) -> FieldConfig:
    modality = args[0] if args else keywords.get("modality")
    sizes = args[1] if len(args) > 1 else keywords.get("size_per_item")
    name = str(modality.value) if isinstance(modality, Plain) else None
    return FieldConfig(kind, name, sizes, place, keywords.get("keep_on_cpu") == Plain(True))


def _aliased(module: Module, name: str) -> str:
    """The class behind `Name = OtherName` at the top of a module."""
    for statement in module.tree.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Name)
            and any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)
        ):
            return statement.value.id
    return name


def _inherits(program: Program, cls: Owner, base: Owner) -> bool:
    """Whether `base` is `cls` or one of its bases in the tree."""
    return any(node is base[1] for _, node in program.lineage(cls))
