"""docs/measured/host.md: the results of `host_cpu.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from measured import Page, load, page, sheet

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
    made = page(
        "host",
        "How much work does the host have for a call of an explicit port?",
        "benchmarks/host_cpu.py",
        [NAME],
        "# Host time of a port",
        """The forms of one port, in vLLM's own manager. The models are tiny, a replay does nothing, and everything is
        in host memory. So the times are what the host does around a replay. A process of its own runs each form, and
        the processes take turns.""",
        f"""An explicit port took {min(older):.2f} to {max(older):.2f} of the time of the re-entrant form of the same
        port, and at most {longest:.2f} ms a call.""",
        f"""Beside upstream's port of the same model it took {min(beside):.2f} to {max(beside):.2f} times as long. Its
        results go through the model's own code, which arranges crops with einops. Upstream has a second, shorter copy
        of that code in its port. Ours gives the model's code integers for sizes, and expands newlines without einops
        (`explicit.rewrite`).""",
        sheet(COLUMNS, rows),
    )
    return [made]
