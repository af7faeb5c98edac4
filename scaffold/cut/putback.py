"""Substitution: with its extracted methods back in the place of their calls, a model's code is what it was.

Written from the rule alone: it shares no code with the search or the edits, so that a mistake there is not repeated.
"""

from __future__ import annotations

import ast
import copy
import symtable
from typing import TypeGuard

from scaffold.diagnostics import Diagnostic, Span

#: Functions of Python that compute sizes of what they get, and what else such a computation is made of.
_SIZES = {"len", "list", "map", "sum"}
_OF_SIZES = (ast.Name, ast.Constant, ast.Subscript, ast.Call, ast.Lambda, ast.arguments, ast.arg, ast.IfExp,
             ast.Compare, ast.BinOp, ast.operator, ast.cmpop, ast.expr_context)  # fmt: skip

#: Parts of a function that may read a variable later than the statement that has them.
_SCOPES = (ast.Lambda, ast.GeneratorExp, ast.FunctionDef, ast.AsyncFunctionDef)


def prove_extraction(
    before: str,
    after: str,
    methods: frozenset[tuple[str, str]],
    last: str | None,
    path: str,
    first: str | None = None,
    items: str | None = None,
) -> tuple[Diagnostic, ...]:
    """Prove that `methods` of the classes in `after` equal those of `before`: nothing, or VCG646.

    The proof puts three kinds of methods back. `return self.LAST(x, y)` at the end of a method becomes the body of that
    method, whose parameters are `x` and `y`; no other name of it may be a variable of both. `x, y = self.FIRST(z)`
    becomes the body of that method, which takes `z` and ends with `return x, y`. `return self.ITEMS(CALL for x in xs)`
    at the end of a method becomes the body of that method, whose only loop over its one parameter goes over `xs`, and
    begins with `CALL`. The rest must be the same tree, where a statement that computes sizes is before the first one
    that has a variable of it.

    The proof puts back the methods of an earlier port in `before`, too.
    """
    old, new = map(_methods, (ast.parse(before), ast.parse(after)))
    found: list[Diagnostic] = []
    for owner, name in sorted(methods):
        whole = [_whole(one, owner, name, last, first, items) for one in (old, new)]
        shown = {ast.dump(function) if function is not None else "" for function in whole}
        if len(shown) > 1 or "" in shown:
            line = getattr(new.get((owner, name)), "lineno", 1)
            found.append(
                Diagnostic(
                    "VCG646",
                    f"`{owner}.{name}` does something else than before with its extracted methods put back",
                    Span(path, line, 1, line, 1),
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
    items: str | None,
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
    if first is not None and not put_back(function, first, methods.get((owner, first))):
        return None
    if items is not None and not _loop_again(function, items, methods.get((owner, items))):
        return None
    _settle(function)
    return function


def _settle(function: ast.FunctionDef) -> None:
    """Move each statement that computes sizes down to the first that has a variable of it.

    It passes only statements that give one variable a value: another one may change what it reads.
    """
    body = function.body
    for place in reversed(range(len(body))):
        node = body[place]
        if not _sets_one(node):
            continue
        called = [one.func for one in ast.walk(node.value) if isinstance(one, ast.Call)]
        if not all(isinstance(one, _OF_SIZES) for one in ast.walk(node.value)):
            continue
        if not called or not all(isinstance(one, ast.Name) and one.id in _SIZES for one in called):
            continue
        names = _mentioned(node) - _SIZES
        following = range(place + 1, len(body))
        stop = next((one for one in following if names & _mentioned(body[one]) or not _sets_one(body[one])), place + 1)
        body.insert(stop - 1, body.pop(place))


def _sets_one(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)


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
    function.body[-1:] = _undocumented(method.body)
    return True


def _loop_again(function: ast.FunctionDef, items: str, method: ast.FunctionDef | None) -> bool:
    """Put the loop of `items` back into a method that ends with a call of it; whether it means the same.

    The generator makes each entry when the loop asks for it, which is where the call was.
    """
    match function.body[-1]:
        case ast.Return(value=ast.Call(func=func, args=[ast.GeneratorExp(elt=made, generators=[only])], keywords=[])):
            if ast.unparse(func) != f"self.{items}":
                return True
        case _:
            return True
    named = isinstance(only.target, ast.Name) and isinstance(only.iter, ast.Name)
    if method is None or method.decorator_list or only.ifs or only.is_async or not named:
        return False
    spec = method.args
    further = [*spec.posonlyargs, *spec.kwonlyargs, *spec.defaults, spec.vararg, spec.kwarg]
    if any(further) or len(spec.args) != 2 or spec.args[0].arg != "self":
        return False
    parameter, body = spec.args[1].arg, _undocumented(method.body)
    uses = [node for node in ast.walk(method) if isinstance(node, ast.Name) and node.id == parameter]
    places = [place for place, node in enumerate(body) if isinstance(node, ast.For) and [node.iter] == uses]
    # The method's variables are its own: none is a variable of the rest, and the items are none of them.
    rest = ast.FunctionDef(function.name, function.args, function.body[:-1] or [ast.Pass()], [], None, lineno=1)
    outside = (_locals(rest) | _mentioned(only) | _mentioned(made)) - {"self"}
    inside = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)} - {parameter}
    if len(places) != 1 or inside & outside:
        return False
    loop = body[places[0]]
    assert isinstance(loop, ast.For)
    again = ast.For(only.target, only.iter, [ast.Assign([loop.target], made, lineno=1), *loop.body], loop.orelse)
    function.body[-1:] = [*body[: places[0]], again, *body[places[0] + 1 :]]
    return True


def put_back(function: ast.FunctionDef, first: str, method: ast.FunctionDef | None) -> bool:
    """Put the body of `first` in the place of its call in a statement of a function; whether it means the same.

    The call hands over all parameters, so their defaults mean nothing.
    """
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
    further = [*spec.posonlyargs, *spec.kwonlyargs, spec.vararg, spec.kwarg, *call.keywords]
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
    body = _undocumented(method.body[:-1])
    mentioned = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)}
    if (inside - set(given) - kept) & _mentioned(rest) or (mentioned & outside) - set(given) - kept:
        return False
    unset = [name for name in kept - set(given) if name in outside and not _is_set_first(body, name)]
    if unset:
        return False
    function.body[place : place + 1] = body
    return True


def _undocumented(body: list[ast.stmt]) -> list[ast.stmt]:
    """A body without the docstring, which says nothing of the method that the statements come from."""
    said = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1:] if said else body


def _is_own(node: ast.Call, name: str) -> bool:
    return ast.unparse(node.func) == f"self.{name}"


def _is_set_first(body: list[ast.stmt], name: str) -> bool:
    """Whether the first statement that has a variable sets it, and does not read it."""
    for node in body:
        uses = [one.ctx for one in ast.walk(node) if isinstance(one, ast.Name) and one.id == name]
        if uses:
            return isinstance(node, ast.Assign) and all(isinstance(use, ast.Store) for use in uses)
    return False


def _locals(function: ast.FunctionDef) -> set[str]:
    """Names that are the function's own, as Python's compiler says."""
    table = symtable.symtable(ast.unparse(function), "<method>", "exec")
    return set(next(t for t in table.get_children() if isinstance(t, symtable.Function)).get_locals())


def _mentioned(function: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
