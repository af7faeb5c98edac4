"""Add an import where a careful author would have written it.

Joining an existing statement is preferred; a new statement goes to its sorted place in the right section. The order is
the one that ruff's isort rules use by default (sections, then modules, then constants, classes and functions); the
target's own configuration has the last word in `scaffold.verify.style`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from scaffold.edit.document import Chunk, Guard, PythonDocument, is_blank, is_type_checking, split_lines
from scaffold.edit.faults import name_taken
from scaffold.edit.operations import AddImport, DropImport, DropTypingImport
from scaffold.syntax import assigned_to

#: Top-level packages of a vLLM tree that ruff's `src = ["."]` makes first party in every file.
_FIRST_PARTY = frozenset({"vllm", "tests", "tools", "benchmarks", "examples"})
_FUTURE, _STDLIB, _THIRD_PARTY, _OWN, _LOCAL = range(5)


def resolve_module(module: str, package: Sequence[str]) -> str:
    """The absolute name of a module as seen from `package`; a relative one that leaves the tree stays as it is."""
    bare = module.lstrip(".")
    level = len(module) - len(bare)
    if not level or level > len(package):
        return module
    base = package[: len(package) - level + 1]
    return ".".join([*base, *([bare] if bare else [])])


def imported_module(node: ast.ImportFrom) -> str:
    """The module of a statement as it is written: `.interfaces`."""
    return "." * node.level + (node.module or "")


def _is_there(document: PythonDocument, edit: AddImport) -> bool:
    wanted = resolve_module(edit.module, document.package)
    for _, node, guard in document.statements():
        if guard not in (Guard.ALWAYS, Guard.ATTEMPTED):
            continue
        if edit.name is None:
            found = isinstance(node, ast.Import) and any(
                alias.asname is None and alias.name.partition(".")[0] == edit.module for alias in node.names
            )
        else:
            found = (
                isinstance(node, ast.ImportFrom)
                and resolve_module(imported_module(node), document.package) == wanted
                and any(alias.name == edit.name for alias in node.names)
            )
        if found:
            return True
    return False


def add_import(document: PythonDocument, edit: AddImport) -> bool:
    """Apply `AddImport`. Errors: VCG433 (the name means something else), VCG435."""
    if _is_there(document, edit):
        return False
    _refuse_rebinding(document, edit)
    if edit.name is None or not _join_statement(document, edit, edit.name):
        _insert_statement(document, edit)
    return True


def drop_import(document: PythonDocument, edit: DropImport) -> bool:
    """Apply `DropImport`: the name leaves its statement, whose other names keep their lines."""
    for index, node, guard in document.statements():
        names = [alias.asname or alias.name for alias in getattr(node, "names", ())]
        if guard is not Guard.ALWAYS or not _imports(document, node, edit) or edit.bound not in names:
            continue
        if len(names) == 1:
            document.remove(index)
        else:
            _remove_name(document, index, names.index(edit.bound))
        return True
    return False


def drop_typing_import(document: PythonDocument, edit: DropTypingImport) -> bool:
    """Apply `DropTypingImport`, to a block without `else`."""
    for index, node, _ in document.statements():
        if not isinstance(node, ast.If) or not is_type_checking(node.test) or node.orelse:
            continue
        gone = [one for one in node.body if _imports(document, one, DropImport(edit.module, "names"))]
        if len(gone) == len(node.body):
            around = document.chunks[index - 1 : index + 2 : 2]
            document.remove(index)
            if index and len(around) == 2 and all(chunk.is_import for chunk in around):
                document.chunks[index] = around[1]  # the imports around it become one block
        elif gone:
            lines = split_lines(document.chunks[index].code)
            start = document.chunks[index].nodes[0].lineno
            lost = {line - start for one in gone for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
            document.recode(index, "".join(line for number, line in enumerate(lines) if number not in lost))
        if gone:
            return True
    return False


def _imports(document: PythonDocument, node: ast.stmt, edit: DropImport) -> bool:
    """Whether a statement imports from the module, or is `import ...`, as the edit wants it."""
    if edit.name is None or not isinstance(node, ast.ImportFrom):
        return edit.name is None and isinstance(node, ast.Import)
    wanted = resolve_module(edit.module, document.package)
    return resolve_module(imported_module(node), document.package) == wanted


def _remove_name(document: PythonDocument, index: int, place: int) -> None:
    import libcst as cst

    def change(statement: cst.BaseStatement) -> cst.BaseStatement:
        small: Any = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        assert isinstance(small, cst.ImportFrom), "the chunk of an import"
        assert not isinstance(small.names, cst.ImportStar), "it has names"
        elements = list(small.names)
        gone = elements.pop(place)
        if elements[-1] is not small.names[-1]:
            elements[-1] = elements[-1].with_changes(comma=gone.comma)
        return statement.with_changes(body=[small.with_changes(names=elements)])

    document.rewrite(index, change)


def _refuse_rebinding(document: PythonDocument, edit: AddImport) -> None:
    wanted = resolve_module(edit.module, document.package)
    for _, node, guard in document.statements():
        if edit.bound not in _bound_names(node):
            continue
        if (
            guard is Guard.TYPING
            and isinstance(node, ast.ImportFrom)
            and resolve_module(imported_module(node), document.package) == wanted
        ):
            # Importing it twice would shadow the first; which of the two the file needs is not ours to guess.
            reason = f"{edit.module}` at run time: it is imported for type checking only"
            raise name_taken(document.path, edit.bound, reason, node.lineno)
        raise name_taken(document.path, edit.bound, edit.module, node.lineno)


def _bound_names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    else:
        yield from (part.id for one in assigned_to(node) for part in ast.walk(one) if isinstance(part, ast.Name))


# -- joining ----------------------------------------------------------------------------------------------------------


def _join_statement(document: PythonDocument, edit: AddImport, name: str) -> bool:
    """Add `name` to a statement that imports from the module already, if there is one of plain shape."""
    wanted = resolve_module(edit.module, document.package)
    for index, node, found in document.statements():
        if not isinstance(node, ast.ImportFrom) or found is not Guard.ALWAYS:
            continue
        if resolve_module(imported_module(node), document.package) != wanted:
            continue
        if any(alias.asname or alias.name == "*" for alias in node.names):
            continue
        if _insert_name(document, index, node, name):
            return True
    return False


def _insert_name(document: PythonDocument, index: int, node: ast.ImportFrom, name: str) -> bool:
    """Whether it worked: a statement that shares its line with others is left alone."""
    import libcst as cst

    from scaffold.edit.sequences import BracketLayout

    names = [alias.name for alias in node.names]
    place = _sorted_place([_member_key(item) for item in names], _member_key(name))
    done = False

    def change(statement: cst.BaseStatement) -> cst.BaseStatement:
        nonlocal done
        small: Any = None
        if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
            small = statement.body[0]
        if not isinstance(small, cst.ImportFrom):
            return statement
        assert not isinstance(small.names, cst.ImportStar), "it has names"
        done = True
        opening = small.lpar.whitespace_after if small.lpar else cst.SimpleWhitespace("")
        closing = small.rpar.whitespace_before if small.rpar else cst.SimpleWhitespace("")
        layout = BracketLayout(opening, small.names, closing).insert(place, cst.ImportAlias(cst.Name(name)))
        brackets = {"lpar": cst.LeftParen(layout.opening), "rpar": cst.RightParen(layout.closing)} if small.lpar else {}
        return statement.with_changes(body=[small.with_changes(names=layout.elements, **brackets)])

    document.rewrite(index, change)
    return done


def _sorted_place(keys: Sequence[Any], key: Any) -> int:
    """Before the first greater key if the keys are in order, else at the end."""
    if list(keys) != sorted(keys):
        return len(keys)
    return sum(item < key for item in keys)


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that compares runs of digits as numbers: `v9` before `v10`."""
    parts: list[tuple[int, int, str]] = []
    for char in text:
        if char.isdecimal():
            digits = parts.pop()[1] * 10 if parts and parts[-1][0] == 0 else 0
            parts.append((0, digits + int(char), ""))
        else:
            parts.append((1, 0, char))
    return tuple(parts)


def _member_key(name: str) -> Any:
    """Constants, then classes, then the rest; letters without case, then with it."""
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[:1].isupper() else 2
    return kind, _natural(name.lower()), _natural(name)


# -- a new statement --------------------------------------------------------------------------------------------------


def _section(module: str, document: PythonDocument) -> int:
    if module.startswith("."):
        return _LOCAL
    top = module.partition(".")[0]
    if top == "__future__":
        return _FUTURE
    if top in sys.stdlib_module_names:
        return _STDLIB
    own = _FIRST_PARTY if _is_of_vllm(document) else document.package[:1]
    return _OWN if top in own else _THIRD_PARTY


def _is_of_vllm(document: PythonDocument) -> bool:
    """Whether a file is of vLLM's tree; one that is in no folder may be of any."""
    return not document.package or document.package[0] in _FIRST_PARTY


def _statement_key(node: ast.Import | ast.ImportFrom, document: PythonDocument) -> Any:
    """Section, plain imports before `from`, distant packages before near ones, then the module's name."""
    if isinstance(node, ast.Import):
        name = node.names[0].name
        return _section(name, document), 0, 0, _natural(name.lower()), _natural(name)
    name = node.module or ""
    return _section(imported_module(node), document), 1, -node.level, _natural(name.lower()), _natural(name)


def _parse_import(edit: AddImport) -> ast.Import | ast.ImportFrom:
    node = ast.parse(_statement_text(edit)).body[0]
    assert isinstance(node, ast.Import | ast.ImportFrom)
    return node


def _statement_text(edit: AddImport) -> str:
    return f"import {edit.module}" if edit.name is None else f"from {edit.module} import {edit.name}"


def _import_runs(document: PythonDocument) -> list[range]:
    """Maximal runs of import statements at the top level."""
    runs: list[range] = []
    start = None
    for index in range(len(document.chunks) + 1):
        if index < len(document.chunks) and document.chunks[index].is_import:
            start = index if start is None else start
        elif start is not None:
            runs.append(range(start, index))
            start = None
    return runs


def _main_run(document: PythonDocument) -> range | None:
    """The run of imports that new ones join: the longest, the first of equals."""
    return max(_import_runs(document), key=len, default=None)


def _insert_statement(document: PythonDocument, edit: AddImport) -> None:
    chunks, newline = document.chunks, document.newline
    code = _statement_text(edit) + newline
    run = _main_run(document)
    if run is None:
        _insert_first_import(document, code)
        return
    key = _statement_key(_parse_import(edit), document)
    keys = [_statement_key(_first_import(chunks[index]), document) for index in run]
    same = [index for index, other in zip(run, keys, strict=True) if other[0] == key[0]]
    if not _is_of_vllm(document):
        # Which further packages are first party there is the author's matter: a name joins its package's statements.
        top = edit.module.partition(".")[0]
        same = [index for index in run if _top(_first_import(chunks[index])) == top] or same
    own = [keys[index - run.start] for index in same]
    # A section that is not in order (`isort: skip`, a deliberate order) gets the name at its end.
    among = same if own == sorted(own) else []
    end = same[-1] + 1 if same else run.stop
    place = next((index for index in (among if same else run) if keys[index - run.start] > key), end)
    if place in same or (not same and place < run.stop):  # above another statement, or a section above another one
        following = chunks[place]
        above, attached = (following.gap, "") if place == 0 else following.split_gap()
        chunks[place] = replace(following, gap=attached if same else newline + attached)
        chunks.insert(place, document.make_chunk(above, code))
    else:  # at the end of its section, or a section below the others
        chunks.insert(place, document.make_chunk("" if same else newline, code))


def _top(node: ast.Import | ast.ImportFrom) -> str:
    """The top-level package of a statement's module."""
    name = node.names[0].name if isinstance(node, ast.Import) else imported_module(node)
    return name.partition(".")[0]


def _first_import(chunk: Chunk) -> ast.Import | ast.ImportFrom:
    node = chunk.nodes[0]
    assert isinstance(node, ast.Import | ast.ImportFrom)
    return node


def _insert_first_import(document: PythonDocument, code: str) -> None:
    """The file has no import: below the docstring, or below the comments that head the file."""
    chunks, newline = document.chunks, document.newline
    if chunks and _is_docstring(chunks[0].nodes[0]):
        chunks.insert(1, document.make_chunk(newline, code))
        following = 2
    elif chunks:
        head, attached = chunks[0].split_gap()
        chunks[0] = replace(chunks[0], gap=attached)
        chunks.insert(0, document.make_chunk(head, code))
        following = 1
    else:
        chunks.append(document.make_chunk(document.tail, code))
        document.tail = ""
        return
    if following < len(chunks):
        chunk = chunks[following]
        if not chunk.gap or not is_blank(split_lines(chunk.gap)[0]):
            gap = newline * (2 if isinstance(chunk.nodes[0], ast.FunctionDef | ast.ClassDef) else 1) + chunk.gap
            chunks[following] = replace(chunk, gap=gap)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
