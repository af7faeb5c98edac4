"""Every code that the tool can print, with the explanation that `vitcg-scaffold explain` shows.

There is one module per stage. A test checks that the catalogue has exactly the codes that the source raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module

_STAGES = (
    "descriptor", "draft", "target", "plan", "cut", "tower", "profile", "plugin", "conflict", "proof", "numeric",
    "publish", "trace",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Code:
    """`title` is one line; `explanation` tells why the rule exists and how to satisfy it."""

    code: str
    title: str
    explanation: str


@cache
def all_codes() -> dict[str, Code]:
    """All codes by name, in ascending order."""
    entries = [entry for stage in _STAGES for entry in import_module(f"{__name__}.{stage}").CODES]
    codes = {entry.code: entry for entry in sorted(entries, key=lambda entry: entry.code)}
    assert len(codes) == len(entries), "a code is listed twice"
    return codes
