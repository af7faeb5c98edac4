"""docs/measured/index.md: the pages on measurements, with their questions and machines."""

from __future__ import annotations

from collections.abc import Sequence

from measured import Page, load, table, text_page


def page_of(pages: Sequence[Page]) -> Page:
    """The index of these pages."""
    rows = [
        [f"[{page.title}]({page.path.rpartition('/')[2]})", page.answers, *where(page.results)]
        for page in pages
        if page.answers
    ]
    return text_page("index", (), {"measured": table(["page", "question", "machine", "vLLM"], rows)})


def where(results: Sequence[str]) -> list[str]:
    """Machines and releases of the results."""
    made = [found for name in results if "machine" in (found := load(name))]
    machines = {"H200" if "H200" in result["machine"] else "H100" for result in made}
    releases = {".".join(result["versions"]["vllm"].split(".")[:2]) for result in made if result["versions"]["vllm"]}
    return [", ".join(sorted(machines)) or "CPU", ", ".join(sorted(releases))]
