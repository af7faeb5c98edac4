"""Diagnostics for people: location, source line, caret, help.

    internvl.yaml:18:27: error[VCG301]: the name `kk` is not defined
       18 | item: {rows: n, tokens: n * kk}
          |                             ^^
       = help: did you mean `k`?

Without the source the first and the last line remain. Carets are below their text even if characters are wide or
combine, because users paste prompts in all scripts into descriptors.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

from scaffold.diagnostics import Diagnostic, Severity, Span
from scaffold.report.listing import Sources, by_place
from scaffold.report.plain import one_line

_TAB = 4
_WIDTH = 160
_COLORS = {Severity.ERROR: "31;1", Severity.WARNING: "33;1", Severity.INFO: "36;1"}


def render_text(diagnostics: Iterable[Diagnostic], *, color: bool, sources: Sources, more: bool = False) -> str:
    """One block for each diagnostic and a line that counts them, unless `more` follow in this run."""
    listed = by_place(diagnostics)
    if not listed:
        return ""
    lines_of = _line_reader(sources)

    def paint(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color and text else text

    blocks = [_block(diagnostic, lines_of, paint) for diagnostic in listed]
    return "\n\n".join([*blocks, *([] if more else [_summary(listed)])]) + "\n"


def _block(
    diagnostic: Diagnostic, lines_of: Callable[[str], list[str] | None], paint: Callable[[str, str], str]
) -> str:
    tone = _COLORS[diagnostic.severity]
    place = f"{one_line(str(diagnostic.span))}: " if diagnostic.span is not None else ""
    label = paint(f"{diagnostic.severity.value}[{diagnostic.code}]", tone)
    out = [f"{place}{label}: {one_line(diagnostic.message)}"]
    margin = 3
    span = diagnostic.span
    if span is not None:
        lines = lines_of(span.file)
        if lines is not None and 0 < span.line <= len(lines) and lines[span.line - 1].strip():
            number = str(span.line)
            margin = max(len(number) + 2, 5)
            text, start, width = _window(lines[span.line - 1], span)
            out.append(f"{paint(number.rjust(margin), '34;1')} {paint('|', '34;1')} {text}")
            out.append(f"{' ' * margin} {paint('|', '34;1')} {' ' * start}{paint('^' * width, tone)}")
    out += [f"{' ' * margin} {paint('=', '34;1')} note: {one_line(note)}" for note in diagnostic.notes]
    if diagnostic.help:
        out.append(f"{' ' * margin} {paint('=', '34;1')} {paint('help', '36;1')}: {one_line(diagnostic.help)}")
    return "\n".join(line.rstrip() for line in out)


def _window(line: str, span: Span) -> tuple[str, int, int]:
    """The visible part of a line, and the caret's begin and width, in cells of the terminal."""
    first = min(span.column - 1, len(line))
    last = min(span.end_column - 1, len(line)) if span.end_line == span.line else len(line.rstrip())
    last = max(last, first)
    if (first, line[first:last]) == (0, " "):  # a whole line, not its indentation
        first, last = len(line) - len(line.lstrip()), len(line.rstrip())
    shift, prefix = 0, ""
    if len(line) > _WIDTH and first > _WIDTH // 2:
        shift, prefix = first - _WIDTH // 4, "..."
    shown = line[shift : shift + _WIDTH]
    before, marked = _expand(line[shift:first]), _expand(line[first : min(last, shift + _WIDTH)])
    suffix = "..." if len(line) > shift + _WIDTH else ""
    return prefix + _expand(shown).rstrip() + suffix, len(prefix) + _cells(before), max(_cells(marked), 1)


def _expand(text: str) -> str:
    return one_line(text.replace("\t", " " * _TAB))


def _cells(text: str) -> int:
    """Cells that a text takes in a terminal: 2 for wide characters, 0 for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _line_reader(sources: Sources) -> Callable[[str], list[str] | None]:
    cache: dict[str, list[str] | None] = {}

    def lines_of(file: str) -> list[str] | None:
        if file not in cache:
            text = sources(file)
            # Count lines as editors do. str.splitlines also breaks at form feeds and separators.
            clean = None if text is None else text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
            cache[file] = None if clean is None else clean.split("\n")
        return cache[file]

    return lines_of


def _summary(diagnostics: list[Diagnostic]) -> str:
    parts = []
    for severity in Severity:
        count = sum(diagnostic.severity is severity for diagnostic in diagnostics)
        noun = "note" if severity is Severity.INFO else severity.value
        if count:
            parts.append(f"{count} {noun}{'s' if count > 1 else ''}")
    worst = min(diagnostics, key=lambda diagnostic: (list(Severity).index(diagnostic.severity), diagnostic.code))
    return f"{', '.join(parts)}; explain one with: vitcg-scaffold explain {worst.code}"
