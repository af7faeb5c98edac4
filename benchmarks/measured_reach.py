"""docs/reach.md: the findings of `make reach`, a section for each surveyed release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from measured import RESULTS, Page, bullets, document, filled, load, picture, table

from scaffold.measure.pictures import BLUE, FRAME, GREEN, GREY, ORANGE, ROW, chart

_CODE, _BEYOND = "VCG483: ", "the model is beyond the layouts: "

#: Layouts whose port in a tree runs the model's own code again for each batch.
_TWICE = ("cut", "rows", "crops")

#: The columns of a table of ports (`done`).
_COLUMNS = ["architecture", "port in the release", "layout", "questions", "numerical proof", "configuration"]

Row = Mapping[str, Any]


def pages() -> list[Page]:
    surveys = [load(path.stem) for path in sorted(RESULTS.glob("reach_*.json"))]
    sections = [part for survey in surveys for part in section(survey)]
    text = document(filled("reach", {"sections": sections})[1])
    pictures = [picture(f"reach_{survey['release']}", drawn(seeing(survey["rows"]))) for survey in surveys]
    return [Page("docs/reach.md", text), *pictures]


#: How the survey of an architecture ended, and the colour of its part of a bar.
ENDS = {
    "same embeddings, `init --yes` alone": GREEN,
    "same embeddings, with given values or a recipe": BLUE,
    "proven statically only": ORANGE,
    "no port": GREY,
}


def drawn(rows: Iterable[Row]) -> str:
    """The architectures with and without a port in the release, each bar cut by how their survey ended."""

    def end(row: Row) -> str:
        same, given, static, refused = ENDS
        if row["static"] != "proven":
            return refused
        return static if numeric(row) != "pass" else same if alone(row) else given

    found = {name: Counter(map(end, part)) for name, part in split(rows)}
    return stacked_bars(found, ENDS, "architectures with images or videos, with and without a port in the release")


def numeric(row: Row) -> str:
    """The verdict of the numerical proof on today's code: outdated where it ran with other code."""
    if not row["verified"]:
        return "not run"
    return row["numeric"] if row["verified"] == row["code"] else f"outdated ({row['numeric']})"


def section(result: Mapping[str, Any]) -> list[str]:
    """The part of the page on one release."""
    rows = result["rows"]
    kept = seeing(rows)
    ported = [row for row in kept if row["static"] == "proven"]
    refused = [row for row in kept if row["static"] != "proven"]
    heard = [row for row in rows if row not in kept]
    parts = [
        f"## vLLM {result['release'].removesuffix('.0')}",
        f"Run on {result['date']}. The release has {len(rows)} multimodal architectures, {len(kept)} of them with "
        "images or videos.",
        f"![how the survey of each architecture ended](measured/reach_{result['release']}.svg)",
        table(
            [
                "in the release",
                "architectures",
                "proven statically",
                "numerically",
                "both, from `init --yes` and the automatic recipe alone",
                "numerically, without a second run",
            ],
            [counts(name, rows) for name, rows in split(kept)],
        ),
        *sizes(rows),
        "### Ported",
        table(
            _COLUMNS,
            map(done, ported),
        ),
    ]
    if failed := [row for row in ported if row["reason"]]:
        parts += ["The numerical proof reported:", reasons(failed)]
    if asked := [row for row in refused if row["reason"].startswith("VCG390")]:
        parts += [
            "### Drafted, with a question that only you can answer",
            "`init` drafts these, and no candidate answers the question: `--yes` stops there, and no port was proven.",
            reasons([row | {"reason": row["reason"].partition(": ")[2]} for row in asked]),
        ]
    parts += ["### Refused", reasons([row for row in refused if row not in asked])]
    if heard:
        ported = [row for row in heard if row["static"] == "proven"]
        parts += [
            "### Without images and videos",
            "These have sound alone. The counts above are without them.",
            *([table(_COLUMNS, map(done, ported))] if ported else []),
            reasons([row for row in heard if row not in ported]),
        ]
    return parts


def sizes(rows: Iterable[Row]) -> list[str]:
    """How long the ports are that run no code twice; nothing where a survey did not count."""
    lines = sorted(row["lines"] for row in rows if "lines" in row)
    if not lines:
        return []
    return [
        f"A port without a second run has {lines[0]} to {lines[-1]} lines, half of them at most "
        f"{lines[(len(lines) - 1) // 2]}: its protocol methods and what only they use, without blank lines. Statements "
        "of the model that moved are not among them."
    ]


def seeing(rows: Iterable[Row]) -> list[Row]:
    """The rows of models with images or videos."""
    return [row for row in rows if not row.get("sound")]


def split(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of models with a port of their own or a base's, and of those without."""
    kept = list(rows)
    yield "with a port", [row for row in kept if row["has_port"]]
    yield "without", [row for row in kept if not row["has_port"]]


def counts(name: str, rows: list[Row]) -> list[str]:
    proven = [row for row in rows if row["static"] == "proven"]
    ends = Counter(numeric(row).partition(" (")[0] for row in proven)
    found = ", ".join(f"{end} {ends[end]}" for end in ("pass", "fail", "none", "outdated", "not run") if ends[end])
    once = sum(map(runs_once, proven))
    return [name, str(len(rows)), str(len(proven)), found, str(sum(map(alone, proven))), str(once)]


def runs_once(row: Row) -> bool:
    """Whether a row passed, and its port runs no code of the model twice."""
    return numeric(row) == "pass" and row["kind"] not in _TWICE


def alone(row: Row) -> bool:
    """Whether nobody had to give anything for a row that passed."""
    return numeric(row) == "pass" and row.get("config") not in ("given", "recipe")


def done(row: Row) -> list[str]:
    checks = f", {row['checks']} comparisons" if row["checks"] else ""
    port = "yes" if row["has_port"] else "no"
    words = [f"`{row['architecture']}`", port, row["kind"], str(row["questions"])]
    guessed = f"{len(row['guessed'])} values guessed" if row.get("guessed") else ""
    found = row.get("config", "") if row["numeric"] != "none" else ""
    basis = ", ".join(filter(None, (found if found in ("given", "recipe") or not guessed else "", guessed)))
    return [*words, numeric(row) + checks, basis]


def reasons(rows: Iterable[Row]) -> str:
    """One line per architecture with its reasons, the first three where there are more."""
    return bullets(f"`{row['architecture']}`: {shortened(row['reason'])}" for row in rows)


def shortened(reason: str) -> str:
    found = reason.replace(_BEYOND, "").split("; VCG")
    found = [found[0], *(f"VCG{rest}" for rest in found[1:])]
    more = [f"And {len(found) - 3} more"] if len(found) > 4 else []
    first, *others = [text.removeprefix(_CODE) for text in (found[:3] if more else found)]
    return ". ".join([first, *(text[:1].upper() + text[1:] for text in others), *more])


def stacked_bars(rows: Mapping[str, Mapping[str, int]], colours: Mapping[str, str], label: str) -> str:
    """A bar for each row, cut into its counts. Every part has its number."""

    def draw(figure: Any, axes: Any) -> None:
        left = [0] * len(rows)
        for part, colour in colours.items():
            if not any(row[part] for row in rows.values()):
                continue
            counts = [row[part] for row in rows.values()]
            bars = axes.barh(range(len(rows)), counts, left=left, height=0.6, color=colour, label=part)
            axes.bar_label(bars, [str(count or "") for count in counts], label_type="center", color="white")
            left = [start + count for start, count in zip(left, counts, strict=True)]
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set(xlabel=label)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(axis="x")
        figure.legend(loc="outside lower center", ncols=2)

    return chart(FRAME + 0.4 + 1.6 * ROW * len(rows), draw)
