"""Expressions of a method that mean the same, in one form: what the proof of an explicit port takes as no change.

Written from the rules alone, as `putback` is. Both rules hold where the first expression gives a value: tensors are
torch's, and those of sizes hold whole numbers of a signed type that is large enough.
"""

from __future__ import annotations

import ast
import functools
import re

#: Operations that whole numbers and tensors of one of them share.
_OPERATORS = (ast.Add, ast.Sub, ast.Mult)
#: Methods of a tensor that take sizes.
_SIZED = ("expand", "reshape", "view")


def make_plain(function: ast.FunctionDef, module: ast.Module) -> None:
    """Put a function into the form that others with the same meaning have.

    `repeat(x, "c -> h 1 c", h=n)` of einops becomes `x.expand(n, 1, -1)`: both give a view with the new axes in front.

    `a, b = row.tolist()` becomes `a, b = row` if a tensor of one number is that number wherever the function reads `a`
    and `b`, and their sums and products: as an index, and as a size of einops or of a tensor. A condition may compare
    `a` or `b` with a number. A variable that grows in place is a tensor of its own.
    """
    functions = _imported(module)
    if "repeat" in functions:
        _Expanded().visit(function)
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=elts)],
                value=ast.Call(func=ast.Attribute(value=row, attr="tolist"), args=[], keywords=[]),
            ) if all(isinstance(one, ast.Name) for one in elts):
                if _Numbers(function, node, functions).are_sizes():
                    node.value = row


def _imported(module: ast.Module) -> set[str]:
    """The functions that a module takes from einops under their own names, which mean nothing else in it."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    taken = [(node, alias) for node in imports for alias in node.names]
    found = {
        alias.name
        for node, alias in taken
        if node in module.body and isinstance(node, ast.ImportFrom) and node.module == "einops" and not alias.asname
    }
    bound = [alias.asname or alias.name for _, alias in taken]
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.append(name)
    return {name for name in found if bound.count(name) == 1 and "*" not in bound}


class _Expanded(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="repeat"), args=[tensor, ast.Constant(value=str(pattern))]):
                sizes = _new_sizes(pattern, {one.arg or "**": one.value for one in node.keywords})
                if sizes and all(isinstance(one, ast.Name | ast.Attribute | ast.Load) for one in ast.walk(tensor)):
                    return ast.Call(ast.Attribute(tensor, "expand", ast.Load()), sizes, [])
        return node


def _new_sizes(pattern: str, given: dict[str, ast.expr]) -> list[ast.expr]:
    """The sizes for `expand`, where a pattern puts axes in front of those that are there; nothing where it does not."""
    left, _, right = pattern.partition("->")
    own, words = left.split(), re.findall(r"\([^()]*\)|[^\s()]+", right)
    new = words[: len(words) - len(own)]
    groups = [word.strip("()").split() for word in new]
    names = [name for word, group in zip(new, groups, strict=True) for name in group if word != "1"]
    fits = (
        words == [*new, *own]
        and all(name.isidentifier() for name in own)
        and all(groups)
        and sorted(names) == sorted(given)
        and not set(names) & set(own)
        and all(isinstance(size, ast.Name | ast.Constant) for size in given.values())
    )
    if not fits or not own:
        return []
    sizes = [[ast.Constant(1)] if word == "1" else [given[one] for one in group]
             for word, group in zip(new, groups, strict=True)]  # fmt: skip
    products = [functools.reduce(lambda one, other: ast.BinOp(one, ast.Mult(), other), group) for group in sizes]
    return [*products, *(ast.UnaryOp(ast.USub(), ast.Constant(1)) for _ in own)]


class _Numbers:
    """Variables that a statement sets to the numbers of a row, and those that are made of them."""

    def __init__(self, function: ast.FunctionDef, statement: ast.Assign, functions: set[str]) -> None:
        self.function, self.statement, self.functions = function, statement, functions
        self.parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
        self.variables = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        self.row = {node.id for node in ast.walk(statement.targets[0]) if isinstance(node, ast.Name)}

    def are_sizes(self) -> bool:
        """Whether each place that has one of the variables means the same for tensors and for numbers."""
        names: set[str] = set()
        more = set(self.row)
        while more - names:
            names |= more
            for node in self.variables:
                if node.id in names:
                    made = self._made(node) if isinstance(node.ctx, ast.Load) else self._set(node)
                    if made is None:
                        return False
                    more |= made
        taken = {one.arg for one in ast.walk(self.function.args) if isinstance(one, ast.arg)}
        taken |= {name for node in ast.walk(self.function) if isinstance(node, ast.Global | ast.Nonlocal)
                  for name in node.names}  # fmt: skip
        return not names & taken

    def _set(self, node: ast.Name) -> set[str] | None:
        """Nothing where a variable is set to a number or a new tensor; None where it may be set to another value."""
        fits = False
        match self.parents[node]:
            case ast.Tuple() as target:
                fits = target is self.statement.targets[0]
            case ast.Assign(targets=[ast.Name()], value=value):
                fits = node.id not in self.row and not isinstance(value, ast.Name) and _counts(value)
            case ast.AugAssign(op=operator, value=value):
                fits = node.id not in self.row and isinstance(operator, _OPERATORS) and _counts(value)
        return set() if fits else None

    def _made(self, node: ast.Name) -> set[str] | None:
        """The variable that is made of one, if any is; None where a tensor may mean something else than a number."""
        value: ast.AST = node
        while isinstance(self.parents[value], ast.BinOp) and _counts(self.parents[value]):
            value = self.parents[value]
        fits = False
        match self.parents[value]:
            case ast.Slice(lower=lower, upper=upper):
                fits = value in (lower, upper)
            case ast.Subscript(slice=index):
                fits = value is index
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]) as condition:
                of = [value, right if value is left else left]
                fits = node.id in self.row and of[0] is node and isinstance(of[1], ast.Constant) and _counts(of[1])
                fits = fits and self._is_test(condition)
            case ast.keyword(arg=str()) as keyword:
                function = getattr(self.parents[keyword], "func", None)
                fits = isinstance(function, ast.Name) and function.id == "rearrange" and "rearrange" in self.functions
            case ast.Call(func=ast.Attribute(attr=method), args=args):
                fits = value in args and method in _SIZED
            case ast.Assign(targets=[ast.Name(id=name)]) if value is not node:
                return {name}
            case ast.AugAssign(target=ast.Name(id=name)):
                return {name}
        return set() if fits else None

    def _is_test(self, node: ast.AST) -> bool:
        """Whether an expression is only asked whether it is true."""
        above = self.parents[node]
        while isinstance(above, ast.BoolOp) or (isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not)):
            node, above = above, self.parents[above]
        return isinstance(above, ast.If | ast.While | ast.IfExp) and above.test is node


def _counts(node: ast.AST) -> bool:
    """Whether an expression is a number, a variable, or a sum or product of such."""
    match node:
        case ast.Constant(value=value):
            return type(value) is int
        case ast.Name():
            return True
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _OPERATORS) and _counts(left) and _counts(right)
    return False
