"""The edits that the tool can make to existing files, as plain values.

An operation says *what* must be true of the file afterwards (this name is imported, this class has this base), never
*how* the text changes: that is the editors' business, and `scaffold.verify` checks it from the same values without
using the editors. Every operation is idempotent: when the file already satisfies it, it changes nothing. Standard
library only, so that planning can import this module without paying for the parsers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


def _is_dotted(name: str) -> bool:
    return bool(name) and all(part.isidentifier() for part in name.split("."))


@dataclass(frozen=True, slots=True)
class _Import:
    """`from module import name`; without a name, `import module`."""

    module: str
    name: str | None = None

    def __post_init__(self) -> None:
        bare = self.module.lstrip(".")
        assert self.module, "a module, or dots"
        assert not bare or _is_dotted(bare), self.module
        assert self.bound.isidentifier(), self

    @property
    def bound(self) -> str:
        """The name that the statement binds."""
        return self.module if self.name is None else self.name


class AddImport(_Import):
    """`from module import name` at module level; `module` may be relative (`.interfaces`). Without a name, `import
    module`, of a top-level package.

    A name that is imported already, from the same module, under whatever alias, counts as present.
    """

    __slots__ = ()


class DropImport(_Import):
    """`name` is not imported from `module` any more, or `import module` without a name: what goes used it last.

    Only from statements at module level, never from `import a, b`. A statement that is left without names goes, too.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DropTypingImport:
    """No statement under `if TYPE_CHECKING:` imports from `module`. If nothing else is left there, that goes, too."""

    module: str


@dataclass(frozen=True, slots=True)
class DropDefinition:
    """`name` is not defined any more, with the comments that touch its definition.

    `owner` is empty for a function or value at module level, `Class` for a method or value of the class's body, and
    `Class.method` for the statement `self.name = ...` of that method's body. The body has other statements, too.
    """

    name: str
    owner: str = ""

    def __post_init__(self) -> None:
        assert self.name.isidentifier(), self.name
        assert not self.owner or (_is_dotted(self.owner) and self.owner.count(".") < 2), self.owner


@dataclass(frozen=True, slots=True)
class AddBase:
    """`base` (a name or a dotted name) is a direct base of the class `class_name`, the `first` of them or the last."""

    class_name: str
    base: str
    first: bool = False

    def __post_init__(self) -> None:
        assert self.class_name.isidentifier(), self.class_name
        assert _is_dotted(self.base), self.base


@dataclass(frozen=True, slots=True)
class PutMethods:
    """The functions of `source` are methods of `class_name`, next to each other and in this order.

    `source` is a block without indentation: leading comments, then function definitions (decorators allowed), and
    attributes with a type between them (`name: int = 0`), which count as methods here. The methods named in `remove`
    go, with their own comments. The block takes the place of the first of its methods that the class has, else of the
    first that goes; otherwise it comes before the `first` method, or ends the class. A method of the block that the
    class has already, different and not in `remove`, is a conflict: nothing written by hand is replaced unasked.
    """

    class_name: str
    source: str
    remove: tuple[str, ...] = ()
    first: bool = False

    def __post_init__(self) -> None:
        assert self.class_name.isidentifier(), self.class_name


@dataclass(frozen=True, slots=True)
class PutFunction:
    """The function of `source` is at module level. A missing one is inserted before the definition `before`.

    One that is there with the same meaning is left alone; a different one of the same name is a conflict.
    """

    source: str
    before: str


@dataclass(frozen=True, slots=True)
class ReplaceMethod:
    """The method `name` of `class_name` is what `source` says; `source` may define helpers next to it.

    The old method's decorators and comments stay unless `source` brings its own.
    """

    class_name: str
    name: str
    source: str

    def __post_init__(self) -> None:
        assert self.class_name.isidentifier(), self.class_name
        assert self.name.isidentifier(), self.name


@dataclass(frozen=True, slots=True)
class ReplaceFunction:
    """The function `name` of the module, outside of all classes, is what `source` says, its decorators with it.

    Its overloads are none of it.

    The comments above stay.
    """

    name: str
    source: str

    def __post_init__(self) -> None:
        assert self.name.isidentifier(), self.name


@dataclass(frozen=True, slots=True)
class AddDictEntry:
    """The dict literal assigned to the module variable `variable` has the key `key`; a new one gets the expression
    `source`.

    A new entry goes to the end. The value of a key that is there already is not looked at.
    """

    variable: str
    key: str
    source: str

    def __post_init__(self) -> None:
        assert self.variable.isidentifier(), self.variable


@dataclass(frozen=True, slots=True)
class AddListEntry:
    """The list literal of strings assigned to `variable` contains `value`, in order if the literal is in order."""

    variable: str
    value: str

    def __post_init__(self) -> None:
        assert self.variable.isidentifier(), self.variable


@dataclass(frozen=True, slots=True)
class AddTableRow:
    """The Markdown table whose header cells are `header` has a row whose first cell is `row_key`; a new one gets
    `cells`.

    A new row goes where the table's order wants it, or to the end of a table in no order.
    Cells are Markdown source without the pipes. Backticks are ignored when keys are compared.
    """

    header: tuple[str, ...]
    row_key: str
    cells: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.cells) == len(self.header) > 0, (self.header, self.cells)
        assert not any("\n" in cell or "\r" in cell for cell in self.cells), self.cells


#: An edit of a Python file.
PythonEdit: TypeAlias = (
    AddImport
    | DropImport
    | DropTypingImport
    | DropDefinition
    | AddBase
    | PutMethods
    | PutFunction
    | ReplaceMethod
    | ReplaceFunction
    | AddDictEntry
    | AddListEntry
)
Edit: TypeAlias = PythonEdit | AddTableRow
