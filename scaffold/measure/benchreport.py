"""A benchmark as values, as JSON and as a Markdown table. Needs neither torch nor a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

#: In the order of table and picture.
WAYS = ("eager", "vllm", "ours")


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One size: medians in milliseconds, and whether the results equal eager ones up to rounding.

    `exact_ms` is None where no graph holds the call.
    """

    workload: str
    tokens: int
    eager_ms: float
    exact_ms: float | None
    vllm_ms: float
    ours_ms: float
    vllm_right: bool
    ours_right: bool

    def over_exact(self, way: str) -> float | None:
        """The time of `way` in that of the exact graph."""
        return None if self.exact_ms is None else float(getattr(self, f"{way}_ms")) / self.exact_ms


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The rows of one model on one machine, in the form that `pr` takes. `sizes` says whose sizes the model had."""

    model: str
    machine: str
    versions: Mapping[str, str]
    date: str
    rows: tuple[BenchRow, ...]
    sizes: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_json(cls, data: Any) -> Benchmark:
        """Raises ValueError, KeyError or TypeError for anything else than what `to_json` gives."""
        rows = tuple(BenchRow(**row) for row in data["rows"])
        sizes = data.get("sizes", "")
        texts = (data["model"], data["machine"], data["date"], sizes, *data["versions"], *data["versions"].values())
        numbers = [
            getattr(row, f.name)
            for row in rows
            for f in fields(row)
            if f.name.endswith("_ms") and (f.name, getattr(row, f.name)) != ("exact_ms", None)
        ]
        if not rows or not all(isinstance(text, str) for text in texts):
            raise ValueError("a field has the wrong type, or there are no rows")
        if not all(isinstance(number, (int, float)) and number > 0 for number in numbers):
            raise ValueError("a time is not a positive number")
        return cls(data["model"], data["machine"], dict(data["versions"]), data["date"], rows, sizes)


def to_markdown(benchmark: Benchmark) -> str:
    """Machine and versions, then one line per size: times in milliseconds, with marks at wrong results."""
    versions = ", ".join(f"{name} {version}" for name, version in benchmark.versions.items())
    lines = [
        f"Vision encoder of `{benchmark.model}` on {benchmark.machine} ({versions}; {benchmark.date}). "
        + (f"Sizes of {benchmark.sizes}. " if benchmark.sizes else "")
        + "Median of whole calls in ms; *exact* is a graph captured for exactly that input.",
        "",
        "| input | tokens | eager | vLLM's manager | ours | exact | ours / eager | ours / exact |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in benchmark.rows:
        cells = (
            row.workload,
            str(row.tokens),
            f"{row.eager_ms:.2f}",
            f"{row.vllm_ms:.2f}" + ("" if row.vllm_right else " (wrong)"),
            f"{row.ours_ms:.2f}" + ("" if row.ours_right else " (wrong)"),
            _number(row.exact_ms),
            f"{row.ours_ms / row.eager_ms:.2f}",
            _number(row.over_exact("ours")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    means = {way: mean for way in WAYS if (mean := _mean_ratio(benchmark.rows, way))}
    if means:
        lines += [
            "",
            "Geometric mean over exact: " + ", ".join(f"{way} {mean:.2f}" for way, mean in means.items()) + ".",
        ]
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _mean_ratio(rows: Sequence[BenchRow], way: str) -> float | None:
    ratios = [ratio for row in rows if (ratio := row.over_exact(way)) is not None]
    return statistics.geometric_mean(ratios) if ratios else None
