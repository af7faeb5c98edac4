"""Repairs as values: exact places of a file and the text to put there, and the port whose methods rules read.

No rule is here, and nothing judges a repair.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from scaffold.changes import FileChange
from scaffold.diagnostics import Span
from scaffold.edit import AddImport, apply_edits
from scaffold.fix.unit_tests import Layer, UnitTest, put_tests, unit_test
from scaffold.protocol import SourceTree, find_model
from scaffold.syntax import FunctionNode
from scaffold.tower.source import Method, Module, Owner, Program
from scaffold.verify.numeric import Check

#: Open pull requests of vLLM that have a rule's repair for a class.
_THREADS = {("copy on clone", "Step3VLForConditionalGeneration"): "vllm-project/vllm#52115"}

Place = tuple[int, int]  # a line from 1, a column in bytes from 0, as `ast` counts


@dataclass(frozen=True, slots=True)
class TextEdit:
    """The new text for some bytes of a file; without a path, of the repair's."""

    start: Place
    end: Place
    new: bytes
    path: str = ""


@dataclass(frozen=True)
class Repair:
    """A rule at the place where it applies: the edits, of one file or more, and the failing checks that they may mend.

    `what` is the fault, `so` the edit and `cost` what users pay for it, for people. `thread` is an open pull request of
    vLLM that mends the fault. `imports` are what the edits of `path` use, and `test` is a unit test for vLLM
    (`unit_tests`).
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
    thread: str = ""
    imports: tuple[AddImport, ...] = ()
    test: UnitTest | None = None
    cost: str = ""


def apply_repairs(tree: SourceTree, repairs: Sequence[Repair]) -> tuple[FileChange, ...]:
    """The files with the edits of all these repairs, in the target's format. Raises VCG623 where ruff cannot be run."""
    from scaffold.verify.style import format_changed

    changes = []
    found: defaultdict[str, list[TextEdit]] = defaultdict(list)
    for repair in repairs:
        for edit in repair.edits:
            found[edit.path or repair.path].append(edit)
    for path, edits in found.items():
        before = tree.read_bytes(path)
        starts = [0, *accumulate(map(len, before.splitlines(keepends=True)))]
        after = before
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            start, end = (starts[line - 1] + column for line, column in (edit.start, edit.end))
            after = after[:start] + edit.new + after[end:]
        imports = [one for repair in repairs if repair.path == path for one in repair.imports]
        edited = apply_edits(after.decode(), imports, path=path).text
        text = format_changed(before.decode(), edited, path=path, config_root=tree.root)
        changes.append(FileChange(path, before, text.encode()))
    return (*changes, *put_tests(tree, (repair.test for repair in repairs)))


def heirs_of(tree: SourceTree, module: str, class_name: str, repairs: Sequence[Repair]) -> tuple[str, ...]:
    """The other classes whose port runs a repaired method: subclasses of the class that defines it."""
    program = Program(tree)
    own = program.owner(find_model(tree, module, class_name).path, class_name)
    found: dict[str, None] = {}
    for repair in repairs:
        definer = program.owner(repair.path, repair.class_name)
        for heir in (definer, *find_heirs(tree, program, definer)):
            same = any(program.method(heir, one) == program.method(definer, one) for one in repair.methods)
            if same and heir[1] is not own[1]:
                found[heir[1].name] = None
    return tuple(found)


def find_heirs(tree: SourceTree, program: Program, owner: Owner) -> list[Owner]:
    """The classes that inherit from this one."""
    from scaffold.protocol import find_subclasses

    module, node = owner
    return [program.owner(heir.path, heir.class_name) for heir in find_subclasses(tree, module.file, node.name)]


_NOTHING = ast.FunctionDef("", ast.arguments([], [], None, [], [], None, []), [], [])


@dataclass(frozen=True)
class Port:
    """The methods of a port, each as the class finds it."""

    tree: SourceTree
    program: Program
    owner: Owner
    methods: dict[str, Method]

    def function(self, name: str) -> FunctionNode:
        """The method of that name; an empty one where the class has none."""
        return self.methods[name][2] if name in self.methods else _NOTHING

    def text(self, name: str, node: ast.expr) -> str:
        return self.methods[name][0].segment(node)

    def repair(
        self,
        name: str,
        methods: str | Sequence[str],
        edits: Sequence[TextEdit],
        what: str,
        so: str,
        answers: Callable[[Check], bool],
        *,
        imports: tuple[AddImport, ...] = (),
        cost: str = "",
        layer: Layer | None = None,
    ) -> Repair | None:
        """None where the methods are of several classes, which no edit of one file mends. `layer` is for its test."""
        methods = [methods] if isinstance(methods, str) else methods
        module, owner, _ = self.methods[methods[0]]
        if any(self.methods[method][1] is not owner for method in methods):
            return None
        (line, column), (end_line, end_column) = edits[0].start, edits[0].end
        span = Span(module.shown, line, column + 1, end_line, end_column + 1)
        thread, places = _THREADS.get((name, owner.name), ""), tuple(edits)
        test = unit_test(self, name, layer)
        return Repair(
            name, module.file, owner.name, tuple(methods), span, places, what, so, answers, thread, imports, test, cost
        )

    def first(self, name: str) -> ast.stmt:
        """The first statement of a method behind its docstring and its imports."""
        body = self.function(name).body
        return next((node for node in body if not _stays_ahead(node)), body[-1])

    def insert(self, name: str, node: ast.stmt, lines: Sequence[str]) -> TextEdit:
        """These lines before a statement of a method, and the comment above it."""
        return self.above(self.methods[name][0], node, lines)

    def above(self, module: Module, node: ast.stmt, lines: Sequence[str]) -> TextEdit:
        """The same of a statement in any module."""
        text = module.text.splitlines()
        line = node.lineno
        while text[line - 2].lstrip().startswith("#"):
            line -= 1
        end = self.newline(module.file)
        new = "".join(f"{' ' * node.col_offset}{one}{end}" for one in lines)
        return TextEdit((line, 0), (line, 0), new.encode(), module.file)

    def comment_on(self, module: Module, node: ast.stmt, text: str) -> Iterator[TextEdit]:
        """This comment above a statement, and above the one that stood behind it, for which there is no room."""
        end_line, end = node.end_lineno or 0, node.end_col_offset or 0
        behind = module.text.splitlines()[end_line - 1].encode()[end:]
        yield self.above(module, node, [text, *filter(None, [behind.decode().strip()])])
        yield TextEdit((end_line, end), (end_line, end + len(behind)), b"", module.file)

    def comment(self, name: str, text: str) -> TextEdit:
        """This comment in the place of the one above the first statement of a method, if there is one."""
        edit = self.insert(name, self.first(name), [text])
        return replace(edit, end=(self.first(name).lineno, 0))

    def newline(self, path: str) -> str:
        return "\r\n" if b"\r\n" in self.tree.read_bytes(path) else "\n"

    def put_lines(self, path: str, lines: Mapping[int, tuple[str, ...]]) -> list[TextEdit]:
        """New lines of any file, each in the place of the one with its number."""
        text, end = self.tree.read(path).splitlines() if lines else [], self.newline(path) if lines else ""
        return [
            TextEdit((line, 0), (line, len(text[line - 1].encode())), end.join(new).encode(), path)
            for line, new in lines.items()
        ]


def put(node: ast.expr | ast.stmt, text: str) -> TextEdit:
    """This text in the place of a node."""
    return TextEdit((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0), text.encode())


def _stays_ahead(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring or an import."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, (ast.Import, ast.ImportFrom))
