"""docs/measured/fuzz.md: the inputs that `make fuzz-figures` tried, summed over the recorded runs."""

from __future__ import annotations

from collections import Counter

from measured import Page, document, load, table

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
    text = document(
        "# Hostile input",
        """Every trial changes an input at random from a seed. It fails by anything but a result or a diagnostic: a
        traceback, too much CPU time, a file that is neither old nor new, text of a descriptor that became code.""",
        tried(),
        "## How it was measured",
        """`make fuzz-figures` runs each kind up to its number of trials (`tests/fuzz/fuzzing.py`). It notes the
        finished seeds with a hash of `scaffold/` and `templates/`, so that a stopped run goes on where it was. The
        last column counts these hashes. `make fuzz` goes on until it is stopped, and CI runs a share with fixed
        seeds.""",
        "The record is `benchmarks/results/fuzz.json`.",
    )
    question = "Does hostile input end in anything but a result or a diagnostic?"
    return [Page("docs/measured/fuzz.md", text, question, ("fuzz",))]


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
