"""Subtractive equivalence: the result, minus what was planned, is what was there before.

Written from the operations alone, with `ast` and the text; it shares no code with `scaffold.edit`, so that a mistake
there is not repeated here. Two halves that back each other up:

* the syntax trees: planned nodes are found in the result (right meaning, right place, once) and taken out, nodes that
  the plan removes are taken out of the original, and the rest must be equal, docstrings and decorators included;
* the text: outside the lines that the plan declares, every line is the same, byte for byte, in the same order, with the
  same blank lines between; comments on declared lines survive unless their method was to be removed.
"""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from scaffold.diagnostics import Diagnostic, DiagnosticError, Span
from scaffold.edit import apply_edits
from scaffold.edit.operations import (
    AddBase,
    AddDictEntry,
    AddImport,
    AddListEntry,
    AddTableRow,
    DropDefinition,
    DropImport,
    DropTypingImport,
    Edit,
    PutFunction,
    PutMethods,
    ReplaceFunction,
    ReplaceMethod,
)

_BUG = (
    "this is a defect of vitcg-scaffold, nothing was written: please report it with the descriptor and the vLLM release"
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMES_LAST = ("object", "Protocol", "Generic")
_BOM = "\ufeff"


def prove_equivalence(before: str, after: str, edits: Sequence[Edit], path: str) -> tuple[Diagnostic, ...]:
    """That `after` is `before` plus and minus exactly what `edits` say: no diagnostics, or VCG600 to VCG605."""
    if any(isinstance(edit, AddTableRow) for edit in edits):
        return _prove_rows(before, after, [edit for edit in edits if isinstance(edit, AddTableRow)], path)
    old, new = _File(before), _File(after)
    for file, label in ((old, "before"), (new, "after")):
        if isinstance(file.error, SyntaxError):
            place = _span(path, file.error.lineno or 1)
            return (Diagnostic("VCG600", f"the file does not parse ({label}): {file.error.msg}", place, _BUG),)
    proof = _Proof(path, old, new)
    proof.run(edits)
    return tuple(proof.found)


def prove_idempotence(after: str, edits: Sequence[Edit], path: str) -> tuple[Diagnostic, ...]:
    """That the operations find nothing to do on their own result: no diagnostics, or VCG606."""
    try:
        again = apply_edits(after, edits, path=path)
    except DiagnosticError as error:
        reason = error.diagnostics[0].message
        return (Diagnostic("VCG606", f"the plan cannot be applied to its own result: {reason}", _span(path, 1), _BUG),)
    if again.text == after:
        return ()
    first = next(iter(again.changed), None)
    line = _first_difference(after, again.text)
    message = f"a second run would change line {line} again ({type(first).__name__})"
    return (Diagnostic("VCG606", message, _span(path, line), _BUG),)


def prove_text_form(before: str | None, after: str, path: str) -> tuple[Diagnostic, ...]:
    """That encoding, newlines, byte order mark and file end are those of before, and that it parses: none, VCG600 or
    VCG607.
    """
    found: list[Diagnostic] = []

    def refuse(what: str) -> None:
        found.append(Diagnostic("VCG607", what, _span(path, 1), _BUG))

    if path.endswith(".py"):
        try:
            # `compile` sees more than the parser: a late `from __future__`, `return` outside a function, doubled
            # arguments.
            compile(after.removeprefix(_BOM), path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            found.append(Diagnostic("VCG600", f"the result is not valid Python: {error}", _span(path, line), _BUG))
    encoding = _declared_encoding(after if before is None else before)
    try:
        after.encode(encoding)
    except (UnicodeEncodeError, LookupError) as error:
        refuse(f"the result cannot be written in the file's encoding: {error}")
    if before is None:
        ends = _line_ends(after)
        if len(ends) > 1 or not after.endswith("\n"):
            refuse("a new file has one kind of newline, and one at its end")
        return tuple(found)
    if _declared_encoding(after) != encoding:
        refuse("the declared encoding changed")
    if before.startswith(_BOM) != after.startswith(_BOM):
        refuse("the byte order mark was added or lost")
    if not _line_ends(after) <= (_line_ends(before) or {"\n"}):
        refuse("the result has another kind of newline than the file")
    if before and before.endswith(("\n", "\r")) != after.endswith(("\n", "\r")):
        refuse("the newline at the end of the file was added or lost")
    return tuple(found)


def _declared_encoding(text: str) -> str:
    """PEP 263: the encoding that the first two lines declare, UTF-8 without a declaration."""
    head = "\n".join(text.removeprefix(_BOM).splitlines()[:2]) + "\n"
    try:
        return tokenize.detect_encoding(io.BytesIO(head.encode("utf-8")).readline)[0]
    except SyntaxError:
        return "unknown"


def _line_ends(text: str) -> set[str]:
    return {line[len(line.rstrip("\r\n")) :] for line in _split(text)} - {""}


def _first_difference(left: str, right: str) -> int:
    pairs = zip(_split(left), _split(right), strict=False)
    common = next((number for number, (a, b) in enumerate(pairs, 1) if a != b), None)
    return common or min(len(_split(left)), len(_split(right))) + 1


def _span(path: str, line: int) -> Span:
    return Span(path, line, 1, line, 1)


def _split(text: str) -> list[str]:
    """Lines as Python counts them, with their ends."""
    return list(io.StringIO(text, newline=""))


# -- comparing trees --------------------------------------------------------------------------------------------------


def _difference(old: object, new: object, line: int = 1) -> int | None:
    """The line (in the result) where two trees first differ, None if they are equal. Positions are not compared."""
    if type(old) is not type(new):
        return line
    if isinstance(old, ast.AST):
        line = getattr(new, "lineno", line)
        for name in old._fields:
            left, right = getattr(old, name, None), getattr(new, name, None)
            found = None if left is right else _difference(left, right, line)  # names, None and contexts are shared
            if found is not None:
                return found
        return None
    if isinstance(old, list) and isinstance(new, list):
        for left, right in zip(old, new, strict=False):
            found = _difference(left, right, line)
            if found is not None:
                return found
        if len(old) == len(new):
            return None
        rest = new[len(old) :]
        return getattr(rest[0], "lineno", line) if rest else line
    return None if old == new else line


def _planned_equal(planned: ast.AST, found: ast.AST) -> bool:
    """Whether generated code came through formatting with its meaning: docstrings may be re-indented, `del (a, b)`
    unwrapped.
    """
    return _normal(planned) == _normal(found)


def _normal(node: object) -> object:
    if isinstance(node, ast.AST):
        values = {name: _normal(getattr(node, name, None)) for name in node._fields if name != "kind"}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = inspect.cleandoc(node.value.value)  # a string alone in a statement is text for readers
            values["value"] = [line.rstrip() for line in text.strip().splitlines()]
        if isinstance(node, ast.Delete) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Tuple):
            values["targets"] = [_normal(item) for item in node.targets[0].elts]
        return type(node).__name__, values
    if isinstance(node, list):
        return [_normal(item) for item in node]
    return type(node).__name__, node


# -- one file ---------------------------------------------------------------------------------------------------------


class _File:
    """A text with its tree, the lines that the plan declares (numbers from 1), and those that may go or stay."""

    def __init__(self, text: str) -> None:
        body = text.removeprefix(_BOM)
        self.lines = _split(body)
        self.declared: set[int] = set()
        self.optional: set[int] = set()
        self.tree = ast.Module([], [])
        self.error: SyntaxError | None = None
        try:
            self.tree = ast.parse(body)
        except SyntaxError as error:
            self.error = error
        except (ValueError, RecursionError, MemoryError) as error:
            self.error = SyntaxError(str(error))

    def line(self, number: int) -> str:
        return self.lines[number - 1]

    def is_comment(self, number: int) -> bool:
        return self.line(number).lstrip().startswith("#")

    def is_blank(self, number: int) -> bool:
        return not self.line(number).strip()

    def declare(self, first: int, last: int) -> None:
        self.declared.update(range(first, last + 1))

    def comments(self, numbers: Iterable[int]) -> list[str]:
        """The comments on a set of lines that form whole statements or elements, in order."""
        text = "".join(self.line(number) for number in sorted(numbers))
        return _comments_of(text) if "#" in text else []


def _comments_of(text: str) -> list[str]:
    """Comments in order, without the `#` and the space after it, which formatters may add."""
    source = inspect.cleandoc("\n" + text) + "\n"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, IndentationError):  # a part of a statement: compare whole lines instead
        return ["".join(line.replace(",", "").split()) for line in source.splitlines() if "#" in line]
    return [token.string.lstrip("#").strip() for token in tokens if token.type == tokenize.COMMENT]


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(int(item.lineno) for item in getattr(node, "decorator_list", []))])


def _last_line(node: ast.stmt | ast.expr | ast.alias) -> int:
    return node.end_lineno or node.lineno


def _blocks(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], str]]:
    """Every statement list of module scope, with whether it runs: always, attempted or sometimes."""
    yield tree.body, "always"
    yield from _inner_blocks(tree.body, "attempted")


def _inner_blocks(body: list[ast.stmt], guard: str) -> Iterator[tuple[list[ast.stmt], str]]:
    for node in body:
        if isinstance(node, ast.If):
            is_typing = ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            branches = [(node.body, "sometimes"), (node.orelse, guard if is_typing else "sometimes")]
        elif isinstance(node, ast.Try):
            branches = [(part, guard) for part in (node.body, node.orelse, node.finalbody)]
            branches += [(handler.body, guard) for handler in node.handlers]
        elif isinstance(node, ast.With | ast.For | ast.While):
            branches = [(node.body, guard), (getattr(node, "orelse", []), guard)]
        else:
            continue
        for branch, inner in branches:
            yield branch, inner
            yield from _inner_blocks(branch, inner)


def _scope(tree: ast.Module) -> list[ast.stmt]:
    return [node for block, _ in _blocks(tree) for node in block]


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    found = [node for node in _scope(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    return found[0] if len(found) == 1 else None


def _name_of(node: ast.stmt) -> str | None:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _is_member(node: ast.stmt, names: Container[str | None]) -> bool:
    """Whether it is a method of these names, or an attribute with a type, which a plan may put between them."""
    return isinstance(node, (*_FUNCTIONS, ast.AnnAssign)) and _name_of(node) in names


def _members(body: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
    return {name: node for node in body if (name := _name_of(node)) and _is_member(node, [name])}


def _is_overload(node: ast.stmt) -> bool:
    decorators = map(ast.unparse, node.decorator_list) if isinstance(node, _FUNCTIONS) else ()
    return any(name in ("overload", "typing.overload") for name in decorators)


def _body_of(tree: ast.Module, owner: str) -> list[ast.stmt] | None:
    """The statements of the module, of a class of it, or of a class's method, None without one such class."""
    if not owner:
        return tree.body
    class_name, _, method = owner.partition(".")
    found = _class(tree, class_name)
    if found is None:
        return None
    if not method:
        return found.body
    methods = [node for node in found.body if isinstance(node, _FUNCTIONS) and node.name == method]
    return methods[0].body if methods else []


def _defines(node: ast.stmt) -> list[str]:
    """The names that a definition or an assignment gives a meaning, as they are written."""
    if isinstance(node, _FUNCTIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [ast.unparse(target) for target in targets]


def _value(tree: ast.Module, variable: str) -> ast.expr | None:
    found = [
        node.value
        for node in _scope(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _name_of(node) == variable
    ]
    return found[0] if len(found) == 1 else None


def _statement_of(tree: ast.Module, value: ast.expr) -> ast.stmt:
    return next(node for node in _scope(tree) if getattr(node, "value", None) is value)


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [item.id for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)]
    name = _name_of(node)
    return [name] if name else []


@dataclass
class _Methods:
    """The plan for one class's methods, all operations together."""

    removed: set[str] = field(default_factory=set)
    blocks: list[tuple[PutMethods | ReplaceMethod, dict[str, ast.stmt], str]] = field(default_factory=list)

    @property
    def planned(self) -> set[str]:
        return {name for _, block, _ in self.blocks for name in block}


class _Proof:
    """The proof of one Python file. `run` fills `found`; an empty list is a proof."""

    def __init__(self, path: str, old: _File, new: _File) -> None:
        self.path = path
        self.old = old
        self.new = new
        self.found: list[Diagnostic] = []
        self._package = path.split("/")[:-1]

    def refuse(self, code: str, message: str, line: int = 1) -> None:
        self.found.append(Diagnostic(code, message, _span(self.path, line), _BUG))

    def run(self, edits: Sequence[Edit]) -> None:
        if ast.get_docstring(self.old.tree, clean=False) != ast.get_docstring(self.new.tree, clean=False):
            self.refuse("VCG601", "the module's docstring is not at the top any more, or changed")
        for edit in edits:
            if isinstance(edit, DropDefinition):
                self._dropped_definition(edit)
            elif isinstance(edit, DropTypingImport):
                self._dropped_typing(edit)
        for place, edit in reversed(list(enumerate(edits))):
            if isinstance(edit, PutFunction):
                earlier = [other for other in edits[:place] if isinstance(other, PutFunction)]
                self._definitions(
                    edit, {str(_name_of(node)) for other in earlier for node in ast.parse(other.source).body}
                )
            elif isinstance(edit, ReplaceFunction):
                self._function(edit)
        for name in dict.fromkeys(e.class_name for e in edits if isinstance(e, AddBase | PutMethods | ReplaceMethod)):
            self._class(
                name, [e for e in edits if isinstance(e, AddBase | PutMethods | ReplaceMethod) and e.class_name == name]
            )
        entries: dict[tuple[str, str], AddDictEntry | AddListEntry] = {}
        for edit in edits:
            if isinstance(edit, AddDictEntry):
                entries.setdefault((edit.variable, edit.key), edit)
            elif isinstance(edit, AddListEntry):
                entries.setdefault((edit.variable, edit.value), edit)
        for entry in reversed(entries.values()):
            if isinstance(entry, AddDictEntry):
                self._dict_entry(entry)
            else:
                self._list_entry(entry)
        imports = {(self._resolve(e.module), e.name): e for e in edits if isinstance(e, AddImport)}
        for import_edit in imports.values():
            self._import(import_edit)
        for edit in edits:
            if isinstance(edit, DropImport):
                self._dropped_import(edit)
        if self.found:
            return  # the rest would only repeat it
        line = _difference(self.old.tree, self.new.tree)
        if line is not None:
            self.refuse("VCG601", f"line {line} differs from the original although no edit was planned there", line)
        self._compare_text()

    # -- classes

    def _class(self, name: str, edits: Sequence[AddBase | PutMethods | ReplaceMethod]) -> None:
        old, new = _class(self.old.tree, name), _class(self.new.tree, name)
        if old is None or new is None:
            self.refuse("VCG602", f"the class `{name}` is not there exactly once, before and after")
            return
        if ast.get_docstring(old, clean=False) != ast.get_docstring(new, clean=False):
            self.refuse("VCG601", f"the docstring of `{name}` changed", new.lineno)
        shared_line = old.body[0].lineno == old.lineno
        self._bases(old, new, [edit for edit in edits if isinstance(edit, AddBase)])
        changes = [edit for edit in edits if isinstance(edit, PutMethods | ReplaceMethod)]
        if not changes:
            return
        plan = self._plan_methods(old, changes)
        if shared_line:  # `class A: pass` becomes a block
            self.old.declare(old.lineno, _last_line(old))
            others = [node for node in new.body if not _is_member(node, plan.planned)]
            self.new.declare(new.lineno, max([_last_line(node) for node in others], default=new.lineno))
        self._methods(old, new, plan)

    def _bases(self, old: ast.ClassDef, new: ast.ClassDef, edits: Sequence[AddBase]) -> None:
        header_changed = False
        for edit in dict.fromkeys(edits):
            short = edit.base.split(".")[-1]
            if any(_short_name(base) == short for base in old.bases):
                continue
            places = [place for place, base in enumerate(new.bases) if ast.unparse(base) == edit.base]
            if len(places) != 1:
                self.refuse("VCG602", f"`{new.name}` does not have the base `{edit.base}` exactly once", new.lineno)
                continue
            planned = {other.base for other in edits}
            following = [base for base in new.bases[places[0] + 1 :] if ast.unparse(base) not in planned]
            if edit.first:
                if places[0]:
                    self.refuse("VCG603", f"the base `{edit.base}` is not the first of `{new.name}`", new.lineno)
            elif any(_short_name(base) not in _COMES_LAST for base in following):
                self.refuse("VCG603", f"the base `{edit.base}` is not behind the bases that were there", new.lineno)
            del new.bases[places[0]]
            header_changed = True
        if header_changed:
            old_lines, new_lines = _header(self.old, old), _header(self.new, new)
            self._declare_kept(old_lines, new_lines, [])

    def _plan_methods(self, old: ast.ClassDef, edits: Sequence[PutMethods | ReplaceMethod]) -> _Methods:
        plan = _Methods()
        known = _members(old.body)
        for edit in edits:
            block = _members(ast.parse(edit.source).body)
            plan.removed |= {edit.name} if isinstance(edit, ReplaceMethod) else set(edit.remove)
            for name, node in block.items():
                if isinstance(edit, ReplaceMethod) and name == edit.name and isinstance(node, _FUNCTIONS):
                    node.decorator_list = node.decorator_list or getattr(known.get(name), "decorator_list", [])
                present = known.get(name)
                if present is not None and name not in plan.removed and not _planned_equal(node, present):
                    self.refuse("VCG601", f"`{old.name}.{name}` was replaced although the plan keeps it", 1)
                known[name] = node
            plan.blocks.append((edit, block, edit.source))
        return plan

    def _methods(self, old: ast.ClassDef, new: ast.ClassDef, plan: _Methods) -> None:
        planned, gone = plan.planned, plan.planned | plan.removed
        for node in new.body:
            if _is_member(node, plan.removed - planned):
                self.refuse("VCG602", f"`{new.name}.{_name_of(node)}` should have been removed", node.lineno)
        last_word = {name: edit for edit, block, _ in plan.blocks for name in block}
        for edit, whole, source in plan.blocks:
            block = {name: node for name, node in whole.items() if last_word[name] is edit}
            places = [i for i, node in enumerate(new.body) if _is_member(node, block)]
            nodes = [new.body[place] for place in places]
            if [_name_of(node) for node in nodes] != [*block]:
                self.refuse(
                    "VCG602", f"the planned methods of `{new.name}` are not there once and in order", new.lineno
                )
                continue
            for (name, planned_node), node in zip(block.items(), nodes, strict=True):
                if not _planned_equal(planned_node, node):
                    self.refuse("VCG602", f"`{new.name}.{name}` is not what was planned", node.lineno)
            if places and places[-1] - places[0] != len(places) - 1:
                self.refuse("VCG603", f"the planned methods of `{new.name}` are not next to each other", new.lineno)
            self._check_place(old, new, edit, places, gone)
            if nodes:
                self._declare_block(nodes, source)
        for node in old.body:
            if _is_member(node, gone):
                self._declare_removed(node)
        old.body = [node for node in old.body if not _is_member(node, gone)]
        new.body = [node for node in new.body if not _is_member(node, gone)]

    def _check_place(
        self,
        old: ast.ClassDef,
        new: ast.ClassDef,
        edit: PutMethods | ReplaceMethod,
        places: Sequence[int],
        gone: set[str],
    ) -> None:
        """The block stands where its first method stood, before the `first` method, or at the end."""

        def untouched(body: Iterable[ast.stmt]) -> int:
            return sum(not _is_member(node, gone) for node in body)

        own = {*_members(ast.parse(edit.source).body)}
        if isinstance(edit, PutMethods) and own.isdisjoint(_members(old.body)):
            own = set(edit.remove)
        first = next((i for i, node in enumerate(old.body) if _is_member(node, own)), None)
        if first is None and isinstance(edit, PutMethods) and edit.first:
            first = next((i for i, node in enumerate(old.body) if isinstance(node, _FUNCTIONS)), None)
        expected = untouched(old.body[:first])
        if places and untouched(new.body[: places[0]]) != expected:
            line = _first_line(new.body[places[0]])
            self.refuse("VCG603", f"the planned methods of `{new.name}` are not in their place", line)

    def _declare_block(self, nodes: Sequence[ast.stmt], source: str) -> None:
        """Planned statements of the result, with the comments that the plan puts above and between them."""
        first, last = _first_line(nodes[0]), _last_line(nodes[-1])
        own = _leading_comments(source)
        number = first - 1
        for comment in reversed(own):
            while number and self.new.is_blank(number):
                number -= 1
            if not number or self.new.line(number).lstrip(" \t#").strip() != comment:
                self.refuse("VCG605", f"the comment `# {comment}` of the planned code is missing", first)
                return
            number -= 1
        self.new.declare(number + 1 if own else first, last)
        planned = _comments_of(source)
        if len(nodes) == len(ast.parse(source).body) and own + self.new.comments(range(first, last + 1)) != planned:
            self.refuse("VCG605", "comments inside the planned code are missing or changed", first)

    def _declare_removed(self, node: ast.stmt) -> None:
        """A method of the original that goes; comments that touch it above, and deeper ones below, may go with it."""
        first, last = _first_line(node), _last_line(node)
        self.old.declare(first, last)
        number = first - 1
        while number and (self.old.is_blank(number) or self.old.is_comment(number)):
            self.old.optional.add(number)
            number -= 1
        number = last + 1
        while number <= len(self.old.lines) and (self.old.is_blank(number) or self.old.is_comment(number)):
            line = self.old.line(number)
            if not self.old.is_blank(number) and len(line) - len(line.lstrip()) <= node.col_offset:
                break
            self.old.optional.add(number)
            number += 1

    def _declare_kept(self, old: range, new: range, added: Sequence[str]) -> None:
        """Lines that were rewritten but keep their comments; `added` are the planned ones."""
        rest = self.new.comments(new)
        for comment in added:
            if comment not in rest:
                self.refuse("VCG605", f"the comment `# {comment}` of the planned entry is missing", new.start)
                return
            rest.remove(comment)
        if self.old.comments(old) != rest:
            self.refuse("VCG605", "a comment was lost or changed in a rewritten statement", new.start)
        self.old.declared.update(old)
        self.new.declared.update(new)

    def _dropped_definition(self, edit: DropDefinition) -> None:
        """One statement of the original that the result has not, and nothing else in its place."""
        bodies = [_body_of(file.tree, edit.owner) for file in (self.old, self.new)]
        if any(body is None for body in bodies):
            self.refuse("VCG602", f"`{edit.owner}` is not there exactly once, before and after")
            return
        what = f"self.{edit.name}" if "." in edit.owner else edit.name
        old, new = ([node for node in body or () if what in _defines(node)] for body in bodies)
        if new or len(old) > 1:
            line = new[0].lineno if new else 1
            self.refuse("VCG602", f"`{what}` should have been removed, the one definition of the name", line)
            return
        for node in old:
            self._declare_removed(node)
            assert bodies[0] is not None
            bodies[0].remove(node)

    # -- module level

    def _definitions(self, edit: PutFunction, earlier: set[str]) -> None:
        tree, planned = self.new.tree, ast.parse(edit.source).body
        put: set[str | None] = set()
        for node in planned:
            name = _name_of(node)
            present = [other for other in _scope(self.old.tree) if _name_of(other) == name]
            if present:
                if len(present) > 1 or not _planned_equal(node, present[0]):
                    self.refuse("VCG601", f"`{name}` means something else in the original", present[0].lineno)
                continue
            if name in earlier:
                continue
            found = [other for other in tree.body if _name_of(other) == name]
            if len(found) != 1 or not _planned_equal(node, found[0]):
                self.refuse("VCG602", f"the planned `{name}` is not there once, as planned")
                continue
            put.add(name)
        nodes = [node for node in tree.body if _name_of(node) in put]
        if not nodes:
            return
        places = [tree.body.index(node) for node in nodes]
        above = _name_of(tree.body[places[0] - 1]) if places[0] else None
        below = tree.body[places[-1] + 1] if places[-1] + 1 < len(tree.body) else None
        is_right = below is not None and edit.before in map(_name_of, _scope(ast.Module([below], [])))
        if not is_right or places[-1] - places[0] != len(places) - 1:
            self.refuse("VCG603", f"`{_name_of(nodes[0])}` is not in its place (it follows `{above}`)", nodes[0].lineno)
        lines = edit.source.splitlines()
        for node in nodes:
            origin = next(item for item in planned if _name_of(item) == _name_of(node))
            start = _first_line(origin) - 1
            while start and (not lines[start - 1].strip() or lines[start - 1].startswith("#")):
                start -= 1
            self._declare_block([node], "\n".join(lines[start : origin.end_lineno]))
            tree.body.remove(node)

    def _function(self, edit: ReplaceFunction) -> None:
        """A function of the module that is what was planned, in its place: there the original goes back."""
        planned = ast.parse(edit.source).body[0]
        old, new = (
            [node for node in file.tree.body if _name_of(node) == edit.name and not _is_overload(node)]
            for file in (self.old, self.new)
        )
        if len(old) != 1 or len(new) != 1 or not _planned_equal(planned, new[0]):
            self.refuse("VCG602", f"the planned `{edit.name}` is not there once, as planned")
            return
        self.old.declare(_first_line(old[0]), _last_line(old[0]))
        self._declare_block(new, edit.source)
        self.new.tree.body[self.new.tree.body.index(new[0])] = old[0]

    def _dict_entry(self, edit: AddDictEntry) -> None:
        old, new = _value(self.old.tree, edit.variable), _value(self.new.tree, edit.variable)
        if not isinstance(old, ast.Dict) or not isinstance(new, ast.Dict):
            self.refuse("VCG602", f"`{edit.variable}` is not one dict literal")
            return
        if any(isinstance(key, ast.Constant) and key.value == edit.key for key in old.keys):
            return
        keys = [place for place, key in enumerate(new.keys) if isinstance(key, ast.Constant) and key.value == edit.key]
        if len(keys) != 1:
            self.refuse("VCG602", f"`{edit.variable}` does not have the key {edit.key!r} exactly once", new.lineno)
            return
        if keys[0] != len(new.keys) - 1:
            self.refuse("VCG603", f"the entry {edit.key!r} of `{edit.variable}` is not the last", new.lineno)
        key, value = new.keys[keys[0]], new.values[keys[0]]
        planned = ast.parse(f"(\n{edit.source}\n)", mode="eval").body
        if not _planned_equal(planned, value):
            self.refuse("VCG602", f"the entry {edit.key!r} of `{edit.variable}` is not what was planned", value.lineno)
        lines = range(key.lineno if key else value.lineno, _last_line(value) + 1)
        parts = {"old_parts": old.values, "new_parts": new.values}
        self._declare_element(old, new, lines=lines, place=keys[0], **parts, source=edit.source)
        del new.keys[keys[0]], new.values[keys[0]]

    def _list_entry(self, edit: AddListEntry) -> None:
        old, new = _value(self.old.tree, edit.variable), _value(self.new.tree, edit.variable)
        kinds = (ast.List, ast.Set, ast.Tuple)
        if not isinstance(old, kinds) or not isinstance(new, kinds):
            self.refuse("VCG602", f"`{edit.variable}` is not one list, set or tuple literal")
            return
        if edit.value in _strings(old):
            return
        values = _strings(new)
        if values.count(edit.value) != 1:
            self.refuse("VCG602", f"`{edit.variable}` does not have {edit.value!r} exactly once", new.lineno)
            return
        place = values.index(edit.value)
        is_sorted = None not in values and values == sorted(filter(None, values))
        if place != len(values) - 1 and not is_sorted:
            self.refuse("VCG603", f"{edit.value!r} is not in its place in `{edit.variable}`", new.elts[place].lineno)
        element = new.elts[place]
        lines = range(element.lineno, _last_line(element) + 1)
        self._declare_element(old, new, lines=lines, place=place, old_parts=old.elts, new_parts=new.elts)
        del new.elts[place]

    def _declare_element(
        self,
        old: ast.expr,
        new: ast.expr,
        *,
        lines: range,
        place: int,
        old_parts: Sequence[ast.expr],
        new_parts: Sequence[ast.expr],
        source: str = "",
    ) -> None:
        """The element `place` of a literal is new: declare its lines if it has lines of its own, else the whole
        statement.
        """
        before = _last_line(new_parts[place - 1]) if place else new.lineno
        after = new_parts[place + 1].lineno if place + 1 < len(new_parts) else _last_line(new)
        added = _comments_of(source) if "#" in source else []
        if before < lines.start and lines.stop - 1 < after and old.lineno != old.end_lineno:
            if place <= len(old_parts):  # else the one above is planned, too, and its turn comes
                old_before = _last_line(old_parts[place - 1]) if place else old.lineno
                previous, old_previous = range(before, before + 1), range(old_before, old_before + 1)
                if self.new.line(before) != self.old.line(old_before):  # it got the comma that it had not
                    self._declare_kept(old_previous, previous, [])
            if self.new.comments(lines) != added:
                self.refuse("VCG605", "comments inside the planned entry are missing or changed", lines.start)
            self.new.declared.update(lines)
            return
        first, second = _statement_of(self.old.tree, old), _statement_of(self.new.tree, new)
        self._declare_kept(
            range(first.lineno, _last_line(first) + 1), range(second.lineno, _last_line(second) + 1), added
        )

    # -- imports

    def _resolve(self, module: str) -> str:
        bare = module.lstrip(".")
        level = len(module) - len(bare)
        if level == 0 or level > len(self._package):
            return module
        return ".".join([*self._package[: len(self._package) - level + 1], *([bare] if bare else [])])

    def _importers(
        self, tree: ast.Module, edit: AddImport
    ) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias, str]]:
        """The statements that import what `edit` names, each with how it is guarded."""
        for block, guard in _blocks(tree):
            for node in block:
                if isinstance(node, ast.Import) and edit.name is None:
                    names = [alias for alias in node.names if not alias.asname]
                    yield from ((node, alias, guard) for alias in names if alias.name.split(".")[0] == edit.module)
                elif isinstance(node, ast.ImportFrom) and edit.name is not None:
                    module = "." * node.level + (node.module or "")
                    if self._resolve(module) == self._resolve(edit.module):
                        yield from ((node, alias, guard) for alias in node.names if alias.name == edit.name)

    def _import(self, edit: AddImport) -> None:
        if any(guard in {"always", "attempted"} for _, _, guard in self._importers(self.old.tree, edit)):
            return
        what = f"`import {edit.module}`" if edit.name is None else f"`from {edit.module} import {edit.name}`"
        if any(edit.bound in _bound(node) for node in _scope(self.old.tree)):
            self.refuse("VCG601", f"{what} rebinds a name of the original")
        found = [
            (node, alias)
            for node, alias, guard in self._importers(self.new.tree, edit)
            if guard == "always" and alias.asname is None and alias.name == (edit.name or edit.module)
        ]
        if len(found) != 1 or sum(edit.bound in _bound(node) for node in _scope(self.new.tree)) != 1:
            self.refuse("VCG602", f"{what} is not there exactly once")
            return
        node, alias = found[0]
        for earlier in self.new.tree.body[: self.new.tree.body.index(node)]:
            if any(isinstance(item, ast.Name) and item.id == edit.bound for item in ast.walk(earlier)):
                self.refuse("VCG603", f"{what} comes after line {earlier.lineno}, which uses the name", node.lineno)
        node.names.remove(alias)
        if node.names:
            old = self._same_import(node)
            if old is None:
                # A new statement with several planned names: the last of them takes it out. Anything else that it
                # holds stays, and the comparison of the trees refuses it.
                return
            self._declare_kept(range(old.lineno, _last_line(old) + 1), range(node.lineno, _last_line(node) + 1), [])
            return
        lines = range(node.lineno, _last_line(node) + 1)
        if self.new.comments(lines):
            self.refuse("VCG605", "a planned import carries a comment that nobody planned", node.lineno)
        self.new.declared.update(lines)
        self.new.tree.body.remove(node)

    def _dropped_import(self, edit: DropImport) -> None:
        """Seen backwards, from the result to the original, it is an import that was added."""
        backwards = AddImport(edit.module, edit.name)
        before, after = (
            any(guard == "always" for _, _, guard in self._importers(tree, backwards))
            for tree in (self.old.tree, self.new.tree)
        )
        if not before:
            return
        if after:
            self.refuse("VCG602", f"`from {edit.module} import {edit.name}` should have been removed")
            return
        self.old, self.new = self.new, self.old
        self._import(backwards)
        self.old, self.new = self.new, self.old

    def _dropped_typing(self, edit: DropTypingImport) -> None:
        """The original without the imports under `if TYPE_CHECKING:`, which the result has not."""
        for file in (self.new, self.old):
            for block in [node for node in file.tree.body if isinstance(node, ast.If) and not node.orelse]:
                typed = ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
                gone = [
                    node
                    for node in block.body
                    if isinstance(node, ast.ImportFrom)
                    and typed
                    and self._resolve("." * node.level + (node.module or "")) == self._resolve(edit.module)
                ]
                if gone and file is self.new:
                    self.refuse("VCG602", f"imports from {edit.module} for type checking should have been removed")
                    return
                block.body = [node for node in block.body if node not in gone]
                if not block.body:
                    file.tree.body.remove(block)
                    self._declare_removed(block)
                for node in gone:
                    self.old.declare(node.lineno, _last_line(node))

    def _same_import(self, node: ast.Import | ast.ImportFrom) -> ast.ImportFrom | None:
        """The statement of the original that is `node` without the planned names."""
        names = {alias.name for alias in node.names}
        for other in self.old.tree.body:
            if not isinstance(node, ast.ImportFrom) or not isinstance(other, ast.ImportFrom):
                continue
            if (other.level, other.module) == (node.level, node.module) and {a.name for a in other.names} <= names:
                return other
        return None

    # -- text

    def _compare_text(self) -> None:
        old, new = list(_visible(self.old)), list(_visible(self.new))
        place = 0
        is_loose = False
        for line in old:
            other = new[place] if place < len(new) else None
            if other is None or other.text != line.text:
                if line.is_optional:
                    is_loose = True
                    continue
                lost = line.text.removeprefix(other.text) if other else line.text
                kind = "VCG605" if lost.lstrip().startswith("#") else "VCG604"
                number = other.number if other else len(self.new.lines)
                self.refuse(
                    kind,
                    f"line {line.number} of the original was lost or changed: `{line.text.strip()}`",
                    max(number, 1),
                )
                return
            is_known = line.blank is not None and other.blank is not None
            if is_known and not is_loose and line.blank != other.blank:
                self.refuse("VCG604", f"blank lines changed above line {other.number}", other.number)
                return
            is_loose = False
            place += 1
        if place < len(new):
            self.refuse(
                "VCG604", f"line {new[place].number} was not planned: `{new[place].text.strip()}`", new[place].number
            )


@dataclass(frozen=True)
class _Line:
    """An undeclared line that is not blank; `blank` counts the blank lines above it, None next to a declared line."""

    number: int
    text: str
    blank: int | None
    is_optional: bool


def _visible(file: _File) -> Iterator[_Line]:
    blank: int | None = 0
    for number, line in enumerate(file.lines, 1):
        if number in file.declared:
            blank = None
        elif not line.strip():
            blank = None if blank is None else blank + 1
        else:
            yield _Line(number, line.rstrip("\r\n"), blank, number in file.optional)
            blank = 0


def _short_name(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base).split(".")[-1]


def _header(file: _File, node: ast.ClassDef) -> range:
    """The lines from `class` to the colon."""
    last = node.body[0].lineno
    if last > node.lineno:
        last = _first_line(node.body[0]) - 1
        while last > node.lineno and (file.is_blank(last) or file.is_comment(last)):
            last -= 1
    return range(node.lineno, last + 1)


def _leading_comments(source: str) -> list[str]:
    head = takewhile(lambda line: line.startswith("#") or not line.strip(), source.splitlines())
    return [line.lstrip("#").strip() for line in head if line.strip()]


def _strings(node: ast.List | ast.Set | ast.Tuple) -> list[str | None]:
    return [
        item.value if isinstance(item, ast.Constant) and isinstance(item.value, str) else None for item in node.elts
    ]


# -- Markdown ---------------------------------------------------------------------------------------------------------


def _prove_rows(before: str, after: str, edits: Sequence[AddTableRow], path: str) -> tuple[Diagnostic, ...]:
    """That the result has exactly the planned lines more, each a row of its table."""
    old = [line.rstrip("\r\n") for line in _split(before)]
    new = [line.rstrip("\r\n") for line in _split(after)]
    for edit in {_key([edit.row_key]): edit for edit in reversed(edits)}.values():
        if any(_key(row) == _key([edit.row_key]) for row in _rows(old, edit.header)):
            continue
        places = [place for place, line in enumerate(new) if _cells(line) == [cell.strip() for cell in edit.cells]]
        places = [place for place in places if _header_above(new, place) == list(edit.header)]
        if len(places) != 1:
            message = f"the planned row `{edit.row_key}` is not in its table exactly once"
            return (Diagnostic("VCG602", message, _span(path, 1), _BUG),)
        del new[places[0]]
    if new == old:
        return ()
    line = next(
        (number for number, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b), min(len(old), len(new)) + 1
    )
    return (Diagnostic("VCG604", f"line {line} differs although no edit was planned there", _span(path, line), _BUG),)


def _cells(line: str) -> list[str]:
    """The cells of a table line, without the outer pipes; a pipe behind a backslash belongs to its cell."""
    parts, current, escaped = [], "", False
    line = line.strip(" \t>")
    for char in line:
        if char == "|" and not escaped:
            parts.append(current)
            current = ""
        else:
            current = current[:-1] + char if char == "|" else current + char
        escaped = char == "\\"
    parts.append(current)
    if parts and not parts[0].strip() and line.startswith("|"):
        parts = parts[1:]
    if parts and not parts[-1].strip() and line.endswith("|"):
        parts = parts[:-1]
    return [part.strip() for part in parts]


def _key(row: Sequence[str]) -> str:
    return row[0].replace("`", "").strip() if row else ""


def _header_above(lines: Sequence[str], place: int) -> list[str] | None:
    """The header of the table around the line: the line above the delimiter line, if rows lead up to it."""
    for number in range(place - 1, 0, -1):
        if "|" not in lines[number]:
            return None
        if not lines[number].strip(" \t>|:-"):
            return _cells(lines[number - 1])
    return None


def _rows(lines: Sequence[str], header: Sequence[str]) -> Iterator[list[str]]:
    for place, line in enumerate(lines):
        if "|" in line and line.strip(" \t>|:-") and _header_above(lines, place) == list(header):
            yield _cells(line)
