"""Record which sizes the traffic has, and fit a ladder to them. Does not need torch.

A trace is a small JSON file: `{"version": 1, "paths": {"default": {"1196": 17, ...}}}`, batch size in tokens to count.
A reader refuses an unknown version instead of guessing what such a file means.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scaffold.runtime.budgets import optimal_ladders, waste

#: The version of the format that this module writes, and the only one so far.
VERSION = 1
#: A year of a batch a microsecond has fewer; floating point counts exactly to there and far beyond.
_MOST = 10**15


class TraceError(ValueError):
    """A mistake in a trace. `place` holds the keys that lead to it, `at` the offset of a JSON error.

    `kind` is "json", "form", "version" or "size". If a file gives a key twice, `place` means the second one.
    """

    def __init__(self, kind: str, message: str, place: tuple[str, ...] = (), at: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.place, self.at = kind, place, at


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as the file has it, with repeated keys."""


def _integer(digits: str) -> int | float:
    """An integer of a trace. Python refuses more than 4,300 digits, and its error has no place."""
    return int(digits) if len(digits) <= 20 else float(digits)


def _shown(value: Any) -> str:
    """A value of a trace for a message: short, and without control characters."""
    if isinstance(value, list):
        return "an object" if isinstance(value, _Pairs) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _object(value: Any, what: str, place: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, _Pairs):
        raise TraceError("form", f"{what} must be an object", place)
    found: dict[str, Any] = {}
    for key, entry in value:
        if key in found:
            raise TraceError("form", f"{_shown(key)} is given twice", (*place, key))
        found[key] = entry
    return found


@dataclass(slots=True)
class Trace:
    """How often each batch size was seen on each path."""

    paths: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, path: str, tokens: int, count: int = 1) -> None:
        """Count one batch, or several of one size. A batch of no tokens runs nothing and does not count."""
        if tokens <= 0:
            return
        sizes = self.paths.get(path)
        if sizes is None:
            sizes = self.paths[path] = Counter()
        sizes[tokens] += count

    def sizes(self, path: str = "default") -> Mapping[int, int]:
        """Counts of one path."""
        return self.paths.get(path, {})

    def to_json(self) -> str:
        """The file's text: sorted, so that equal traces give equal files."""
        paths = {p: {str(s): c[s] for s in sorted(c)} for p, c in sorted(self.paths.items())}
        return json.dumps({"version": VERSION, "paths": paths}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read a file's text. Raises TraceError, a ValueError, with the mistake and its place."""
        try:
            data = json.loads(text, object_pairs_hook=_Pairs, parse_int=_integer)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno} column {error.colno}"
            raise TraceError("json", f"this is not JSON: {error.msg} at {where}", at=error.pos) from error
        except RecursionError as error:
            raise TraceError("form", "this is nested too deeply for a trace") from error
        top = _object(data, "a trace", ())
        if "version" not in top:
            raise TraceError("form", f'a trace says its "version", which is {VERSION}')
        if top["version"] != VERSION or isinstance(top["version"], bool):
            shown = _shown(top["version"])
            raise TraceError("version", f"version {shown} is not known, only {VERSION} is", ("version",))
        for key in top:
            if key not in ("version", "paths"):
                raise TraceError("form", f"{_shown(key)} is not part of a trace", (key,))
        if "paths" not in top:
            raise TraceError("form", 'a trace has "paths"')
        trace = cls()
        for path, value in _object(top["paths"], '"paths"', ("paths",)).items():
            place = ("paths", path)
            if not path.isprintable():
                raise TraceError("form", f"{_shown(path)} is no name of a path: it cannot be printed", place)
            for size, count in _object(value, f"the sizes of path {_shown(path)}", place).items():
                if not re.fullmatch("[1-9][0-9]{0,11}", size):
                    raise TraceError(
                        "size", f"path {_shown(path)}: {_shown(size)} is not a size in tokens", (*place, size)
                    )
                if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < _MOST:
                    shown = _shown(count)
                    raise TraceError(
                        "size", f"path {_shown(path)}, size {size}: {shown} is not a count", (*place, size)
                    )
                trace.add(path, int(size), count)
        return trace

    def merge(self, other: Trace) -> None:
        """Add the counts of another trace."""
        for path, sizes in other.paths.items():
            for size, count in sizes.items():
                self.add(path, size, count)

    def save(self, file: Path) -> None:
        """Write the file, or leave it as it was: a server may be killed at any time."""
        write_whole(file, self.to_json())


def write_whole(file: Path, text: str) -> None:
    """Replace a file as a whole: a reader sees the old text or the new one. Raises OSError; the old file stays then.

    The draft beside it has a random name and must be new, so that nobody can plant a link in its place.
    """
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    with draft.open("x", encoding="utf-8") as stream:
        try:
            stream.write(text)
            stream.flush()
            draft.replace(file)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The waste with a number of graphs."""

    graphs: int
    waste: float
    ladder: tuple[int, ...]


def waste_curve(sizes: Mapping[int, int], counts: Iterable[int], always: Sequence[int] = ()) -> list[CurvePoint]:
    """The optimal ladder and its waste for each of several numbers of graphs, where there is one."""
    wanted = sorted(set(counts))
    try:
        ladders = optimal_ladders(sizes, max(wanted, default=0), always=always)
    except ValueError:  # no room for the budgets that must stay
        return []
    return [CurvePoint(n, waste(sizes, ladders[n]), tuple(ladders[n])) for n in wanted if n in ladders]


def knee(curve: Sequence[CurvePoint], good_enough: float = 0.005) -> CurvePoint:
    """The first point that is within `good_enough` of the best waste: more graphs hardly pay."""
    best = min(point.waste for point in curve)
    return next(point for point in curve if point.waste <= best + good_enough)
