"""Finds the anchors of a port in a tree: the model class, the test registry, the docs table, the example's list.

A finder looks at the places where known releases keep its anchor, then searches the text and parses the hits. It
guesses nothing: no place, two places and a place of unexpected form are errors of their own. An installed package has
no tests, docs or examples: those three finders return None, and `absent_reason` tells why. Lines count from 1 and spans
include both ends. All paths are relative to the tree's root.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath

from scaffold.diagnostics import DiagnosticError
from scaffold.protocol.profile import PROTOCOL, read_source
from scaffold.protocol.signatures import Field
from scaffold.protocol.tables import find_tables
from scaffold.protocol.tree import SourceTree, module_file, source_lines
from scaffold.syntax import (
    FunctionNode,
    assigned_to,
    dotted,
    find_method,
    import_source,
    last_name,
    parse,
    top_level,
)

_MODELS = "vllm/model_executor/models"
_REGISTRY_FILES = ("tests/models/multimodal/generation/test_vit_cudagraph.py",)  # 0.20 to 0.33
_REGISTRY = "MODEL_CONFIGS"
_REGISTRY_MARK = "cudagraph_mm_encoder"
_TABLE_FILES = ("docs/design/cuda_graphs_multimodal.md",)  # 0.20 to 0.33
_TABLE_COLUMN = "CG for Image"
_LIST_FILES = (
    "examples/generate/multimodal/vision_language_offline.py",  # 0.21 to 0.33
    "examples/offline_inference/vision_language.py",  # 0.20
)
_LIST = "MODELS_SUPPORT_VIT_CUDA_GRAPH"
_EXAMPLES = "model_example_map"

#: Subclasses of a class that are looked at; in vLLM 0.33 no model has more than twenty.
_MAX_SUBCLASSES = 2_000

_YES = "✅✓✔☑"
_NO = "❌✗✘❎×"
_VARIATION_SELECTORS = "\ufe0e\ufe0f"


@dataclass(frozen=True, slots=True)
class DefinitionSpan:
    """One method. `line` is that of its `def`."""

    name: str
    line: int


@dataclass(frozen=True, slots=True)
class ModelAnchor:
    """A model class and the parts of the protocol that it already has.

    `lists_protocol`: the class itself names the protocol among its bases. `protocol_methods` are those that the class
    body defines.
    """

    path: str
    module: str
    class_name: str
    line: int
    methods: tuple[DefinitionSpan, ...]
    lists_protocol: bool
    protocol_methods: tuple[str, ...]

    def method(self, name: str) -> DefinitionSpan | None:
        return next((method for method in self.methods if method.name == name), None)


@dataclass(frozen=True, slots=True)
class Subclass:
    """A class that inherits from another, directly or not."""

    path: str
    class_name: str
    line: int


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One entry of the test registry. `model` is None when it is not a string literal."""

    key: str
    model: str | None
    keywords: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegistryAnchor:
    """The dict of the ViT CUDA graph generation test.

    `functions` are the module's top-level functions (prompt helpers among them), with the code of what each returns if
    it does nothing else. `imports` are the names that it imports.
    """

    path: str
    variable: str
    line: int
    entry_class: str
    entry_fields: tuple[Field, ...]
    entries: tuple[RegistryEntry, ...]
    functions: Mapping[str, str]
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row; `cells` are Markdown text without the padding around them."""

    cells: tuple[str, ...]

    @property
    def architecture(self) -> str:
        """The class name, without the backticks."""
        return self.cells[0].strip("`")


@dataclass(frozen=True, slots=True)
class TableAnchor:
    """The Markdown table of supported models. `line` is that of its header.

    `yes` and `no` are the table's own marks, variation selectors included. 0.20 and 0.21 have no mark for "no". Such a
    table gets the mark of later releases, with the variation selector of its other mark.
    """

    path: str
    line: int
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    yes: str
    no: str


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One string of a list."""

    value: str


@dataclass(frozen=True, slots=True)
class ListAnchor:
    """The example's list of models with ViT CUDA graphs. `example_keys` are the possible entries."""

    path: str
    variable: str
    line: int
    entries: tuple[ListEntry, ...]
    example_keys: tuple[str, ...]


def absent_reason(tree: SourceTree) -> str | None:
    """The reason why a tree has no test registry, docs table and example list; None when it must have them."""
    if tree.package is not None:
        return "vLLM's tests, docs and examples list no model of another package"
    return "a package without its repository has no tests, docs or examples" if tree.installed else None


# ---------------------------------------------------------------------------------------------------------------------
# Models


def find_model(tree: SourceTree, module: str, class_name: str) -> ModelAnchor:
    """The model class. `module` is a dotted name, a path, or the bare name of a module of `models/`.

    Raises VCG420 (no such module or class), VCG424 (the module defines the class more than once) and VCG435 (its file
    is not indented as vLLM's are).
    """
    path = find_module(tree, module)
    node = _model_class(tree, path, class_name)
    _require_indentation(tree, path, node)
    demanded = {method.name for method in read_source(tree).shape.methods}
    defined = dict.fromkeys(item.name for item in node.body if isinstance(item, FunctionNode) and item.name in demanded)
    return ModelAnchor(
        path=path,
        module=dotted(path),
        class_name=class_name,
        line=node.lineno,
        methods=tuple(DefinitionSpan(item.name, item.lineno) for item in node.body if isinstance(item, FunctionNode)),
        lists_protocol=any(last_name(base) == PROTOCOL for base in node.bases),
        protocol_methods=tuple(defined),
    )


def find_subclasses(tree: SourceTree, module: str, class_name: str) -> tuple[Subclass, ...]:
    """Every class of the package that inherits from this one, directly or not, by path and line.

    Raises VCG420 and VCG424 as `find_model`.
    """
    path = find_module(tree, module)
    _model_class(tree, path, class_name)
    return tree.cached(("subclasses", f"{path}:{class_name}"), lambda: _subclasses(tree, path, class_name))


def _subclasses(tree: SourceTree, path: str, class_name: str) -> tuple[Subclass, ...]:
    """Breadth first. Each file is read once, at the first class that it names, and each class is met once."""
    found: dict[tuple[str, str], int] = {}
    by_place: defaultdict[tuple[str, str], list[tuple[str, ast.ClassDef]]] = defaultdict(list)
    by_name: defaultdict[str, list[tuple[str, ast.ClassDef]]] = defaultdict(list)
    read: set[str] = set()
    pending = deque([(path, class_name)])
    while pending:
        place = pending.popleft()
        for relpath in (relpath for relpath in tree.modules_with(place[1]) if relpath not in read):
            read.add(relpath)
            for item in top_level(tree.parse(relpath).body):
                for base in item.bases if isinstance(item, ast.ClassDef) else ():
                    assert isinstance(item, ast.ClassDef)
                    located = _locate(tree, relpath, base)
                    if located is not None:
                        by_place[located].append((relpath, item))
                    name = located[1] if located is not None else last_name(base)
                    if name is not None:
                        by_name[name].append((relpath, item))
        # All that name a class are there now, and a second class of the name has no others.
        for relpath, item in [*by_place.pop(place, ()), *by_name.pop(place[1], ())]:
            heir = (relpath, item.name)
            if heir in found or heir == (path, class_name):
                continue
            if any(_refers(tree, relpath, base, place) for base in item.bases):
                found[heir] = item.lineno
                pending.append(heir)
        if len(found) > _MAX_SUBCLASSES:
            message = f"`{class_name}` has more than {_MAX_SUBCLASSES:,} subclasses"
            help_text = "port one that has fewer: every subclass answers to the protocol, too, and each is looked at"
            raise DiagnosticError.of("VCG439", message, tree.span(path), help_text)
    return tuple(sorted((Subclass(*heir, line) for heir, line in found.items()), key=lambda one: (one.path, one.line)))


def find_module(tree: SourceTree, module: str) -> str:
    """The path of a module, named as in `find_model`. Raises VCG420."""
    if "/" in module or module.endswith(".py"):
        inside = not module.startswith("/") and ".." not in PurePosixPath(module).parts
        if inside and tree.exists(module):
            return module
    else:
        whole = module.partition(".")[0] in tree.packages
        candidates = [module] if whole else [f"vllm.model_executor.models.{module}", f"vllm.{module}"]
        for candidate in candidates:
            path = module_file(tree, candidate)
            if path is not None:
                return path
    stems = sorted(path.stem for path in tree.path(_MODELS).glob("*.py"))
    wanted = PurePosixPath(module).stem if "/" in module else module.rpartition(".")[2]
    near = get_close_matches(wanted, stems, n=3)
    raise DiagnosticError.of(
        "VCG420",
        f"the tree has no module `{module}`",
        span=tree.span(_MODELS),
        help=f"did you mean {' or '.join(f'`{item}`' for item in near)}?"
        if near
        else "name a module below `vllm/model_executor/models`, such as `qwen2_vl`",
        notes=(f"searched `{_MODELS}` and `{module}` as a dotted name and a path",),
    )


def _model_class(tree: SourceTree, path: str, class_name: str) -> ast.ClassDef:
    classes = [item for item in top_level(tree.parse(path).body) if isinstance(item, ast.ClassDef)]
    matching = [item for item in classes if item.name == class_name]
    if len(matching) > 1:
        raise _ambiguous(tree, f"class `{class_name}`", [(path, item.lineno) for item in matching])
    if matching:
        return matching[0]
    near = get_close_matches(class_name, [item.name for item in classes], n=3)
    elsewhere = [
        f"`{relpath}:{item.lineno}` defines a class of that name"
        for relpath in tree.modules_with(class_name)
        for item in top_level(tree.parse(relpath).body)
        if isinstance(item, ast.ClassDef) and item.name == class_name
    ]
    raise DiagnosticError.of(
        "VCG420",
        f"`{path}` has no class `{class_name}`",
        span=tree.span(path),
        help=f"did you mean {' or '.join(f'`{item}`' for item in near)}?"
        if near
        else "name the class that has `embed_multimodal`",
        notes=tuple(elsewhere),
    )


def _require_indentation(tree: SourceTree, path: str, node: ast.ClassDef) -> None:
    """Raise VCG435 for a class whose body is not indented by four spaces, as all code of a port is."""
    first = node.body[0]
    before = tree.read(path).splitlines()[first.lineno - 1][: first.col_offset]
    if not before.strip() and first.col_offset - node.col_offset != 4:
        raise DiagnosticError.of(
            "VCG435",
            f"`{node.name}` is not indented by four spaces, as vLLM's code is",
            span=tree.span(path, first.lineno),
            help=f"run `ruff format {path}` in the tree first, as a change of its own",
        )


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of a file's top level: its classes, and the module and name that each imported name stands for."""

    classes: frozenset[str]
    imported: dict[str, tuple[str, str]]


def _names_of(tree: SourceTree, relpath: str) -> _Names:
    def read() -> _Names:
        items = list(top_level(tree.parse(relpath).body))
        imported: dict[str, tuple[str, str]] = {}
        for item in (item for item in items if isinstance(item, ast.ImportFrom)):
            for alias in item.names:
                imported.setdefault(alias.asname or alias.name, (import_source(relpath, item), alias.name))
        return _Names(frozenset(item.name for item in items if isinstance(item, ast.ClassDef)), imported)

    return tree.cached(("names", relpath), read)


def _locate(tree: SourceTree, relpath: str, base: ast.expr) -> tuple[str, str] | None:
    """The file and class name that a base expression means, None when it is outside the package."""
    name, names = last_name(base), _names_of(tree, relpath)
    if name is None or name in names.classes:
        return None if name is None else (relpath, name)
    module, original = names.imported.get(name, ("", ""))
    path = module_file(tree, module) if module.startswith("vllm") else None
    return None if path is None else (path, original)


def _refers(tree: SourceTree, relpath: str, base: ast.expr, place: tuple[str, str]) -> bool:
    """Whether a base expression means the class at this place. It recognises a re-export by the name."""
    _, name = place
    located = _locate(tree, relpath, base)
    if located is None:
        return isinstance(base, ast.Attribute) and base.attr == name
    # Test the name first: most bases are other classes, and we need not parse their files.
    return located == place or (located[1] == name and name not in _names_of(tree, located[0]).classes)


# ---------------------------------------------------------------------------------------------------------------------
# The test registry


def find_test_registry(tree: SourceTree) -> RegistryAnchor | None:
    """The registry of the ViT CUDA graph generation test; None for an installed package (`absent_reason`).

    Raises VCG421 (not found), VCG424 (two places) and VCG425 (not a dict of calls of one class).
    """
    if absent_reason(tree) is not None:
        return None
    path, value, line = _find_assignment(
        tree,
        _REGISTRY_FILES,
        [_REGISTRY, _REGISTRY_MARK],
        ("VCG421", f"the dict `{_REGISTRY}` of the ViT CUDA graph test"),
        f"every Python file under `tests/` with both `{_REGISTRY}` and `{_REGISTRY_MARK}`",
    )
    if not isinstance(value, ast.Dict):
        raise _unexpected(tree, path, line, f"`{_REGISTRY}` is not a dict literal")
    module = tree.parse(path)
    lines = source_lines(tree, path)
    entry_class = _entry_class(tree, path, module, value)
    return RegistryAnchor(
        path=path,
        variable=_REGISTRY,
        line=line,
        entry_class=entry_class.name,
        entry_fields=tuple(
            Field(item.target.id, lines.source(item.annotation), lines.optional(item.value))
            for item in entry_class.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        ),
        entries=tuple(_registry_entries(value)),
        functions={item.name: _returned(item) for item in top_level(module.body) if isinstance(item, FunctionNode)},
        imports=tuple(_imported_names(module)),
    )


def _returned(function: FunctionNode) -> str:
    """The code of what a function returns if it does nothing else."""
    *before, last = function.body
    documented = not before or (len(before) == 1 and ast.get_docstring(function) is not None)
    return ast.unparse(last.value) if documented and isinstance(last, ast.Return) and last.value else ""


def _entry_class(tree: SourceTree, path: str, module: ast.Module, value: ast.Dict) -> ast.ClassDef:
    called = {last_name(item.func) for item in value.values if isinstance(item, ast.Call)}
    if not value.values:  # an empty registry still tells its class by the annotation `dict[str, Class]`
        annotation = next(
            (
                item.annotation
                for item in top_level(module.body)
                if isinstance(item, ast.AnnAssign)
                and item.value is value
                and isinstance(item.annotation, ast.Subscript)
            ),
            None,
        )
        inner = annotation.slice if annotation is not None else None
        called = {last_name(inner.elts[-1])} if isinstance(inner, ast.Tuple) else set()
    classes = [item for item in top_level(module.body) if isinstance(item, ast.ClassDef) and item.name in called]
    if len(classes) != 1 or len(called) != 1 or not all(isinstance(item, ast.Call) for item in value.values):
        raise _unexpected(
            tree, path, value.lineno, f"the values of `{_REGISTRY}` are not calls of one class of the same module"
        )
    return classes[0]


def _registry_entries(value: ast.Dict) -> Iterator[RegistryEntry]:
    for key, item in zip(value.keys, value.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(item, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in item.keywords if keyword.arg is not None}
            model = keywords.get("model", item.args[0] if item.args else None)
            yield RegistryEntry(
                key=key.value,
                model=model.value if isinstance(model, ast.Constant) and isinstance(model.value, str) else None,
                keywords=tuple(keywords),
            )


def _imported_names(module: ast.Module) -> Iterator[str]:
    for item in top_level(module.body):
        if isinstance(item, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in item.names)


# ---------------------------------------------------------------------------------------------------------------------
# The docs table


def find_docs_table(tree: SourceTree) -> TableAnchor | None:
    """The table of supported models; None for an installed package (`absent_reason`).

    It skips other tables in the same file, such as the hardware table of 0.28 to 0.31: they have no column
    `CG for Image`. Raises VCG422 (not found) and VCG424 (two such tables).
    """
    if absent_reason(tree) is not None:
        return None
    tables = [table for path in _TABLE_FILES if tree.exists(path) for table in _read_tables(tree, path)]
    if not tables:
        others = tree.containing("docs", ".md", [_TABLE_COLUMN])
        tables = [table for path in others for table in _read_tables(tree, path)]
    if not tables:
        raise _not_found(
            tree,
            "VCG422",
            f"the table with the column `{_TABLE_COLUMN}`",
            _TABLE_FILES,
            f"every Markdown file under `docs/` with `{_TABLE_COLUMN}`",
        )
    if len(tables) > 1:
        raise _ambiguous(
            tree, f"the table with the column `{_TABLE_COLUMN}`", [(item.path, item.line) for item in tables]
        )
    return tables[0]


def _read_tables(tree: SourceTree, path: str) -> Iterator[TableAnchor]:
    """The tables of a Markdown file that have the column."""
    text = tree.read(path)
    for table in find_tables(text) if _TABLE_COLUMN in text else ():
        if _TABLE_COLUMN in table.header:
            rows = tuple(map(TableRow, table.rows))
            yield TableAnchor(path, table.line, table.header, rows, *_marks(rows))


def _marks(rows: Sequence[TableRow]) -> tuple[str, str]:
    """The marks that most cells use for yes and for no."""
    cells = Counter(cell for row in rows for cell in row.cells[2:])
    yes = [cell for cell, _ in cells.most_common() if cell and cell[0] in _YES]
    no = [cell for cell, _ in cells.most_common() if cell and cell[0] in _NO]
    selector = (yes or no or ["\ufe0e"])[0][-1:]
    selector = selector if selector in _VARIATION_SELECTORS else ""
    return (yes[0] if yes else "✅" + selector), (no[0] if no else "❌" + selector)


# ---------------------------------------------------------------------------------------------------------------------
# The example's list


def find_example_list(tree: SourceTree) -> ListAnchor | None:
    """The example's list of models; None for an installed package (`absent_reason`).

    Raises VCG423 (not found), VCG424 (two places) and VCG425 (not a list of strings, or no map of examples).
    """
    if absent_reason(tree) is not None:
        return None
    path, value, line = _find_assignment(
        tree,
        _LIST_FILES,
        [_LIST],
        ("VCG423", f"the list `{_LIST}`"),
        f"every Python file under `examples/` with `{_LIST}`",
    )
    if not isinstance(value, ast.List) or len(_texts(value.elts)) != len(value.elts):
        raise _unexpected(tree, path, line, f"`{_LIST}` is not a list of strings")
    examples = _assignments(tree, path, _EXAMPLES)
    if len(examples) != 1 or not isinstance(examples[0][0], ast.Dict):
        raise _unexpected(
            tree, path, line, f"the file has no single dict literal `{_EXAMPLES}` with the names of examples"
        )
    return ListAnchor(
        path=path,
        variable=_LIST,
        line=line,
        entries=tuple(map(ListEntry, _texts(value.elts))),
        example_keys=tuple(_texts(examples[0][0].keys)),
    )


def find_eager(tree: SourceTree, examples: ListAnchor, key: str) -> int | None:
    """The line at which the example of `key` turns all CUDA graphs off, `enforce_eager=True`; None where none does."""
    module = tree.parse(examples.path)
    ((listed, _),) = _assigned(module, _EXAMPLES)
    assert isinstance(listed, ast.Dict)
    for name, value in zip(listed.keys, listed.values, strict=True):
        if isinstance(name, ast.Constant) and name.value == key:
            runner = find_method(module, last_name(value) or "")
            for node in ast.walk(runner) if runner is not None else ():
                if isinstance(node, ast.keyword) and ast.unparse(node) == "enforce_eager=True":
                    return node.lineno
    return None


def _texts(nodes: Iterable[ast.expr | None]) -> list[str]:
    """The values of the nodes that are literal strings."""
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


# ---------------------------------------------------------------------------------------------------------------------
# Assignments at top level, and the errors of all finders


def _assignments(tree: SourceTree, path: str, name: str) -> list[tuple[ast.expr, int]]:
    """The values that the module assigns to `name` at top level, each with the line of its statement.

    Parsing the whole example of vLLM 0.33 for two statements takes 50 ms. So a statement that starts a line with this
    name, and ends with a closing bracket at the start of a line, is parsed alone. Anything else needs the whole file.
    """
    text = tree.read(path)
    if name not in text:
        return []
    lines = text.splitlines()
    starts = [
        index
        for index, line in enumerate(lines)
        if line.startswith(name) and not (line[len(name) : len(name) + 1] or " ").isidentifier()
    ]
    if len(starts) == 1:
        start = starts[0]
        end = next((index for index in range(start, len(lines)) if lines[index][:1] in ("]", "}", ")")), None)
        if end is not None:
            try:
                statement = parse("\n".join(lines[start : end + 1]))
            except SyntaxError:
                pass
            else:
                ast.increment_lineno(statement, start)
                return _assigned(statement, name)
    return _assigned(tree.parse(path), name)


def _assigned(module: ast.Module, name: str) -> list[tuple[ast.expr, int]]:
    found: list[tuple[ast.expr, int]] = []
    for item in top_level(module.body):
        if any(isinstance(target, ast.Name) and target.id == name for target in assigned_to(item)):
            value = getattr(item, "value", None)
            if isinstance(value, ast.expr):
                found.append((value, item.lineno))
    return found


def _find_assignment(
    tree: SourceTree, known: tuple[str, ...], words: Sequence[str], lack: tuple[str, str], then: str
) -> tuple[str, ast.expr, int]:
    """The one assignment to the first of `words`: file, value and line.

    It is in a `known` file, or else in one with all the words, in the same top folder. Raises VCG424 when there are two
    or more, and the code and text of `lack` when there is none.
    """
    name = words[0]
    candidates = [path for path in known if tree.exists(path) and _assignments(tree, path, name)]
    if not candidates:
        hits = tree.containing(known[0].partition("/")[0], ".py", words)
        candidates = [path for path, found in hits.items() if len(found) == len(words)]
    places = [(path, value, line) for path in candidates for value, line in _assignments(tree, path, name)]
    if not places:
        raise _not_found(tree, *lack, known, then)
    if len(places) > 1:
        raise _ambiguous(tree, f"`{name}`", [(path, line) for path, _, line in places])
    return places[0]


def _ambiguous(tree: SourceTree, what: str, places: list[tuple[str, int]]) -> DiagnosticError:
    return DiagnosticError.of(
        "VCG424",
        f"{what} is in {len(places)} places, and one is needed",
        span=tree.span(*places[0]),
        help="remove or rename the ones that are not meant",
        notes=tuple(f"{tree.display(path)}:{line}" for path, line in places),
    )


def _not_found(tree: SourceTree, code: str, what: str, known: tuple[str, ...], then: str) -> DiagnosticError:
    return DiagnosticError.of(
        code,
        f"{what} is not in the tree",
        span=tree.span(known[0]),
        help="check that the tree is complete; vLLM has it since 0.20.0",
        notes=(f"searched {', '.join(f'`{path}`' for path in known)}, then {then}",),
    )


def _unexpected(tree: SourceTree, path: str, line: int, what: str) -> DiagnosticError:
    return DiagnosticError.of(
        "VCG425",
        what,
        span=tree.span(path, line),
        help="the tool edits the forms that vLLM 0.20.0 to 0.33.0 use; bring it into that form, or edit by hand",
    )
