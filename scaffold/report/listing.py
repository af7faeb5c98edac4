"""What the formats share: the order of diagnostics, and one of them as plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scaffold.diagnostics import Diagnostic, Span

#: Gives the text of a file by the name that spans use, or None if it is not at hand.
Sources = Callable[[str], "str | None"]


def by_place(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """In the order of files and lines; those without a place come first. The order of equals is kept."""
    return sorted(diagnostics, key=lambda diagnostic: diagnostic.span or Span("", 1, 1, 1, 1))


def plain_text(diagnostic: Diagnostic) -> str:
    """Message, notes and help, a line each, for formats that have one field for all of it."""
    help = [f"help: {diagnostic.help}"] if diagnostic.help else []
    return "\n".join([diagnostic.message, *(f"note: {note}" for note in diagnostic.notes), *help])
