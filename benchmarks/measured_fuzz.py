"""What `make fuzz-figures` tried, on the page."""

from __future__ import annotations

from measured import Block, Part, load, table

PAGE = "docs/measured.md"
WHAT = {
    "descriptor": "changed descriptors, read and checked",
    "port": "ports of changed descriptors into changed files of 0.22 and 0.33, published and undone",
    "trace": "changed traces, read and fitted",
    "store": "damaged records of a finished or a killed run, then `recover`, a run, `revert`, `recover`",
    "kill": "runs killed at a random moment, then `recover`",
}


def parts() -> list[Part]:
    lines = []
    for kind, row in load("fuzz").items():
        ends = ", ".join(f"{end} {count:,}" for end, count in row["ends"].items())
        lines.append([WHAT[kind], f"{row['trials']:,}", ends, str(row["failures"])])
    return [Block(PAGE, "fuzz", table(["what", "trials", "how they ended", "failures"], lines))]
