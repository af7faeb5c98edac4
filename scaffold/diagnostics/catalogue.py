"""Every code that the tool can print, with the explanation that `vitcg-scaffold explain` shows: those of `codes.md`.

A test checks that the file has exactly the codes that the source raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("codes.md")


@dataclass(frozen=True, slots=True)
class Code:
    """`title` is one line; `explanation` tells why the rule exists and how to satisfy it."""

    code: str
    title: str
    explanation: str


@cache
def all_codes() -> dict[str, Code]:
    """All codes by name, in ascending order."""
    _, *parts = re.split(r"^## (VCG\d{3}): (.*)\n", _FILE.read_text("utf-8"), flags=re.MULTILINE)
    found = sorted(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
    codes = {code: Code(code, title, _paragraphs(text)) for code, title, text in found}
    assert len(codes) == len(found), "a code is listed twice"
    return codes


def _paragraphs(text: str) -> str:
    """Each paragraph in one line."""
    return "\n\n".join(" ".join(block.split()) for block in text.strip().split("\n\n"))
