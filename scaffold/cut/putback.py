"""Substitution: with its extracted methods back in the place of their calls, a model's code is what it was.

Written from the rule alone: it shares no code with the search or the edits, so that a mistake there is not repeated.
"""

from __future__ import annotations

import ast
import copy
import itertools
import symtable

from scaffold.cut.plain import make_plain
from scaffold.diagnostics import Diagnostic, Span

#: Parts of a function that may read a variable later than the statement that has them.
_SCOPES = (ast.Lambda, ast.GeneratorExp, ast.FunctionDef, ast.AsyncFunctionDef)


def prove_extraction(
    before: str,
    after: str,
    methods: frozenset[tuple[str, str]],
    last: str | None,
    path: str,
    first: str | None = None,
    encode: str = "_encode_patches",
) -> tuple[Diagnostic, ...]:
    """Prove that `methods` of the classes in `after` equal those of `before`: nothing, or VCG646.

    The proof puts two kinds of methods back. `return self.LAST(x, y)` at the end of a method becomes the body of that
    method, whose parameters are `x` and `y`; no other name of it may be a variable of both. `self.ENCODE(e)`
    becomes the one expression that this method returns, with `e` in the place of its first parameter, before which
    nothing there has an effect. The method may first set its parameter to such an expression. Further arguments are
    variables, each in the place of one name.

    `x, y = self.FIRST(z)` becomes the body of that method, which takes `z` and ends with `return x, y`.

    Then, in both texts, the value of a variable takes its place where one statement sets it and the next one alone
    reads it, before anything with an effect. Nothing else may read it, or nothing until the method returns. So an
    expression may stand for a run of statements. The rest must be the same tree, with expressions in their plain form
    (`plain.py`), so that a method may read sizes as numbers.

    The proof puts back the methods of an earlier port in `before`, too.
    """
    modules = ast.parse(before), ast.parse(after)
    old, new = map(_methods, modules)
    found: list[Diagnostic] = []
    for owner, name in sorted(methods):
        whole = [_whole(one, owner, name, last, first, encode) for one in (old, new)]
        for function, module in zip(whole, modules, strict=True):
            if function is not None:
                make_plain(function, module)
        shown = {ast.dump(function) if function is not None else "" for function in whole}
        if len(shown) > 1 or "" in shown:
            line = getattr(new.get((owner, name)), "lineno", 1)
            found.append(
                Diagnostic(
                    "VCG646",
                    f"`{owner}.{name}` does something else than before with its extracted methods put back",
                    Span(path, line, 1, line, 1),
                    "an entry of `explicit.rewrite` means something else than the model's expression; without one "
                    "this is a defect of vitcg-scaffold: please report it with the descriptor and the vLLM release",
                )
            )
    return tuple(found)


def _methods(module: ast.Module) -> dict[tuple[str, str], ast.FunctionDef]:
    return {
        (owner.name, node.name): node
        for owner in ast.walk(module)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
    }


def _whole(
    methods: dict[tuple[str, str], ast.FunctionDef],
    owner: str,
    name: str,
    last: str | None,
    first: str | None,
    encode: str,
) -> ast.FunctionDef | None:
    """A method with all put back; None where it is not there or that is not possible."""
    function = copy.deepcopy(methods.get((owner, name)))
    if function is None:
        return None
    end = function.body[-1]
    call = end.value if isinstance(end, ast.Return) else None
    ends = isinstance(call, ast.Call) and ast.unparse(call.func) == f"self.{last}"
    if isinstance(call, ast.Call) and ends and not _append(function, call, methods.get((owner, last or ""))):
        return None
    if first is not None and not _prepend(function, first, methods.get((owner, first))):
        return None
    putting = _Encode(encode, methods.get((owner, encode)), function)
    putting.visit(function)
    if putting.failed:
        return None
    while _inlined(function):
        pass
    return function


def _append(function: ast.FunctionDef, call: ast.Call, method: ast.FunctionDef | None) -> bool:
    """Put a method's body in the place of its call, the last statement of a function; whether it means the same."""
    if method is None or method.decorator_list or call.keywords:
        return False
    spec = method.args
    parameters = [one.arg for one in spec.args]
    further = [*spec.posonlyargs, *spec.kwonlyargs, *spec.defaults, spec.vararg, spec.kwarg]
    if any(further) or parameters != ["self", *map(ast.unparse, call.args)]:
        return False
    rest = ast.FunctionDef(function.name, function.args, function.body[:-1] or [ast.Pass()], [], None, lineno=1)
    inside, outside = _locals(method), _locals(rest)
    mentioned = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
    # No variable of the function is anything else in the method, and the other way round, unless the method sets it
    # before it reads it, and nothing that the function makes reads it later.
    shared = (inside | mentioned) & outside | inside & _mentioned(rest)
    later = {
        name for node in ast.walk(rest) if isinstance(node, _SCOPES) and node is not rest for name in _mentioned(node)
    }
    if any(name in later or not _is_set_first(method.body, name) for name in shared - set(parameters)):
        return False
    function.body[-1:] = method.body
    return True


def _prepend(function: ast.FunctionDef, first: str, method: ast.FunctionDef | None) -> bool:
    """Put the body of `first` in the place of its call in a statement of a function; whether it means the same."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _is_own(node, first)]
    places = [
        (place, node, node.value)
        for place, node in enumerate(function.body)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value in calls
    ]
    if not calls:
        return True
    if len(calls) != 1 or len(places) != 1 or method is None or method.decorator_list:
        return False
    [(place, statement, call)] = places
    spec, end = method.args, method.body[-1]
    given = ["self", *map(ast.unparse, call.args)]
    further = [*spec.posonlyargs, *spec.kwonlyargs, *spec.defaults, spec.vararg, spec.kwarg, *call.keywords]
    returns = [node for node in ast.walk(method) if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]
    if any(further) or [one.arg for one in spec.args] != given or not isinstance(end, ast.Return) or returns != [end]:
        return False
    if [ast.unparse(target) for target in statement.targets] != [ast.unparse(end.value or ast.Constant(None))]:
        return False
    # The rest of the function reads only variables that the method gives, and the method only those that it takes.
    rest = ast.FunctionDef(
        function.name, function.args, [*function.body[:place], ast.Pass(), *function.body[place + 1 :]], [], None,
        lineno=1,
    )  # fmt: skip
    kept = {node.id for node in ast.walk(statement.targets[0]) if isinstance(node, ast.Name)}
    inside, outside = _locals(method), _locals(rest)
    body = method.body[:-1]
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    mentioned = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
    if (inside - set(given) - kept) & _mentioned(rest) or (mentioned & outside) - set(given) - kept:
        return False
    unset = [name for name in kept - set(given) if name in outside and not _is_set_first(body, name)]
    if unset:
        return False
    function.body[place : place + 1] = body
    return True


def _is_own(node: ast.Call, name: str) -> bool:
    return ast.unparse(node.func) == f"self.{name}"


def _is_set_first(body: list[ast.stmt], name: str) -> bool:
    """Whether the first statement that has a variable sets it, and does not read it."""
    for node in body:
        uses = [one.ctx for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == name]
        if uses:
            return isinstance(node, ast.Assign) and all(isinstance(use, ast.Store) for use in uses)
    return False


class _Encode(ast.NodeTransformer):
    """Puts the one expression of the method in the place of its calls."""

    def __init__(self, name: str, method: ast.FunctionDef | None, function: ast.FunctionDef) -> None:
        self.name, self.method, self.failed = name, method, False
        self.variables = _locals(function)
        # An expression that sets a variable may come before or behind a further argument.
        self.sets = any(isinstance(node, ast.NamedExpr | ast.Nonlocal) for node in ast.walk(function))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != f"self.{self.name}":
            return node
        parameters = [one.arg for one in self.method.args.args] if self.method is not None else []
        further = [one.id for one in node.args[1:] if isinstance(one, ast.Name)]
        fits = 2 <= len(parameters) == len(further) + 2 == len(node.args) + 1 and not node.keywords
        if self.method is None or not fits or (further and self.sets):
            self.failed = True
            return node
        scopes = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)
        given: ast.AST = node.args[0]
        for part in self.method.body:
            is_last = part is self.method.body[-1]
            sets = isinstance(part, ast.Assign) and [ast.unparse(one) for one in part.targets] == parameters[1:2]
            right = isinstance(part, ast.Return) if is_last else sets
            value = copy.deepcopy(part.value) if right and isinstance(part, ast.Return | ast.Assign) else None
            nodes = [*ast.walk(value)] if value is not None else []
            uses = [one for one in nodes if isinstance(one, ast.Name) and one.id == parameters[1]]
            own = any(isinstance(one, scopes) for one in nodes)
            if value is None or own or len(uses) != 1 or not _leads(value, uses[0]):
                self.failed = True
                return node
            named = [one for one in nodes if isinstance(one, ast.Name)]
            beside = [one for one in named if one.id in parameters[2:]]
            twice = len({one.id for one in beside}) < len(beside)
            if twice or any(one.id in self.variables and one.id not in parameters for one in named):
                self.failed = True
                return node
            others = dict(zip(parameters[2:], further, strict=True))
            for one in beside:
                one.id = others[one.id]
            given = _Put(uses[0], given).visit(value)
        return given


def _inlined(function: ast.FunctionDef) -> bool:
    """Put the value of one variable into the one place that reads it; whether there was one."""
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    fixed = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    fixed |= {name for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names}
    found: dict[str, list[tuple[list[ast.stmt], ast.Assign, ast.stmt, ast.Name]]] = {}
    blocks = [
        block
        for node in ast.walk(function)
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody"))
        if isinstance(block, list)
    ]
    for block in blocks:
        for first, second in itertools.pairwise(block):
            target = first.targets[0] if isinstance(first, ast.Assign) and len(first.targets) == 1 else None
            if not isinstance(target, ast.Name) or not isinstance(second, ast.Assign | ast.Return | ast.Expr):
                continue
            uses = [one for one in ast.walk(second) if isinstance(one, ast.Name) and one.id == target.id]
            if len(uses) == 1 and isinstance(uses[0].ctx, ast.Load) and _leads(second, uses[0]):
                found.setdefault(target.id, []).append((block, first, second, uses[0]))
    flat = not any(isinstance(node, (ast.Try, *_SCOPES)) for node in ast.walk(function) if node is not function)
    for name, places in found.items():
        alone = 2 * len(places) == sum(one.id == name for one in names)
        for block, first, second, use in places:
            # One place at a time: those that are left are counted again.
            if name not in fixed and (alone or (flat and _is_last_use(block, second, name))):
                block.remove(first)
                _Put(use, first.value).visit(second)
                return True
    return False


def _is_last_use(block: list[ast.stmt], statement: ast.stmt, name: str) -> bool:
    """Whether a block leaves the method at its end, and what is below a statement in it has no variable `name`."""
    below = block[block.index(statement) + 1 :]
    return isinstance(block[-1], ast.Return) and not any(
        isinstance(one, ast.Name) and one.id == name for node in below for one in ast.walk(node)
    )


class _Put(ast.NodeTransformer):
    def __init__(self, old: ast.Name, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.new if node is self.old else node


def _leads(node: ast.AST, use: ast.Name) -> bool:
    """Whether what is computed before a name in a statement or an expression is names, attributes and constants."""
    if node is use:
        return True
    match node:
        case ast.Assign(value=value) | ast.Return(value=value) | ast.Expr(value=value) if value is not None:
            parts: list[ast.expr] = [value]
        case ast.Call(func=func, args=args, keywords=keywords):
            parts = [func, *args, *(keyword.value for keyword in keywords)]
        case ast.Attribute(value=value) | ast.Starred(value=value):
            parts = [value]
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            parts = elts
        case _:
            return False
    plain = (ast.Name, ast.Attribute, ast.Constant, ast.expr_context)
    for part in parts:
        if any(one is use for one in ast.walk(part)):
            return _leads(part, use)
        if not all(isinstance(one, plain) for one in ast.walk(part)):
            return False
    return False


def _locals(function: ast.FunctionDef) -> set[str]:
    """Names that are the function's own, as Python's compiler says."""
    table = symtable.symtable(ast.unparse(function), "<method>", "exec")
    return set(next(t for t in table.get_children() if isinstance(t, symtable.Function)).get_locals())


def _mentioned(function: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
