"""The common parts of the pages on measurements. A page is a text of `texts/` with its holes filled from `results/`.

`measured_*.py` beside this file compute what fills them; `pages.py` writes or checks the pages. Nothing on a page of
`docs/measured/` is written by hand, and no number is typed in a text or a generator: a test reads both.
"""

from __future__ import annotations

import builtins
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from measured_code import told

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"
TEXTS = Path(__file__).resolve().parent / "texts"
MADE = "<!-- made by benchmarks/pages.py from benchmarks/results/: do not edit -->"

#: Names of models for readers, in the order of the pages. A shipped model that is not named here is last, and has the
#: title with which its descriptor begins.
NAMES = {
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen2_vl": "Qwen2-VL",
    "qwen3_vl": "Qwen3-VL",
    "internvl": "InternVL",
    "qwen2_5_vl:video": "Qwen2.5-VL, videos",
    "step3_vl": "Step3-VL",
    "glm4_1v": "GLM-4.1V",
    "llava": "LLaVA-1.5",
    "pixtral": "Pixtral",
    "minicpmv": "MiniCPM-V",
    "idefics3": "Idefics3",
    "qwen2_audio": "Qwen2-Audio",
    "qwen3_asr": "Qwen3-ASR",
    "qwen3_asr_1_7b": "Qwen3-ASR, the larger one",
    "qwen3_omni": "Qwen3-Omni, sound",
    "blip2": "BLIP-2",
    "moondream3": "Moondream 3",
    "paddleocr_vl": "PaddleOCR-VL",
    "keye": "Keye-VL",
    "lightonocr": "LightOnOCR",
    "cohere2_vision": "Cohere2 Vision",
    "dots_ocr": "dots.ocr",
    "internvl_hf": "InternVL (Hugging Face format)",
    "minicpmv4_6": "MiniCPM-V-4.6",
    "isaac": "Isaac",
}
for _path in sorted((ROOT / "scaffold/descriptor/shipped").glob("*.yaml")):
    NAMES.setdefault(_path.stem, _path.read_text("utf-8").removeprefix("# ").partition(":")[0])


class PageError(Exception):
    """The results do not support the words of a page; the text names the page."""


@dataclass(frozen=True)
class Page:
    """A generated file: a page, or a picture beside one.

    `path` is below the repository. `answers` is the question of the page, and `results` are its sources, for the index;
    both are empty for a picture.
    """

    path: str
    text: str
    answers: str = ""
    results: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Its first heading."""
        return next(line for line in self.text.splitlines() if line.startswith("# ")).removeprefix("# ")


def text_page(name: str, results: Iterable[str], known: Mapping[str, Any]) -> Page:
    """`docs/measured/NAME.md` from `texts/NAME.md`: a head, and Markdown whose holes are expressions of `known`.

    The head has the page's question, and the script where the page ends with the origin of its numbers.
    """
    found = tuple(results)
    head, text = filled(name, known)
    origin = sources(head["script"], found) if "script" in head else ()
    return Page(f"docs/measured/{name}.md", document(text, *origin), head.get("question", ""), found)


def filled(name: str, known: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The head of a text, and the text with its holes filled."""
    head, _, text = (TEXTS / f"{name}.md").read_text(encoding="utf-8").partition("\n\n")
    said = dict(line.split(": ", 1) for line in head.splitlines())
    always = {**vars(builtins), "NAMES": NAMES, "bullets": bullets, "over": over}
    return said, jinja2.Template(text, undefined=jinja2.StrictUndefined).render(always | dict(known))


def picture(name: str, text: str) -> Page:
    """`docs/measured/NAME.svg`."""
    return Page(f"docs/measured/{name}.svg", text)


def sources(script: str, results: Iterable[str]) -> Iterable[str]:
    """The last section of a page: the script and each file of results, with its machine and date."""
    yield "## Where the numbers come from"
    yield f"`{script}` measured these. Each file holds every single number."
    rows = [[f"`benchmarks/results/{name}.json`", *ran(name)] for name in results]
    yield table(["results", "vLLM", "torch", "machine", "date", "code"], rows)
    yield "*code* is the commit that was measured. *changed since* means that the runtime or the adapters differ now."


def ran(name: str) -> list[str]:
    """vLLM, torch, machine, date and code of a result."""
    result = load(name)
    versions = result["versions"]
    machine = result["machine"].removeprefix("one ").replace("NVIDIA ", "")
    return [versions["vllm"], versions.get("torch", ""), machine, result["date"], told(result)]


def document(*parts: str) -> str:
    """Markdown of headings, paragraphs, lists and tables with an empty line between them; prose is wrapped."""
    blocks = [block.strip() for part in parts for block in part.split("\n\n")]
    return "\n\n".join([MADE, *(wrapped(block) for block in blocks if block)]) + "\n"


def wrapped(part: str) -> str:
    """A paragraph or a list in lines of 120 characters; tables, headings and pictures stay."""
    if part.startswith(("|", "#", "!")):
        return part
    if part.startswith("* "):
        items = re.split(r"\n(?=\* )", part)
        return "\n".join(_fill(item.removeprefix("* "), "* ", "  ") for item in items)
    return _fill(part)


def _fill(text: str, first: str = "", rest: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(
        words, 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def bullets(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"* {line}" for line in lines)


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


#: The columns of a table: a heading, and a format of a row's values such as `{eager_ms:.1f}`, or a function of the row.
Columns = Sequence[tuple[str, str | Callable[[Any], str]]]


def sheet(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> str:
    """A table with a line for each row.

    In a format, `{name}` is the model's name for readers. `{first}` is empty where the line above is of the same model.
    """
    lines: list[list[str]] = []
    above = None
    for row in rows:
        name = NAMES.get(row.get("model", ""), "")
        known = {**row, "name": name, "first": "" if lines and row.get("model") == above else name}
        lines.append([cell.format_map(known) if isinstance(cell, str) else cell(row) for _, cell in columns])
        above = row.get("model")
    return table([heading for heading, _ in columns], lines)


def over(value: str, other: str) -> Callable[[Any], str]:
    """A column: one value of a row over another."""
    return lambda row: f"{row[value] / row[other]:.2f}"


def mean(ratios: Iterable[float]) -> float:
    """Geometric mean."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def low_high(values: Iterable[float], digits: int = 2) -> tuple[str, str]:
    """The smallest and the largest, as text."""
    found = list(values)
    return f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"


def by_model(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of a result by their model, in the order of `NAMES`."""
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in NAMES}
    for row in rows:
        found[row["model"]].append(row)
    return {name: rows for name, rows in found.items() if rows}
