"""Runs a tower's `forward` on abstract values: labels, forms and roles, and what it would do to a capture.

Flow-sensitive, loops to a fixed point, calls followed into methods of the class, into functions of the tree and into
child modules. Nothing of the tree is imported or executed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from scaffold.syntax import (
    FunctionNode,
    assigned_to,
    bind_call,
    call_name,
    decorator_names,
    name_path,
    self_attribute,
)
from scaffold.tower.names import exits, loads, mentions
from scaffold.tower.parts import Evidence, Form, Label
from scaffold.tower.source import Module, Owner, Program
from scaffold.tower.values import CONST, NONE_VALUE, Role, Value, join, labels_of, merge_trails
from scaffold.tower.waits import ON_HOST, SIZED_BY_VALUES

DERIVED = Label.META | Label.DATA

#: Attributes of a data tensor that configuration decides, not pixels.
STATIC_ATTRIBUTES = frozenset({"device", "dtype", "is_cpu", "is_cuda", "requires_grad", "layout"})
_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "itemsize", "nbytes"})
_SHAPE_METHODS = frozenset(
    {"size", "numel", "dim", "stride", "ndimension", "is_contiguous", "element_size", "is_pinned"}
)
_LIKE = frozenset({"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"})
_NEW = frozenset({"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"})
_NOT_TAINTED = frozenset({"isinstance", "hasattr", "callable", "type", "issubclass", "id"})
_MUTATORS = frozenset(
    {"append", "extend", "insert", "add", "update", "setdefault", "remove", "pop", "clear", "sort", "reverse"}
)
_PLACEMENT = frozenset({"to", "cuda", "cpu", "pin_memory", "contiguous", "clone", "detach", "type", "astype", "copy"})
#: Calls that keep the role of what they are applied to: conversions, views, gathers of a list.
_RESHAPING = frozenset({
    "flatten", "reshape", "view", "squeeze", "unsqueeze", "ravel", "permute", "transpose", "expand", "expand_as",
    "repeat", "tile", "stack", "vstack", "chunk", "split", "unbind", "roll", "flip", "unique_consecutive",
    "int", "long", "float", "half", "bfloat16", "int32", "int64", "floor", "ceil", "round", "abs", "clamp", "sum",
    "mean", "tolist", "list", "tuple", "numpy", "from_numpy", "tensor", "as_tensor", "asarray", "array", "full_like",
})  # fmt: skip
#: Calls whose result is a value of Python.
_PYTHON = frozenset({"tolist", "item", "int", "float", "bool", "range", "list", "tuple", "sorted", "zip", "enumerate"})
_CONCAT = frozenset({"cat", "concat", "concatenate", "hstack"})
_ZEROS = frozenset({"zeros", "new_zeros", "zeros_like"})
_LOOKUPS = frozenset({"embedding", "grid_sample", "interpolate", "index_select", "gather", "take"})
_FACTORIES = frozenset({"tensor", "as_tensor", "from_numpy"})
_SIZED_FACTORIES = frozenset({"arange", "zeros", "ones", "empty", "full", "linspace", "eye"})
_TENSOR_MODULES = frozenset({"torch", "F", "nn", "einops"})
#: The argument of vLLM's attention layers that their kernels need as a number.
_LONGEST = "max_seqlen"
#: Arguments of a Triton kernel's launch, `kernel[grid](...)`, that decide how fast it runs and nothing else.
_TUNING = frozenset({"num_warps", "num_stages"})
_MAX_DEPTH = 5
_MAX_PASSES = 6


@dataclass(eq=False)
class Facts:
    """The effects of one statement. `label` covers its own expressions and the control it stands under."""

    label: Label = Label.NONE
    writes: set[str] = field(default_factory=set)
    mutates: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class RawHazard:
    """A hazard before it is known whether its statement moves.

    `anchor` is the statement of the entry function that leads to it, `site` the expression in it.
    """

    anchor: ast.stmt
    site: ast.AST
    what: str
    reason: str
    shown: str
    line: int
    text: str
    via: tuple[str, ...]
    labels: Label
    #: The expression itself; whether it waits for the GPU where the grid is on the host.
    node: ast.AST
    waits: bool


@dataclass(frozen=True, eq=False)
class _Call:
    """One call into torch, numpy or Python. `method`: on a value, `on_module`: on something imported."""

    node: ast.Call
    name: str
    base: Value
    on_module: bool
    args: list[Value]
    keywords: dict[str, Value]
    labels: Label

    @property
    def method(self) -> bool:
        return isinstance(self.node.func, ast.Attribute) and not self.on_module


@dataclass(eq=False)
class Frame:
    """One function under interpretation."""

    module: Module
    owner: Owner | None
    env: dict[str, Value]
    returns: list[Value] = field(default_factory=list)
    control: list[Label] = field(default_factory=list)


class Interpreter:
    """Interprets one entry function and everything that it calls."""

    def __init__(self, program: Program, on_host: Collection[ast.expr] = ()) -> None:
        """`on_host`: devices of the entry function that are taken for the host, and uploads that are not made."""
        self.program = program
        self.on_host = on_host
        self.facts: dict[ast.stmt, Facts] = {}
        self.values: dict[ast.expr, Value] = {}
        #: The value of each variable that a statement of the entry function wrote, after that statement.
        self.after: dict[tuple[ast.stmt, str], Value] = {}
        self.hazards: dict[tuple[int, int, str, int, str], RawHazard] = {}
        #: The function of each look-up in a table of the device by an index on the host.
        self.host_indices: dict[ast.Subscript, FunctionNode] = {}
        self._bounds: dict[Evidence, ast.stmt] = {}  # where a maximum was computed, and under which statement
        self.static_reads: dict[ast.expr, tuple[str, str]] = {}
        #: The calls of the entry function whose functions were read, and these.
        self.followed: dict[ast.Call, FunctionNode] = {}
        self._stack: list[FunctionNode] = []
        self._via: list[str] = []
        self._memo: dict[tuple[object, ...], tuple[Value, tuple[RawHazard, ...]]] = {}
        self._anchor: ast.stmt | None = None
        self._site: ast.Call | None = None
        self._collect: list[list[RawHazard]] = []
        self.frame: Frame = Frame(None, None, {})  # type: ignore[arg-type]

    # ------------------------------------------------------------------ entry

    def run(self, module: Module, owner: Owner, function: FunctionNode, env: dict[str, Value]) -> Value:
        """Interpret `function` with parameters bound in `env`; facts of its statements are kept."""
        self.frame = Frame(module, owner, dict(env))
        self._stack = [function]
        self.block(function.body)
        return _join_all(self.frame.returns)

    @property
    def _top(self) -> bool:
        return len(self._stack) == 1

    # ------------------------------------------------------------------ statements

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Interpret statements in order."""
        for statement in statements:
            if self._top:
                self._anchor = statement
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Interpret one statement and record its facts."""
        facts = self.facts.setdefault(node, Facts()) if self._top else Facts()
        control = self._control()
        label = control
        env = self.frame.env
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is None:
                return
            value = self.eval(node.value)
            label |= self.values[node.value].labels
            for target in assigned_to(node):
                label |= self.assign(target, value.with_labels(control), facts, node)
        elif isinstance(node, ast.AugAssign):
            value = self.eval(node.value)
            old = self.eval(node.target)  # evaluation does not look at `ctx`
            label |= value.labels | old.labels
            merged = self._binary(node.op, old, value, node)
            if isinstance(node.target, ast.Name):
                name = node.target.id
                facts.mutates.add(name)
                env[name] = merged.with_labels(control)
            else:
                label |= self.assign(node.target, merged.with_labels(control), facts, node)
        elif isinstance(node, ast.Expr):
            self.eval(node.value)
            label |= self.values[node.value].labels
            label |= self._mutation(node.value, facts, control)
        elif isinstance(node, ast.Return):
            if node.value is not None:
                value = self.eval(node.value)
                label |= value.labels
                self.frame.returns.append(value.with_labels(control))
            else:
                self.frame.returns.append(NONE_VALUE)
        elif isinstance(node, (ast.If, ast.While)):
            label |= self._branch(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            label |= self._loop(node, facts)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                value = self.eval(item.context_expr)
                label |= value.labels
                if item.optional_vars is not None:
                    label |= self.assign(item.optional_vars, value, facts, node)
            self.block(node.body)
        elif isinstance(node, ast.Try):
            self._try(node)
        elif isinstance(node, ast.Assert):
            label |= self.eval(node.test).labels
            if node.msg is not None:
                self.eval(node.msg)
        elif isinstance(node, ast.Raise):
            if node.exc is not None:
                label |= self.eval(node.exc).labels
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    label |= env.get(target.id, CONST).labels
                    facts.mutates.add(target.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            captured = labels_of(env[name] for name in loads(node) if name in env)
            label |= captured
            facts.writes.add(node.name)
            env[node.name] = Value(labels=captured, form=Form.PYTHON)
        facts.label |= label
        if self._top:
            for inner in ast.walk(node):
                written = self.facts.get(inner) if isinstance(inner, ast.stmt) else None
                for name in written.writes | written.mutates if written is not None else ():
                    if name in self.frame.env:
                        self.after[node, name] = self.frame.env[name]

    def _control(self) -> Label:
        return reduce(or_, self.frame.control, Label.NONE)

    def _branch(self, node: ast.If | ast.While) -> Label:
        value = self.eval(node.test)
        condition = replace(value, labels=self.condition(node.test))
        self._check_condition(node.test, condition)
        self.frame.control.append(condition.labels)
        before = dict(self.frame.env)
        if isinstance(node, ast.If):
            self.block(node.body)
            after_body = self.frame.env
            self.frame.env = dict(before)
            self.block(node.orelse)
            if exits(node.body):
                pass
            elif node.orelse and exits(node.orelse):
                self.frame.env = after_body
            else:
                self.frame.env = _join_env(after_body, self.frame.env)
        else:
            self._repeat(node.body)
            self.block(node.orelse)
        self.frame.control.pop()
        return value.labels

    def condition(self, node: ast.expr) -> Label:
        """The label of the values that decide a condition.

        Configuration and the caller decide whether a value is None and what type it has, and the grid's numbers do
        not: `is None` and `isinstance` do not make what they guard depend on metadata.
        """
        if isinstance(node, ast.BoolOp):
            return reduce(or_, map(self.condition, node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.condition(node.operand)
        if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return Label.NONE
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NOT_TAINTED:
            return Label.NONE
        return self.values.get(node, CONST).labels

    def _loop(self, node: ast.For | ast.AsyncFor, facts: Facts) -> Label:
        iterable = self.eval(node.iter)
        element = self._element(node.iter, iterable)
        labels = [iterable.labels]
        self.frame.control.append(iterable.labels if iterable.cls is None else iterable.labels & ~Label.SHAPE)
        self._repeat(node.body, lambda: labels.append(self.assign(node.target, element, facts, node)))
        self.block(node.orelse)
        self.frame.control.pop()
        return reduce(or_, labels)

    def _repeat(self, body: Sequence[ast.stmt], bind: Callable[[], None] = lambda: None) -> None:
        """The body of a loop until nothing changes; `bind` sets its target before each pass."""
        for _ in range(_MAX_PASSES):
            before = dict(self.frame.env)
            bind()
            self.block(body)
            self.frame.env = _join_env(before, self.frame.env)
            if _same_env(before, self.frame.env):
                break

    def _try(self, node: ast.Try) -> None:
        before = dict(self.frame.env)
        self.block(node.body)
        after = self.frame.env
        for handler in node.handlers:
            self.frame.env = _join_env(before, after)
            if handler.name:
                self.frame.env[handler.name] = CONST
            self.block(handler.body)
            if not exits(handler.body):
                after = _join_env(after, self.frame.env)
        self.frame.env = dict(after)
        self.block(node.orelse)
        self.block(node.finalbody)

    def _element(self, node: ast.expr, value: Value) -> Value:
        """The value of one element when iterating over `node`."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            if node.func.id == "enumerate":
                inner = self._element(node.args[0], self.values.get(node.args[0], value))
                index = Value(labels=value.labels & ~Label.DATA, form=Form.PYTHON)
                return Value(labels=value.labels, items=(index, inner), form=Form.PYTHON)
            if node.func.id == "zip":
                items = tuple(self._element(arg, self.values.get(arg, value)) for arg in node.args)
                return Value(labels=value.labels, items=items, form=Form.PYTHON)
            if node.func.id in ("range", "reversed"):
                return Value(labels=value.labels, form=Form.PYTHON, cls=value.cls)
        # `x.chunk(3, -1)` is a tuple of a known length, whatever `x` is.
        parts = isinstance(node, ast.Call) and call_name(node) == "chunk"
        if value.form is Form.TENSOR and value.labels & DERIVED and not parts:
            waits = value.host is False
            self._hazard(node, "iteration over a tensor", "each step waits for the device", value.labels, waits)
        if value.items:
            return _join_all(value.items).with_labels(value.labels)
        form = value.form if value.form in (Form.TENSOR, Form.NUMPY) else Form.UNKNOWN
        return replace(value, items=None, form=form, role=Role.NONE if value.form is not Form.PYTHON else value.role)

    def assign(self, target: ast.expr, value: Value, facts: Facts, node: ast.stmt) -> Label:
        """Bind a target; gives the labels that the store itself adds."""
        env = self.frame.env
        if isinstance(target, ast.Name):
            env[target.id] = value
            facts.writes.add(target.id)
            return Label.NONE
        if isinstance(target, (ast.Tuple, ast.List)):
            label = Label.NONE
            for index, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    label |= self.assign(element.value, Value(value.labels, Form.PYTHON), facts, node)
                    continue
                if value.items is not None and len(value.items) == len(target.elts):
                    part = value.items[index].with_labels(value.labels if not value.items[index].labels else Label.NONE)
                else:
                    form = value.form if value.form in (Form.TENSOR, Form.NUMPY) else Form.UNKNOWN
                    part = Value(value.labels, form, trail=value.trail, host=value.host)
                label |= self.assign(element, part, facts, node)
            return label
        if isinstance(target, ast.Subscript):
            base = self.eval(target.value)
            position = self.eval(target.slice)
            name = root_name(target.value)
            stored = value.with_labels(position.labels)
            if name is not None:
                old = env.get(name, CONST)
                role = old.role
                if role in (Role.NONE, Role.ZEROS) and call_name(getattr(node, "value", None)) == "arange":
                    stored = stored.as_role(
                        Role.PERMUTATION, self._evidence(node, "stores arange at an index: an inverse")
                    )
                    role = Role.PERMUTATION
                new = replace(join(old, stored), form=old.form, role=role, items=None)
                env[name] = new
                facts.mutates.add(name)
            return base.labels | position.labels | value.labels
        if isinstance(target, ast.Attribute):
            base = self.eval(target.value)
            name = _dotted(target)
            if name is not None:
                env[name] = value
                facts.writes.add(name)
                if name.startswith("self."):
                    self._hazard(
                        target, "write to the module's state", "runs once at capture, never at replay", Label.DATA
                    )
            return base.labels
        return Label.NONE

    def _mutation(self, node: ast.expr, facts: Facts, control: Label) -> Label:
        """In-place effect of an expression statement such as `outputs.append(x)` or `mask.fill_(0)`."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return Label.NONE
        name = root_name(node.func.value)
        method = node.func.attr
        if name is None or not (method in _MUTATORS or _is_inplace(method)):
            return Label.NONE
        stored = control
        role, trail, form, host = Role.NONE, self.frame.env.get(name, CONST).trail, Form.NONE, None
        for arg in [*node.args, *(keyword.value for keyword in node.keywords)]:
            value = self.values.get(arg) or self.eval(arg)
            stored |= value.labels
            role, trail, form, host = max(role, value.role), merge_trails(trail, value.trail), value.form, value.host
        old = self.frame.env.get(name, CONST)
        new_role = max(old.role, role)
        if role is Role.ENDS and _starts_with_zero(old):
            new_role = Role.CUMULATIVE
        # A list that starts with a zero offset keeps that knowledge: its first element, and all others as one.
        rest = Value(stored, form, role, trail=trail, host=host)
        items = None
        if old.items and _starts_with_zero(old):
            items = (old.items[0], _join_all([*old.items[1:], rest]))
        if method in _MUTATORS:
            host = old.host if form is Form.NONE else host
        else:
            new_role, trail, host = old.role, old.trail, old.host
        self.frame.env[name] = replace(
            old, labels=old.labels | stored, role=new_role, trail=trail, items=items, host=host
        )
        facts.mutates.add(name)
        return old.labels | stored

    # ------------------------------------------------------------------ expressions

    def eval(self, node: ast.expr) -> Value:
        """The abstract value of an expression in the current environment."""
        value = self._eval(node)
        if self._top:
            old = self.values.get(node)
            self.values[node] = value if old is None else join(old, value)
        else:
            self.values[node] = value
        return value

    def _eval(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant):
            return NONE_VALUE if node.value is None else Value(form=Form.PYTHON)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node.op, self.eval(node.left), self.eval(node.right), node)
        if isinstance(node, ast.UnaryOp):
            value = self.eval(node.operand)
            if isinstance(node.op, ast.Not):
                self._check_condition(node.operand, replace(value, labels=self.condition(node.operand)))
                return Value(value.labels, Form.PYTHON)
            return value
        if isinstance(node, ast.BoolOp):
            values = [self.eval(item) for item in node.values]
            return _join_all(values)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.IfExp):
            condition = replace(self.eval(node.test), labels=self.condition(node.test))
            self._check_condition(node.test, condition)
            merged = join(self.eval(node.body), self.eval(node.orelse))
            return merged.with_labels(condition.labels | (self.values[node.test].labels & Label.META))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            items = tuple(self.eval(element) for element in node.elts)
            merged = _join_all(items) if items else CONST
            starred = any(isinstance(element, ast.Starred) for element in node.elts)
            return replace(merged, form=Form.PYTHON, nullable=False, items=None if starred else items, cls=None)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self._comprehension(node)
        if isinstance(node, ast.NamedExpr):
            value = self.eval(node.value)
            self.frame.env[node.target.id] = value
            return value
        if isinstance(node, ast.Starred):
            return self.eval(node.value)
        if isinstance(node, ast.Lambda):
            return Value(labels_of(self.frame.env.get(name, CONST) for name in mentions(node.body)), Form.PYTHON)
        label = labels_of(self.eval(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        return Value(label, Form.PYTHON if isinstance(node, (ast.JoinedStr, ast.Dict, ast.Slice)) else Form.UNKNOWN)

    def _name(self, node: ast.Name) -> Value:
        value = self.frame.env.get(node.id, CONST)
        if self._top and value.role in (Role.ENDS, Role.CUMULATIVE, Role.TWO_SECTION):
            value = replace(value, source=node.id)
        return value

    def _attribute(self, node: ast.Attribute) -> Value:
        dotted = _dotted(node)
        if dotted is not None and dotted in self.frame.env:
            return self.frame.env[dotted]
        base = self.eval(node.value)
        if isinstance(node.value, ast.Name) and node.value.id == "self" and self.frame.owner is not None:
            cls = self.program.attribute_class(self.frame.owner, node.attr)
            return Value(cls=cls, host=False if node.attr in ("device",) else None)
        if node.attr in STATIC_ATTRIBUTES:
            if self._top and base.labels & Label.DATA:
                self.static_reads[node] = (node.attr, root_name(node.value) or "")
            return Value(Label.NONE if base.labels & Label.DATA else base.labels & Label.META)
        if node.attr in _SHAPE_ATTRIBUTES:
            return Value(_shape_of(base.labels), Form.PYTHON)
        if node.attr in ("T", "mT", "real", "imag", "data"):
            return base
        cls = self.program.attribute_class(base.cls, node.attr) if base.cls is not None else None
        return Value(base.labels, cls=cls)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.eval(node.left), *(self.eval(item) for item in node.comparators)]
        label = labels_of(values)
        if all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return Value(label & Label.META, Form.PYTHON)
        form = Form.TENSOR if any(value.form is Form.TENSOR for value in values) else Form.UNKNOWN
        if all(value.form is Form.PYTHON for value in values):
            form = Form.PYTHON
        return Value(label, form, host=_join_all(values).host)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        saved = dict(self.frame.env)
        label = Label.NONE
        scratch = Facts()
        for generator in node.generators:
            iterable = self.eval(generator.iter)
            label |= iterable.labels
            self.assign(generator.target, self._element(generator.iter, iterable), scratch, ast.Pass())
            for condition in generator.ifs:
                label |= self.eval(condition).labels
        if isinstance(node, ast.DictComp):
            value = join(self.eval(node.key), self.eval(node.value))
        else:
            value = self.eval(node.elt)
        self.frame.env = saved
        return Value(
            value.labels | label, Form.PYTHON, value.role, trail=value.trail, source=value.source, host=value.host
        )

    def _binary(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        merged = join(left, right)
        form = Form.PYTHON if left.form is right.form is Form.PYTHON else Form.UNKNOWN
        for candidate in (Form.TENSOR, Form.NUMPY):
            if candidate in (left.form, right.form):
                form = candidate
                break
        host = left.host if right.host is None else right.host if left.host is None else left.host and right.host
        items = None
        if isinstance(op, ast.Add) and left.form is right.form is Form.PYTHON and left.items and right.items:
            items = left.items + right.items
        value = replace(merged, form=form, nullable=False, items=items, host=host, cls=None)
        cumulative = (Role.ENDS, Role.CUMULATIVE)
        if (
            isinstance(op, ast.Sub)
            and isinstance(node, ast.BinOp)
            and left.role in cumulative
            and right.role in cumulative
        ):
            value = value.as_role(Role.LENGTHS, self._evidence(node, "differences of cumulative offsets"), left.source)
        elif left.role is Role.ENDS and right.role is Role.ENDS:
            value = replace(value, role=Role.ENDS)
        return value

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.eval(node.value)
        index = self.eval(node.slice)
        labels = base.labels | index.labels
        if base.items is not None and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            position = node.slice.value
            if -len(base.items) <= position < len(base.items):
                return base.items[position]
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        scalar = isinstance(first, ast.Constant) or (
            isinstance(first, ast.UnaryOp) and isinstance(first.operand, ast.Constant)
        )
        if _is_boolean(first) and index.labels & DERIVED:
            waits = base.host is False
            self._hazard(node, "boolean index", "the result's shape depends on values", labels, waits)
            return replace(base, labels=labels, items=None)
        if isinstance(first, ast.Slice):
            return replace(base, labels=labels, items=None)
        if scalar:
            return replace(base, labels=labels, items=None, role=Role.NONE, cls=base.cls)
        chosen = self.values.get(first, index)
        if chosen.form in (Form.TENSOR, Form.NUMPY) or (chosen.form is Form.UNKNOWN and chosen.labels & Label.META):
            tensors = chosen.form is Form.TENSOR and base.form is not Form.NUMPY
            if tensors and chosen.host is True and base.host is not True:
                self.host_indices[node] = self._stack[-1]
                reason = "copies the index to the device, which a capture forbids"
                self._hazard(node, "host index of a device table", reason, labels, True)
            value = Value(
                labels, base.form if base.form is not Form.PYTHON else Form.UNKNOWN, base.role, host=base.host
            )
            if base.form is Form.UNKNOWN and chosen.form is Form.TENSOR:
                value = replace(value, form=Form.TENSOR)
            if base.role in (Role.NONE, Role.ZEROS, Role.ROWS):
                value = replace(value, trail=base.trail).as_role(
                    Role.ROWS, self._evidence(node, "a table is looked up at positions")
                )
            return value
        return replace(base, labels=labels, items=None, role=base.role if base.form is Form.PYTHON else Role.NONE)

    # ------------------------------------------------------------------ calls

    def _call(self, node: ast.Call) -> Value:
        args = [self.eval(arg) for arg in node.args]
        launched = _TUNING if isinstance(node.func, ast.Subscript) else frozenset()
        given = [keyword for keyword in node.keywords if keyword.arg not in launched]
        keywords = {keyword.arg or "**": self.eval(keyword.value) for keyword in given}
        labels = labels_of([*args, *keywords.values()])
        name = call_name(node) or ""
        if isinstance(node.func, ast.Name) and name in _NOT_TAINTED:
            return Value(labels & Label.META, Form.PYTHON)
        if isinstance(node.func, ast.Name) and name == "super":
            return CONST
        on_module = False
        if isinstance(node.func, ast.Attribute):
            root = root_name(node.func.value)
            base = self.eval(node.func.value)
            imported = root is not None and not root.startswith("self.") and root not in self.frame.env
            on_module = imported and root != "self" and base.cls is None
        elif isinstance(node.func, ast.Name):
            base = self.frame.env.get(node.func.id, CONST)
        else:
            base = self.eval(node.func)
        labels |= base.labels
        if node in self.on_host:
            return replace(args[0], host=True)
        if self._via:
            self._check_bound(node, keywords.get(_LONGEST, CONST))
        followed = self._follow(node, name, base, args, keywords)
        if followed is not None:
            if name == "invert_permutation":
                followed = followed.as_role(Role.PERMUTATION, self._evidence(node, "inverse of a permutation"))
            return followed
        if not self._top and self._is_unreadable(node.func, args, keywords, labels):
            what = "metadata goes to a module whose class cannot be read"
            self._hazard(node, what, "what it does with the grid is unknown", Label.META)
        return self._known(_Call(node, name, base, on_module, args, keywords, labels))

    def _is_unreadable(self, func: ast.expr, args: list[Value], keywords: dict[str, Value], labels: Label) -> bool:
        """Whether a call hands data and metadata of no known role to a child whose class `__init__` does not show."""
        if not (isinstance(func, ast.Attribute) and self_attribute(func) is not None and labels & Label.DATA):
            return False
        owner = self.frame.owner
        if owner is None or self.program.method(owner, func.attr) is not None:
            return False
        if self.program.attribute_class(owner, func.attr) is not None:
            return False
        values = [*args, *keywords.values()]
        return any(v.labels == Label.META and v.role is Role.NONE for v in values)

    def _known(self, call: _Call) -> Value:
        """Calls into torch, numpy and Python, by name."""
        node, name, base, method = call.node, call.name, call.base, call.method
        on_module, args, keywords, labels = call.on_module, call.args, call.keywords, call.labels
        subject = base if method else (args[0] if args else CONST)
        self._call_hazards(call)
        if (method and name in _SHAPE_METHODS) or (not method and name == "len"):
            return Value(_shape_of(subject.labels), Form.PYTHON)
        if name in _LIKE:
            role = Role.ZEROS if name == "zeros_like" else Role.NONE
            return Value(_shape_of(subject.labels) | labels_of(args[1:]), subject.form, role, host=subject.host)
        if method and name in _NEW:
            rest = labels_of([*args, *keywords.values()])
            if base.labels & Label.DATA and self._top:
                self.static_reads[node.func.value] = ("new", root_name(node.func.value) or "")  # type: ignore[attr-defined]
            role = Role.ZEROS if name == "new_zeros" else Role.NONE
            return Value(rest | (base.labels & Label.META), Form.TENSOR, role, host=base.host)
        form = self._form(call)
        host = self._host(call)
        value = Value(labels, form, host=host)
        cumulative = (Role.ENDS, Role.CUMULATIVE)
        if name in ("cumsum", "accumulate", "cumulative_sum"):
            role = Role.CUMULATIVE if _starts_with_zero(subject) else Role.ENDS
            return value.as_role(role, self._evidence(node, "cumulative sum"))
        if name == "diff" and subject.role in cumulative:
            return value.as_role(
                Role.LENGTHS, self._evidence(node, "differences of cumulative offsets"), subject.source
            )
        if name in ("max", "amax") and not any(k in keywords for k in ("dim", "axis")) and not (method and args):
            source = subject.source if len(args) <= 1 else next((arg.source for arg in args if arg.source), None)
            roles = {arg.role for arg in (args if not method else [base])}
            found = value.as_role(Role.BOUND, self._evidence(node, "maximum"), source)
            if self._anchor is not None:
                self._bounds[found.trail[-1]] = self._anchor
            if Role.BOUND in roles and len(args) > 1:
                return replace(found, trail=merge_trails(*(arg.trail for arg in args[:2])))
            return found
        if name in ("argsort", "randperm"):
            return value.as_role(Role.PERMUTATION, self._evidence(node, f"`{name}` gives a permutation"))
        if name in ("repeat_interleave",) or (name == "repeat" and on_module):
            return value.as_role(Role.LENGTHS, self._evidence(node, "lengths, repeated for each sequence"))
        if name in _ZEROS:
            return replace(value, role=Role.ZEROS)
        if name in _CONCAT:
            return self._concat(node, value, subject)
        if name == "pad" and subject.role is Role.ENDS and _pads_one_in_front(node):
            return replace(value, trail=subject.trail).as_role(
                Role.CUMULATIVE, self._evidence(node, "zero put in front")
            )
        if name in _LOOKUPS:
            return value.as_role(Role.ROWS, self._evidence(node, f"`{name}` looks rows up"))
        if name in _RESHAPING or name in _PLACEMENT or name == "pad" or (name in ("int", "float", "sorted") and args):
            role = subject.role
            if name in ("tensor", "as_tensor", "array", "asarray") and node.args and _is_zero_list(node.args[0]):
                role = Role.ZEROS
            items = subject.items if name in ("list", "tuple") else None
            return replace(
                value, role=role, trail=subject.trail, source=subject.source, nullable=subject.nullable, items=items
            )
        if method and _is_inplace(name):
            return replace(value, role=base.role, trail=base.trail, source=base.source)
        if base.cls is not None or (method and self_attribute(node.func) is not None):
            # A child module applied to metadata only: a table of weights is looked up.
            touched = bool(labels & Label.DATA)
            if labels == Label.META:
                return replace(value, form=Form.TENSOR, host=False).as_role(
                    Role.ROWS, self._evidence(node, "output of a child module")
                )
            return replace(value, form=Form.TENSOR if touched else value.form)
        return value

    def _concat(self, node: ast.Call, value: Value, subject: Value) -> Value:
        items = subject.items
        if items is None:
            return replace(value, role=subject.role, trail=subject.trail, source=subject.source)
        roles = [item.role for item in items]
        trail = subject.trail
        cumulative = (Role.ENDS, Role.CUMULATIVE)
        if sum(role is Role.CUMULATIVE for role in roles) >= 2:
            return replace(value, trail=trail).as_role(
                Role.TWO_SECTION, self._evidence(node, "two sections of cumulative offsets"), subject.source
            )
        if roles and roles[0] is Role.ZEROS and any(role in cumulative for role in roles[1:]):
            return replace(value, trail=trail).as_role(
                Role.CUMULATIVE, self._evidence(node, "zero put in front"), subject.source
            )
        role = max(roles) if roles else Role.NONE
        # Lengths behind a zero: their cumulative sum starts with the zero that offsets need.
        kept = (items[0], _join_all(items[1:])) if len(items) > 1 and items[0].role is Role.ZEROS else None
        return replace(value, role=role, trail=trail, source=subject.source, items=kept)

    def _form(self, call: _Call) -> Form:
        node, name, base, method = call.node, call.name, call.base, call.method
        on_module, args = call.on_module, call.args
        if name in _PYTHON:
            return Form.PYTHON
        if name == "numpy":
            return Form.NUMPY
        if on_module:
            root = root_name(node.func.value) if isinstance(node.func, ast.Attribute) else None
            if root in ("np", "numpy"):
                return Form.NUMPY
            if root in _TENSOR_MODULES:
                return Form.TENSOR
            if root == "math":
                return Form.PYTHON
        if method:
            if base.form in (Form.TENSOR, Form.NUMPY):
                return base.form
            if name in ("cuda", "cpu", "to", "unsqueeze", "permute", "flatten", "reshape", "view"):
                return Form.TENSOR if base.form is Form.UNKNOWN else base.form
        if name in ("max", "min", "sum", "abs", "round") and args and not method:
            forms = {arg.form for arg in args}
            if len(forms) == 1 and Form.UNKNOWN not in forms:
                return forms.pop()
            return Form.PYTHON if len(args) > 1 else Form.UNKNOWN
        return Form.UNKNOWN

    def _host(self, call: _Call) -> bool | None:
        node, name, base, method = call.node, call.name, call.base, call.method
        args, keywords = call.args, call.keywords
        if "device" in keywords:
            return self._place(next(k.value for k in node.keywords if k.arg == "device"))
        if name in ("cuda",):
            return False
        if name in ON_HOST or name == "from_numpy":
            return True
        if name == "to" and method and node.args and ast.unparse(node.args[0]).endswith("device"):
            return self._place(node.args[0])
        if not method and name in (_SIZED_FACTORIES | {"tensor", "as_tensor", "randperm"}):
            return True
        if method:
            return base.host
        return args[0].host if args else None

    def _place(self, device: ast.expr) -> bool | None:
        """Whether a device expression means the host: that of another tensor is wherever that tensor is."""
        if device in self.on_host or "cpu" in ast.unparse(device):
            return True
        if isinstance(device, ast.Attribute) and device.attr == "device" and root_name(device) != "self.device":
            base = self.values.get(device.value, CONST)
            return False if base.labels & Label.DATA or not base.labels else base.host
        return False

    def _call_hazards(self, call: _Call) -> None:
        node, name, base, method = call.node, call.name, call.base, call.method
        args, keywords, labels = call.args, call.keywords, call.labels
        own = base.labels if method else labels
        waits = (base if method else args[0] if args else CONST).host is False
        if method and name in ON_HOST and own & DERIVED and base.form is not Form.PYTHON:
            self._hazard(node, f".{name}()", ON_HOST[name], own, waits)
        elif name in SIZED_BY_VALUES and labels & DERIVED:
            self._hazard(node, f"{name}()", "the result's shape depends on values", labels, waits)
        elif name == "where" and len(node.args) == 1 and labels & DERIVED:
            self._hazard(node, "where() with one argument", "the result's shape depends on values", labels, waits)
        elif name == "repeat_interleave" and labels & DERIVED and "output_size" not in keywords:
            counts = args[0] if method and args else args[1] if len(args) > 1 else CONST
            if counts.labels & DERIVED:
                what = "repeat_interleave() with computed repeats"
                self._hazard(node, what, "the result's shape depends on values", labels, waits)
        elif name in _FACTORIES and not method and labels & DERIVED and args and args[0].form is not Form.TENSOR:
            copies = not self._host(call)
            reason = "host values are baked in, or copied to the device"
            self._hazard(node, f"{name}() of host data", reason, labels, copies)
        elif (
            name in _SIZED_FACTORIES
            and not method
            and not _on_numpy(node)
            and any(arg.labels & DERIVED for arg in args)
        ):
            self._hazard(node, f"{name}() of a computed size", "the size is frozen at capture", labels)
        elif name in ("to", "cuda") and method and base.host and base.labels & DERIVED and not self._host(call):
            blocks = "non_blocking" not in keywords
            self._hazard(node, f".{name}(device) of a host tensor", "a host-to-device copy", base.labels, blocks)
        elif name in ("int", "float", "bool") and not method and args and _is_derived_tensor(args[0]):
            self._hazard(node, f"{name}() of a tensor", "waits for the device and bakes the value", labels, waits)

    def _check_bound(self, node: ast.Call, bound: Value) -> None:
        """A longest sequence that is computed only below the statement whose attention gets it stays there."""
        made = [self._bounds[evidence] for evidence in bound.trail if evidence in self._bounds]
        here = bool(made) and all(anchor is self._anchor for anchor in made)
        if here and bound.role is Role.BOUND and bound.form is Form.TENSOR and not bound.host:
            what = f"`{_LONGEST}` computed beside the attention that gets it"
            self._hazard(node, what, "attention waits for the device to read it, and bakes the value", bound.labels)

    def _check_condition(self, node: ast.expr, value: Value) -> None:
        on_data = bool(value.labels & Label.DATA)
        if value.labels & DERIVED:
            what, reason = "data" if on_data else "metadata", "the branch taken at capture is the only one replayed"
            self._hazard(node, f"branch on {what}", reason, value.labels, not on_data and value.host is False)

    def _hazard(self, node: ast.AST, what: str, reason: str, labels: Label, waits: bool = False) -> None:
        if self._anchor is None:
            return
        module = self.frame.module
        line = getattr(node, "lineno", 1)
        lines = module.text.split("\n")
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        place = (module.shown, line, text, tuple(self._via))
        raw = RawHazard(self._anchor, self._site or node, what, reason, *place, labels, node, waits)
        for collector in self._collect:
            collector.append(raw)
        self._add_hazard(raw)

    def _add_hazard(self, raw: RawHazard) -> None:
        key = (id(raw.anchor), id(raw.site), raw.shown, raw.line, raw.what)
        old = self.hazards.get(key)
        if old is None or len(raw.via) < len(old.via):
            self.hazards[key] = raw

    def _evidence(self, node: ast.AST, what: str) -> Evidence:
        return Evidence(self.frame.module.shown, getattr(node, "lineno", 1), what)

    # ------------------------------------------------------------------ following calls

    def _follow(
        self, node: ast.Call, name: str, base: Value, args: list[Value], keywords: dict[str, Value]
    ) -> Value | None:
        """Interpret the function that a call reaches, when it is in the tree and worth it."""
        if "**" in keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            return None
        target: tuple[Module, Owner | None, FunctionNode] | None = None
        skip_self = False
        func = node.func
        path = name_path(func)
        on_self = path[:1] in (["self"], ["cls"])
        found = self.program.callee(self.frame.module, self.frame.owner, path)
        if found is not None and (on_self or path[0] not in self.frame.env):
            kinds = decorator_names(found.function)
            if found.holder is None or on_self or kinds & {"staticmethod", "classmethod"}:
                target = (found.module, found.holder, found.function)
                skip_self = "staticmethod" not in kinds if on_self else "classmethod" in kinds
        if target is None:
            target, skip_self = self._module_target(func, base), True
        if target is None or len(self._stack) > _MAX_DEPTH or any(target[2] is f for f in self._stack):
            return None
        if not labels_of([*args, *keywords.values()]):
            return None
        result = self._summary(node, target, skip_self, args, keywords)
        if result is not None and self._top:
            self.followed[node] = target[2]
        return result

    def _module_target(self, func: ast.expr, base: Value) -> tuple[Module, Owner | None, FunctionNode] | None:
        """The method that a call on a module object reaches: a child's `forward` or other method, but no layer's."""
        cls, method = base.cls, "forward"
        if isinstance(func, ast.Attribute):
            on_self = isinstance(func.value, ast.Name) and func.value.id == "self"
            held = self.values.get(func.value)
            holder = self.frame.owner if on_self else held.cls if held is not None else None
            if holder is None:
                return None
            if not on_self and self.program.method(holder, func.attr) is not None:
                cls, method = holder, func.attr
            else:
                cls = self.program.attribute_class(holder, func.attr)
        if cls is None or not ("model_executor/models/" in cls[0].file or cls[0] is self.frame.module):
            return None
        found = self.program.method(cls, method)
        return None if found is None else (found[0], cls, found[2])

    def _summary(
        self,
        node: ast.Call,
        target: tuple[Module, Owner | None, FunctionNode],
        skip_self: bool,
        args: list[Value],
        keywords: dict[str, Value],
    ) -> Value | None:
        module, owner, function = target
        bound = _environment(function, args, keywords, skip_self)
        if bound is None:
            return None
        key = (id(function), id(owner[1]) if owner else 0, tuple((n, v.key()) for n, v in sorted(bound.items())))
        if key in self._memo:
            value, hazards = self._memo[key]
            for raw in hazards:
                assert self._anchor is not None
                site = self._site or node
                self._add_hazard(replace(raw, anchor=self._anchor, site=site, via=(*self._via, *raw.via)))
            return value
        outer, depth, outer_site = self.frame, len(self._via), self._site
        self._site = self._site or node
        self.frame = Frame(module, owner, bound)
        self._stack.append(function)
        self._via.append(f"{owner[1].name}.{function.name}" if owner is not None else function.name)
        self._collect.append([])
        self.block(function.body)
        value = _join_returns(self.frame.returns) if self.frame.returns else NONE_VALUE
        annotation = ast.unparse(function.returns) if function.returns is not None else ""
        if value.form is Form.UNKNOWN and annotation in ("torch.Tensor", "Tensor"):
            value = replace(value, form=Form.TENSOR)
        elif value.form is Form.UNKNOWN and annotation in ("torch.Tensor | None", "Optional[torch.Tensor]"):
            value = replace(value, form=Form.TENSOR, nullable=True)
        elif value.items is None and annotation.startswith(("tuple[", "Tuple[")) and annotation.count("torch.Tensor"):
            count = annotation.count("torch.Tensor")
            if annotation.count(",") == count - 1:
                part = Value(value.labels, Form.TENSOR, value.role, trail=value.trail, host=value.host)
                value = replace(value, items=(part,) * count, form=Form.PYTHON)
        collected = self._collect.pop()
        self.frame, self._site = outer, outer_site
        self._stack.pop()
        self._via.pop()
        self._memo[key] = (value, tuple(replace(raw, via=raw.via[depth:]) for raw in collected))
        return value


# ---------------------------------------------------------------------- helpers


def _environment(
    function: FunctionNode, args: Sequence[Value], keywords: dict[str, Value], skip_self: bool
) -> dict[str, Value] | None:
    """Values of a function's parameters for a call, None when the call does not fit."""
    call = bind_call(function, args, keywords, skip_first=skip_self)
    vararg = function.args.vararg
    if (call.rest and vararg is None) or (call.extra and function.args.kwarg is None):
        return None
    env = dict(call.given)
    if call.rest and vararg is not None:
        env[vararg.arg] = _join_all(call.rest)
    for name, default in call.defaults.items():
        is_none = isinstance(default, ast.Constant) and default.value is None
        if default is not None:
            env[name] = NONE_VALUE if is_none else CONST
    return env


def annotation_form(annotation: ast.expr | None) -> Form:
    """The form that an annotation promises: `torch.Tensor` a tensor, `list[...]` and `int` Python, unions unknown."""
    if annotation is None:
        return Form.UNKNOWN
    text = ast.unparse(annotation)
    if "|" in text or "Union" in text or "Optional" in text:
        return Form.UNKNOWN
    if text in ("torch.Tensor", "Tensor", "torch.LongTensor", "torch.FloatTensor"):
        return Form.TENSOR
    if text.startswith(("list", "List", "tuple", "Sequence", "int", "float")):
        return Form.PYTHON
    if "ndarray" in text:
        return Form.NUMPY
    return Form.UNKNOWN


def root_name(node: ast.expr) -> str | None:
    """The variable that an expression such as `a.b[0].c` starts from (`self.a` counts as the variable `self.a`)."""
    while True:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return f"self.{node.attr}"
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Name):
            return node.id
        else:
            return None


def _dotted(node: ast.Attribute) -> str | None:
    if isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def _is_derived_tensor(value: Value) -> bool:
    return value.form is Form.TENSOR and bool(value.labels & DERIVED)


def _on_numpy(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and root_name(node.func.value) in ("np", "numpy")


def _is_inplace(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and len(name) > 1


def _is_boolean(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        return True
    return isinstance(node, ast.Name) and node.id.endswith("mask")


def _is_zero_list(node: ast.expr) -> bool:
    return (
        isinstance(node, (ast.List, ast.Tuple))
        and bool(node.elts)
        and all(isinstance(e, ast.Constant) and e.value == 0 for e in node.elts)
    )


def _starts_with_zero(value: Value) -> bool:
    return bool(value.items) and value.items is not None and value.items[0].role is Role.ZEROS


def _pads_one_in_front(node: ast.Call) -> bool:
    for arg in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
        if isinstance(arg, (ast.Tuple, ast.List)) and len(arg.elts) >= 2:
            first, second = arg.elts[-2], arg.elts[-1]
            return isinstance(first, ast.Constant) and first.value == 1 and isinstance(second, ast.Constant)
    return False


def _shape_of(labels: Label) -> Label:
    """Labels of a shape: that of data is fixed at capture, whatever else went into the values."""
    return Label.SHAPE if labels & Label.DATA else labels


def _join_all(values: Iterable[Value]) -> Value:
    result: Value | None = None
    for value in values:
        result = value if result is None else join(result, value)
    return result if result is not None else CONST


def _join_returns(values: Sequence[Value]) -> Value:
    """The result of a function. A return of which nothing is known (a cache hit) is taken to be like the others."""
    known = [v for v in values if v.form is not Form.UNKNOWN or v.role is not Role.NONE or v.items is not None]
    return _join_all(known or values).with_labels(labels_of(values))


def _join_env(a: dict[str, Value], b: dict[str, Value]) -> dict[str, Value]:
    merged = dict(a)
    for name, value in b.items():
        merged[name] = join(merged[name], value) if name in merged else value
    return merged


def _same_env(a: dict[str, Value], b: dict[str, Value]) -> bool:
    return a.keys() == b.keys() and all(a[name].key() == b[name].key() for name in a)
