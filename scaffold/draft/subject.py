"""The model that a draft is about."""

from __future__ import annotations

from dataclasses import dataclass

from scaffold.draft.locate import Located, locate
from scaffold.protocol.tree import SourceTree
from scaffold.tower.source import Program


@dataclass(frozen=True, slots=True)
class Subject:
    """A model of a tree."""

    tree: SourceTree
    program: Program
    model: Located


def subject_of(tree: SourceTree, reference: str) -> Subject:
    """The model that a reference means. Raises what `locate` raises."""
    program = Program(tree)
    return Subject(tree, program, locate(tree, program, reference))
