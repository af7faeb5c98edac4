"""The value that passes from planning to proof to publishing: one file before and after. And how two texts differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

#: Pairs of equal lines that one comparison looks at, and lines that it looks at: about a second.
#: The ports of all shipped models into 0.22 and 0.33 need 390,000 at most.
_MAX_WORK = 4_000_000


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


def line_opcodes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """difflib's opcodes, at a cost that is bounded: where equal lines are too many to pair, the rest counts as changed.

    The equal start and end, which is nearly everything, is not given to difflib.
    """
    start, most = 0, min(len(old), len(new))
    while start < most and old[start] == new[start]:
        start += 1
    end = 0
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    if start:
        yield "equal", 0, start, 0, start
    for tag, a, b, c, d in _Matcher(old[start : len(old) - end], new[start : len(new) - end]).get_opcodes():
        yield tag, a + start, b + start, c + start, d + start
    if end:
        yield "equal", len(old) - end, len(old), len(new) - end, len(new)


class _Matcher(SequenceMatcher[str]):
    """difflib's matcher. It counts what it does, and finds nothing more once that is too much.

    difflib compares each line with all equal ones of the other text, and again in what a match leaves: the third power
    of the number of lines where all are equal.
    """

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__(None, old, new, autojunk=False)
        equal = Counter(new)
        self._lines = len(old)
        self._work = list(accumulate((1 + equal[line] for line in old), initial=0))
        self._left = _MAX_WORK

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        self._left -= self._work[self._lines if ahi is None else ahi] - self._work[alo]
        return super().find_longest_match(alo, ahi, blo, bhi) if self._left >= 0 else Match(alo, blo, 0)


def unified_lines(
    old: Sequence[str], new: Sequence[str], names: tuple[str, str], *, context: int = 3, end: str = ""
) -> Iterator[str]:
    """The lines of a unified difference. `end` ends its headers, as the texts' lines end."""
    for number, group in enumerate(_Grouping(old, new).get_grouped_opcodes(context)):
        if number == 0:
            yield f"--- {names[0]}{end}"
            yield f"+++ {names[1]}{end}"
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        yield f"@@ -{_range(a, b)} +{_range(c, d)} @@{end}"
        for tag, a, b, c, d in group:
            if tag == "equal":
                yield from (f" {line}" for line in old[a:b])
            else:
                yield from (f"-{line}" for line in old[a:b])
                yield from (f"+{line}" for line in new[c:d])


class _Grouping(SequenceMatcher[str]):
    """difflib's groups of differences with the lines around them, of our opcodes."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__()
        self._opcodes = [*line_opcodes(old, new)]

    def get_opcodes(self) -> Any:
        return self._opcodes


def _range(first: int, last: int) -> str:
    """Lines from `first` up to `last`, counted from 1; no lines are the place behind the line before them."""
    return f"{first + 1}" if last - first == 1 else f"{first + (last > first)},{last - first}"
