"""A draft while it is filled in: values with their evidence, open questions, and the YAML text of both.

An answer names the key of the value that its question asks for. A value without an answer is written as `TODO`, which
`vitcg-scaffold validate` reports, with its candidates as comments above it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scaffold.descriptor.port import ORDER
from scaffold.descriptor.questions import OPEN
from scaffold.diagnostics import Diagnostic, DiagnosticError
from scaffold.protocol.tree import SourceTree

#: Longest line of a draft; longer evidence goes above its value.
_WIDTH = 118
_PLAIN = re.compile(r"[A-Za-z0-9_(][A-Za-z0-9_./ ()*+,=-]*")
_NOT_TEXT = re.compile(r"(?i:true|false|null|yes|no|on|off)|[0-9].*")

Value = str | int | bool | Mapping[str, object] | Iterable[str]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the tree; `file` is relative to its root."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Beyond(DiagnosticError):
    """A model does what no layout expresses (VCG483)."""


def beyond(tree: SourceTree, place: SourceLine, reason: str) -> Beyond:
    """The refusal of a model that no layout expresses."""
    return Beyond(
        Diagnostic(
            "VCG483",
            f"the model is beyond the layouts: {reason}",
            tree.span(place.file, place.line),
            "change this statement if the model is yours; `vitcg-scaffold explain VCG483` names the other ways",
        )
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer and why it is one."""

    value: str
    why: str
    place: SourceLine | None = None

    def __str__(self) -> str:
        return f"{self.value} ({self.why}{f', {self.place}' if self.place else ''})"


@dataclass(frozen=True, slots=True)
class Question:
    """A value that the sources do not tell. `key` is its dotted path, `look` what to look at for the answer."""

    key: str
    what: str
    candidates: tuple[Candidate, ...] = ()
    look: tuple[str, ...] = ()


@dataclass(slots=True)
class _Entry:
    text: str
    comment: str = ""
    above: tuple[str, ...] = ()


@dataclass(slots=True)
class Sheet:
    """`answers` has one per key. `obstacles` say what no descriptor expresses: a model with one gets no draft."""

    answers: Mapping[str, str]
    questions: list[Question] = field(default_factory=list)
    obstacles: list[Diagnostic] = field(default_factory=list)
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def put(self, key: str, value: Value, *evidence: object, why: str = "") -> None:
        """A derived value, with the places that show it."""
        places = ", ".join(dict.fromkeys(str(item) for item in evidence if item is not None))
        self._entries[key] = _Entry(_yaml(value), f"{places}: {why}" if places and why else places or why)

    def ask(self, key: str, what: str, candidates: Iterable[Candidate] = (), *look: str) -> str | None:
        """The answer to a question, None as long as there is none. Lists and mappings are YAML as they are given."""
        question = Question(key, what, tuple(candidates), look)
        self.questions.append(question)
        answer = self.answers.get(key)
        if answer is None:
            above = [f"open: {what}", *(f"  candidate: {one}" for one in question.candidates)]
            self._entries[key] = _Entry(OPEN, above=(*above, *(f"  look at: {text}" for text in look)))
        else:
            self._entries[key] = _Entry(answer if answer[:1] in "[{" else _yaml(answer), "answered")
        return answer

    def refuse(self, tree: SourceTree, place: SourceLine, reason: str) -> None:
        """Say what no layout expresses, and go on: there may be more of it."""
        self.obstacles += beyond(tree, place, reason).diagnostics

    def has(self, key: str) -> bool:
        """Whether there is a value, or a question for it."""
        return key in self._entries

    def keys(self, prefix: str) -> tuple[str, ...]:
        """Keys below a section, in the order in which they were filled in."""
        return tuple(key for key in self._entries if key.startswith(prefix))

    def value(self, key: str) -> str:
        """The text of a value without its quotes; empty where there is none."""
        return self._entries[key].text.strip('"') if key in self._entries else ""

    @property
    def pixels(self) -> dict[str, str]:
        """The input with the pixels of each drafted modality."""
        keys = (key.split(".") for key in self.keys("modalities."))
        return {name: self.value(f"modalities.{name}.pixels") for _, name, last in keys if last == "pixels"}

    @property
    def open(self) -> tuple[Question, ...]:
        return tuple(question for question in self.questions if question.key not in self.answers)

    def text(self, title: Iterable[str]) -> str:
        """The YAML document: sections in the order of the schema."""
        keys = sorted(self._entries, key=lambda key: ORDER.index(key.partition(".")[0]))
        lines = [f"# {line}" for line in title]
        written: list[str] = []
        for key in keys:
            parts = key.split(".")
            common = 0
            while common < min(len(parts) - 1, len(written)) and written[common] == parts[common]:
                common += 1
            for depth in range(common, len(parts) - 1):
                lines.append(f"{'  ' * depth}{parts[depth]}:")
            written = parts[:-1]
            lines += _lines(parts[-1], self._entries[key], "  " * (len(parts) - 1))
        return "\n".join(lines) + "\n"


def _lines(name: str, entry: _Entry, indent: str) -> list[str]:
    above = [f"{indent}# {text}" for text in entry.above]
    line = f"{indent}{name}: {entry.text}"
    if not entry.comment:
        return [*above, line]
    beside = f"{line}    # {entry.comment}"
    return [*above, beside] if len(beside) <= _WIDTH else [*above, f"{indent}# {entry.comment}", line]


def _yaml(value: Value) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        # A comma is safe here: a scalar of a draft never stands between braces.
        plain = _PLAIN.fullmatch(value) and not _NOT_TEXT.fullmatch(value) and value == value.strip()
        return value if plain or value.isdigit() else json.dumps(value, ensure_ascii=False)
    return f"[{', '.join(_item(item) for item in value)}]"


def _item(value: str) -> str:
    if value.startswith(("{", "[")):
        return value
    return json.dumps(value, ensure_ascii=False) if "," in value else value if value.isdigit() else _yaml(value)
