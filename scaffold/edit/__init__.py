"""Edit existing files: Python through libcst, one Markdown table by line.

`apply_edits` takes a text and operations (`scaffold.edit.operations`) and returns a text. `scaffold.verify` proves an
edit from the operations alone, and does not use this package's editors for it.
"""

from scaffold.edit.apply import Edited, apply_edits
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

__all__ = [
    "AddBase",
    "AddDictEntry",
    "AddImport",
    "AddListEntry",
    "AddTableRow",
    "DropDefinition",
    "DropImport",
    "DropTypingImport",
    "Edit",
    "Edited",
    "PutFunction",
    "PutMethods",
    "ReplaceFunction",
    "ReplaceMethod",
    "apply_edits",
]
