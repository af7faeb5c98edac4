"""docs/measured/host.md: the results of `host_cpu.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measured import Page, load, sheet, text_page

NAME = "host_cpu"


def over(other: str) -> Callable[[Any], str]:
    """A column: an explicit port's time over another's; empty where that was not measured."""
    return lambda row: f"{row['ms']['explicit'] / row['ms'][other]:.2f}" if other in row["ms"] else ""


COLUMNS = (
    ("model", "{name}"), ("call", "{call}"), ("explicit, ms", "{ms[explicit]:.2f}"),
    ("re-entrant", "{ms[re-entrant]:.2f}"), ("explicit / re-entrant", over("re-entrant")),
    ("upstream", lambda row: f"{row['ms']['upstream']:.2f}" if "upstream" in row["ms"] else ""),
    ("explicit / upstream", over("upstream")),
)  # fmt: skip


def pages() -> list[Page]:
    rows = load(NAME)["rows"]
    older, beside = (
        [row["ms"]["explicit"] / row["ms"][other] for row in rows if other in row["ms"]]
        for other in ("re-entrant", "upstream")
    )
    longest = max(row["ms"]["explicit"] for row in rows)
    known = {"older": older, "beside": beside, "longest": longest, "times": sheet(COLUMNS, rows)}
    return [text_page("host", [NAME], known)]
