"""Charts of the pages and of the commands: text that nothing covers, round ticks, equal bytes each time."""

from __future__ import annotations

import itertools
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import measured_bench
import measured_manager
import measured_reach
import measured_summary
import measured_tuning
from measured import ROOT

from scaffold.diagnostics import DiagnosticError
from scaffold.measure import pictures
from scaffold.measure.analyse import analyse
from scaffold.measure.benchreport import Benchmark, BenchRow
from scaffold.measure.profiles import Ceilings, KernelRecord, Recording
from scaffold.runtime.trace import CurvePoint, waste_curve

waste = runpy.run_path(str(ROOT / "docs/pictures/generate.py"))["waste"]
TRACE = {64: 10, 216: 3, 256: 7, 1152: 1, 1196: 4, 1732: 2, 2691: 2}
CURVES = {"a <b>": waste_curve(TRACE, range(1, 8)), "local": waste_curve({81: 1, 90: 3}, [1, 2])}
LARGE = {"default": [CurvePoint(graphs, 0.656 / graphs, ()) for graphs in range(1, 65)]}


def profiles(how_many: int) -> list[Any]:
    names = {"nvjet": "aten::mm", "layer_norm_kernel": "aten::layer_norm", "gelu_kernel": "aten::gelu"}
    kernels = tuple(
        KernelRecord(kernel, 1000.0, op, ((128, 128), (128, 128)), module="visual", call=0)
        for kernel, op in names.items()
    )
    return [
        analyse(Recording("qwen2_5_vl", "tuned" * (i % 2), 1196, Ceilings(1.0, 4.0), kernels)) for i in range(how_many)
    ]


def row(workload: str, exact: float | None) -> BenchRow:
    return BenchRow(workload, 64, 80.0, exact, 12.5, 10.1, True, True)


def benchmark(*rows: BenchRow) -> Benchmark:
    return Benchmark("qwen2_5_vl", "NVIDIA H200", {"vllm": "0.33.0"}, "2026-11-21", rows)


#: What draws a chart, by the chart's name.
DRAWN = {
    "budgets": lambda: pictures.budget_curves(CURVES),
    "budgets of one point": lambda: pictures.budget_curves({"default": CURVES["a <b>"][-1:]}),
    "64 graphs": lambda: pictures.budget_curves(LARGE),
    "profile": lambda: pictures.kernel_bars(profiles(2)),
    "no profile": lambda: pictures.kernel_bars([]),
    "bench": lambda: pictures.benchmark_dots(benchmark(row("224x224", 10.0), row("8 x 336x336", None))),
    "bench without graphs": lambda: pictures.benchmark_dots(benchmark(row("224x224", None))),
    "waste": waste,
    "manager": lambda: measured_manager.pages()[1].text,
    "tuning": lambda: measured_tuning.pages()[1].text,
    "results": lambda: measured_summary.pages()[0].text,
    "reach": lambda: measured_reach.pages()[1].text,
    **{
        name: lambda result=result: pictures.benchmark_dots(result)
        for name, result in measured_bench.benchmarks().items()
    },
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    kept: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options)
        kept.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return kept


def ticks(figure: Figure, drawn: bool) -> Iterator[Any]:
    """Labels of ticks. matplotlib keeps some that are outside of their axis, which it does not draw."""
    for axis, place in [pair for axes in figure.axes for pair in ((axes.xaxis, 0), (axes.yaxis, 1))]:
        low, high = sorted(axis.get_view_interval())
        for label in axis.get_ticklabels():
            if (low <= label.get_position()[place] <= high) == drawn:
                yield label


def texts(figure: Figure) -> Iterator[Any]:
    """Every text that is drawn, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    outside = set(map(id, ticks(figure, drawn=False)))
    for name, text in {id(text): text for text in figure.findobj(Text)}.items():
        if name not in outside and text.get_text().strip() and text.get_visible():
            yield text, text.get_window_extent(canvas.get_renderer())


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_covers_another_or_leaves_the_picture(figures, name):
    root = ElementTree.fromstring(DRAWN[name]())
    assert root.tag.endswith("svg")
    (figure,) = figures
    found = list(texts(figure))
    assert len(found) > 3
    for text, box in found:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    for (one, box), (other, beside) in itertools.combinations(found, 2):
        assert not box.overlaps(beside), (one.get_text(), other.get_text())


@pytest.mark.parametrize("name", DRAWN)
def test_ticks_are_round(figures, name):
    DRAWN[name]()
    (figure,) = figures
    rows = {text.get_text() for axes in figure.axes for text in axes.get_yticklabels()}
    labels = {text.get_text() for text in ticks(figure, drawn=True)} - {text for text in rows if not text.isdigit()}
    octaves = {str(1 << power) for power in range(16)}
    assert len(labels) >= 3
    for label in labels - octaves:
        assert re.fullmatch(r"\d?\d0*|\d\.(\d|[27]5)", label), label


def test_a_clash_is_seen(figures):
    pictures.chart(2.0, lambda figure, axes: [axes.text(0.5, 0.5, word) for word in ("one", "two")] and None)
    (figure,) = figures
    boxes = {text.get_text(): box for text, box in texts(figure)}
    assert boxes["one"].overlaps(boxes["two"])


def test_the_text_of_a_chart_is_text():
    said = {text.text for text in ElementTree.fromstring(pictures.budget_curves(CURVES)).findall(".//{*}text")}
    assert {"a <b>", "local", "graphs", "padding, % of computed tokens"} <= said


def test_a_bar_has_every_class():
    (profile,) = profiles(1)
    said = {text.text for text in ElementTree.fromstring(pictures.kernel_bars([profile])).iter() if text.text}
    assert {total.kind.value for total in profile.totals} | {"3.00", "floor"} <= said


def test_the_bytes_are_the_same_in_another_process(tmp_path):
    """Whatever a user's own style says, and the hashes of that process."""
    (tmp_path / "matplotlibrc").write_text("font.size: 20\naxes.grid: True\nsvg.fonttype: path\n")
    script = (
        "import sys; from scaffold.measure import pictures\n"
        "sys.stdout.write(pictures.chart(2.0, lambda figure, axes: axes.plot([1, 2], label='x')))"
    )
    env = {
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "7",
        "MATPLOTLIBRC": str(tmp_path),
        "HOME": str(tmp_path),
        "PATH": "",
    }
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == pictures.chart(2.0, lambda figure, axes: axes.plot([1, 2], label="x"))


def test_nothing_draws_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DiagnosticError) as raised:
        pictures.budget_curves(CURVES)
    (found,) = raised.value.diagnostics
    assert (found.code, found.help) == ("VCG474", "pip install matplotlib")
