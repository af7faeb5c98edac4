"""Substitution: without its new parameters every method of a way is what it was, and a loop in its method is back.

Written from the rule alone: it shares no code with the search or the edits, so that a mistake there is not repeated.
"""

from __future__ import annotations

import ast
import symtable
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from scaffold.cut.putback import put_back
from scaffold.diagnostics import Diagnostic, Span

_PARAMETER = "encode"
_PUBLIC, _PRIVATE = "embed_multimodal", "_embed_multimodal"
_LOOP = "forward_layers"
_CHAIN = "_encode_pixels"
_OFFSETS, _LONGEST = "cu_seqlens", "max_seqlen"


def prove_cut(
    before: str,
    after: str,
    methods: frozenset[tuple[str, str]],
    path: str,
    hoisted: Mapping[tuple[str, str], Sequence[str]] = MappingProxyType({}),
    first: str | None = None,
) -> tuple[Diagnostic, ...]:
    """Prove that `methods` of the classes in `after` equal those of `before` when `encode` is None: nothing, or VCG646.

    The proof removes a last parameter `encode` whose default is None, its line in the docstring, and an argument
    `encode=encode` of a call. `E if encode is None else encode(x, y)` becomes `E` where `x` and `y` are arguments of
    the call `E`. A call of `E if encode is None else encode` becomes one of `E`. The rest must be the same tree,
    without another word of `encode`.

    Three moves are allowed. The body of `embed_multimodal` may have moved into a private method that it calls with all
    that it is given. A loop may have moved into a method `forward_layers`, whose parameters are the variables that it
    reads and whose results are those that it writes for the rest of the method. The loop must give the same tree when
    it is put back in the place of the call, and it must mean the same names there as in its own method; other loops may
    give their entries the same name. A run of assignments may have moved into a method `_encode_pixels`, once for
    several places. In each place it must be the same run but for the names of its variables, of which the rest of the
    method has none but the result.

    A method without a class is a function of the module.

    The `hoisted` among them, or the method of a loop, have another parameter, `max_seqlen`, whose default is None, or
    that one and `cu_seqlens`.
    `if max_seqlen is None` may precede the only statement that sets it, at a place that no call runs twice. Elsewhere
    only arguments `max_seqlen=max_seqlen` may read it, and nothing but `cu_seqlens=cu_seqlens` the other one. A callee
    that takes none raises in every call, so execution shows it.

    The statements in front of a loop may have moved into the method `first` of its class: `put_back` has the rule.

    The cuts of an earlier port are undone in `before`, too.
    """
    old, new = _methods(before), _methods(after)
    for owner, name in methods:
        if name == _PUBLIC and (owner, _PRIVATE) not in old:
            _unmove(owner, new)
    loops = {owner: names for (owner, name), names in hoisted.items() if name == _LOOP and (owner, _LOOP) not in old}
    mistold = {owner for owner, names in loops.items() if not _told(new.get((owner, _LOOP)), names)}
    found: list[Diagnostic] = []
    for owner, name in sorted(methods):
        shown, line = f"{owner}.{name}".removeprefix("."), getattr(new.get((owner, name)), "lineno", 1)
        loop = new.get((owner, _LOOP)) if (owner, _LOOP) not in old else None
        chain = new.get((owner, _CHAIN)) if (owner, _CHAIN) not in old else None
        if chain is not None:
            _fold(old.get((owner, name)), new.get((owner, name)), chain)
        whole = first is None or all(_whole(functions, owner, name, first) for functions in (old, new))
        was = _undone(old.get((owner, name)))
        if (
            owner in mistold
            or not whole
            or was is None
            or _undone(new.get((owner, name)), loop, hoisted.get((owner, name), ())) != was
        ):
            found.append(_changed(shown, line, path))
    return tuple(found)


def _whole(methods: Mapping[tuple[str, str], ast.AST], owner: str, name: str, first: str) -> bool:
    """Put the statements of `first` back into a method that calls it; whether that means the same."""
    function, method = methods.get((owner, name)), methods.get((owner, first))
    return not isinstance(function, ast.FunctionDef) or put_back(
        function, first, method if isinstance(method, ast.FunctionDef) else None
    )


def prove_sharding(
    before: str, after: str, methods: frozenset[tuple[str, str]], name: str, path: str
) -> tuple[Diagnostic, ...]:
    """Prove that `methods` of the classes in `after` equal those of `before` when `name` is None: nothing, or VCG646.

    The proof removes a last parameter `name` whose default is None, its line in the docstring, and an argument
    `name=name` of a call. A method may have the statement `if name is None: name = self.name`: then it goes, and each
    `name` behind it is `self.name`, also in an argument. The rest must be the same tree, without another word of
    `name`.

    The parameter of an earlier port is removed from `before`, too.
    """
    old, new = _methods(before), _methods(after)
    found: list[Diagnostic] = []
    for owner, method in sorted(methods):
        was, now = old.get((owner, method)), new.get((owner, method))
        if was is not None:
            _unsharded(was, name)
        if was is None or now is None or not _unsharded(now, name) or ast.dump(now) != ast.dump(was):
            found.append(_changed(f"{owner}.{method}", getattr(now, "lineno", 1), path))
    return tuple(found)


def _changed(shown: str, line: int, path: str) -> Diagnostic:
    return Diagnostic(
        "VCG646",
        f"`{shown}` does something else than before when its new parameters are None",
        Span(path, line, 1, line, 1),
        "this is a defect of vitcg-scaffold, nothing was written: please report it with the descriptor and the vLLM "
        "release",
    )


def _unsharded(function: ast.AST, name: str) -> bool:
    """Take the parameter of a switch out of a method; whether it is what the rule allows."""
    statement = ast.dump(ast.parse(f"if {name} is None:\n    {name} = self.{name}").body[0])
    body: list[ast.stmt] = getattr(function, "body", [])
    for index in [index for index, node in enumerate(body) if ast.dump(node) == statement][:1]:
        del body[index]
        body[index:] = [_Switched(name).visit(node) for node in body[index:]]
    return _without(function, name)


class _Switched(ast.NodeTransformer):
    """Reads the switch where the parameter was read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id != self._name or not isinstance(node.ctx, ast.Load):
            return node
        return ast.Attribute(ast.Name("self", ast.Load()), self._name, ast.Load())


def _methods(text: str) -> dict[tuple[str, str], ast.AST]:
    return {
        (getattr(owner, "name", ""), node.name): node
        for owner in ast.walk(ast.parse(text))
        if isinstance(owner, ast.ClassDef | ast.Module)
        for node in owner.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _unmove(owner: str, methods: dict[tuple[str, str], ast.AST]) -> None:
    """Take the private method for the public one, if that one does nothing but call it."""
    public, private = methods.get((owner, _PUBLIC)), methods.get((owner, _PRIVATE))
    if not isinstance(public, ast.FunctionDef) or not isinstance(private, ast.FunctionDef):
        return
    arguments = public.args
    bare = [parameter.arg for parameter in arguments.args] == ["self"] and arguments.kwarg is not None
    call = f"return self.{_PRIVATE}(encode=None, **{arguments.kwarg.arg})" if arguments.kwarg else ""
    if not bare or ast.dump(ast.Module(public.body, [])) != ast.dump(ast.parse(call)):
        return
    private.name = _PUBLIC
    methods[owner, _PUBLIC] = private


def _undone(node: ast.AST | None, loop: ast.AST | None = None, hoisted: Sequence[str] = ()) -> str | None:
    if node is None:
        return None
    _Undo(node).visit(node)
    _undocument(node, _PARAMETER)
    if loop is not None and _calls_of_loop(node) and not _inlined(node, loop):
        return None
    if not _told(node, hoisted):
        return None
    names = (getattr(part, "id", None) or getattr(part, "arg", None) for part in ast.walk(node))
    return None if _PARAMETER in names else ast.dump(node)


def _told(function: ast.AST | None, names: Sequence[str]) -> bool:
    """Take parameters for sequences out of a method; whether it is what the rule allows."""
    known = function is not None and set(names) <= {_OFFSETS, _LONGEST}
    return known and all(_without(function, name) for name in reversed(names) if function is not None)


def _without(function: ast.AST, name: str) -> bool:
    """Take a parameter for sequences out of a method; whether it is what the rule allows."""
    if not isinstance(function, ast.FunctionDef):
        return False
    spec = function.args
    parameters = spec.kwonlyargs or spec.args
    defaults: list[ast.expr] | list[ast.expr | None] = spec.kw_defaults if spec.kwonlyargs else spec.defaults
    if not parameters or parameters[-1].arg != name or not defaults or not _is_none(defaults[-1]):
        return False
    del parameters[-1], defaults[-1]
    _undocument(function, name)
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    stores = [node for node in names if not isinstance(node.ctx, ast.Load)]
    pending = [function.body] if name == _LONGEST else []
    while pending and stores:
        block = pending.pop()
        for index, node in enumerate(block):
            if not isinstance(node, ast.If):
                continue
            first, others, test = node.body[0], [*node.body[1:], *node.orelse], ast.dump(node.test)
            alone = isinstance(first, ast.Assign) and first.targets == stores and not others
            if alone and test == ast.dump(ast.parse(f"{_LONGEST} is None", mode="eval").body):
                block[index] = first
                return True
            pending += [node.body, node.orelse]
    for call in ast.walk(function):
        last = call.keywords[-1] if isinstance(call, ast.Call) and call.keywords else None
        if isinstance(call, ast.Call) and last is not None and last.arg == name and last.value in names:
            call.keywords.pop()
            names = [node for node in names if node is not last.value]
    return not names


def _undocument(function: ast.AST, parameter: str) -> None:
    """Take the parameter's line out of the docstring."""
    body: list[ast.stmt] = getattr(function, "body", [])
    text = body[0].value if body and isinstance(body[0], ast.Expr) else None
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        lines = text.value.split("\n")
        own = [number for number, line in enumerate(lines) if line.lstrip().startswith(f"{parameter}: ")]
        text.value = "\n".join(line for number, line in enumerate(lines) if number not in own[-1:])


def _inlined(function: ast.AST, method: ast.AST) -> bool:
    """Put the loop of a method in the place of its one call in a function; whether it means the same there."""
    if not isinstance(function, ast.FunctionDef) or not isinstance(method, ast.FunctionDef) or len(method.body) != 3:
        return False
    (_, loop, end), spec = method.body, method.args
    further = [*method.decorator_list, *spec.posonlyargs, *spec.kwonlyargs, *spec.defaults, spec.vararg, spec.kwarg]
    own, parameters = spec.args[:1], [parameter.arg for parameter in spec.args[1:]]
    if not isinstance(loop, ast.For) or [one.arg for one in own] != ["self"] or any(further):
        return False
    given = end.value if isinstance(end, ast.Return) else None
    given_back = given.elts if isinstance(given, ast.Tuple) else [given]
    results = [one.id for one in given_back if isinstance(one, ast.Name)]
    call = ast.dump(ast.parse(f"{', '.join(results) or '_'} = self.{_LOOP}({', '.join(parameters)})").body[0])
    blocks = [
        block
        for node in ast.walk(function)
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody"))
        if isinstance(block, list)
    ]
    places = [(block, index) for block in blocks for index, node in enumerate(block) if ast.dump(node) == call]
    if len(places) != 1 or len(_calls_of_loop(function)) != 1:
        return False
    if not results or len(results) != len(given_back) or not set(results) <= set(parameters):
        return False
    # The function must not mention a variable of the loop's method beside the parameters. A name of the loop that is no
    # variable of that method must be none of the function either.
    inside, outside = _variables(method), _variables(function)
    leaves = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await)
    apart = not (inside - {"self", *parameters}) & _mentioned(function) - _of_other_loops(function, loop)
    kept = not {node.id for node in ast.walk(loop) if isinstance(node, ast.Name)} - inside & outside
    written = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if not apart or not kept or written & {"self", *parameters} != set(results):
        return False
    [(block, index)] = places
    block[index] = loop
    return not any(isinstance(node, leaves) for node in ast.walk(loop))


def _of_other_loops(function: ast.FunctionDef, loop: ast.For) -> set[str]:
    """The name of a loop's entries, if a function has it only in loops that set it: none reads what another has set."""
    name = loop.target.id if isinstance(loop.target, ast.Name) else ""
    scopes = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp)
    pending: list[ast.AST] = [function.args, *function.body, loop.iter, *loop.orelse]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == name:
            inside = [inner for part in node.body for inner in ast.walk(part)]
            if not any(isinstance(inner, (*scopes, ast.GeneratorExp)) for inner in inside) and not _calls_of_loop(node):
                pending += [node.iter, *node.orelse]
                continue
        words = [word for _, field in ast.iter_fields(node) for word in (field if isinstance(field, list) else [field])]
        if name in words:
            return set()
        pending += ast.iter_child_nodes(node)
    return {name}


def _fold(old: ast.AST | None, new: ast.AST | None, method: ast.AST) -> None:
    """Replace a run of statements in `old` by the call of `method` that `new` has in its place, if it is that run."""
    if not isinstance(old, ast.FunctionDef) or not isinstance(new, ast.FunctionDef):
        return
    if not isinstance(method, ast.FunctionDef) or len(method.body) < 3:
        return
    spec, (_, *moved, end) = method.args, method.body
    further = [*method.decorator_list, *spec.posonlyargs, *spec.kwonlyargs, *spec.defaults, spec.vararg, spec.kwarg]
    result = end.value.id if isinstance(end, ast.Return) and isinstance(end.value, ast.Name) else ""
    if [one.arg for one in spec.args[:1]] != ["self"] or len(spec.args) != 2 or any(further):
        return
    for block, index, steps in _blocks(new):
        call = block[index]
        target = call.targets[0] if isinstance(call, ast.Assign) else None
        value = call.value if isinstance(call, ast.Assign) else None
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Call) or len(value.args) != 1:
            continue
        [given] = value.args
        text = f"{target.id} = (self.{_CHAIN} if {_PARAMETER} is None else {_PARAMETER})({ast.unparse(given)})"
        if not isinstance(given, ast.Name) or ast.dump(call) != ast.dump(ast.parse(text).body[0]):
            continue
        there = _followed(old, steps)
        run = there[index : index + len(moved)] if there is not None else []
        wanted = _numbered(moved, spec.args[1].arg, result, set())
        if there is None or wanted is None or _numbered(run, given.id, target.id, _variables(old)) != wanted:
            return
        inner = {id(node) for statement in run for node in ast.walk(statement)}
        names = [node for node in ast.walk(old) if isinstance(node, ast.Name)]
        parameters = {node.arg for node in ast.walk(old) if isinstance(node, ast.arg)}
        elsewhere = {node.id for node in names if id(node) not in inner} | parameters
        written = {node.id for node in names if id(node) in inner and isinstance(node.ctx, ast.Store)}
        shared = any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(old))
        if not shared and not (written - {target.id}) & elsewhere:
            there[index : index + len(moved)] = ast.parse(f"{target.id} = self.{_CHAIN}({given.id})").body
        return


def _blocks(function: ast.FunctionDef) -> list[tuple[list[ast.stmt], int, tuple[tuple[str, int], ...]]]:
    """Every statement as its block and its number there, with the steps that lead to the block from the function.

    Those of functions and classes inside are left out: their variables are others.
    """
    found: list[tuple[list[ast.stmt], int, tuple[tuple[str, int], ...]]] = []
    pending: list[tuple[ast.AST, tuple[tuple[str, int], ...]]] = [(function, ())]
    while pending:
        node, steps = pending.pop()
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            for index, statement in enumerate(block if isinstance(block, list) else []):
                found.append((block or [], index, (*steps, (field, -1))))
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    pending.append((statement, (*steps, (field, index))))
    return found


def _followed(function: ast.FunctionDef, steps: tuple[tuple[str, int], ...]) -> list[ast.stmt] | None:
    """The block that steps lead to; None where there is none."""
    node: ast.AST = function
    for field, index in steps:
        block = getattr(node, field, None)
        if not isinstance(block, list) or index >= len(block):
            return None
        if index < 0:
            return block
        node = block[index]
    return None


def _numbered(run: list[ast.stmt], given: str, result: str, outside: set[str]) -> list[str] | None:
    """Assignments with numbers for their variables, None where they are anything else or read one of `outside`."""
    numbers, lines = {given: "0"}, []
    for number, statement in enumerate(run, 1):
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
            return None
        parts = list(ast.walk(statement.value))
        scopes = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)
        if any(isinstance(part, (*scopes, ast.Await, ast.Yield, ast.YieldFrom)) for part in parts):
            return None
        names = [part for part in parts if isinstance(part, ast.Name)]
        if any(name.id in outside - {"self"} and name.id not in numbers for name in names):
            return None
        # Spaces keep a number apart from every name of Python.
        value = {id(name): f"{numbers[name.id]} " for name in names if name.id in numbers}
        kept = [(name, name.id) for name in names]
        for name in names:
            name.id = value.get(id(name), name.id)
        lines.append(ast.dump(statement.value))
        for name, text in kept:
            name.id = text
        numbers[target.id] = str(number)
    return lines if numbers.get(result) == str(len(run)) else None


def _calls_of_loop(function: ast.AST) -> list[ast.AST]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Attribute) and node.attr == _LOOP]


def _variables(function: ast.FunctionDef) -> set[str]:
    """Names that are the function's own, as Python's compiler says."""
    table = symtable.symtable(ast.unparse(function), "<method>", "exec")
    return set(next(t for t in table.get_children() if isinstance(t, symtable.Function)).get_locals())


def _mentioned(function: ast.FunctionDef) -> set[str]:
    """Names that a function uses or has, but not those that only a comprehension of it has."""
    hidden: Counter[int] = Counter()
    for node in ast.walk(function):
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            bound = {
                part.id
                for generator in node.generators
                for part in ast.walk(generator.target)
                if isinstance(part, ast.Name)
            }
            outer = set(map(id, ast.walk(node.generators[0].iter)))
            hidden.update(
                id(part)
                for part in ast.walk(node)
                if isinstance(part, ast.Name) and part.id in bound and id(part) not in outer
            )
    parts = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    names = {node.id for node in parts if not hidden[id(node)]}
    names |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    # Some compilers make such a name the function's own.
    return names | _variables(function) - {node.id for node in parts if hidden[id(node)]}


class _Undo(ast.NodeTransformer):
    def __init__(self, function: ast.AST) -> None:
        arguments: ast.arguments = function.args  # type: ignore[attr-defined]
        positional, keyword_only = arguments.args, arguments.kwonlyargs
        if keyword_only and keyword_only[-1].arg == _PARAMETER and _is_none(arguments.kw_defaults[-1]):
            del keyword_only[-1], arguments.kw_defaults[-1]
        elif positional and positional[-1].arg == _PARAMETER and _has_none(arguments.defaults):
            del positional[-1], arguments.defaults[-1]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        last = node.keywords[-1] if node.keywords else None
        if last is not None and last.arg == _PARAMETER and _is_parameter(last.value):
            node.keywords.pop()
        if isinstance(node.func, ast.IfExp) and _is_given(node.func.test) and _is_parameter(node.func.orelse):
            node.func = node.func.body
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        other = node.orelse
        substituted = (
            _is_given(node.test)
            and isinstance(other, ast.Call)
            and _is_parameter(other.func)
            and other.args
            and not other.keywords
            and isinstance(node.body, ast.Call)
        )
        if not substituted:
            return self.generic_visit(node)
        assert isinstance(node.body, ast.Call)
        assert isinstance(other, ast.Call)
        given = [*node.body.args, *(keyword.value for keyword in node.body.keywords)]
        if Counter(map(ast.dump, other.args)) - Counter(map(ast.dump, given)):
            return self.generic_visit(node)
        kept: ast.AST = self.visit(node.body)
        return kept


def _is_given(test: ast.expr) -> bool:
    """Whether it is `encode is None`."""
    return (
        isinstance(test, ast.Compare)
        and _is_parameter(test.left)
        and [type(operator) for operator in test.ops] == [ast.Is]
        and _is_none(test.comparators[0])
    )


def _is_parameter(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == _PARAMETER


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _has_none(defaults: list[ast.expr]) -> bool:
    return bool(defaults) and _is_none(defaults[-1])
