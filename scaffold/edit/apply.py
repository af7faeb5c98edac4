"""Apply operations to one file's text. Nothing here reads or writes files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
class Edited:
    """The text after all operations, and those that changed something. The very same text if none did."""

    text: str
    changed: tuple[Edit, ...]


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

    changed: list[Edit] = []
    for edit in edits:
        new = add_table_row(text, edit, path)
        changed += [edit] if new != text else []
        text = new
    return Edited(text, tuple(changed))


def _edit_python(text: str, edits: Sequence[PythonEdit], path: str, display: str) -> Edited:
    from scaffold.edit.document import PythonDocument

    document = PythonDocument.parse(text, path, display)
    changed = tuple(edit for edit in edits if _apply(document, edit))
    return Edited(document.text, changed)


def _apply(document: PythonDocument, edit: PythonEdit) -> bool:
    """One operation; the editors' modules load libcst (150 ms to import) only when a file is edited."""
    from scaffold.edit import classes, imports, removal, toplevel

    editors: dict[type, Callable[[PythonDocument, Any], bool]] = {
        AddImport: imports.add_import,
        DropImport: imports.drop_import,
        DropTypingImport: imports.drop_typing_import,
        DropDefinition: removal.drop_definition,
        AddBase: classes.add_base,
        PutMethods: classes.put_methods,
        ReplaceMethod: classes.replace_method,
        ReplaceFunction: toplevel.replace_function,
        PutFunction: toplevel.put_function,
        AddDictEntry: toplevel.add_dict_entry,
        AddListEntry: toplevel.add_list_entry,
    }
    return editors[type(edit)](document, edit)
