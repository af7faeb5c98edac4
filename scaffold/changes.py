"""The value that passes from planning to proof to publishing: one file before and after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file of the target tree, as bytes. `before` is None for a new file, `after` is None for a removed one.

    `path` is relative to the tree's root, with forward slashes. Existing files keep their mode.
    """

    path: str
    before: bytes | None
    after: bytes | None

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path)
        assert self.path, "a change needs a path"
        assert not parts.is_absolute(), self.path
        assert ".." not in parts.parts, self.path
        assert self.before is not None or self.after is not None, self.path

    @property
    def is_noop(self) -> bool:
        return self.before == self.after
