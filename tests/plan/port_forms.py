"""Which shipped model gets a port into vLLM's tree, and which an adapter alone: planned on one release.

Run as a script it writes the table of `docs/models.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scaffold.adapters.towers import no_adapter
from scaffold.descriptor import shipped_names
from scaffold.plan import Plan, plan_changes
from scaffold.protocol import SourceTree, read_protocol, resolve_target
from scaffold.workflow import load_port

RELEASE = "0.33.0"
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
START, END = "<!-- forms: made by tests/plan/port_forms.py -->", "<!-- end of forms -->"


@cache
def plans(tree: SourceTree) -> dict[str, Plan]:
    """The plan of each shipped descriptor, in the place of a port that the class has."""
    profile = read_protocol(tree)
    return {name: plan_changes(load_port(name), tree, profile, replace=True) for name in shipped_names()}


def rows(tree: SourceTree) -> Iterator[tuple[str, list[str]]]:
    """The forms, each with the shipped descriptors of it."""
    again = [name for name, plan in plans(tree).items() if plan.reenters]
    adapters = [name for name in again if no_adapter(load_port(name), plans(tree)[name].profile.generation) is None]
    yield "a port for a tree", [name for name in plans(tree) if name not in again]
    yield "an adapter for the plugin alone", adapters
    yield "neither: no adapter can have its form", [name for name in again if name not in adapters]


def with_table(page: str, tree: SourceTree) -> str:
    """The page with today's table between its marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    assert start
    assert end
    lines = [f"| on vLLM {RELEASE.removesuffix('.0')} | descriptors |", "| --- | --- |"]
    lines += [f"| {form} | {', '.join(f'`{name}`' for name in names) or 'none'} |" for form, names in rows(tree)]
    return "\n".join([f"{before}{start}", "", *lines, "", f"{end}{after}"])


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text("utf-8"), resolve_target(RELEASE).tree), "utf-8")
