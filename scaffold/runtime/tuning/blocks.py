"""Reads a block of a transformer from the source of its `forward`: two branches, each added to what came in.

    x = x + attention(norm1(x), ...)        x = x + norm1(attention(x, ...))
    x = x + mlp(norm2(x))                   x = x + norm2(mlp(x))

The left form normalises before each branch, the right one behind it. A branch may have a layer scale. The names, the
order of the terms and the statements do not matter: values are followed through them. Anything else is no block.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scaffold.runtime.tuning.base import is_from_vllm, is_norm
from scaffold.runtime.tuning.forwards import child_of, forward_of


@dataclass(frozen=True, slots=True)
class Given:
    """An argument of a branch besides its rows: a parameter of the block by name, a tuple of such, or a constant."""

    parameter: str | None
    constant: Any = None
    entries: tuple[Given, ...] | None = None

    def value(self, arguments: Mapping[str, Any]) -> Any:
        """The argument in a call of the block with these arguments."""
        if self.entries is not None:
            return tuple(entry.value(arguments) for entry in self.entries)
        return self.constant if self.parameter is None else arguments[self.parameter]


@dataclass(frozen=True, slots=True)
class Branch:
    """A call of a child: the rows first or under a keyword, other arguments, and what is taken of the result."""

    child: str
    keyword: str | None = None
    positional: tuple[Given, ...] = ()
    keywords: tuple[tuple[str, Given], ...] = ()
    #: The child returns a tuple, of which the first entry counts.
    unpack: bool = False
    #: Its `forward` is called, past its hooks.
    past_hooks: bool = False

    def run(self, module: Any, rows: Any, arguments: Mapping[str, Any]) -> Any:
        """The branch of these rows in a call of the block with these arguments."""
        more = [given.value(arguments) for given in self.positional]
        named = {name: given.value(arguments) for name, given in self.keywords}
        if self.keyword is None:
            more.insert(0, rows)
        else:
            named[self.keyword] = rows
        child = getattr(module, self.child)
        out = (child.forward if self.past_hooks else child)(*more, **named)
        return out[0] if self.unpack else out


@dataclass(frozen=True, slots=True)
class Block:
    """The parts of a block by name, and where it normalises."""

    norm1: str
    attention: Branch
    norm2: str
    mlp: Branch
    #: The layer scales of both branches.
    scales: tuple[str | None, str | None]
    norms_behind: bool
    #: It returns a tuple of its rows and so many times None.
    nones: int | None
    #: Whether each sum is written over what the branch gave.
    in_place: tuple[bool, bool] = (False, False)
    #: `norm2` adds, too, as vLLM's RMS norm does.
    norm2_adds: bool = False

    def result(self, rows: Any) -> Any:
        """The block's return value for its rows."""
        return rows if self.nones is None else (rows, *(None,) * self.nones)


def known_block(module: Any) -> Block:
    """The block of a module that is known to be one."""
    block = block_of(module)
    assert block is not None, type(module).__name__
    return block


def block_of(module: Any) -> Block | None:
    """The block that a module's class describes, or None if it describes anything else."""
    if sum(map(is_norm, module.children())) < 2:
        return None
    node = forward_of(module)
    for block in () if node is None else readings(node):
        norms = module._modules.get(block.norm1), module._modules.get(block.norm2)
        adds = not block.norm2_adds or is_from_vllm(norms[1], "RMSNorm")
        if all(map(is_norm, norms)) and adds:
            return block
    return None


@lru_cache(maxsize=256)
def readings(node: ast.FunctionDef) -> tuple[Block, ...]:
    """The blocks that a syntax tree can be: it does not tell which of two children is a norm."""
    reader = _Reader(node)
    try:
        nones, out = reader.result()
    except _NoBlock:
        return ()
    if reader.calls != 4:  # two norms and two branches: anything else that is called may have a state
        return ()
    return tuple(block for behind in (False, True) if (block := _block(out, nones, behind)) is not None)


class _NoBlock(Exception):
    """A statement or an expression that no block has."""


# -- values: what a name holds, in terms of the rows that came in


@dataclass(frozen=True, slots=True)
class _Rows:
    """The block's first argument."""


@dataclass(frozen=True, slots=True)
class _Sum:
    left: Any
    right: Any
    #: Written over the left term.
    in_place: bool = False
    #: A norm computes it.
    by_norm: bool = False


@dataclass(frozen=True, slots=True)
class _Scaled:
    value: Any
    scale: str


@dataclass(frozen=True, slots=True)
class _Called:
    branch: Branch
    rows: Any


class _Reader:
    """Follows the values of one function."""

    def __init__(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        self.calls = 0
        self._body = node.body
        self._values: dict[str, Any] = {}
        self._parameters: set[str] = set()
        plain = not (arguments.vararg or arguments.kwarg or arguments.posonlyargs) and len(arguments.args) >= 2
        self._is_plain = plain and arguments.args[0].arg == "self"
        if not self._is_plain:
            return
        first, *rest = (a.arg for a in [*arguments.args[1:], *arguments.kwonlyargs])
        self._parameters = set(rest)
        self._values = {first: _Rows()}

    def result(self) -> tuple[int | None, Any]:
        """How many times None the function returns besides its rows (None: no tuple), and the rows."""
        for statement in self._body if self._is_plain else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if isinstance(statement, ast.Return):
                return self._returned(statement.value)
            self._assign(statement)
        raise _NoBlock

    def _returned(self, node: ast.expr | None) -> tuple[int | None, Any]:
        if not isinstance(node, ast.Tuple):
            return None, self._value(node)
        first, *rest = node.elts
        if not all(isinstance(entry, ast.Constant) and entry.value is None for entry in rest):
            raise _NoBlock
        return len(rest), self._value(first)

    def _assign(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            # It changes a tensor that a branch has given, under the only name that it has.
            value = self._value(statement.target)
            held = sum(other is value for other in self._values.values())
            if isinstance(statement.target, ast.Name) and isinstance(value, _Called) and held == 1:
                self._values[statement.target.id] = _Sum(value, self._value(statement.value), in_place=True)
                return
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and target.id != "self":
                self._values[target.id] = self._value(statement.value)
                return
            if isinstance(target, ast.Tuple) and all(isinstance(entry, ast.Name) for entry in target.elts):
                names = [entry.id for entry in target.elts if isinstance(entry, ast.Name)]
                if "self" in names or len(set(names)) != len(names):
                    raise _NoBlock
                for name, value in zip(names, self._unpacked(statement.value, names), strict=True):
                    self._values[name] = value
                return
        raise _NoBlock

    def _unpacked(self, node: ast.expr, names: list[str]) -> list[Any]:
        """The entries of a result that are assigned to names. Only the first counts, or both of a sum and its norm."""
        if not isinstance(node, ast.Call):
            raise _NoBlock
        norm, given = child_of(node.func), [keyword.arg for keyword in node.keywords]
        if norm is not None and len(names) == 2 and len(node.args) == 1 and given == ["residual"]:
            # An RMS norm of vLLM gives the norm of the sum, and the sum.
            self.calls += 1
            total = _Sum(self._value(node.args[0]), self._value(node.keywords[0].value), by_norm=True)
            return [_Called(Branch(norm), total), total]
        called = self._called(node)
        return [_Called(replace(called.branch, unpack=True), called.rows), *(None for _ in names[1:])]

    def _value(self, node: ast.expr | None) -> Any:
        if isinstance(node, ast.Name):
            found = self._values.get(node.id)
            if found is not None:
                return found
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return _Sum(self._value(node.left), self._value(node.right))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for value, scale in ((node.left, node.right), (node.right, node.left)):
                name = child_of(scale)
                if name is not None:
                    return _Scaled(self._value(value), name)
        elif isinstance(node, ast.Call):
            return self._called(node)
        raise _NoBlock

    def _called(self, node: ast.Call) -> _Called:
        callee = node.func
        past_hooks = isinstance(callee, ast.Attribute) and callee.attr == "forward"
        child = child_of(callee.value if isinstance(callee, ast.Attribute) and past_hooks else callee)
        if child is None or any(keyword.arg is None for keyword in node.keywords):
            raise _NoBlock
        keywords = [(str(keyword.arg), keyword.value) for keyword in node.keywords]
        if node.args:
            rows, positional, under = node.args[0], node.args[1:], None
        elif keywords:
            (under, rows), *keywords = keywords
            positional = []
        else:
            raise _NoBlock
        self.calls += 1
        given = tuple(map(self._given, positional)), tuple((name, self._given(value)) for name, value in keywords)
        return _Called(Branch(child, under, *given, past_hooks=past_hooks), self._value(rows))

    def _given(self, node: ast.expr) -> Given:
        if isinstance(node, ast.Constant):
            return Given(None, node.value)
        if isinstance(node, ast.Name) and node.id in self._parameters and node.id not in self._values:
            return Given(node.id)
        if isinstance(node, ast.Tuple):
            return Given(None, entries=tuple(map(self._given, node.elts)))
        raise _NoBlock


# -- the two forms


def _block(out: Any, nones: int | None, behind: bool) -> Block | None:
    second = _split(out, lambda base: _split(base, _is_input) is not None)
    first = None if second is None else _split(second[0], _is_input)
    if first is None or second is None:
        return None
    normed = _normed_behind if behind else _normed_before
    one, two = normed(*first[:2]), normed(*second[:2])
    if one is None or two is None:
        return None
    (norm1, attention), (norm2, mlp) = one, two
    sums = second[0], out
    if sums[1].by_norm:  # a norm of the block's result, which nobody reads
        return None
    scales = (first[2], second[2])
    children = {norm1, attention.child, norm2, mlp.child}
    if len(children) != 4 or (behind and scales != (None, None)):
        return None
    in_place = (sums[0].in_place, sums[1].in_place)
    return Block(norm1, attention, norm2, mlp, scales, behind, nones, in_place, sums[0].by_norm)


def _is_input(value: Any) -> bool:
    return isinstance(value, _Rows)


def _split(total: Any, is_base: Callable[[Any], bool]) -> tuple[Any, Any, str | None] | None:
    """A sum as what came in, the branch, and the branch's scale."""
    if isinstance(total, _Sum):
        for base, branch in ((total.left, total.right), (total.right, total.left)):
            if is_base(base):
                return (base, branch.value, branch.scale) if isinstance(branch, _Scaled) else (base, branch, None)
    return None


def _normed_before(base: Any, branch: Any) -> tuple[str, Branch] | None:
    """The norm and the branch of `base + branch(norm(base))`."""
    if not isinstance(branch, _Called):
        return None
    norm = branch.rows
    return (norm.branch.child, branch.branch) if _is_plain(norm) and norm.rows is base else None


def _normed_behind(base: Any, norm: Any) -> tuple[str, Branch] | None:
    """The norm and the branch of `base + norm(branch(base))`."""
    branch = norm.rows if _is_plain(norm) else None
    return (norm.branch.child, branch.branch) if isinstance(branch, _Called) and branch.rows is base else None


def _is_plain(called: Any) -> bool:
    """Whether a child gets rows and nothing else."""
    return isinstance(called, _Called) and called.branch == Branch(called.branch.child)
