"""docs/measured/index.md: the pages on measurements, with their questions and machines."""

from __future__ import annotations

from collections.abc import Sequence

from measured import Page, document, load, table


def page_of(pages: Sequence[Page]) -> Page:
    """The index of these pages."""
    rows = [
        [f"[{page.title}]({page.path.rpartition('/')[2]})", page.answers, *where(page.results)]
        for page in pages
        if page.answers
    ]
    text = document(
        "# Measured",
        """Every number of these pages comes from a file in `benchmarks/results/`, and a test compares them. Each
        page ends with its script, machines, versions and dates.""",
        table(["page", "question", "machine", "vLLM"], rows),
        "These pages need no GPU:",
        table(
            ["page", "question"],
            [
                ["[Support matrix](../matrix.md)", "Which port is proven on which release?"],
                ["[Reach](../reach.md)", "Which architectures of a release get a port from `init`?"],
                ["[Lines beside upstream's](upstream.md)", "How much does a port change, beside the one in vLLM?"],
            ],
        ),
        "## Words",
        """* *eager*: the model's own code, without graphs
* *vLLM's graphs*, *vLLM's manager*: the encoder CUDA graphs of the release
* *ours*: the generated port or adapter with [our manager](../runtime.md)
* *exact*: a graph that was captured for exactly that input, and replayed; no manager can beat it
* *right*: equal to eager up to rounding""",
        """All weights are random: speed does not depend on values.""",
    )
    return Page("docs/measured/index.md", text)


def where(results: Sequence[str]) -> list[str]:
    """Machines and releases of the results."""
    made = [found for name in results if "machine" in (found := load(name))]
    machines = {"H200" if "H200" in result["machine"] else "H100" for result in made}
    releases = {".".join(result["versions"]["vllm"].split(".")[:2]) for result in made if result["versions"]["vllm"]}
    return [", ".join(sorted(machines)) or "CPU", ", ".join(sorted(releases))]
