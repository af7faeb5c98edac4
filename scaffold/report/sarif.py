"""Diagnostics as SARIF 2.1.0 (OASIS), for code scanning.

Columns in SARIF count UTF-16 code units unless a run declares another unit. Ours count characters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePath, PurePosixPath
from typing import Any
from urllib.parse import quote

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.diagnostics.catalogue import all_codes
from scaffold.report.listing import by_place, plain_text
from scaffold.report.plain import json_of

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render_sarif(diagnostics: Iterable[Diagnostic]) -> str:
    """One SARIF log with one run. No tool version: the log of an unchanged tree must not change with the tool."""
    listed = by_place(diagnostics)
    used = sorted({diagnostic.code for diagnostic in listed})
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "vitcg-scaffold", "rules": [_rule(code) for code in used]}},
                "columnKind": "unicodeCodePoints",
                "results": [_result(diagnostic, used) for diagnostic in listed],
            }
        ],
    }
    return json_of(log)


def _rule(code: str) -> dict[str, Any]:
    known = all_codes().get(code)
    rule: dict[str, Any] = {"id": code}
    if known is not None:
        rule |= {"shortDescription": {"text": known.title}, "fullDescription": {"text": known.explanation}}
    return rule


def _result(diagnostic: Diagnostic, used: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": used.index(diagnostic.code),
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": plain_text(diagnostic)},
    }
    span = diagnostic.span
    if span is not None:
        result["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(span.file)},
                    "region": {
                        "startLine": span.line,
                        "startColumn": span.column,
                        "endLine": span.end_line,
                        "endColumn": span.end_column,
                    },
                }
            }
        ]
    return result


def _uri(file: str) -> str:
    path = PurePath(file)
    if path.is_absolute():
        return path.as_uri()
    return quote(os.fsencode(PurePosixPath(file.replace("\\", "/"))))
