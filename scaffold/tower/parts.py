"""The parts of a slice of a tower: labels, kinds, crossings, hazards, pieces. Small frozen values, no analysis.

Terms. The *tower* is a vision transformer whose `forward` takes pixels and a grid. *Data* is what follows from the
pixels' values, *shape* what follows from the pixels' shape only, *metadata* what follows from the grid. The *cut*
separates the statements that build metadata (they move into `prepare_encoder_metadata`) from those that touch data
(they stay in `forward` and are captured). A variable *crosses* the cut when metadata builds it and data reads it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, Flag


class Label(Flag):
    """Where a value comes from. No label means configuration: weights, attributes of `self`, literals."""

    NONE = 0
    SHAPE = 1
    META = 2
    DATA = 4


class Kind(str, Enum):
    """The kind of a crossing variable. It fixes how a buffer of it is padded and where it lives."""

    ROWS = "rows"
    CUMULATIVE = "cumulative"
    TWO_SECTION = "two_section"
    LENGTHS = "lengths"
    PERMUTATION = "permutation"
    HOST_BOUND = "host_bound"


class Form(str, Enum):
    """The kind of Python object of a value, if its source tells."""

    TENSOR = "tensor"
    NUMPY = "numpy"
    PYTHON = "python"
    NONE = "None"
    UNKNOWN = "unknown"


class Place(str, Enum):
    """Where a statement of `forward` goes."""

    MOVE = "move"  # metadata: into the metadata method
    STAY = "stay"  # data: remains in forward
    BOTH = "both"  # configuration that both sides read: a copy on each side
    SPLIT = "split"  # a block whose body goes to both sides, under the same header


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why something is believed: a line of a file and what is done there."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"


@dataclass(frozen=True, slots=True)
class Hazard:
    """An operation that must not run while a CUDA graph is captured, or that bakes a value into it.

    `moved` is True when the split takes it out of the captured part. `via` is the chain of calls that leads to it.
    """

    what: str
    reason: str
    file: str
    line: int
    text: str
    moved: bool
    via: tuple[str, ...] = ()
    #: The label of what it depends on. A split must not leave metadata behind in the captured part.
    label: Label = Label.NONE
    #: Whether it waits for the GPU in an eager call, too, where the grid is on the host.
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that metadata builds and data reads.

    `name` is the variable in `forward`, `key` the entry of the metadata dict (they differ when the caller of the slicer
    chose another name). `source` is the name of the cumulative
    crossing that a bound or lengths were computed from. `nullable`: the value may be None (some attention backends do
    not use it).
    """

    name: str
    key: str
    kind: Kind
    form: Form
    nullable: bool
    evidence: tuple[Evidence, ...]
    defined_at: tuple[int, ...]
    used_at: tuple[int, ...]
    certain: bool = True
    source: str | None = None
    #: Whether every path of the moved statements binds the variable; otherwise it starts as None.
    always: bool = True
    #: Where the tensor lives: True on the host, False on the device, None when the source does not tell.
    host: bool | None = None
    #: The staying statements that read it, and the leaf that defines it last (None: a parameter).
    users: tuple[ast.stmt, ...] = field(default=(), repr=False, compare=False)
    definer: ast.stmt | None = field(default=None, repr=False, compare=False)
    #: Cumulative only: the form of the finished plain offsets, and the first top-level statement that changes them
    #: again (None: none does). Padding goes in front of it.
    plain_form: Form | None = None
    pad_before: ast.stmt | None = field(default=None, repr=False, compare=False)


_FORMS = {"list": ("list", "List", "Sequence", "Iterable", "tuple"), "tensor": ("Tensor",)}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function, with the text of its annotation and default."""

    name: str
    annotation: str | None
    default: str | None
    keyword_only: bool = False

    @property
    def forms(self) -> frozenset[str]:
        """The forms that a caller may pass, by the annotation: "list", "tensor" or both. A grid is one or the other."""
        text = self.annotation or ""
        found = {form for form, words in _FORMS.items() if any(word in text for word in words)}
        return frozenset(found or _FORMS)


@dataclass(frozen=True, eq=False)
class Piece:
    """One statement of `forward` and where it goes. For SPLIT, `bodies` are the pieces of its blocks."""

    node: ast.stmt
    place: Place
    label: Label
    bodies: tuple[tuple[Piece, ...], ...] = ()
    #: Names that the moved part of this piece writes.
    moved_writes: frozenset[str] = frozenset()
    reason: str = ""

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass(frozen=True, eq=False)
class Replacement:
    """The expression `node` is written as `text`."""

    node: ast.expr
    text: str


@dataclass(frozen=True, eq=False)
class Upload:
    """An index on the host of a table on the device: `index` goes there in front of `statement` of a method."""

    function: ast.FunctionDef | ast.AsyncFunctionDef
    statement: ast.stmt
    index: str
    table: str


@dataclass(frozen=True, eq=False)
class ChildSlice:
    """A child module whose metadata arrives as arguments of `call`, sliced in its own right.

    `given` has the argument's expression in the parent for each parameter of the child that gets one.
    """

    attribute: str
    call: ast.Call
    statement: ast.stmt
    slice: TowerSlice
    given: Mapping[str, ast.expr]

    @property
    def arguments(self) -> tuple[tuple[str, ast.expr], ...]:
        """Those of the child's metadata."""
        return tuple((name, self.given[name]) for name in self.slice.metadata)


@dataclass(frozen=True, eq=False)
class TowerSlice:
    """The result of `slice_tower`.

    `already_split` towers carry `keys` and `method_parameters` only (read from the existing metadata method);
    sliced ones carry everything else. `keys` is in the order of definition, children's keys last.
    """

    file: str
    #: The file as people see it: with the tree's label in front.
    shown: str
    source: str = field(repr=False)
    class_name: str
    entry: str
    data: tuple[str, ...]
    metadata: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    keys: tuple[str, ...]
    already_split: bool = False
    metadata_method: str | None = None
    method_parameters: tuple[Parameter, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    pieces: tuple[Piece, ...] = field(default=(), repr=False)
    #: `x.device` or `x.dtype` of data, or `self.device`, inside moved statements, and what stands for it there.
    declassified: tuple[Replacement, ...] = field(default=(), repr=False)
    #: Metadata arguments of children that have no effect there: the new `forward` passes None.
    dead_arguments: tuple[ast.expr, ...] = field(default=(), repr=False)
    #: Calls whose last argument is one of these, and whose parameter is None by default: it goes.
    shortened: tuple[ast.Call, ...] = ()
    children: tuple[ChildSlice, ...] = ()
    hazards: tuple[Hazard, ...] = ()
    class_members: frozenset[str] = frozenset()
    #: Parameters with a default that the metadata statements read (they are passed on to the metadata method).
    constants: tuple[Parameter, ...] = ()
    #: Offsets that upstream makes on the device, and the metadata method on the host: they go to the device at its end.
    on_host: frozenset[str] = frozenset()
    #: Methods of the class that moved statements call have these.
    uploads: tuple[Upload, ...] = ()

    @property
    def moved_lines(self) -> tuple[int, ...]:
        """First lines of all moved statements, in order."""
        return tuple(piece.line for piece in flatten(self.pieces) if piece.place in (Place.MOVE, Place.BOTH))

    @property
    def staying_lines(self) -> tuple[int, ...]:
        """First lines of all staying statements, in order."""
        return tuple(piece.line for piece in flatten(self.pieces) if piece.place in (Place.STAY, Place.BOTH))


def flatten(pieces: tuple[Piece, ...]) -> list[Piece]:
    """All leaf pieces in source order (the bodies of a SPLIT piece replace it)."""
    leaves: list[Piece] = []
    for piece in pieces:
        if piece.place is Place.SPLIT:
            for body in piece.bodies:
                leaves.extend(flatten(body))
        else:
            leaves.append(piece)
    return leaves


@dataclass(frozen=True, slots=True)
class MethodEdit:
    """New source of the method `replaces` of a class; `source` (dedented) also defines the methods named in `adds`.

    `added` are the statements that the split added, per function; all others are the user's own.
    """

    file: str
    class_name: str
    replaces: str
    adds: tuple[str, ...]
    source: str
    added: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), repr=False)
    #: Names that the source needs of other modules: module and name.
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class TowerSplit:
    """The result of `split_tower`: what to write. Children come first in `edits`."""

    slice: TowerSlice
    edits: tuple[MethodEdit, ...]
    method_parameters: tuple[Parameter, ...]
