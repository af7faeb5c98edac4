"""The model that a draft is about, and what its source says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from scaffold.draft.evaluate import History
from scaffold.draft.inputs import read_fields, shapes_of
from scaffold.draft.locate import Located
from scaffold.draft.objects import Objects
from scaffold.draft.steps import PartCall, Walker
from scaffold.draft.values import FieldConfig, Mapped, SourceLine
from scaffold.protocol.tree import SourceTree
from scaffold.tower.source import Program


@dataclass(frozen=True)
class Subject:
    """A model of a tree. Everything is read when it is first asked for, once.

    With `into_parts` the way goes into parts without an encoder that get raw pixels, too.
    """

    tree: SourceTree
    program: Program
    model: Located
    into_parts: bool = False

    @cached_property
    def fields(self) -> dict[str, FieldConfig]:
        """How the processor cuts each input into items. Raises VCG483."""
        return read_fields(self.tree, self.program, self.model)

    @cached_property
    def objects(self) -> Objects:
        """The parts of the model, as its constructor makes them."""
        return Objects(self.program, self.model.owner)

    @cached_property
    def walker(self) -> Walker:
        """The way from `embed_multimodal` through the model's parts."""
        return Walker(self.program, self.model.owner, self.objects, into_parts=self.into_parts)

    @property
    def root(self) -> PartCall:
        return self.walker.root

    @property
    def trace(self) -> History:
        return self.walker.trace

    def shapes(self, key: str, *, made: bool = False) -> Iterator[tuple[tuple[object, ...], SourceLine, Mapped]]:
        """Annotated shapes of an input, or (`made`) of values that are made of it alone."""
        return shapes_of(self.program, self.model.owner[0], self.trace, key, made=made)
