"""Diagnostics as GitHub workflow commands, which become annotations of a pull request.

It escapes values as the runner unescapes them. Otherwise a line break in a message would start a command of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from scaffold.diagnostics import Diagnostic, Severity
from scaffold.report.listing import by_place, plain_text
from scaffold.report.plain import one_line

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """One command per line."""
    return "".join(_command(diagnostic) + "\n" for diagnostic in by_place(diagnostics))


def _command(diagnostic: Diagnostic) -> str:
    properties: dict[str, str] = {}
    span = diagnostic.span
    if span is not None:
        properties = {"file": one_line(span.file), "line": str(span.line), "endLine": str(span.end_line)}
        if span.line == span.end_line:  # GitHub understands columns only within one line
            properties |= {"col": str(span.column), "endColumn": str(max(span.end_column - 1, span.column))}
    properties["title"] = diagnostic.code
    listed = ",".join(f"{name}={_escape_property(value)}" for name, value in properties.items())
    return f"::{_COMMANDS[diagnostic.severity]} {listed}::{_escape(plain_text(diagnostic))}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
