"""The changes that a run intends to make to a tree: files, the edits of each, and the reason for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from scaffold.descriptor.sections import Explicit

if TYPE_CHECKING:
    from scaffold.cut import Extraction, Sharding, Way
    from scaffold.descriptor import AnyPort
    from scaffold.diagnostics import Diagnostic
    from scaffold.edit.operations import Edit
    from scaffold.plan.methods import Methods
    from scaffold.protocol.profile import ProtocolProfile
    from scaffold.tower import TowerSplit


class Present(Enum):
    """The implementation of the protocol that a class has before the edits of a plan."""

    NOTHING = auto()
    #: Code of others, which only a replacement may swap.
    FOREIGN = auto()
    #: A generated port that somebody edited, or that another descriptor or version of the tool gave.
    CHANGED = auto()
    #: The port that the descriptor gives.
    GENERATED = auto()


@dataclass(frozen=True)
class Fact:
    """Something that was read from the tree: `plan -v` shows it with its place."""

    name: str
    value: str
    evidence: str


@dataclass(frozen=True)
class FilePlan:
    """The edits of one file, in order. `reason` is what `plan` prints; `class_name` is set for the model file.

    `source` is the whole text of a file that the port brings, and that has no edits.
    """

    path: str
    edits: tuple[Edit, ...]
    reason: str
    class_name: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Plan:
    """All intended edits of one descriptor in one tree, plus what the user should know about them.

    `methods` are those of the protocol, and `present` says what the class has of them. `split` is the split of the
    tower that some of the edits write, None when there is nothing to split; `way` is the way to the encoder that others
    write, or that an `extraction` makes methods of. `sharding` has the methods that get a parameter for the model's own
    data parallelism. `shared` is what a port brings for all models: checks of vLLM's manager, and the comparison in
    vLLM's tests. `files` have it, too.
    """

    port: AnyPort
    profile: ProtocolProfile
    methods: Methods
    present: Present
    files: tuple[FilePlan, ...]
    notes: tuple[Diagnostic, ...] = ()
    facts: tuple[Fact, ...] = ()
    split: TowerSplit | None = None
    way: Way | None = None
    extraction: Extraction | None = None
    sharding: Sharding | None = None
    shared: tuple[FilePlan, ...] = ()

    @property
    def reenters(self) -> bool:
        """Whether the port runs the model's code again around a replay: then it has its methods from a class for
        that. VCG466 among the notes says why.
        """
        return self.methods.mixin is not None

    @property
    def only_shared(self) -> bool:
        """Whether nothing is planned but what ports share."""
        return self.files == self.shared

    @property
    def counts_units(self) -> bool:
        """Whether the port says how many rows a graph gives of a unit."""
        return self.extraction is not None and isinstance(self.port.explicit, Explicit)

    @property
    def single(self) -> bool:
        """Whether an item is one unit, so that a batch bounds the units of its graph, too."""
        return self.counts_units and isinstance(self.port.explicit, Explicit) and self.port.explicit.single
