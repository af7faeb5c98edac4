"""Diagnostics for programs. The layout is stable; `version` changes if it ever has to.

    {"format": "vitcg-diagnostics", "version": 1,
     "counts": {"error": 1, "warning": 0, "info": 0}, "exit_code": 3,
     "diagnostics": [{"code": "VCG301", "severity": "error", "message": "...", "help": "..." or null, "notes": [],
                      "span": {"file": "...", "line": 1, "column": 1, "end_line": 1, "end_column": 2} or null}]}

Lines and columns count from 1 in characters; the end column is exclusive. `exit_code` is that of the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.report.listing import by_place
from scaffold.report.plain import json_of

FORMAT, VERSION = "vitcg-diagnostics", 1


def render_json(diagnostics: Iterable[Diagnostic], exit_code: int | None = None) -> str:
    """One JSON document with keys in a fixed order, and diagnostics in the order of the text.

    Without an argument, `exit_code` follows from the diagnostics.
    """
    listed = by_place(diagnostics)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "counts": {severity.value: sum(entry.severity is severity for entry in listed) for severity in Severity},
        "exit_code": int(max((entry.exit for entry in listed), default=0) if exit_code is None else exit_code),
        "diagnostics": [_entry(entry) for entry in listed],
    }
    return json_of(document)


def _entry(diagnostic: Diagnostic) -> dict[str, Any]:
    span = diagnostic.span
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity.value,
        "message": diagnostic.message,
        "help": diagnostic.help,
        "notes": list(diagnostic.notes),
        "span": None if span is None else asdict(span),
    }
