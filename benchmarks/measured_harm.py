"""docs/measured/harm.md: each situation of a server in each release, without and with the plugin."""

from __future__ import annotations

from collections import Counter

from measured import Page, document, load, table


def pages() -> list[Page]:
    releases = load("harm")["releases"]
    dates = sorted({found["date"] for found in releases.values()})
    text = document(
        "# The plugin does no harm",
        """Each situation ran twice on the classes of the release, without and with the plugin. A number counts the
        models that it ran with.""",
        """* *same*: the same class and the same manager, the same outputs, and every other fact the same
* *served*: an adapter or our manager is there, and every other fact is the same: outputs, too, where images are
  encoded. With LoRA on the tower, or without a tower, it has no graphs
* *starts*: the server starts with the plugin, and not without it
* *worse*: anything else""",
        situations(),
        "## How it was measured",
        """`benchmarks/harm.py` runs `tests/harm/situations.py` on the CPU: a release's own runner makes the manager of
        a small model, and recorded graphs stand for CUDA's. The CPU stands for a GPU, but in the situations of
        platforms, where vLLM is told that it has found another one. A CPU has no sleep mode: there the weights are
        overwritten in place, as it does, and put back or reloaded by the release's runner. The tests run a sample of
        the releases in CI, with every model that has an adapter where it matters who serves, and with some in the other
        situations.""",
        f"The results are in `benchmarks/results/harm.json`, from {' to '.join(dict.fromkeys((dates[0], dates[-1])))}.",
    )
    question = "Is a server with the plugin ever worse than the same server without it?"
    return [Page("docs/measured/harm.md", text, question, ("harm",))]


def situations() -> str:
    """A line for each situation, a column for each release."""
    releases = load("harm")["releases"]
    names = dict.fromkeys(name for found in releases.values() for name in found["situations"])
    rows = []
    for name in names:
        cells = [found["situations"].get(name) for found in releases.values()]
        rows.append([name, *(in_words(cell) for cell in cells)])
    return table(["situation", *(release.removesuffix(".0") for release in releases)], rows)


def in_words(verdicts: dict[str, str] | None) -> str:
    """`31 served` of the verdicts by model, or nothing where the release has no such situation."""
    counts = Counter((verdicts or {}).values())
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())) or "-"
