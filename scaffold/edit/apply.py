"""Apply operations to one file's text. Nothing here reads or writes files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    PythonEdit,
    ReplaceFunction,
    ReplaceMethod,
)

if TYPE_CHECKING:
    from scaffold.edit.document import PythonDocument


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """An operation, and whether the file needed it."""

    edit: Edit
    changed: bool


@dataclass(frozen=True, slots=True)
class Edited:
    """The text after all operations. It is the very same text if none of them changed anything."""

    text: str
    applied: tuple[AppliedEdit, ...]


def apply_edits(text: str, edits: Sequence[Edit], *, path: str, display: str | None = None) -> Edited:
    """Apply the operations in order.

    `text` is the file's content with its own newlines (read it with `newline=""`) and byte order mark. `path` is
    relative to the tree's root: it says what relative imports mean. `display` is the path that errors name, `path` by
    default. Either all operations succeed, or `DiagnosticError` is raised with a code between VCG430 and VCG436.
    """
    rows = [edit for edit in edits if isinstance(edit, AddTableRow)]
    if rows:
        assert len(rows) == len(edits), f"{path}: table rows and Python edits do not mix"
        return _edit_markdown(text, rows, display or path)
    return _edit_python(text, [edit for edit in edits if not isinstance(edit, AddTableRow)], path, display or path)


def _edit_markdown(text: str, edits: Sequence[AddTableRow], path: str) -> Edited:
    from scaffold.edit.tables import add_table_row

    applied = []
    for edit in edits:
        new = add_table_row(text, edit, path)
        applied.append(AppliedEdit(edit, new != text))
        text = new
    return Edited(text, tuple(applied))


def _edit_python(text: str, edits: Sequence[PythonEdit], path: str, display: str) -> Edited:
    from scaffold.edit.document import PythonDocument

    document = PythonDocument.parse(text, path, display)
    applied = tuple(AppliedEdit(edit, _apply(document, edit)) for edit in edits)
    return Edited(document.text, applied)


def _apply(document: PythonDocument, edit: PythonEdit) -> bool:
    """One operation; the editors' modules load libcst (150 ms to import) only when a file is edited."""
    from scaffold.edit import classes, imports, removal, toplevel

    if isinstance(edit, AddImport):
        return imports.add_import(document, edit)
    if isinstance(edit, DropImport):
        return imports.drop_import(document, edit)
    if isinstance(edit, DropTypingImport):
        return imports.drop_typing_import(document, edit)
    if isinstance(edit, DropDefinition):
        return removal.drop_definition(document, edit)
    if isinstance(edit, AddBase):
        return classes.add_base(document, edit)
    if isinstance(edit, PutMethods):
        return classes.put_methods(document, edit)
    if isinstance(edit, ReplaceMethod):
        return classes.replace_method(document, edit)
    if isinstance(edit, ReplaceFunction):
        return toplevel.replace_function(document, edit)
    if isinstance(edit, PutFunction):
        return toplevel.put_function(document, edit)
    if isinstance(edit, AddDictEntry):
        return toplevel.add_dict_entry(document, edit)
    assert isinstance(edit, AddListEntry), edit
    return toplevel.add_list_entry(document, edit)
