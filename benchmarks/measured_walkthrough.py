"""docs/measured/walkthrough.md: the README and the guides, walked by a fresh reader."""

from __future__ import annotations

import re
from typing import Any

from measured import Page, bullets, document, load, table

from scaffold.cli.app import FORMER


def pages() -> list[Page]:
    result = load("walkthrough")
    low, high = result["load"]
    site = result["site"]
    desktop, phone = site["widths"]
    blocks = [f"**{block['where']}.** {renamed(block['what'])} *Now:* {block['now']}" for block in result["blocks"]]
    text = document(
        "# A reader's walk",
        """A reader who had not written these pages took a clean clone, a new virtual environment and an empty cache of
        releases. The reader ran the commands of five pages that need no GPU, without `make test`. A second reader
        ported two further models. Somebody who is new to vLLM may stumble elsewhere.""",
        table(
            ["walk", "minutes"], [[f"[{walk['title']}](#{anchor(walk)})", minutes(walk)] for walk in result["walks"]]
        ),
        f"""The machine: {result["host"]}. Other work ran on it at the same time (a load average of {low:.0f} to
        {high:.0f}), so an idle machine is faster.""",
        "## Stumbling blocks",
        bullets(blocks),
        "## The site",
        f"""{site["browser"]} showed all {site["pages"]} pages at {desktop} and {phone} pixels, light and dark. In
        {site["overflowing"]} of these views something reached beyond the page's edge; wide tables, pictures and blocks
        of code scroll by themselves.""",
        *(part for walk in result["walks"] for part in steps(walk)),
        f"""The record of {result["date"]} is `benchmarks/results/walkthrough.json`. Commands and options have their
        present names here.""",
    )
    question = "How long does a newcomer take, and what is in the way?"
    return [Page("docs/measured/walkthrough.md", text, question, ("walkthrough",))]


def steps(walk: dict[str, Any]) -> list[str]:
    """The section of a page: a line for each command."""
    rows = [[f"`{renamed(step['command'])}`", f"{step['seconds']:.0f}", str(step["exit"])] for step in walk["steps"]]
    return [f"## {walk['title']}", walk["note"], table(["command", "seconds", "exit"], rows)]


def renamed(command: str) -> str:
    """A command of the record by its present name."""
    for former, words in FORMER.items():
        for mark in ("vitcg-scaffold ", "`"):
            command = re.sub(rf"{mark}{former}\b", f"{mark}{' '.join(words)}", command)
    return command.replace(" --no-verify", " --static")


def minutes(walk: dict[str, Any]) -> str:
    return f"{sum(step['seconds'] for step in walk['steps']) / 60:.0f}"


def anchor(walk: dict[str, Any]) -> str:
    """The link to its section."""
    return str(walk["title"]).lower().replace(" ", "-").replace("'", "")
