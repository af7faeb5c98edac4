"""Numbers on the pages are those of `benchmarks/results/`, and none stands in README.md without its file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import measured
import pages
from measured import ROOT, Block, PageError, Sentence

PARTS = pages.all_parts()


def test_pages_say_what_was_measured():
    outdated = [path.name for path, text in pages.written(PARTS).items() if path.read_text(encoding="utf-8") != text]
    assert outdated == [], "run: python benchmarks/pages.py"


@pytest.mark.parametrize("page", ["README.md", "docs/measured.md"])
def test_every_measured_number_has_its_file(page):
    """Whole numbers count only with a unit behind them; releases are not measured."""
    text = (ROOT / page).read_text(encoding="utf-8")
    held = [span for part in PARTS if part.page == page for span in part.spans(text)]
    not_prose = r"`[^`\n]*`|^```.*?^```$|\]\([^)]*\)|(?:vLLM|Python|--vllm) \d[\d.]*(?: to \d[\d.]*)?"
    prose = re.sub(not_prose, lambda found: " " * len(found[0]), text, flags=re.MULTILINE | re.DOTALL)
    numbers = list(re.finditer(r"(?<![\w.-])(?:\d+\.\d+|\d+(?= (?:%|ms|MiB|of \d)))", prose))

    loose = [found[0] for found in numbers if not any(start <= found.start() < end for start, end in held)]

    assert held
    assert loose == []


@pytest.mark.parametrize(
    ("part", "before", "after"),
    [
        (
            Sentence("p", "takes {} to {} ms", ("1.5", "2")),
            "It\ntakes 1.4\n  to 1,000 ms.",
            "It\ntakes 1.5\n  to 2 ms.",
        ),
        (Sentence("p", "{} %, always", ("97",)), "3.25 %, always", "97 %, always"),
        (
            Block("p", "n", "| a |\n| b |\n"),
            "x\n<!-- n: made by benchmarks/pages.py -->\nold\n<!-- end -->\ny",
            "x\n<!-- n: made by benchmarks/pages.py -->\n\n| a |\n| b |\n\n<!-- end -->\ny",
        ),
    ],
    ids=["across lines", "at the start", "block"],
)
def test_only_the_numbers_change(part, before, after):
    assert part.put(before) == after
    assert part.put(after) == after


@pytest.mark.parametrize(
    ("part", "document", "message"),
    [
        (Sentence("p", "takes {} ms", ("1",)), "needs 1 ms", "0 times"),
        (Sentence("p", "takes {} ms", ("1",)), "takes 1 ms, takes 1 ms", "2 times"),
        (Block("p", "n", ""), "no block", "p has no `<!-- n: made by benchmarks/pages.py -->`"),
        (Block("p", "n", ""), "<!-- n: made by benchmarks/pages.py -->", "followed by"),
    ],
)
def test_a_page_without_the_place_is_refused(part, document, message):
    with pytest.raises(PageError, match=re.escape(message)):
        part.put(document)


@pytest.mark.parametrize("values", [(), ("1", "2"), ("about 3",), ("",), ("1.",)])
def test_values_are_numbers_and_as_many_as_their_places(values):
    with pytest.raises(ValueError, match="takes"):
        Sentence("p", "takes {} ms", values)


def test_another_result_is_another_page(monkeypatch):
    """The numbers come from the files: all times of our manager a tenth longer, and the pages say so."""
    load = measured.load

    def slower(name):
        result = load(name)
        for model in result.get("models", {}).values():
            for key in [key for key in model.get("summary", {}) if key.startswith("ours") and "/exact" in key]:
                model["summary"][key] *= 1.1
        return result

    before = pages.written(PARTS)
    monkeypatch.setattr("measured_manager.load", slower)
    changed = {path.name for path, text in pages.written(pages.all_parts()).items() if before[path] != text}

    assert changed == {"README.md", "index.md", "measured.md", "runtime.md"}
