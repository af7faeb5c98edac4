"""Charts as SVG, drawn by matplotlib (the extra `plot`), which only a function that draws imports.

The same values give the same bytes. Text stays text, and a white background of its own keeps a chart legible on a light
page and on a dark one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scaffold.diagnostics import DiagnosticError
from scaffold.measure.benchreport import WAYS, Benchmark
from scaffold.measure.profiles import KernelClass, Profile

if TYPE_CHECKING:
    from scaffold.runtime.trace import CurvePoint

INK, PALE = "#24292f", "#d0d7de"
BLUE, RED, GREY, GREEN, ORANGE, PURPLE = "#0969da", "#cf222e", "#8c959f", "#1a7f37", "#bc4c00", "#8250df"
LINES = (BLUE, ORANGE, GREEN, RED, PURPLE, GREY)
CLASSES = {
    KernelClass.PRODUCT: "#0868ac",
    KernelClass.ATTENTION: "#43a2ca",
    KernelClass.NORM: "#d95f0e",
    KernelClass.ACTIVATION: "#fe9929",
    KernelClass.ROTARY: "#8c6bb1",
    KernelClass.CAST: "#c51b8a",
    KernelClass.COPY: "#e34a33",
    KernelClass.ELEMENTWISE: "#a6761d",
    KernelClass.OTHER: "#888888",
}
#: Ticks of a ratio, on a logarithmic axis.
RATIOS = (0.5, 0.7, 1, 1.2, 1.5, 2, 3, 5, 8, 12, 20, 50)
#: Inches: 768 pixels, the width of the text on a page. A row of a chart takes `ROW`, title and axes `FRAME`.
WIDTH, ROW, FRAME = 8.0, 0.22, 1.1
_STYLE = {
    "svg.hashsalt": "vitcg",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": PALE,
    "ytick.color": PALE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def chart(height: float, draw: Callable[..., None], panels: int = 1) -> str:
    """The SVG of what `draw` puts into a figure and its panels. Raises VCG474 without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DiagnosticError.of(
            "VCG474", f"a picture needs matplotlib: {error}", help="pip install matplotlib"
        ) from error
    out = io.StringIO()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE, "backend": "svg"}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure, *figure.subplots(1, panels, squeeze=False)[0])
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def budget_curves(curves: Mapping[str, Sequence[CurvePoint]]) -> str:
    """Waste against the number of graphs, a line for each path."""

    def draw(figure: Any, axes: Any) -> None:
        for (path, curve), colour in zip(curves.items(), LINES * len(curves), strict=False):
            graphs, waste = [point.graphs for point in curve], [100 * point.waste for point in curve]
            axes.plot(graphs, waste, color=colour, marker="o", markersize=3, linewidth=1.5, label=path, clip_on=False)
        axes.set(xlabel="graphs", ylabel="padding, % of computed tokens", xlim=(0, None), ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid()
        if len(curves) > 1:
            axes.legend()

    return chart(3.6, draw)


def kernel_bars(profiles: Sequence[Profile]) -> str:
    """A bar for each profile, cut into classes of kernels, with a mark at the floor."""
    from scaffold.measure.report import title_of

    kinds = [kind for kind in KernelClass if any(total.kind is kind for one in profiles for total in one.totals)]

    def draw(figure: Any, axes: Any) -> None:
        rows = range(len(profiles))
        left = [0.0] * len(profiles)
        for kind in kinds:
            ms = [sum(total.ms for total in one.totals if total.kind is kind) for one in profiles]
            axes.barh(rows, ms, left=left, height=0.6, color=CLASSES[kind], label=kind.value)
            left = [start + more for start, more in zip(left, ms, strict=True)]
        floors = [(row, one.floor_ms) for row, one in zip(rows, profiles, strict=True) if one.floor_ms]
        for row, floor in floors:
            axes.vlines(floor, row - 0.42, row + 0.42, color=INK, linewidth=1.6, label="_" if row else "floor")
        for row, ms_of_all in zip(rows, left, strict=True):
            axes.annotate(f"{ms_of_all:.2f}", (ms_of_all, row), (4, 0), textcoords="offset points", va="center")
        axes.set_yticks(rows, map(title_of, profiles))
        axes.set(xlabel="kernel time, ms", xlim=(0, 1.1 * max(left, default=0) or 1))
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(axis="x")
        if profiles:
            figure.legend(loc="outside lower center", ncols=5)

    return chart(FRAME + 0.4 + 1.6 * ROW * len(profiles), draw)


def ratio_dots(title: str, rows: Sequence[tuple[str, Mapping[str, float | None]]], colours: Mapping[str, str]) -> str:
    """A line for each row and a dot for each of its series: a time divided by that of an exact graph."""
    found = [1.0, *(ratio for _, ratios in rows for ratio in ratios.values() if ratio is not None)]

    def draw(figure: Any, axes: Any) -> None:
        for series, colour in colours.items():
            dots = [(ratio, place) for place, (_, ratios) in enumerate(rows) if (ratio := ratios[series]) is not None]
            x, y = [ratio for ratio, _ in dots], [place for _, place in dots]
            axes.scatter(x, y, s=26, color=colour, alpha=0.85, linewidths=0, label=series)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_xscale("log")
        axes.set_xticks(RATIOS, [f"{tick:g}" for tick in RATIOS])
        axes.set_xticks((), minor=True)
        axes.set(xlabel="time of a call / time of an exact graph", ylim=(len(rows) - 0.4, -0.6))
        axes.set_xlim(min(0.97, *found) * 0.99, max(1.5, *found) * 1.03)
        axes.tick_params(axis="y", length=0)
        axes.grid()
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.legend(loc="outside lower center", ncols=len(colours))

    return chart(FRAME + ROW * len(rows), draw)


def benchmark_dots(benchmark: Benchmark) -> str:
    """The result of `bench`. Rows that no graph holds are in its table alone."""
    rows = [
        (row.workload, {way: row.over_exact(way) for way in WAYS}) for row in benchmark.rows if row.exact_ms is not None
    ]
    title = f"{benchmark.model} on {benchmark.machine}"
    return ratio_dots(title, rows, {"eager": GREY, "vllm": RED, "ours": BLUE})
