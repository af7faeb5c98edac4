"""docs/measured/walkthrough.md: the README and the guides, walked by a fresh reader."""

from __future__ import annotations

import re
from typing import Any

from measured import Page, bullets, load, table, text_page

from scaffold.cli.app import FORMER


def pages() -> list[Page]:
    result = load("walkthrough")
    blocks = [f"**{block['where']}.** {renamed(block['what'])} *Now:* {block['now']}" for block in result["blocks"]]
    walks = ([f"[{walk['title']}](#{anchor(walk)})", minutes(walk)] for walk in result["walks"])
    known = {"walks": table(["walk", "minutes"], walks), "blocks": bullets(blocks)}
    known["steps"] = [part for walk in result["walks"] for part in steps(walk)]
    return [text_page("walkthrough", ("walkthrough",), result | known)]


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
