"""docs/measured/drafts.md: drafts from a recording of a run beside those from the sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from measured import RESULTS, Page, bullets, document, load, table

Row = Mapping[str, Any]
VERDICTS = ("same", "other", "recording alone", "sources alone")
LAYOUTS = ("packed", "cut", "rows", "tiles", "crops", "paths")


def pages() -> list[Page]:
    names = sorted((path.stem for path in RESULTS.glob("watch_drafts_*.json")), reverse=True)
    found = {name: load(name) for name in names}
    if not found:
        return []
    text = document(
        "# Drafts from a recording",
        """`init` drafts a descriptor from a recording of a run of the model, made small. With `--no-run` it drafts from
        the model's sources. Each release's table counts the architectures that a run or the sources draft and
        whose run was recorded, by the layout of the draft from the sources.""",
        """* *same*: both say the same of the model, with the first candidate of every question
* *other*: they say it otherwise. Most often it is another attribute with the same number, or `cut` for `tiles`
* *sources alone*: the recording gives no draft
* *pass*: the numerical proof of the port of the recorded draft. *none*: it has not run, or nothing could build the
  model""",
        *(part for result in found.values() for part in section(result)),
        "## How it was measured",
        "`benchmarks/watch_drafts.py` ran on the CPU. The results are in "
        + ", ".join(f"`benchmarks/results/{name}.json`" for name in found)
        + f", the last of {max(result['date'] for result in found.values())}.",
    )
    question = "Does watching a run draft what reading the sources drafts?"
    return [Page("docs/measured/drafts.md", text, question, tuple(found))]


def section(result: Mapping[str, Any]) -> list[str]:
    """The part of the page on one release."""
    rows: Sequence[Row] = result["rows"]
    lines = [
        line(layout, [row for row in rows if (row["layout"] or "none") == layout and row["verdict"] != "neither"])
        for layout in (*LAYOUTS, "none")
    ]
    asked = [sum(row["questions"][way] for row in rows if None not in row["questions"]) for way in (0, 1)]
    left = [f"`{row['architecture']}`: {row['reason']}" for row in rows if row["verdict"] == "sources alone"]
    wrong = [f"`{row['architecture']}`: {row['numeric']}" for row in rows if row["numeric"] not in ("pass", "none")]
    return [
        f"## vLLM {result['release'].removesuffix('.0')}",
        table(["from the sources", *VERDICTS, "pass", "none", "fail"], [one for one in lines if one[1:]]),
        f"Where both give a draft, the sources ask {asked[0]} questions and the recordings {asked[1]}.",
        *(["By the sources alone:", bullets(left)] if left else []),
        *(["Recorded drafts without a proven port:", bullets(wrong)] if wrong else []),
    ]


def line(layout: str, rows: Sequence[Row]) -> list[str]:
    """A row of the table; the layout alone where there is none."""
    verdicts = Counter(row["verdict"] for row in rows)
    drafted = Counter(row["numeric"] for row in rows if row["recorded"])
    others = sum(drafted.values()) - drafted["pass"] - drafted["none"]
    counts = [*(verdicts[name] for name in VERDICTS), drafted["pass"], drafted["none"], others]
    return [f"`{layout}`", *map(str, counts)] if rows else [layout]
