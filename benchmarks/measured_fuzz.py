"""What `make fuzz-figures` tried, on the page: the runs on record, added up."""

from __future__ import annotations

from collections import Counter

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
    for kind, runs in load("fuzz").items():
        counted: Counter[str] = Counter()
        for run in runs:
            counted.update(run["ends"])
        trials = sum(run["seeds"][1] - run["seeds"][0] for run in runs)
        failed = sum(len(run["failed_seeds"]) for run in runs)
        assert sum(counted.values()) + failed == trials, kind
        ends = ", ".join(f"{end} {count:,}" for end, count in sorted(counted.items()))
        lines.append([WHAT[kind], f"{trials:,}", ends, str(failed), str(len(runs))])
    head = ["what", "trials", "how they ended", "failures", "versions of the code"]
    return [Block(PAGE, "fuzz", table(head, lines))]
