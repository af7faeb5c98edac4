"""Every key of valid descriptors dropped, renamed and given another type: the report points at what was changed.

And the random changes of texts that `tests/fuzz` makes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from descriptor_documents import DOCUMENTS, problems_of

from scaffold.descriptor.source import Entry, MappingNode, Node, SequenceNode, parse_source
from scaffold.diagnostics import Span

#: Tables whose keys the author chooses. A renamed key is another valid name; what refers to it is reported instead.
_FREE_TABLES = re.compile(r"(let|fields|helpers|paths|attention|integration\.test\.(runner_kwargs|template))\.\w+")
#: Values that are handed on as they are, so that any type is right.
_FREE_VALUES = re.compile(r"integration\.test\.runner_kwargs\..*")


#: Keys without which a section says nothing.
_REQUIRED = re.compile(
    r"schema|model|layout|modalities|fields|sizes|output|item|pixels|attention|capture|budget|forward|eager|paths|post|tower"
    r"|model\.(module|class|tower)|modalities\.\w+\.(pixels|sizes|entry)|fields\.\w+\.sizes|sizes\.columns|item\.(rows|tokens)|pixels\.shape"
    r"|attention\.\w+\.(unit|offsets)|capture\.(rows|side_limit)|budget\.min|(forward|eager)\.call|post\.assemble"
    r"|helpers\.\w+\.(args|value)|paths\.\w+\.(count|tokens|pixels|shape)|gates\.modalities"
    r"|data_parallel\.switches|output\.hidden_size|tower\.(data|metadata)"
    r"|integration\.test\.(key|model|template\.\w+)|integration\.docs\.models"
)


class Place(NamedTuple):
    """A key and its value in a document."""

    path: str
    entry: Entry
    parent: Span


def places_of(text: str) -> list[Place]:
    root, problems = parse_source(text, "model.yaml")
    assert root is not None
    assert not problems
    return list(_walk(root, "", Span("model.yaml", 1, 1, 1, 1)))


def _walk(node: Node, at: str, parent: Span) -> Iterator[Place]:
    if isinstance(node, SequenceNode):
        for index, item in enumerate(node.items):
            yield from _walk(item, f"{at}.{index}", item.span)
    if isinstance(node, MappingNode):
        for entry in node.entries:
            path = f"{at}.{entry.key.value}" if at else entry.key.value
            yield Place(path, entry, parent)
            yield from _walk(entry.value, path, entry.key.span)


PLACES = [
    pytest.param(name, place, id=f"{name}-{place.path}") for name in DOCUMENTS for place in places_of(DOCUMENTS[name])
]


def _offset(text: str, line: int, column: int) -> int:
    return sum(len(each) + 1 for each in text.split("\n")[: line - 1]) + column - 1


def _replace(text: str, span: Span, new: str) -> str:
    return text[: _offset(text, span.line, span.column)] + new + text[_offset(text, span.end_line, span.end_column) :]


def _starts_in(span: Span | None, outer: Span) -> bool:
    assert span is not None
    start = (span.line, span.column)
    return (outer.line, outer.column) <= start <= (outer.end_line, outer.end_column)


@pytest.mark.parametrize(("document", "place"), PLACES)
def test_a_renamed_key_is_pointed_at(document: str, place: Place) -> None:
    text = DOCUMENTS[document]
    problems = problems_of(_replace(text, place.entry.key.span, place.entry.key.value + "_zz"))
    if _FREE_TABLES.fullmatch(place.path) and not place.path.startswith(("let.", "integration.test.template.")):
        return
    spans = [problem.span for problem in problems]
    if place.path.startswith("let."):  # its uses are what is wrong; that it is unused is a warning
        assert "VCG301" in {problem.code for problem in problems}
    assert any(_starts_in(span, place.entry.key.span) for span in spans), problems


@pytest.mark.parametrize(("document", "place"), PLACES)
def test_a_value_of_another_type_is_pointed_at(document: str, place: Place) -> None:
    if _FREE_VALUES.fullmatch(place.path):
        return
    text = DOCUMENTS[document]
    new = "zz-" if isinstance(place.entry.value, MappingNode) else "{zz_zz: 1}"
    span = place.entry.value.span
    problems = problems_of(_replace(text, span, new))
    changed = Span(span.file, span.line, span.column, span.line, span.column + len(new))
    assert any(_starts_in(problem.span, changed) for problem in problems), problems


@pytest.mark.parametrize(("document", "place"), PLACES)
def test_a_dropped_key_is_missed_at_its_parent(document: str, place: Place) -> None:
    text = DOCUMENTS[document]
    whole = Span("model.yaml", *_start(place.entry.key.span), *_end(place.entry.value.span))
    dropped = _replace(text, whole, "")
    dropped = re.sub(r"\{\s*,\s*|,\s*(?=,|\})", lambda match: "{" if match.group().startswith("{") else "", dropped)
    problems = problems_of(dropped)
    missing = [problem for problem in problems if problem.code == "VCG202"]
    for problem in missing:
        assert problem.span is not None
        assert _starts_in(problem.span, place.parent) or ("." not in place.path and problem.span.column == 1)
    # A tower that computes its positions needs no `capture`.
    if _REQUIRED.fullmatch(place.path) and (document, place.path) != ("packed", "capture"):
        assert missing, problems


def _start(span: Span) -> tuple[int, int]:
    return span.line, span.column


def _end(span: Span) -> tuple[int, int]:
    return span.end_line, span.end_column


_TOKENS = [
    *"[]{},:'\"#&*!|>%@`-?\t\n \\", "- ", ": ", "? ", "no", "012", "1:20", "~", "<<", "---\n", "...\n", "!!int ", "&a ",
    "*a", "self.", "self.x", "b // 0", "min(", "**", "n" * 600, "\ufeff", "\u2028", "\x00", "é", "𝕏", "((((((((",
    "9" * 5000,
    "schema", "let", "paths", "eager", "attention", "true", "null", "1e999", ".inf", "2024-01-01", "\ud800",
]  # fmt: skip


#: Words of valid descriptors: most of their exchanges are still YAML, so that they reach the later stages.
_WORDS = sorted({word for text in DOCUMENTS.values() for word in re.findall(r"[\w.]+", text)})


def _mutate(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(12)
        if kind >= 6:
            match = re.compile(r"[\w.]+").search(text, at)
            if match is not None:
                text = text[: match.start()] + rng.choice(_WORDS) + text[match.end() :]
            continue
        if kind == 0:
            text = text[:at] + text[at + rng.randint(1, 30) :]
        elif kind == 1:
            text = text[:at] + rng.choice(_TOKENS) + text[at:]
        elif kind == 2:
            text = text[:at] + rng.choice(_TOKENS) + text[at + 1 :]
        else:
            lines = text.split("\n")
            first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
            if kind == 3:
                lines[first], lines[second] = lines[second], lines[first]
            elif kind == 4:
                lines.insert(first, lines[second])
            else:
                words = re.findall(r"\w+|\W", lines[first]) or [""]
                words[rng.randrange(len(words))] = rng.choice(_TOKENS)
                lines[first] = "".join(words)
            text = "\n".join(lines)
    return text
