"""The common parts of the formats: the order of diagnostics, and one diagnostic as plain text."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import replace

from scaffold.diagnostics import Diagnostic, Span
from scaffold.report.plain import one_line

#: Gives the text of a file by the name that spans use, or None if it is not at hand.
Sources = Callable[[str], "str | None"]


def by_place(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Sort by file and line. Diagnostics without a place come first; equals keep their order."""
    return sorted(diagnostics, key=lambda diagnostic: diagnostic.span or Span("", 1, 1, 1, 1))


def in_repository(diagnostic: Diagnostic, folder: str) -> Diagnostic:
    """The diagnostic with its file's name from the root of the repository, where names are from `folder` below it."""
    span = diagnostic.span
    if span is None or not span.file:
        return diagnostic
    return replace(diagnostic, span=replace(span, file=posixpath.normpath(posixpath.join(folder, span.file))))


def plain_text(diagnostic: Diagnostic) -> str:
    """Message, notes and help, one line each, for formats that have one field for all of it."""
    help = [f"help: {diagnostic.help}"] if diagnostic.help else []
    return "\n".join(map(one_line, [diagnostic.message, *(f"note: {note}" for note in diagnostic.notes), *help]))
