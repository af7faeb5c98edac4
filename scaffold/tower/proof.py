"""Proves that a split moved statements and did nothing else.

Works on the text before and after, on the statements that the split says it added, and on the expressions that it says
it replaced. It does not look at the slicer's placement. Every statement of the old function must be found again, in the
metadata method, in the new function, or (configuration read on both sides) in both, in the old order and under the old
conditions. Everything else must be an addition of a known harmless form. It proves the move, not that the slice was
right: that is the slicer's own check, and the numeric proof's.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scaffold.diagnostics import Diagnostic, Span
from scaffold.tower.parts import Kind, MethodEdit, Place, TowerSlice, TowerSplit, flatten
from scaffold.tower.slicing import HOST, METADATA_ARGUMENT, METADATA_METHOD, UPLOAD

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_HELP = "this is a defect of vitcg-scaffold, nothing was written: please report it with the tower and the vLLM release"


def prove_split(
    before_source: str, after_source: str, split: TowerSplit, file: str | None = None
) -> tuple[Diagnostic, ...]:
    """Compare one file before and after the split; empty when the split is a pure move.

    `file` is the path in the tree, by default that of the tower itself (a child module may live in another one).
    Errors: VCG640 (a statement is lost, changed, doubled or out of order), VCG641 (an addition that could change
    eager), VCG642 (something outside of the split methods changed).
    """
    file = file if file is not None else split.slice.file
    before, after = ast.parse(before_source), ast.parse(after_source)
    takes = frozenset(parameter.name for parameter in split.method_parameters)
    split_here = [edit for edit in split.edits if edit.adds]
    slices = {id(edit): tower for edit, tower in zip(split_here, _slices(split.slice), strict=True)}
    problems: list[Diagnostic] = []
    touched: set[tuple[str, str]] = set()
    for edit in split.edits:
        if edit.file != file:
            continue
        touched |= {(edit.class_name, name) for name in (edit.replaces, *edit.adds)}
        if edit.adds:
            problems += _prove_class(before, after, edit, slices[id(edit)], takes)
        else:
            problems += _prove_uploads(before, after, edit)
    old, new = _without(before, touched), _without(after, touched)
    if old != new:
        line = next(
            (index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
        )
        node = after.body[min(line, len(after.body) - 1)]
        problems.append(
            Diagnostic("VCG642", "a statement outside of the split methods changed", _span(file, node), _HELP)
        )
    return tuple(problems)


def _slices(tower: TowerSlice) -> Iterator[TowerSlice]:
    """The slices in the order of the edits: children first."""
    for child in tower.children:
        yield from _slices(child.slice)
    yield tower


def _without(tree: ast.Module, methods: set[tuple[str, str]]) -> list[str]:
    """Dumps of the module's statements, classes without the methods that a split may change."""
    result = []
    for statement in tree.body:
        shown = statement
        if isinstance(statement, ast.ClassDef):
            shown = copy.copy(statement)
            shown.body = [s for s in statement.body if (statement.name, getattr(s, "name", "")) not in methods]
        result.append(ast.dump(shown))
    return result


def _prove_class(
    before: ast.Module, after: ast.Module, edit: MethodEdit, tower: TowerSlice, takes: frozenset[str]
) -> list[Diagnostic]:
    old = _method(before, edit.class_name, edit.replaces)
    new = _method(after, edit.class_name, edit.replaces)
    method = _method(after, edit.class_name, METADATA_METHOD)
    if old is None or new is None or method is None:
        missing = edit.replaces if old is None or new is None else METADATA_METHOD
        return [Diagnostic("VCG640", f"`{edit.class_name}.{missing}` is missing", None, _HELP)]
    added = {name: Counter(_dumps(texts)) for name, texts in edit.added}
    problems = [
        Diagnostic("VCG641", f"the split added `{text.splitlines()[0]}`, which could change eager", None, _HELP)
        for _, texts in edit.added
        for text in texts
        if not _Harmless(tower, takes).check(ast.parse(text).body[0])
    ]
    forms = _Forms(tower)
    dumps = dict(zip(_dumps(map(_upload, tower.on_host)), tower.on_host, strict=True))
    put_off = {id(node) for node in old.body if forms.moved(node) in dumps}
    uploaded = {dumps[text] for text in added[METADATA_METHOD] & Counter(dumps.keys())}
    problems += _left_on_host(tower, old, put_off, uploaded)
    moved = list(_strip(_no_docstring(method.body), added[METADATA_METHOD]))
    staying = list(_strip(_no_docstring(new.body), added[edit.replaces]))
    for text, count in (added[METADATA_METHOD] + added[edit.replaces]).items():
        problems.append(Diagnostic("VCG640", f"a planned statement is missing {count} times: {text[:80]}", None, _HELP))
    matcher = _Matcher(forms, {leaf.line for leaf in flatten(tower.pieces) if leaf.place is Place.BOTH}, put_off)
    if not matcher.merge(_no_docstring(old.body), moved, staying):
        worst = matcher.furthest
        problems.append(
            Diagnostic(
                "VCG640",
                f"this statement of `{edit.class_name}.{edit.replaces}` is lost, changed or out of order",
                _span(tower.shown, worst) if worst is not None else None,
                _HELP,
            )
        )
    return problems


def _left_on_host(tower: TowerSlice, old: _Function, put_off: set[int], uploaded: set[str]) -> list[Diagnostic]:
    """Values of the metadata that follow from what the split keeps on the host, and that do not go to the device.

    The longest sequence may stay: attention reads it there.
    """
    devices = {_position(one.node) for one in tower.declassified if one.text == HOST}
    host: set[str] = set()
    for leaf in _leaves(old.body):
        names = [node for node in ast.walk(leaf) if isinstance(node, ast.Name)]
        kept = any(isinstance(node, ast.expr) and _position(node) in devices for node in ast.walk(leaf))
        if kept or id(leaf) in put_off or host & {node.id for node in names if isinstance(node.ctx, ast.Load)}:
            host |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    known = {one.name for one in tower.crossings if one.kind is not Kind.HOST_BOUND}
    text = "`{}` is made on the host and stays there, which could change eager"
    return [Diagnostic("VCG641", text.format(name), None, _HELP) for name in sorted(host & known - uploaded)]


def _leaves(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those of an `if` in its place."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _leaves([*node.body, *node.orelse])
        else:
            yield node


def _upload(name: str, device: str = "device") -> str:
    return f"{name} = {UPLOAD[1]}({name}, {device})"


def _prove_uploads(before: ast.Module, after: ast.Module, edit: MethodEdit) -> list[Diagnostic]:
    """That a method has nothing new but uploads of the indices of tables that are on the device."""
    old, new = (_method(tree, edit.class_name, edit.replaces) for tree in (before, after))
    added = set(_dumps(text for _, texts in edit.added for text in texts))
    if old is not None and new is not None:
        found = [node for node in ast.walk(new) if isinstance(node, ast.stmt) and ast.dump(node) in added]
        kept = copy.deepcopy(new)
        for owner in ast.walk(kept):
            if isinstance(block := getattr(owner, "body", None), list):
                block[:] = [node for node in block if ast.dump(node) not in added]
        same = ast.dump(kept) == ast.dump(old) and len(found) == len(added)
        if same and all(_is_upload(node, new) for node in found):
            return []
    what = f"`{edit.class_name}.{edit.replaces}` has more than uploads of its indices, or one that could change eager"
    return [Diagnostic("VCG641", what, None, _HELP)]


def _is_upload(statement: ast.stmt, function: _Function) -> bool:
    """Whether it is `index = upload(index, table.device)` in front of a statement that reads `table[index]`.

    The index is made in the same block before, so that each upload finds it on the host. All other reads of it are in
    brackets, where its device does not matter, or above a statement of no loop.
    """
    parents = {id(child): node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
    block: list[ast.stmt] = getattr(parents[id(statement)], "body", [])
    at = block.index(statement)
    name, table = ast.unparse(statement).split(" = ")[0], ast.unparse(statement).split(", ")[-1].split(".device")[0]
    made = [ast.unparse(target) for one in block[:at] if isinstance(one, ast.Assign) for target in one.targets]
    own = set(ast.walk(statement))
    reads = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == name and one not in own]
    indices = [one.slice for one in ast.walk(function) if isinstance(one, ast.Subscript)]
    return (
        ast.unparse(statement) == _upload(name, f"{table}.device")
        and name in made
        and any(f"{table}[{name}]" in ast.unparse(one) for one in block[at + 1 : at + 2])
        and all(
            isinstance(one.ctx, ast.Store)
            or one in indices
            or (block is function.body and one.lineno < statement.lineno)
            for one in reads
        )
    )


def _hands_down(call: ast.expr, child: TowerSlice, takes: frozenset[str]) -> bool:
    """Whether the call of a child's metadata method passes on what pads and bounds the offsets that the child has.

    `takes`: what the tower's own method takes, which has a number of frames only where a graph counts them.
    """
    assert isinstance(call, ast.Call), "its text is that of a call"
    names = {keyword.arg for keyword in call.keywords if keyword.arg == ast.unparse(keyword.value)}
    kinds = {crossing.kind for slice_ in _slices(child) for crossing in slice_.crossings}
    padded = Kind.CUMULATIVE not in kinds or takes & {"max_batch_size", "max_frames_per_batch"} <= names
    bounded = Kind.HOST_BOUND not in kinds or any(name and name.endswith("override") for name in names)
    return padded and bounded


@dataclass(eq=False)
class _Matcher:
    """Finds the statements of the old body in the two new ones."""

    forms: _Forms
    shared: set[int]
    #: Uploads that are at the end of the metadata method instead.
    put_off: set[int]
    furthest: ast.stmt | None = None

    def merge(self, old: Sequence[ast.stmt], moved: Sequence[ast.stmt], staying: Sequence[ast.stmt]) -> bool:
        """Whether `old` is `moved` and `staying` taken together, each in its order."""
        if not old:
            return not moved and not staying
        first, rest = old[0], old[1:]
        if self.furthest is None or first.lineno > self.furthest.lineno:
            self.furthest = first
        if id(first) in self.put_off and self.merge(rest, moved, staying):
            return True
        is_moved = bool(moved) and ast.dump(moved[0]) == self.forms.moved(first)
        stays = bool(staying) and ast.dump(staying[0]) == self.forms.staying(first)
        if is_moved and stays and first.lineno in self.shared and self.merge(rest, moved[1:], staying[1:]):
            return True
        if is_moved and self.merge(rest, moved[1:], staying):
            return True
        if stays and self.merge(rest, moved, staying[1:]):
            return True
        return self._merge_block(first, rest, moved, staying)

    def _merge_block(
        self, first: ast.stmt, rest: Sequence[ast.stmt], moved: Sequence[ast.stmt], staying: Sequence[ast.stmt]
    ) -> bool:
        if not isinstance(first, ast.If):
            return False
        a = moved[0] if moved and _same_header(moved[0], self.forms.copy(first, moved=True)) else None
        b = staying[0] if staying and _same_header(staying[0], self.forms.copy(first, moved=False)) else None
        for left, right in ((a, b), (a, None), (None, b)):
            if left is None and right is None:
                continue
            if all(
                self.merge(old, _body(left, part), _body(right, part))
                for part, old in (("body", first.body), ("orelse", first.orelse))
            ) and self.merge(
                rest, moved[1:] if left is not None else moved, staying[1:] if right is not None else staying
            ):
                return True
        return False


class _Forms:
    """The forms of a statement of the old function on each side, as dumps."""

    def __init__(self, tower: TowerSlice) -> None:
        declassified = {_position(d.node): d.text for d in tower.declassified}
        self._calls = {_position(child.call): child for child in tower.children}
        names = {_position(argument): "None" for argument in tower.dead_arguments}
        self._moved, self._staying = declassified, names
        self._shortened = {_position(call) for call in tower.shortened}

    def moved(self, node: ast.stmt) -> str:
        """The dump of `node` in the metadata method."""
        return ast.dump(self.copy(node, moved=True))

    def staying(self, node: ast.stmt) -> str:
        """The dump of `node` in the new function."""
        return ast.dump(self.copy(node, moved=False))

    def copy(self, node: ast.stmt, *, moved: bool) -> ast.stmt:
        """A copy of `node` with the declared replacements of one side."""
        table = self._moved if moved else self._staying
        calls = {} if moved else self._calls
        shortened = set() if moved else self._shortened

        class Swap(ast.NodeTransformer):
            def visit(self, inner: ast.AST) -> ast.AST:
                if isinstance(inner, ast.expr):
                    place = _position(inner)
                    if place in table:
                        return ast.parse(table[place], mode="eval").body
                    if place in shortened and isinstance(inner, ast.Call):
                        return self.generic_visit(ast.Call(inner.func, inner.args[:-1], inner.keywords))
                    if place in calls and isinstance(inner, ast.Call):
                        return _child_call(inner, {_position(e) for _, e in calls[place].arguments})
                visited: ast.AST = self.generic_visit(inner)
                return visited

        changed = Swap().visit(copy.deepcopy(node))
        assert isinstance(changed, ast.stmt)
        return changed


def _child_call(call: ast.Call, metadata: set[tuple[int, ...]]) -> ast.Call:
    """The call of a split child: metadata arguments dropped at the end, None elsewhere, the dict added."""
    arguments = list(call.args)
    while arguments and _position(arguments[-1]) in metadata:
        arguments.pop()
    kept: list[ast.expr] = [ast.Constant(None) if _position(a) in metadata else a for a in arguments]
    keywords = [keyword for keyword in call.keywords if _position(keyword.value) not in metadata]
    keywords.append(ast.keyword(METADATA_ARGUMENT, ast.Name(METADATA_ARGUMENT, ast.Load())))
    return ast.Call(call.func, kept, keywords)


@dataclass(frozen=True)
class _Harmless:
    """Whether an added statement leaves an eager call as it was: no capacity, no override, metadata on its device."""

    tower: TowerSlice
    takes: frozenset[str]

    def check(self, node: ast.stmt) -> bool:
        """Whether `node` has one of the forms that a split may add."""
        if isinstance(node, (ast.Pass, ast.Return)):
            return isinstance(node, ast.Pass) or isinstance(node.value, ast.Dict)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return self._assignment(node.targets[0].id, node.value)
        return isinstance(node, ast.If) and not node.orelse and self._condition(node)

    def _assignment(self, target: str, value: ast.expr) -> bool:
        keys = {crossing.key for crossing in self.tower.crossings}
        names = {crossing.name for crossing in self.tower.crossings}
        text = ast.unparse(value)
        if isinstance(value, ast.Constant):
            return value.value is None and target in names
        if isinstance(value, ast.Subscript):
            return target in names and text in {f"{METADATA_ARGUMENT}['{key}']" for key in keys}
        if f"{target} = {text}" == _upload(target):
            return target in self.tower.on_host
        if text == f"{target}.to(device=device, non_blocking=True)":
            return target in names
        return any(
            text.startswith(f"self.{child.attribute}.{METADATA_METHOD}(")
            and target.startswith(child.attribute)
            and _hands_down(value, child.slice, self.takes)
            for child in self.tower.children
        )

    def _condition(self, node: ast.If) -> bool:
        test = ast.unparse(node.test)
        body = [ast.unparse(statement) for statement in node.body]
        if test == "device is None":
            return len(body) == 1 and body[0].startswith("device = ") and body[0].endswith(".device")
        if test == f"{METADATA_ARGUMENT} is None":
            # Eager only: the metadata itself.
            return True
        parts = test.split(" and ")
        if parts[0].endswith("_override is not None") and len(body) == 1:
            parameter = parts[0].removesuffix(" is not None")
            name = body[0].split(" = ")[0]
            bound = any(c.name == name for c in self.tower.crossings)
            return bound and f".tensor({parameter}, dtype=" in body[0] and parts[1:] in ([], [f"{name} is not None"])
        padded = next((c.name for c in self.tower.crossings if parts[-1].startswith(f"len({c.name}) <= max_")), None)
        if padded is not None:
            capacity = parts[-1].rpartition(" ")[2]
            fills = (f"{padded} = ", f"empty_seqs = {padded}[-1:]", f"empty_seqs_ = {padded}[-1:]")
            return parts[:-1] == [f"{capacity} is not None"] and all(line.startswith(fills) for line in body)
        return len(body) == 1 and parts == [f"{body[0].split(' = ')[0]} is not None"] and self.check(node.body[0])


# ---------------------------------------------------------------------- helpers


def _method(tree: ast.Module, class_name: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name == class_name:
            for function in statement.body:
                if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and function.name == name:
                    return function
    return None


def _no_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    return body[1:] if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else body


def _dumps(texts: Iterable[str]) -> list[str]:
    return [ast.dump(ast.parse(text).body[0]) for text in texts]


def _strip(body: Sequence[ast.stmt], added: Counter[str]) -> Iterator[ast.stmt]:
    """The statements of a body that the split did not add."""
    for node in body:
        dump = ast.dump(node)
        if added[dump]:
            added[dump] -= 1
            continue
        kept = node
        if isinstance(node, ast.If):
            kept = copy.copy(node)
            kept.body, kept.orelse = list(_strip(node.body, added)), list(_strip(node.orelse, added))
        yield kept
    for dump in [dump for dump, count in added.items() if not count]:
        del added[dump]


def _same_header(node: ast.stmt, other: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(other, ast.If) and ast.dump(node.test) == ast.dump(other.test)


def _body(node: ast.stmt | None, part: str) -> list[ast.stmt]:
    statements: list[ast.stmt] = getattr(node, part, []) if node is not None else []
    return statements


def _position(node: ast.expr) -> tuple[int, ...]:
    return (
        getattr(node, "lineno", 0),
        getattr(node, "col_offset", 0),
        getattr(node, "end_lineno", 0) or 0,
        getattr(node, "end_col_offset", 0) or 0,
    )


def _span(file: str, node: ast.stmt) -> Span:
    return Span(file, node.lineno, node.col_offset + 1, node.lineno, node.col_offset + 2)
