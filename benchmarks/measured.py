"""How measured numbers get into the pages: as blocks that are written whole, or as the numbers of a sentence.

`measured_*.py` beside this file say the blocks and sentences of one kind of result each; `pages.py` writes or checks
them. A page stays a page: where a block stands, and what a sentence says, is written in the page by hand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"

#: Names of models for readers, in the order of the pages.
NAMES = {
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen2_vl": "Qwen2-VL",
    "qwen3_vl": "Qwen3-VL",
    "internvl": "InternVL",
    "qwen2_5_vl:video": "Qwen2.5-VL, videos",
    "step3_vl": "Step3-VL",
    "glm4_1v": "GLM-4.1V",
    "ernie45_vl": "ERNIE-4.5-VL",
    "llava_next": "LLaVA-NeXT",
    "mistral3": "Mistral 3",
    "llava": "LLaVA-1.5",
    "paligemma": "PaliGemma",
    "blip2": "BLIP-2",
    "phi3v": "Phi-3-V",
    "gemma3_mm": "Gemma 3",
    "mllama4": "Llama 4",
}

_NUMBER = r"\d(?:[\d.,]*\d)?"


class PageError(Exception):
    """A page has no place for what is to be written there; the text says which page and what to do."""


@dataclass(frozen=True)
class Block:
    """Markdown between `<!-- NAME: made by benchmarks/pages.py -->` and `<!-- end -->`, written whole."""

    page: str
    name: str
    text: str

    @property
    def start(self) -> str:
        return f"<!-- {self.name}: made by benchmarks/pages.py -->"

    def put(self, document: str) -> str:
        """The document with the block's text of now."""
        head, _, rest = document.partition(self.start)
        _, found, tail = rest.partition("<!-- end -->")
        if not found:
            raise PageError(f"{self.page} has no `{self.start}` followed by `<!-- end -->`")
        return f"{head}{self.start}\n\n{self.text.strip()}\n\n<!-- end -->{tail}"

    def spans(self, document: str) -> list[tuple[int, int]]:
        """What of the document is the block."""
        start = document.index(self.start)
        return [(start, document.index("<!-- end -->", start))]


@dataclass(frozen=True)
class Sentence:
    """Words that stand exactly once on a page, whatever its line breaks, with `{}` for each number."""

    page: str
    words: str
    values: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.words.count("{}") != len(self.values):
            raise ValueError(f"{len(self.values)} values for: {self.words}")
        if unlike := [value for value in self.values if not re.fullmatch(_NUMBER, value)]:
            raise ValueError(f"{unlike[0]} is not written as a number of a page: {self.words}")

    def _match(self, document: str) -> re.Match[str]:
        pieces = [r"\s+".join(map(re.escape, re.split(r"\s+", piece))) for piece in self.words.split("{}")]
        found = list(re.finditer(f"({_NUMBER})".join(pieces), document))
        if len(found) != 1:
            raise PageError(
                f"{self.page} has {len(found)} times, not once: {self.words!r}. When you change the words on the page, "
                "change them in benchmarks/measured_*.py"
            )
        return found[0]

    def put(self, document: str) -> str:
        """The document with the numbers of now."""
        found = self._match(document)
        for group, value in reversed(list(enumerate(self.values, 1))):
            document = document[: found.start(group)] + value + document[found.end(group) :]
        return document

    def spans(self, document: str) -> list[tuple[int, int]]:
        """The numbers' places."""
        found = self._match(document)
        return [found.span(group) for group in range(1, len(self.values) + 1)]


@dataclass(frozen=True)
class File:
    """A file that is written whole: a plot."""

    page: str
    text: str

    def put(self, document: str) -> str:
        return self.text

    def spans(self, document: str) -> list[tuple[int, int]]:
        """All of it."""
        return [(0, len(document))]


Part = Block | File | Sentence


def load(name: str) -> dict[str, Any]:
    """A file of `results/`, by its name without the ending."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def exists(name: str) -> bool:
    return (RESULTS / f"{name}.json").is_file()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, f"|{' --- |' * len(head)}")
    return "\n".join(re.sub(" +", " ", line) for line in lines)


def mean(ratios: Iterable[float]) -> float:
    """Geometric mean."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def low_high(values: Iterable[float], digits: int = 2) -> tuple[str, str]:
    """The smallest and the largest, as written."""
    found = list(values)
    return f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"


def by_model(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of a result by their model, in the order of `NAMES`."""
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in NAMES}
    for row in rows:
        found[row["model"]].append(row)
    return {name: rows for name, rows in found.items() if rows}
