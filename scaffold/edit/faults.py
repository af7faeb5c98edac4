"""How an edit is refused: one function a reason, so that every refusal names the place and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from scaffold.diagnostics import DiagnosticError, Span


def line_span(path: str, line: int, column: int = 1) -> Span:
    """An empty span."""
    return Span(path, line, column, line, column)


def missing_anchor(path: str, kind: str, name: str, candidates: Iterable[str], *, line: int = 1) -> DiagnosticError:
    """VCG430: nothing of this kind and name is in the file."""
    known = sorted(set(candidates))
    near = get_close_matches(name, known, n=3, cutoff=0.5) or known[:5]
    found = "there is " + ", ".join(f"`{item}`" for item in near) if near else f"the file has no {kind}"
    return DiagnosticError.of(
        "VCG430",
        f"no {kind} `{name}` to edit",
        line_span(path, line),
        f"{found}; name the right one in the descriptor, or use a vLLM tree that has it",
    )


def ambiguous_anchor(path: str, kind: str, name: str, lines: Iterable[int]) -> DiagnosticError:
    """VCG431: more than one place fits."""
    places = sorted(lines)
    return DiagnosticError.of(
        "VCG431",
        f"{len(places)} places define the {kind} `{name}`",
        line_span(path, places[0]),
        "remove or rename all but one, so that the edit has one meaning",
        notes=tuple(f"{path}:{line}" for line in places),
    )


def unparsable(path: str, reason: str, line: int, column: int) -> DiagnosticError:
    """VCG432: the file to edit is not valid for this Python."""
    return DiagnosticError.of(
        "VCG432",
        f"the file to edit cannot be parsed: {reason}",
        line_span(path, max(line, 1), max(column, 1)),
        "repair the file first; a broken file is never edited",
    )


def name_taken(path: str, name: str, module: str, line: int) -> DiagnosticError:
    """VCG433: an import would silently rebind a name."""
    return DiagnosticError.of(
        "VCG433",
        f"`{name}` means something else in this file, so it cannot be imported from `{module}`",
        line_span(path, line),
        f"rename the other `{name}`, or import it under another name",
    )


def different_definition(path: str, kind: str, name: str, line: int) -> DiagnosticError:
    """VCG434: a hand-written definition of the same name, with another meaning, is in the way."""
    return DiagnosticError.of(
        "VCG434",
        f"the {kind} `{name}` is there already and differs from the planned one",
        line_span(path, line),
        "keep yours and stop here, or let the run replace it with `--replace`",
    )


def unsupported_shape(path: str, what: str, reason: str, line: int) -> DiagnosticError:
    """VCG435: the anchor is there, but not in a shape that can be extended without guessing."""
    return DiagnosticError.of(
        "VCG435", f"{what} {reason}", line_span(path, line), "make this change by hand; `--diff` shows what was planned"
    )


def bad_snippet(path: str, reason: str) -> DiagnosticError:
    """VCG436: the code to insert is not what the operation needs."""
    return DiagnosticError.of(
        "VCG436",
        f"the code to insert is unusable: {reason}",
        line_span(path, 1),
        "repair the template that it comes from",
    )
