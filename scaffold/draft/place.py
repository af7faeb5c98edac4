"""Lines of a tree, as drafts name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the tree; `file` is relative to its root."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
