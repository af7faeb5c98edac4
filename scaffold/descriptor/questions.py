"""Open questions of a drafted descriptor: values that are still `TODO` (`VCG390`).

A question is a scalar `TODO`, or a comment that starts with it. The comment lines right above have the draft's hints to
the answer; they become the notes of the diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaffold.descriptor.source import MappingNode, Node, ScalarNode, SequenceNode, normalise_text
from scaffold.diagnostics import Diagnostic, Span

#: Marks a missing value; a reason may follow it.
OPEN = "TODO"


def find_questions(root: Node, text: str, file: str) -> list[Diagnostic]:
    """One diagnostic for each open question, in the order of the text."""
    lines = normalise_text(text).split("\n")
    found = [_value_question(key, node, lines) for key, node in _scalars(root, "") if _is_open(node.value)]
    taken = [node.span for _, node in _scalars(root, "")]
    for number, line in enumerate(lines, start=1):
        column = _comment_question(line, number, taken)
        if column is not None:
            found.append(
                Diagnostic(
                    "VCG390",
                    f"an open question: {line[column - 1 :].lstrip('# ')}",
                    Span(file, number, column, number, len(line) + 1),
                    "look at what it says, then delete the comment",
                )
            )
    return sorted(found, key=lambda problem: problem.span or Span(file, 1, 1, 1, 1))


def without_answers(problems: Sequence[Diagnostic], questions: Sequence[Diagnostic]) -> list[Diagnostic]:
    """The problems that are not about the text of an open question itself."""
    spans = [question.span for question in questions if question.span is not None]
    return [problem for problem in problems if problem.span is None or not any(_in(problem.span, s) for s in spans)]


def _in(inner: Span, outer: Span) -> bool:
    start, end = (outer.line, outer.column), (outer.end_line, outer.end_column)
    return start <= (inner.line, inner.column) and (inner.end_line, inner.end_column) <= end


def _is_open(value: str) -> bool:
    return value == OPEN or value.startswith((f"{OPEN} ", f"{OPEN}:"))


def _scalars(node: Node, at: str) -> Iterator[tuple[str, ScalarNode]]:
    """Each scalar value with its dotted path."""
    if isinstance(node, ScalarNode):
        yield at, node
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.items):
            yield from _scalars(item, f"{at}.{index}")
    elif isinstance(node, MappingNode):
        for entry in node.entries:
            yield from _scalars(entry.value, f"{at}.{entry.key.value}".lstrip("."))


def _value_question(key: str, node: ScalarNode, lines: Sequence[str]) -> Diagnostic:
    above: list[str] = []
    line = node.span.line - 2  # the line above, counted from 0
    while line >= 0 and lines[line].lstrip().startswith("#"):
        above.insert(0, lines[line].lstrip().lstrip("#").strip())
        line -= 1
    reason = node.value[len(OPEN) :].lstrip(": ")
    what = reason or (above.pop(0).removeprefix("open:").strip() if above else "")
    return Diagnostic(
        "VCG390",
        f"`{key}` is an open question{f': {what}' if what else ''}",
        node.span,
        "look at the places above, then write the value instead of TODO",
        notes=tuple(above),
    )


def _comment_question(line: str, number: int, taken: Sequence[Span]) -> int | None:
    """The column (from 1) of a comment that starts with TODO; None if there is none, or if a value contains it."""
    start = line.find("#")
    while start >= 0:
        opens = start == 0 or line[start - 1] in " \t"
        if opens and _is_open(line[start:].lstrip("# ")) and not any(_holds(s, number, start + 1) for s in taken):
            return start + 1
        start = line.find("#", start + 1)
    return None


def _holds(span: Span, line: int, column: int) -> bool:
    return (span.line, span.column) <= (line, column) < (span.end_line, span.end_column)
