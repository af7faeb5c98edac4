"""docs/measured/fuzz.md: the inputs that `make fuzz-figures` tried, summed over the recorded runs."""

from __future__ import annotations

from collections import Counter

from measured import Page, load, table, text_page

WHAT = {
    "descriptor": "changed descriptors, read and checked",
    "port": "ports of changed descriptors into changed files of vLLM 0.22 and 0.33, published and undone",
    "trace": "changed traces, read and fitted",
    "store": "damaged records of a finished or a killed run, then `revert --unfinished`, a run, `revert`, once more "
    "`revert --unfinished`",
    "call": "calls of names that real classes have, on real classes of torch and transformers where they are accepted",
    "kill": "runs killed at a random moment, then `revert --unfinished`",
}


def pages() -> list[Page]:
    return [text_page("fuzz", ("fuzz",), globals())]


def tried() -> str:
    """A line for each kind of input."""
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
    return table(head, lines)
