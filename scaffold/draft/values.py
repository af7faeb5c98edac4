"""The values that the evaluator of `evaluate.py` computes with: those of a method that is read and never run, and
where each came from.

A value that the evaluator does not understand is an `Op`: the name of what was done and the values that it was done
to. Patterns over these terms (`derive.py`) are what a draft is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from scaffold.syntax import FunctionNode
from scaffold.tower.source import Module, Owner


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the tree; `file` is relative to its root."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """Base of all values."""


@dataclass(frozen=True, slots=True)
class Plain(Term):
    value: object


@dataclass(frozen=True, slots=True)
class Ref(Term):
    """A dotted name that means no data: `self.visual.merge_size`, `torch.cat`."""

    path: str
    place: SourceLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BatchInputs(Term):
    """The mapping of a model's inputs: `**kwargs` of the model, the batch of the processor."""


@dataclass(frozen=True, slots=True)
class Input(Term):
    """One input by its key. `columns` of a row (None: not told; 0: one axis) are those of a look-up's default."""

    key: str
    columns: int | None = None
    place: SourceLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class FieldConfig(Term):
    """One entry of `_get_mm_fields_config`: `kind` is the constructor (batched, flat_from_sizes, shared, flat), and
    `on_host` whether vLLM leaves the input there."""

    kind: str
    modality: str | None
    sizes: Term | None
    place: SourceLine
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class Op(Term):
    """Something done to values: a call, a method (`.split`), an operator, a subscript (`[]`), an element (`each`)."""

    name: str
    args: tuple[Term, ...]
    keywords: tuple[tuple[str, Term], ...] = ()
    place: SourceLine | None = field(default=None, compare=False)

    @property
    def operands(self) -> tuple[Term, ...]:
        return (*self.args, *(value for _, value in self.keywords))


@dataclass(frozen=True, slots=True, eq=False)
class Mapped(Term):
    """A mapping with known keys, changed in place by the evaluated code. `made_by` names a constructed class."""

    entries: dict[str, Term]
    made_by: str | None = None
    place: SourceLine | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Items(Term):
    """A list or tuple; of a list that a loop fills, one element for each `append` in the text."""

    values: list[Term]


@dataclass(frozen=True, slots=True, eq=False)
class Closure(Term):
    """A function with the variables around it. `owner` is the class that defines it, `bound` whether self is given,
    and `receiver` the path of that self from the evaluated class on: `self.vision_tower` in a method of the tower."""

    module: Module
    owner: Owner | None
    node: FunctionNode
    variables: dict[str, Term]
    bound: bool = False
    receiver: str = "self"


@dataclass(frozen=True, slots=True, eq=False)
class Made(Term):
    """An object of a class of the tree, by the call that makes it."""

    owner: Owner
    args: tuple[Term, ...]
    keywords: tuple[tuple[str, Term], ...]
    place: SourceLine


def walk_value(value: Term) -> Iterator[Term]:
    """The value and everything that it was made of. Each object is given once."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, Op):
            pending += reversed(current.operands)
        elif isinstance(current, Items):
            pending += reversed(current.values)
        elif isinstance(current, Mapped):
            pending += reversed(list(current.entries.values()))
        elif isinstance(current, FieldConfig) and current.sizes is not None:
            pending.append(current.sizes)


def inputs_of(value: Term) -> tuple[str, ...]:
    """Keys of the inputs that a value was made of, in the order of the text."""
    return tuple(dict.fromkeys(part.key for part in walk_value(value) if isinstance(part, Input)))
