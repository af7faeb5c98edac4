"""Abstract values of the slicer: where a value comes from, what form it has and what role it plays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import reduce
from operator import or_

from scaffold.tower.parts import Evidence, Form, Label
from scaffold.tower.source import Owner


class Role(IntEnum):
    """The purpose of a metadata value. The order is the priority when two roles meet in one value."""

    NONE = 0
    ZEROS = 1
    ROWS = 2
    LENGTHS = 3
    PERMUTATION = 4
    BOUND = 5
    ENDS = 6  # cumulative offsets without the leading zero
    CUMULATIVE = 7
    TWO_SECTION = 8


#: Evidence kept for a value: the last few steps are the ones that a reader wants.
_TRAIL = 4


@dataclass(frozen=True)
class Value:
    """One abstract value.

    `items` are the elements of a tuple or list literal. `source` names the cumulative variable that lengths or a bound
    were computed from. `host` says where a tensor lives (None: unknown). `cls` is the class of a module object, or of
    the elements of a module list.
    """

    labels: Label = Label.NONE
    form: Form = Form.UNKNOWN
    role: Role = Role.NONE
    nullable: bool = False
    items: tuple[Value, ...] | None = None
    trail: tuple[Evidence, ...] = ()
    source: str | None = None
    host: bool | None = None
    cls: Owner | None = None

    def key(self) -> tuple[object, ...]:
        """The fields that decide how a function behaves on this value: everything but the evidence."""
        items = None if self.items is None else tuple(item.key() for item in self.items)
        cls = None if self.cls is None else id(self.cls[1])
        return (self.labels, self.form, self.role, self.nullable, items, self.source, self.host, cls)

    def with_labels(self, labels: Label) -> Value:
        """The same value with more labels."""
        return self if labels | self.labels == self.labels else replace(self, labels=self.labels | labels)

    def as_role(self, role: Role, evidence: Evidence | None = None, source: str | None = None) -> Value:
        """The same value in another role, with the line that shows it."""
        trail = self.trail if evidence is None else merge_trails(self.trail, (evidence,))
        return replace(self, role=role, trail=trail, source=source or self.source)


CONST = Value()
NONE_VALUE = Value(form=Form.NONE, nullable=True)


def labels_of(values: Iterable[Value]) -> Label:
    """All labels of some values."""
    return reduce(or_, (value.labels for value in values), Label.NONE)


def merge_trails(a: tuple[Evidence, ...], b: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Both lists of evidence without repeats, the latest kept."""
    return tuple(dict.fromkeys([*a, *b]))[-_TRAIL:]


def join_form(a: Form, b: Form) -> Form:
    """The form of a value that is one or the other."""
    if a is b or b is Form.NONE:
        return a
    return b if a is Form.NONE else Form.UNKNOWN


def join(a: Value, b: Value) -> Value:
    """A value that is one or the other (two branches, or two passes of a loop)."""
    if a == b:
        return a
    items = None
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        items = tuple(join(x, y) for x, y in zip(a.items, b.items, strict=True))
    return Value(
        labels=a.labels | b.labels,
        form=join_form(a.form, b.form),
        role=max(a.role, b.role),
        nullable=a.nullable or b.nullable or Form.NONE in (a.form, b.form),
        items=items,
        trail=merge_trails(a.trail, b.trail),
        source=a.source or b.source,
        host=a.host if a.host == b.host else (a.host if _is_nowhere(b) else b.host if _is_nowhere(a) else None),
        cls=a.cls or b.cls,
    )


def _is_nowhere(value: Value) -> bool:
    """None, or a list without entries yet: in no memory, so that what it becomes says where."""
    return value.form is Form.NONE or value.items == ()
