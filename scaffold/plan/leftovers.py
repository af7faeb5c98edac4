"""Finds the definitions that nothing needs any more once the methods of a replaced implementation are gone.

A definition of the model's file goes with them if only they refer to it, proven by its name: no other statement of the
file names it, nor does the rest of the tree. Comments are no use. `self.NAME` in another file is one only in a class
that may share an instance with the owner: copies of a helper in unrelated classes, of which vLLM has many, are none.
Any other attribute or string of that name is one, whatever its object. A definition stays if only the replaced methods
used it in the file and others may use it. A note names it. A method of the protocol that the port leaves out stays if a
test of the model names it and vLLM does not call it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from scaffold.diagnostics import Diagnostic, DiagnosticError, Severity, Span
from scaffold.edit.document import is_type_checking
from scaffold.edit.imports import imported_module
from scaffold.edit.operations import DropDefinition, DropImport, DropTypingImport, Edit
from scaffold.plan.code import identifiers
from scaffold.protocol import find_subclasses
from scaffold.protocol.tree import source_lines
from scaffold.syntax import (
    FunctionNode,
    assigned_to,
    decorator_names,
    dotted,
    find_class,
    first_line,
    import_source,
    self_attribute,
    statements,
)
from scaffold.tower.names import stores
from scaffold.tower.source import Program

if TYPE_CHECKING:
    from scaffold.protocol import ModelAnchor, ProtocolProfile, SourceTree

#: Decorators that only change how a method is called. Another one may register what it decorates.
_PLAIN_DECORATORS = frozenset({"property", "cached_property", "staticmethod", "classmethod", "cache", "lru_cache"})
#: Calls that only make a value of their arguments.
_SEQUENCES = frozenset({"dict", "frozenset", "list", "set", "tuple"})
#: Letters of an explanation that a note shows.
_SHOWN = 160
#: `tokenize` takes 30 times as long as this expression, and took a tenth of the time of a plan.
_COMMENT_OR_STRING = re.compile(
    r"""#[^\n]*|[bfru]{0,2}(?:(\"{3}|'{3})(?:[^\\]|\\.)*?\1|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""", re.S | re.I
)
_TESTS = "tests"
_FOLDERS = (_TESTS, "examples", "benchmarks", "tools")


@dataclass(frozen=True)
class Leftovers:
    """`methods` of the model's class, and what `edits` take out, go with the protocol's methods.

    `typing` are imports for type checking: before the port imports the same names to use them.
    """

    methods: tuple[str, ...]
    edits: tuple[Edit, ...]
    typing: tuple[Edit, ...]
    notes: tuple[Diagnostic, ...]


@dataclass(frozen=True, eq=False)
class _Definition:
    """`owner` is empty for a name of the module, `Class` for a member, `Class.method` for `self.NAME = ...` there."""

    name: str
    owner: str
    node: ast.stmt

    @property
    def class_name(self) -> str:
        return self.owner.partition(".")[0]


@dataclass(frozen=True)
class _Use:
    """A name in a file, of a module's definition (`is_name`) or a class's (`is_member`); a string may mean either.

    `is_own`: as an attribute of `self`, `cls` or `super()`, or in a class body itself, of the top-level class `scope`.
    """

    name: str
    line: int
    scope: str
    is_name: bool = False
    is_member: bool = False
    is_own: bool = False

    def means(self, definition: _Definition) -> bool:
        return self.is_member if definition.owner else self.is_name


_Uses: TypeAlias = Mapping[str, Sequence[_Use]]
_UsesByLine: TypeAlias = Mapping[int, Sequence[_Use]]


def class_of(tree: SourceTree, model: ModelAnchor) -> ast.ClassDef:
    """The class statement of a model, which its file has once."""
    owner = find_class(tree.parse(model.path), model.class_name)
    assert owner is not None, "`find_model` has found it"
    return owner


def find_leftovers(
    tree: SourceTree, model: ModelAnchor, source: str, others: Iterable[str], stays: Container[str] = ()
) -> Leftovers:
    """Definitions that go with the protocol methods of `model`. `source` replaces those, other edits add `others`.

    Methods of the class that are known to stay are none.
    """
    module = tree.parse(model.path)
    owner = class_of(tree, model)
    removed = [node for node in owner.body if isinstance(node, FunctionNode) and node.name in model.protocol_methods]
    uses = tree.cached(("uses", model.path), partial(_uses, module))
    ours = _uses(ast.parse("\n".join([source, *others])))
    replaced = {node.name for node in ast.parse(source).body if isinstance(node, FunctionNode)}
    at_line = _by_line(uses)
    definitions = tree.cached(("definitions", model.path), lambda: tuple(_definitions(module)))
    definitions = tuple(one for one in definitions if one.owner != model.class_name or one.name not in stays)
    found = [
        one
        for one in _reached(definitions, at_line, removed)
        # A helper that the port has under the same name is replaced like a method of the protocol.
        if not _is_used(ours, one) or (one.owner == model.class_name and one.name in replaced)
    ]
    found = _unused(at_line, found, removed)
    shared = _used_elsewhere(tree, model.path, found)
    stay = set(shared)
    found = _unused(at_line, [one for one in found if one not in stay], removed)
    gone = {line for node in (*removed, *(one.node for one in found)) for line in _lines(node)}
    methods = [one for one in found if one.owner == model.class_name and isinstance(one.node, FunctionNode)]
    edits = [DropDefinition(one.name, one.owner) for one in found if one not in methods]
    typing = _typing_imports(tree, model.path, uses, gone)
    gone_too = gone.union(*map(_lines, typing.values()))
    imports = _unused_imports(tree, model.path, uses, gone_too, ours)
    left = [one for one in shared if not _is_used(uses, one, gone, _lines(one.node))]
    return Leftovers(
        tuple(one.name for one in methods), (*edits, *imports), tuple(typing), tuple(_stays(tree, model.path, left))
    )


@dataclass(frozen=True)
class Tested:
    """Methods of the protocol that a class has, its port leaves out and a test of the model names, with their places.

    `rest` is the class without those that stay: vLLM calls none of these.
    """

    rest: ModelAnchor
    stays: Mapping[str, Span]
    called: Mapping[str, Span]

    def notes(self, tree: SourceTree) -> tuple[Diagnostic, ...]:
        """Notes on those that stay. Raises VCG529 for one that vLLM would go on calling beside the port."""
        if self.called:
            raise DiagnosticError([self._refusal(tree, name, place) for name, place in self.called.items()])
        return tuple(
            Diagnostic(
                "VCG522",
                f"{self.rest.class_name}.{name} stays, although the port leaves it out: a test names it",
                self._span(tree, name),
                f"see {place.file}, line {place.line}: to remove the method, change that test with it",
                Severity.INFO,
            )
            for name, place in self.stays.items()
        )

    def _refusal(self, tree: SourceTree, name: str, place: Span) -> Diagnostic:
        return Diagnostic(
            "VCG529",
            f"{self.rest.class_name}.{name} can neither go, as a test names it, nor stay: vLLM would call it beside "
            "the port, which leaves it out",
            self._span(tree, name),
            f"see {place.file}, line {place.line}: take the method out of that test first",
        )

    def _span(self, tree: SourceTree, name: str) -> Span:
        method = self.rest.method(name)
        assert method is not None
        return tree.span(self.rest.path, method.line)


def find_tested(tree: SourceTree, profile: ProtocolProfile, model: ModelAnchor, brought: Set[str]) -> Tested:
    """The protocol methods of `model` that go for nothing `brought`, and that a test names.

    A test is one of the model if it names its class, a subclass or its module, too: vLLM's tests of the manager call
    these methods of classes of their own. A definition names nothing.
    """
    gone = [name for name in model.protocol_methods if name not in brought]
    found: dict[str, Span] = {}
    for relpath in tree.containing(_TESTS, ".py", gone) if gone else ():
        text = tree.read_bytes(relpath).decode(errors="replace")
        classes = [model.class_name, *(heir.class_name for heir in find_subclasses(tree, model.path, model.class_name))]
        if _may_import(relpath, text, model.path) or not set(classes).isdisjoint(identifiers(text)):
            for use in re.finditer(rf"(?<!\bdef )\b(?:{'|'.join(gone)})\b", text):
                found.setdefault(use[0], tree.span(relpath, text.count("\n", 0, use.start()) + 1))
    stays, called = (
        {name: place for name, place in found.items() if (name in profile.uncalled) is is_free}
        for is_free in (True, False)
    )
    names = tuple(name for name in model.protocol_methods if name not in stays)
    return Tested(replace_fields(model, protocol_methods=names), stays, called)


def lost_explanations(before: str, after: str, shown: str) -> Iterator[Diagnostic]:
    """One note on the comments and docstrings of `before` that `after` has not, if any; `shown` is the file's path."""
    left = Counter(text for _, text in _explanations(after))
    found: list[tuple[int, int, str]] = []  # first line, last line, text
    for line, text in _explanations(before):
        if left[text]:
            left[text] -= 1
        elif found and found[-1][1] + 1 == line:
            first, _, above = found.pop()
            found.append((first, line, f"{above} {text}"))
        else:
            found.append((line, line, text))
    if found:
        yield Diagnostic(
            "VCG523",
            f"{len(found)} comments or docstrings of {PurePosixPath(shown).name} go with the replaced code",
            Span(shown, found[0][0], 1, found[0][0], 2),
            "see whether one still holds: a reason for a value belongs beside it in the descriptor",
            Severity.INFO,
            notes=tuple(f"line {first}: {_shortened(text)}" for first, _, text in found),
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN].rpartition(' ')[0]} ..."


def _explanations(text: str) -> Iterator[tuple[int, str]]:
    """Each line of a comment or docstring, with its number. Rules of dashes and orders to linters explain nothing."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in statements(ast.parse(text))
        if isinstance(node, FunctionNode | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None
    }
    row, at, begin = 1, 0, 0  # `begin` is that of the row
    for found in _COMMENT_OR_STRING.finditer(text):
        begin = text.rfind("\n", at, found.start()) + 1 or begin
        row, at = row + text.count("\n", at, found.start()), found.start()
        if found[0].startswith("#") or (row, at - begin) in docstrings:
            for number, line in enumerate(found[0].splitlines(), row):
                words = line.strip("# \t\"'")
                if words and not words.startswith(("--", "noqa", "type:", "fmt:", "mypy:", "ruff:")):
                    yield number, words


def _definitions(module: ast.Module) -> Iterator[_Definition]:
    """Removable definitions: functions, methods, and plain values without a call. Statements under a condition stay."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            for item in node.body if len(node.body) > 1 else ():
                if isinstance(item, FunctionNode):
                    yield from _method(node.name, item)
                else:
                    yield from (_Definition(name, node.name, item) for name in _plain_value(item))
        elif isinstance(node, FunctionNode):
            yield from [_Definition(node.name, "", node)] if not node.decorator_list else []
        else:
            yield from (_Definition(name, "", node) for name in _plain_value(node))


def _method(owner: str, method: FunctionNode) -> Iterator[_Definition]:
    if not method.name.startswith("__") and decorator_names(method) <= _PLAIN_DECORATORS:
        yield _Definition(method.name, owner, method)
    loads = Counter(node.id for node in ast.walk(method) if isinstance(node, ast.Name))
    stored = stores(method)
    for item in method.body if len(method.body) > 1 else ():
        targets = assigned_to(item)
        name = self_attribute(targets[0]) if len(targets) == 1 else None
        if name is not None and _is_plain(item):
            inside = Counter(node.id for node in ast.walk(item) if isinstance(node, ast.Name))
            # A local variable that nothing else reads would be left without a use.
            if all(loads[local] > count + 1 for local, count in inside.items() if local in stored):
                yield _Definition(name, f"{owner}.{method.name}", item)


def _plain_value(node: ast.stmt) -> list[str]:
    targets = assigned_to(node)
    name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None
    return [name] if name is not None and _is_plain(node) else []


def _is_plain(node: ast.stmt) -> bool:
    """Whether a value does nothing but be there: it calls nothing but what makes a sequence or a set."""
    return not any(
        isinstance(part, ast.Await | ast.NamedExpr)
        or (isinstance(part, ast.Call) and ast.unparse(part.func) not in _SEQUENCES)
        for part in ast.walk(node)
    )


def _uses(module: ast.Module) -> _Uses:
    found: dict[str, list[_Use]] = {}
    for statement in module.body:
        scope = statement.name if isinstance(statement, ast.ClassDef) else ""
        for use in _uses_in(statement, scope):
            found.setdefault(use.name, []).append(use)
    return found


def _uses_in(statement: ast.stmt, scope: str) -> Iterator[_Use]:
    for node in ast.walk(statement):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute):
            yield _Use(node.attr, line, scope, is_member=True, is_own=_is_self(node.value))
        elif isinstance(node, ast.Name):
            yield _Use(node.id, line, scope, is_name=True)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _Use(node.value, line, scope, is_name=True, is_member=True)
        elif isinstance(node, ast.arg | ast.AnnAssign | FunctionNode):
            annotation = node.returns if isinstance(node, FunctionNode) else node.annotation
            for part in ast.walk(annotation) if annotation is not None else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str):  # an annotation in quotes
                    yield from (_Use(word, line, scope, is_name=True) for word in identifiers(part.value))
    if isinstance(statement, ast.ClassDef):
        yield from _uses_of_body(statement)


def _uses_of_body(owner: ast.ClassDef) -> Iterator[_Use]:
    """Names that a class body itself defines and reads, also in decorators and defaults: its members, if any."""
    for item in owner.body:
        parts: Iterable[ast.AST] = [item]
        if isinstance(item, FunctionNode):
            yield _Use(item.name, item.lineno, owner.name, is_member=True, is_own=True)
            parts = [*item.decorator_list, *item.args.defaults, *filter(None, item.args.kw_defaults)]
        for part in parts:
            for node in ast.walk(part):
                if isinstance(node, ast.Name):
                    yield _Use(node.id, node.lineno, owner.name, is_member=True, is_own=True)


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
        return isinstance(node, ast.Name) and node.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _by_line(uses: _Uses) -> _UsesByLine:
    found: dict[int, list[_Use]] = {}
    for use in chain.from_iterable(uses.values()):
        found.setdefault(use.line, []).append(use)
    return found


def _lines(node: ast.stmt) -> range:
    return range(first_line(node), (node.end_lineno or node.lineno) + 1)


class _Named:
    """Definitions by name. A definition that shares its name with another one is none: which is meant, no use tells."""

    def __init__(self, definitions: Sequence[_Definition]) -> None:
        times = Counter((one.name, bool(one.owner)) for one in definitions)
        self._found = {key: one for one in definitions if times[key := (one.name, bool(one.owner))] == 1}

    def meant(self, uses: Iterable[_Use]) -> Iterator[_Definition]:
        """The definitions that uses mean."""
        for use in uses:
            for is_member in (False, True):
                one = self._found.get((use.name, is_member))
                if one is not None and use.means(one):
                    yield one

    def holder(self, definition: _Definition) -> Iterator[_Definition]:
        """The method that sets an attribute, for a definition of one."""
        owner, _, method = definition.owner.partition(".")
        found = self._found.get((method, True))
        if found is not None and found.owner == owner:
            yield found


def _reached(
    definitions: Iterable[_Definition], at_line: _UsesByLine, removed: Sequence[ast.stmt]
) -> list[_Definition]:
    """The definitions that `removed` refers to, directly or through others of them, in the order of the file."""
    definitions = [one for one in definitions if one.node not in removed]
    named = _Named(definitions)
    reached: set[_Definition] = set()
    pending = list(removed)
    while pending:
        for line in _lines(pending.pop()):
            fresh = set(named.meant(at_line.get(line, ()))) - reached
            reached |= fresh
            pending += [one.node for one in fresh]
    return [one for one in definitions if one in reached]


def _unused(at_line: _UsesByLine, found: Sequence[_Definition], removed: Sequence[ast.stmt]) -> list[_Definition]:
    """The definitions that no statement of the file refers to which stays, if all of these go.

    A definition that stays keeps what it refers to and the method that makes it. Each line is looked at once: when
    nothing that goes has it.
    """
    goes = Counter(line for node in (*removed, *(one.node for one in found)) for line in _lines(node))
    named = _Named(found)
    stays: set[_Definition] = set()
    pending = [line for line in at_line if not goes[line]]
    while pending:
        fresh = set(named.meant(at_line.get(pending.pop(), ())))
        fresh |= {holder for one in fresh for holder in named.holder(one)}
        for one in fresh - stays:
            stays.add(one)
            for line in _lines(one.node):
                goes[line] -= 1
                if not goes[line]:
                    pending.append(line)
    return [one for one in found if one not in stays]


def _is_used(uses: _Uses, definition: _Definition, *gone: Container[int]) -> bool:
    """Whether a definition is referred to, in a line that stays."""
    return any(
        use.means(definition) and not any(use.line in lines for lines in gone) for use in uses.get(definition.name, ())
    )


def _used_elsewhere(tree: SourceTree, path: str, found: Sequence[_Definition]) -> list[_Definition]:
    """Which of the definitions another file of the tree may refer to: all of those in it if it is no valid Python."""
    names = {one.name for one in found}
    related: dict[str, set[tuple[str, str]]] = {}
    used: set[_Definition] = set()
    files: dict[str, tuple[str, ...]] = {}
    for folder in (*tree.packages, *_FOLDERS):
        files |= tree.containing(folder, ".py", names)
    for relpath, hits in files.items() if names else ():
        suspects = [one for one in found if one.name in hits and one not in used and relpath != path]
        try:
            if any(not one.owner for one in suspects) and not _may_import(relpath, tree.read(relpath), path):
                suspects = [one for one in suspects if one.owner]
            if not suspects:
                continue
            module = tree.parse(relpath)
        except DiagnosticError:
            used.update(suspects)
            continue
        uses = tree.cached(("uses", relpath), partial(_uses, module))
        imported = _taken_from(relpath, module, path)
        for one in suspects:
            members = [use for use in uses.get(one.name, ()) if use.is_member]
            if not one.owner:
                is_used = (
                    one.name in imported
                    or ("*" in imported and one.name in uses)
                    or (bool(members) and "." in imported)
                )
            else:
                if one.class_name not in related and members:
                    related[one.class_name] = _related(tree, path, one.class_name)
                is_used = any(not use.is_own or (relpath, use.scope) in related[one.class_name] for use in members)
            if is_used:
                used.add(one)
    return [one for one in found if one in used]


def _may_import(relpath: str, text: str, path: str) -> bool:
    """Whether a file's text has the module at `path` in it: each part of its dotted name, but for the packages of both.

    Thousands of files have a word like `functools`, and hundreds one like `model`.
    """
    parts = dotted(path).split(".")
    packages = ["/".join(parts[: number + 1]) + "/" for number in range(len(parts))]
    return all(part in text or relpath.startswith(package) for part, package in zip(parts, packages, strict=True))


def _taken_from(relpath: str, module: ast.Module, path: str) -> set[str]:
    """The names that a file imports from the module at `path`; a dot if it imports the module itself."""
    home = dotted(path)
    names: set[str] = set()
    for node in statements(module):
        if isinstance(node, ast.ImportFrom):
            source = import_source(relpath, node)
            names |= {alias.name for alias in node.names if source == home}
            names |= {"." for alias in node.names if f"{source}.{alias.name}" == home}
        elif isinstance(node, ast.Import):
            names |= {"." for alias in node.names if alias.name == home}
    return names


def _related(tree: SourceTree, path: str, class_name: str) -> set[tuple[str, str]]:
    """The classes, by file and name, that may share an instance with this one: its heirs, and the bases of all."""
    program = Program(tree)
    heirs = find_subclasses(tree, path, class_name)
    pending = [program.owner(path, class_name), *(program.owner(heir.path, heir.class_name) for heir in heirs)]
    related: set[tuple[str, str]] = set()
    while pending:
        module, node = pending.pop()
        if (module.file, node.name) not in related:
            related.add((module.file, node.name))
            pending += program.bases((module, node))
    return related


def _typing_imports(tree: SourceTree, path: str, uses: _Uses, gone: Container[int]) -> dict[DropTypingImport, ast.stmt]:
    """Statements under `if TYPE_CHECKING:` whose names only what goes uses; the block, if it has nothing else."""
    found: dict[DropTypingImport, ast.stmt] = {}
    for block in tree.parse(path).body:
        if not isinstance(block, ast.If) or not is_type_checking(block.test) or block.orelse:
            continue
        for node in (part for part in block.body if isinstance(part, ast.ImportFrom)):
            names = [_Definition(alias.asname or alias.name, "", node) for alias in node.names]
            if all(_is_used(uses, one) and not _is_used(uses, one, gone) for one in names):
                drop = DropTypingImport(imported_module(node))
                found[drop] = block if block.body == [node] else node
    return found


def _unused_imports(tree: SourceTree, path: str, uses: _Uses, gone: Container[int], ours: _Uses) -> list[DropImport]:
    """Imports that served only what goes. One with a comment stays: who reads it may have a reason."""
    found: list[tuple[_Definition, DropImport]] = []
    lines = source_lines(tree, path)
    for node in tree.parse(path).body:
        if not isinstance(node, ast.Import | ast.ImportFrom) or "#" in lines.text(node):
            continue
        if isinstance(node, ast.Import) and len(node.names) > 1:
            continue
        for alias in node.names:
            one = _Definition(alias.name, "", node)
            needed = _is_used(uses, one, gone) or _is_used(ours, one)
            if alias.asname is None and alias.name.isidentifier() and _is_used(uses, one) and not needed:
                names = (imported_module(node), alias.name) if isinstance(node, ast.ImportFrom) else (alias.name,)
                found.append((one, DropImport(*names)))
    used = _used_elsewhere(tree, path, [one for one, _ in found])
    return [drop for one, drop in found if one not in used]


def _stays(tree: SourceTree, path: str, left: Sequence[_Definition]) -> Iterator[Diagnostic]:
    for one in left:
        shown = f"{one.class_name}.{one.name}" if one.owner else one.name
        yield Diagnostic(
            "VCG522",
            f"{shown} stays, although only the replaced methods use it in this file: other files use the name",
            tree.span(path, one.node.lineno),
            "look whether they mean it, and remove it if they do not",
            Severity.INFO,
        )
