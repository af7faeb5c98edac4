"""Record which sizes the traffic has, and fit a ladder to them. Does not need torch.

A trace is a small JSON file: `{"version": 1, "paths": {"default": {"1196": 17, ...}}}`, batch size in tokens to count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scaffold.runtime.budgets import optimal_ladder, waste


@dataclass(slots=True)
class Trace:
    """How often each batch size was seen on each path."""

    paths: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, path: str, tokens: int, count: int = 1) -> None:
        """One batch."""
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
        return json.dumps({"version": 1, "paths": paths}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read a file's text. Raises ValueError with what is wrong."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {error.lineno}: {error.msg}") from error
        if not isinstance(data, dict) or data.get("version") != 1 or not isinstance(data.get("paths"), dict):
            raise ValueError('a trace is an object with "version": 1 and "paths"')
        trace = cls()
        for path, sizes in data["paths"].items():
            if not isinstance(sizes, dict):
                raise ValueError(f'path "{path}": expected an object of sizes and counts')
            for size, count in sizes.items():
                if not (size.isdecimal() and isinstance(count, int) and count >= 0):
                    raise ValueError(f'path "{path}": "{size}": {count!r} is not a size with a count')
                trace.add(path, int(size), count)
        return trace

    def save(self, file: Path) -> None:
        """Write the file."""
        file.write_text(self.to_json(), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """How much is wasted with a number of graphs."""

    graphs: int
    waste: float
    ladder: tuple[int, ...]


def waste_curve(sizes: Mapping[int, int], counts: Iterable[int], always: Sequence[int] = ()) -> list[CurvePoint]:
    """The optimal ladder and its waste for several numbers of graphs."""
    curve = []
    for count in counts:
        if count < max(len(set(always)), 1):
            continue
        ladder = optimal_ladder(sizes, count, always=always)
        curve.append(CurvePoint(count, waste(sizes, ladder), tuple(ladder)))
    return curve


def knee(curve: Sequence[CurvePoint], good_enough: float = 0.005) -> CurvePoint:
    """The first point that is within `good_enough` of the best waste: more graphs hardly pay."""
    best = min(point.waste for point in curve)
    return next(point for point in curve if point.waste <= best + good_enough)


def render_svg(curve: Sequence[CurvePoint], width: int = 640, height: int = 360) -> str:
    """Waste against the number of graphs as a small SVG, without a plotting library."""
    left, bottom, top, right = 56, 40, 16, 16
    most = max(point.graphs for point in curve)
    worst = max([point.waste for point in curve] + [1e-6])

    def x(graphs: float) -> float:
        return left + (width - left - right) * graphs / most

    def y(value: float) -> float:
        return height - bottom - (height - top - bottom) * value / worst

    points = " ".join(f"{x(p.graphs):.1f},{y(p.waste):.1f}" for p in curve)
    dots = "".join(
        f'<circle cx="{x(p.graphs):.1f}" cy="{y(p.waste):.1f}" r="3"><title>{p.graphs} graphs: {p.waste:.2%}</title>'
        "</circle>"
        for p in curve
    )
    ticks = "".join(
        f'<text x="{left - 6}" y="{y(worst * i / 4) + 4:.1f}" text-anchor="end">{worst * i / 4:.1%}</text>'
        f'<line x1="{left}" x2="{width - right}" y1="{y(worst * i / 4):.1f}" y2="{y(worst * i / 4):.1f}" '
        'stroke="#ddd"/>'
        for i in range(5)
    ) + "".join(
        f'<text x="{x(most * i / 4):.1f}" y="{height - bottom + 16}" text-anchor="middle">{round(most * i / 4)}</text>'
        for i in range(5)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="11">{ticks}<polyline points="{points}" fill="none" stroke="#06c" stroke-width="2"/>'
        f'<g fill="#06c">{dots}</g><text x="{(left + width) / 2:.0f}" y="{height - 8}" text-anchor="middle">graphs'
        f'</text><text x="14" y="{height / 2:.0f}" transform="rotate(-90 14 {height / 2:.0f})" text-anchor="middle">'
        "padding, share of computed tokens</text></svg>\n"
    )
