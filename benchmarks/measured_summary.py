"""The results on README.md and the start page: the reach in a sentence, the speed in a table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import measured_engine
import measured_manager
import measured_ports
import measured_reach
import measured_stream
import measured_tuning
from measured import NAMES, Page, PageError, load, low_high, picture, table

from scaffold.measure.pictures import BLUE, GREEN, GREY, RED, chart

IMAGE = "1 x 1280x720"
#: The survey of the newest release.
REACH = "reach_0.33.0"
START, END = "<!-- summary: made by benchmarks/pages.py -->", "<!-- end -->"
#: The page of operators has the memory between marks of its own.
OPERATORS, MEMORY = "docs/operators.md", "<!-- memory: made by benchmarks/pages.py -->"


#: Page -> where the other pages are, seen from it.
PLACES = {"README.md": "docs/", "docs/index.md": ""}


def put(page: str, document: str) -> str:
    """The page with the results of now between the two marks."""
    place = PLACES[page]
    shown = speed(place, all_rows=page != "README.md")
    return between(START, page, document, reach(place), f"![{WORDS}]({place}measured/results.svg)", shown)


def put_memory(document: str) -> str:
    """The page of operators with the memory of graphs."""
    return between(MEMORY, OPERATORS, document, *measured_stream.memory_for_operators())


def between(start: str, page: str, document: str, *parts: str) -> str:
    """A page with other parts between two marks."""
    head, _, rest = document.partition(start)
    _, found, tail = rest.partition(END)
    if not found:
        raise PageError(f"{page} has no `{start}` followed by `{END}`")
    return head + "\n\n".join((start, *parts, END)) + tail


WORDS = "time of a call over that of an exact graph, by model; and milliseconds of a request in the engine"


def pages() -> list[Page]:
    """The picture of the results: each way of vLLM's and of ours, side by side."""
    measured, tuned = measured_manager.models(), measured_tuning.means()
    names = [name for name in measured if name in tuned]
    over = [measured[name][1]["summary"] for name in names]
    calls = {
        "vLLM's graphs": [one["vllm/exact"] for one in over],
        "ours": [one["ours/exact"] for one in over],
        "ours, tuned": [tuned[name] for name in names],
    }
    engine = _engine()
    kinds = {"encoder": "encoder_ms", "whole request": "ms"}
    times = {
        label: [engine[f"{mode}_{kind}"] for kind in kinds.values()]
        for label, mode in zip(("eager", "vLLM's graphs", "ours, tuned"), measured_engine.MODES, strict=True)
    }
    panels = [
        ("time of a call / time of an exact graph", [NAMES[name] for name in names], calls),
        ("Qwen2-VL 2B in the engine, one image, ms", list(kinds), times),
    ]
    colours = {"eager": GREY, "vLLM's graphs": RED, "ours": BLUE, "ours, tuned": GREEN}
    return [picture("results", grouped_bars(panels, colours))]


def _engine() -> dict[str, Any]:
    rows: list[dict[str, Any]] = load("engine_h200")["rows"]
    return next(row for row in rows if (row["model"], row["images"]) == ("qwen2_vl", IMAGE))


def reach(place: str) -> str:
    """The share of models without a port for which the tool makes a right one."""
    found = load(REACH)
    _, fresh = measured_reach.split(measured_reach.seeing(found["rows"]))
    rows = fresh[1]
    passed = [row for row in rows if measured_reach.numeric(row) == "pass"]
    alone = sum(map(measured_reach.alone, passed))
    once = sum(map(measured_reach.runs_once, passed))
    before = sum(measured_reach.numeric(row) == "outdated (pass)" for row in rows)
    later = f" {before} more did before their port changed." if before else ""
    text = (
        f"vLLM {found['release'].removesuffix('.0')} has {len(rows)} architectures with images or videos and without a "
        f"port. [{len(passed)} get one]({place}reach.md) whose embeddings equal the unchanged model's; "
        f"for {alone} `init --yes` alone is enough.{later} A tree takes [the {once} that run no "
        f"code twice]({place}reach.md), and [adapters]({place}own-adapters.md) serve the others."
    )
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def speed(place: str, all_rows: bool = True) -> str:
    """The table, with a link to the page of each line. README.md has one line about sizes not seen before."""
    right, each = measured_ports.newest_right()
    ours, theirs = (measured_manager.over_exact(kind) for kind in ("ours", "vllm"))
    tuned = _range(measured_tuning.means().values())
    image = IMAGE.removeprefix("1 x ")
    engine = _engine()
    release = ".".join(load("manager_h200")["versions"]["vllm"].split(".")[:2])
    encoder, request = (_times(engine, kind) for kind in ("encoder_ms", "ms"))
    rows = [
        ("ports", f"workloads with correct embeddings, of {each}", str(each), _range(right, 0), str(each)),
        (
            "manager",
            "call time divided by that of a graph captured for exactly this size",
            "",
            _range(theirs),
            _range(ours),
        ),
        ("tuning", "the same with tower tuning, the default on H100 and H200", "", "", tuned),
        (
            "streams",
            "time on sizes not seen before, once idle capture has run; vLLM = 1",
            "",
            "1",
            measured_stream.in_words("on"),
        ),
        ("streams", "the same without tower tuning", "", "1", measured_stream.in_words("off")),
        (
            "streams",
            "images where videos are allowed too, the default of `vllm serve`; vLLM = 1",
            "",
            "1",
            _range(
                both["ours_ms"] / both["vllm_ms"]
                for *_, tuning, _, both in measured_stream.served_pairs()
                if tuning == "on"
            ),
        ),
        ("engine", f"encoder in the engine, one {image} image, Qwen2-VL 2B, ms", *encoder),
        ("engine", "the whole request with that image, ms", *request),
    ]
    if not all_rows:
        first = next(row for row in rows if row[0] == "streams")
        rows = [row for row in rows if row[0] != "streams" or row is first]
    linked = [[f"[{what}]({place}measured/{page}.md)", *cells] for page, what, *cells in rows]
    return table(["", "eager", f"vLLM {release}'s graphs", "ours"], linked)


def _times(row: dict[str, Any], kind: str) -> list[str]:
    return [f"{row[f'{mode}_{kind}']:.1f}" for mode in measured_engine.MODES]


def _range(values: Iterable[float], digits: int = 2) -> str:
    low, high = low_high(values, digits)
    return low if low == high else f"{low} to {high}"


def grouped_bars(
    panels: Sequence[tuple[str, Sequence[str], Mapping[str, Sequence[float]]]], colours: Mapping[str, str]
) -> str:
    """A panel for each `(title, groups, series -> a value for each group)`. Every bar has its number."""

    def draw(figure: Any, *all_axes: Any) -> None:
        for axes, (title, groups, series) in zip(all_axes, panels, strict=True):
            thick = 0.8 / len(series)
            for place, (name, values) in enumerate(series.items()):
                at = [group + thick * (place - (len(series) - 1) / 2) for group in range(len(groups))]
                bars = axes.barh(at, values, height=0.92 * thick, color=colours[name], label=name)
                axes.bar_label(bars, fmt="{:.2f}" if max(values) < 10 else "{:.1f}", padding=3, fontsize=8)
            axes.set_yticks(range(len(groups)), groups)
            axes.set(title=title, xlim=(0, 1.15 * max(max(values) for values in series.values())))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.tick_params(axis="y", length=0)
            axes.invert_yaxis()
            axes.grid(axis="x")
        found = {label: bar for axes in all_axes for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend([found[name] for name in colours], colours, loc="outside lower center", ncols=len(colours))

    return chart(3.6, draw, len(panels))
