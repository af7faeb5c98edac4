"""The rules: where a tree's own port is wrong in a known way, and the smallest edit that mends it.

A rule reads the syntax tree of a method. It gives exact places of the file, and the text to put there, in the names of
the method. It judges nothing: `answers` says which failing checks it is for, and only a run of the checks decides
whether it is kept (`scaffold.fix.proof`). No rule changes the signature of a method, so no subclass has to follow.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

from scaffold.changes import FileChange
from scaffold.diagnostics import Span
from scaffold.protocol import SourceTree, find_model
from scaffold.syntax import FunctionNode, call_name, self_attribute
from scaffold.tower.source import Method, Program
from scaffold.verify.numeric import Check
from scaffold.verify.numeric.reports import FROZEN, ROUND_UP, SECTIONS, captured_short

#: Methods of the protocol and parameters of theirs; no release has others.
CAPTURE = "prepare_encoder_cudagraph_capture_inputs"
REPLAY = "prepare_encoder_cudagraph_replay_buffers"
RANGE = "get_encoder_cudagraph_budget_range"
ITEM_SPECS = "get_encoder_cudagraph_item_specs"
POSTPROCESS = "postprocess_encoder_output"
BUDGET, ITEMS, FRAMES, CLONE = "token_budget", "max_batch_size", "max_frames_per_batch", "clone"

#: Open pull requests of vLLM that have a rule's repair for a class.
_THREADS = {("copy on clone", "Step3VLForConditionalGeneration"): "vllm-project/vllm#52115"}

#: The parameter of metadata methods for the bound of a sequence that a capture freezes.
_BOUND = "max_seqlen_override"

Place = tuple[int, int]  # a line from 1, a column in bytes from 0, as `ast` counts


@dataclass(frozen=True, slots=True)
class TextEdit:
    """The new text for some bytes of a file."""

    start: Place
    end: Place
    new: bytes


@dataclass(frozen=True)
class Repair:
    """A rule at the place where it applies: the edits of one file, and the failing checks that they may mend.

    `what` is the fault and `so` the edit, for people. One that is only worth a line `beside` other repairs comes last.
    `thread` is an open pull request of vLLM that has the same repair.
    """

    name: str
    path: str
    class_name: str
    methods: tuple[str, ...]
    span: Span
    edits: tuple[TextEdit, ...]
    what: str
    so: str
    answers: Callable[[Check], bool] = field(compare=False, repr=False)
    beside: bool = False

    @property
    def thread(self) -> str:
        return _THREADS.get((self.name, self.class_name), "")


def find_repairs(tree: SourceTree, module: str, class_name: str) -> tuple[Repair, ...]:
    """The repairs whose places are in the methods of this class, in the order in which they are tried.

    The methods may be those of a base. A repair of what stops the capture or a replay comes before the others, whose
    checks it may hide. Raises VCG420 and VCG424 as `find_model`.
    """
    program = Program(tree)
    owner = program.owner(find_model(tree, module, class_name).path, class_name)
    methods = {name: program.method(owner, name) for name in (CAPTURE, REPLAY, RANGE, ITEM_SPECS, POSTPROCESS)}
    port = _Port(tree, program, {name: method for name, method in methods.items() if method is not None})
    return tuple(repair for rule in _RULES if (repair := rule(port)) is not None)


def apply_repairs(tree: SourceTree, repairs: Sequence[Repair]) -> tuple[FileChange, ...]:
    """The files with the edits of all these repairs, in the target's format. Raises VCG623 where ruff cannot be run."""
    from scaffold.verify.style import format_changed

    changes = []
    for path in dict.fromkeys(repair.path for repair in repairs):
        before = tree.read_bytes(path)
        starts = [0, *accumulate(map(len, before.splitlines(keepends=True)))]
        after = before
        edits = [edit for repair in repairs if repair.path == path for edit in repair.edits]
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            start, end = (starts[line - 1] + column for line, column in (edit.start, edit.end))
            after = after[:start] + edit.new + after[end:]
        text = format_changed(before.decode(), after.decode(), path=path, config_root=tree.root)
        changes.append(FileChange(path, before, text.encode()))
    return tuple(changes)


def heirs_of(tree: SourceTree, module: str, class_name: str, repairs: Sequence[Repair]) -> tuple[str, ...]:
    """The other classes whose port runs a repaired method: subclasses of the class that defines it."""
    from scaffold.protocol import find_subclasses

    program = Program(tree)
    own = program.owner(find_model(tree, module, class_name).path, class_name)
    found: dict[str, None] = {}
    for repair in repairs:
        definer = program.owner(repair.path, repair.class_name)
        heirs = ((heir.path, heir.class_name) for heir in find_subclasses(tree, repair.path, repair.class_name))
        for path, name in ((repair.path, repair.class_name), *heirs):
            heir = program.owner(path, name)
            same = any(program.method(heir, one) == program.method(definer, one) for one in repair.methods)
            if same and heir[1] is not own[1]:
                found[name] = None
    return tuple(found)


_NOTHING = ast.FunctionDef("", ast.arguments([], [], None, [], [], None, []), [], [])


@dataclass(frozen=True)
class _Port:
    """The methods of a port, each as the class finds it."""

    tree: SourceTree
    program: Program
    methods: dict[str, Method]

    def function(self, name: str) -> FunctionNode:
        """The method of that name; an empty one where the class has none."""
        return self.methods[name][2] if name in self.methods else _NOTHING

    def text(self, name: str, node: ast.expr) -> str:
        return self.methods[name][0].segment(node)

    def repair(
        self,
        name: str,
        method: str,
        edits: Sequence[TextEdit],
        what: str,
        so: str,
        answers: Callable[[Check], bool],
        *,
        beside: bool = False,
    ) -> Repair:
        module, owner, _ = self.methods[method]
        (line, column), (end_line, end_column) = edits[-1].start, edits[-1].end
        span = Span(module.shown, line, column + 1, end_line, end_column + 1)
        return Repair(name, module.file, owner.name, (method,), span, tuple(edits), what, so, answers, beside)


# -- the rules ---------------------------------------------------------------------------------------------------------


def _capture_rounds_up(port: _Port) -> Repair | None:
    """`token_budget // max_batch_size` in the capture: items of one size fill less than the budget, and one may need
    all of it.
    """
    quotients = filter(None, map(_quotient, ast.walk(port.function(CAPTURE))))
    edits = [_put(node, f"({BUDGET} + {ITEMS} - 1) // {ITEMS}") for node in quotients if _is(node.right, ITEMS)]
    if not edits:
        return None
    return port.repair(
        "capture rounds up",
        CAPTURE,
        edits,
        "the capture shares its budget out among items and rounds down, so a replay that fills the budget is longer "
        "than the graph's buffers",
        f"`{BUDGET} // {ITEMS}` rounds up",
        lambda check: check.code == "VCG654" and ROUND_UP in check.detail,
    )


def _rows_by_budget(port: _Port) -> Repair | None:
    """`min(token_budget // tokens, max_batch_size)` where an item may have several rows of a buffer: only the budget
    limits those.
    """
    capture = port.function(CAPTURE)
    for node in ast.walk(capture):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        limit = node.value
        quotients = [argument for argument in limit.args if _quotient(argument)]
        items = [argument for argument in limit.args if _is(argument, ITEMS)]
        if call_name(limit) != "min" or (len(limit.args), len(quotients), len(items)) != (2, 1, 1):
            continue
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        buffers = tuple(key for name in names for key in _buffers_of_length(capture, name))
        if not buffers:
            continue
        kept = port.text(CAPTURE, quotients[0])
        return port.repair(
            "rows by budget alone",
            CAPTURE,
            [_put(limit, kept)],
            f"the capture gives {' and '.join(f'`{key}`' for key in buffers)} at most one row an item, and an item may "
            "have several",
            f"`{kept}` alone counts the rows",
            partial(_is_short, buffers),
        )
    return None


def _pad_as_captured(port: _Port) -> Repair | None:
    """Two calls of one metadata method in the replay, for images and for videos, that pad to different numbers of
    sequences. The graph's buffers have room for both, so one of them is padded short and the manager's zeros follow.
    """
    replay, capture = port.function(REPLAY), port.function(CAPTURE)
    for index, chain in enumerate(replay.body):
        pads = [_pad_of(branch) for branch in _branches(chain)]
        if len(pads) != 2 or {pad[1].arg for pad in pads if pad} != {ITEMS, FRAMES}:
            continue
        (first, pad), (second, other) = sorted(filter(None, pads), key=lambda found: found[1].arg != ITEMS)
        if _without(first, pad) != _without(second, other):
            continue
        if not any(_calls_with_both(node, first.value) for node in ast.walk(capture)):
            continue
        edits = [*_unused_tests(port, replay, index), _joined(port, chain, first, pad)]
        if None in edits:
            continue
        return port.repair(
            "pad as captured",
            REPLAY,
            [edit for edit in edits if edit is not None],
            "a replay pads its sequences differently for images and for videos, and the capture for both: behind a "
            "list of offsets that is too short the manager leaves zeros",
            f"one call pads to `max({ITEMS}, {FRAMES})`, as the capture does",
            lambda check: check.code == "VCG665" or SECTIONS in check.detail,
        )
    return None


def _bound_in_rows(port: _Port) -> Repair | None:
    """The capture freezes the longest sequence at the budget, which counts output tokens, while attention has rows.

    The item specs say how many rows make a token. Their divisors must be what the capture's own names are.
    """
    capture = port.function(CAPTURE)
    factor = _rows_of_a_token(port.function(ITEM_SPECS), capture)
    edits = [
        _put(keyword.value, f"{BUDGET} * {factor}")
        for node in ast.walk(capture)
        for keyword in (node.keywords if isinstance(node, ast.Call) else ())
        if keyword.arg == _BOUND and _is(keyword.value, BUDGET)
    ]
    if not factor or not edits:
        return None
    return port.repair(
        "bound in rows",
        CAPTURE,
        edits,
        "the capture freezes the longest attention sequence at the budget, which counts output tokens, and a token is "
        "made of several rows",
        f"the bound is `{BUDGET} * {factor}`",
        lambda check: FROZEN in check.detail,
    )


def _copy_on_clone(port: _Port) -> Repair | None:
    """`torch.cat(parts) if len(parts) > 1 else parts[0]`: a single part is a view of the graph's output, which the next
    replay overwrites, although `clone` asks for a copy.
    """
    method = port.function(POSTPROCESS)
    if CLONE not in {parameter.arg for parameter in method.args.args} or any(_is(n, CLONE) for n in ast.walk(method)):
        return None
    for node in ast.walk(method):
        if not isinstance(node, ast.IfExp) or not isinstance(node.body, ast.Call) or not node.body.args:
            continue
        parts = ast.unparse(node.body.args[0])
        joined = call_name(node.body) == "cat" and ast.unparse(node.test) == f"len({parts}) > 1"
        if joined and ast.unparse(node.orelse) == f"{parts}[0]":
            return port.repair(
                "copy on clone",
                POSTPROCESS,
                [_put(node.test, f"{port.text(POSTPROCESS, node.test)} or {CLONE}")],
                f"a result of one part is a view of the graph's memory, although `{CLONE}` asks for a copy: the next "
                "replay changes it",
                f"one part is copied, too, where `{CLONE}` is set",
                lambda check: check.code == "VCG658",
            )
    return None


def _minimum(port: _Port) -> Repair | None:
    """The smallest budget may exceed the largest where a context is shorter than one item."""
    returns = [node.value for node in ast.walk(port.function(RANGE)) if isinstance(node, ast.Return)]
    names = returns[0].elts if len(returns) == 1 and isinstance(returns[0], ast.Tuple) else []
    if len(names) != 2 or not all(isinstance(name, ast.Name) for name in names):
        return None
    least, most = (port.text(RANGE, name) for name in names)
    return port.repair(
        "minimum below maximum",
        RANGE,
        [_put(names[0], f"min({least}, {most})")],
        "with a context shorter than one item the smallest budget exceeds the largest, and the start-up stops",
        f"`{least}` is at most `{most}`",
        lambda check: check.code == "VCG662",
        beside=True,
    )


_RULES = (_capture_rounds_up, _rows_by_budget, _pad_as_captured, _bound_in_rows, _copy_on_clone, _minimum)


# -- questions to a method ---------------------------------------------------------------------------------------------


def _put(node: ast.expr | ast.stmt, text: str) -> TextEdit:
    return TextEdit((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0), text.encode())


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _quotient(node: ast.AST) -> ast.BinOp | None:
    """`token_budget // ...`, None for any other node."""
    divides = isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)
    return node if isinstance(node, ast.BinOp) and divides and _is(node.left, BUDGET) else None


def _is_short(buffers: Sequence[str], check: Check) -> bool:
    """Whether a replay failed because one of these buffers is too short for it."""
    short = any(captured_short(key) in check.detail for key in buffers)
    return check.code == "VCG654" and ROUND_UP in check.detail and short


def _buffers_of_length(method: FunctionNode, name: str) -> Iterator[str]:
    """The keys of dictionaries whose values come from a call with `name` as the first argument."""
    made = {
        target.id
        for node in ast.walk(method)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args
        for target in node.targets
        if isinstance(target, ast.Name) and _is(node.value.args[0], name)
    }
    for node in ast.walk(method):
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(value, ast.Name) and value.id in made:
                yield str(key.value)


def _branches(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The branches of `if NAME == ...: ... elif ...: ... else: ...`, without a last one that only raises.

    Empty for anything else.
    """
    found: list[list[ast.stmt]] = []
    rest = [statement]
    while len(rest) == 1 and isinstance(rest[0], ast.If):
        if _compared_name(rest[0].test) is None:
            return []
        found.append(rest[0].body)
        rest = rest[0].orelse
    return found if not rest or all(isinstance(node, ast.Raise) for node in rest) else [*found, rest]


def _compared_name(test: ast.expr) -> str | None:
    """`x` of `x == "constant"`, None for any other test."""
    if not isinstance(test, ast.Compare) or not isinstance(test.left, ast.Name):
        return None
    return test.left.id if all(isinstance(value, ast.Constant) for value in test.comparators) else None


def _pad_of(branch: Sequence[ast.stmt]) -> tuple[ast.Assign, ast.keyword] | None:
    """The one statement `x = f(..., max_batch_size=max_batch_size)` of a branch, or with frames, and that argument."""
    (statement, *more) = branch
    if more or not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    pads = [one for one in statement.value.keywords if one.arg in (ITEMS, FRAMES) and _is(one.value, one.arg)]
    return (statement, pads[0]) if len(pads) == 1 else None


def _without(statement: ast.Assign, keyword: ast.keyword) -> str:
    """The statement as text, without one argument."""
    call = statement.value
    assert isinstance(call, ast.Call)
    others = [one for one in call.keywords if one is not keyword]
    return ast.dump(ast.Assign(statement.targets, ast.Call(call.func, call.args, others)))


def _calls_with_both(node: ast.AST, call: ast.expr) -> bool:
    """Whether a node calls the same method with items and frames."""
    return (
        isinstance(node, ast.Call)
        and isinstance(call, ast.Call)
        and ast.dump(node.func) == ast.dump(call.func)
        and {ITEMS, FRAMES} <= {keyword.arg for keyword in node.keywords}
    )


def _joined(port: _Port, chain: ast.stmt, statement: ast.Assign, pad: ast.keyword) -> TextEdit | None:
    """The chain of branches becomes one of its statements, with the larger padding; None where a comment would go."""
    module = port.methods[REPLAY][0]
    value = pad.value
    lines = module.text.encode().splitlines()
    if any(b"#" in line for line in lines[chain.lineno - 1 : chain.end_lineno]):
        return None
    assert value.lineno == value.end_lineno, "a name"
    taken = lines[statement.lineno - 1 : statement.end_lineno]
    at = value.lineno - statement.lineno
    larger = f"max({ITEMS}, {FRAMES})".encode()
    taken[at] = taken[at][: value.col_offset] + larger + taken[at][value.end_col_offset :]
    taken[0] = taken[0][statement.col_offset :]
    deeper = statement.col_offset - chain.col_offset
    if any(line[:deeper].strip() for line in taken[1:]):
        return None  # a text over several lines
    comment = b"# Pad as the capture does: its buffers serve images and videos alike."
    text = [comment, b" " * chain.col_offset + taken[0], *(line[deeper:] for line in taken[1:])]
    end = b"\r\n" if b"\r\n" in port.tree.read_bytes(module.file) else b"\n"
    return replace(_put(chain, ""), new=end.join(text))


def _unused_tests(port: _Port, method: FunctionNode, index: int) -> Iterator[TextEdit | None]:
    """The assignments of names that only the tests of a chain read go with it; None where one may do more."""
    chain = method.body[index]
    tests = [node.test for node in ast.walk(chain) if isinstance(node, ast.If)]
    read = [node for node in ast.walk(method) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    inside = {id(node) for test in tests for node in ast.walk(test)}
    for name in dict.fromkeys(_compared_name(test) for test in tests):
        if any(node.id == name and id(node) not in inside for node in read):
            continue
        set_by = [
            node
            for node in method.body
            if isinstance(node, ast.Assign) and any(_is(target, str(name)) for target in node.targets)
        ]
        if len(set_by) == 1 and len(set_by[0].targets) == 1 and _only_reads(port, set_by[0].value):
            yield TextEdit((set_by[0].lineno, 0), ((set_by[0].end_lineno or 0) + 1, 0), b"")
        elif set_by:
            yield None


def _only_reads(port: _Port, value: ast.expr) -> bool:
    """Whether a value is a call `self.METHOD(...)` of a method of the tree that sets no attribute, entry or global."""
    called = self_attribute(value.func) if isinstance(value, ast.Call) else None
    module, owner, _ = port.methods[REPLAY]
    method = port.program.method((module, owner), called) if called else None
    return method is not None and not any(
        isinstance(node, (ast.Global, ast.Nonlocal, ast.Expr, ast.Yield, ast.Await))
        or (isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load))
        for statement in method[2].body
        if not _is_docstring(statement)
        for node in ast.walk(statement)
    )


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _rows_of_a_token(specs: FunctionNode, capture: FunctionNode) -> str:
    """The rows of an output token, in the capture's names; empty where the methods do not say.

    `input_size=h * w` and `output_tokens=(h // kh) * (w // kw)` say `kh * kw`.
    """
    for node in ast.walk(specs):
        given = {one.arg: one.value for one in node.keywords} if isinstance(node, ast.Call) else {}
        if not {"input_size", "output_tokens"} <= given.keys():
            continue
        rows = [ast.dump(one) for one in _factors(given["input_size"])]
        divisors = []
        for factor in _factors(given["output_tokens"]):
            divided = isinstance(factor, ast.BinOp) and isinstance(factor.op, ast.FloorDiv)
            left = ast.dump(factor.left if isinstance(factor, ast.BinOp) and divided else factor)
            if left not in rows:
                return ""
            rows.remove(left)
            if isinstance(factor, ast.BinOp) and divided:
                divisors.append(factor.right)
        there = {value: name for name, value in _values(capture).items()}
        here = _values(specs)
        names = [there.get(here.get(one.id, ("", 0))) if isinstance(one, ast.Name) else None for one in divisors]
        if rows or not names or None in names:
            return ""
        same = len(names) == 2 and names[0] == names[1]
        return f"({names[0]}**2)" if same else " * ".join(map(str, names))
    return ""


def _factors(node: ast.expr) -> list[ast.expr]:
    """The factors of a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _values(method: FunctionNode) -> dict[str, tuple[str, int]]:
    """The names that a method sets once: what they are set to, and which part of it."""
    found: dict[str, list[tuple[str, int]]] = {}
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for index, name in enumerate(names):
                    if isinstance(name, ast.Name):
                        part = index if isinstance(target, ast.Tuple) else -1
                        found.setdefault(name.id, []).append((ast.dump(node.value), part))
    return {name: values[0] for name, values in found.items() if len(values) == 1}
