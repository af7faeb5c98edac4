"""What `README.md` and the start page promise: each number and each promise links to where it is shown, and holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from scaffold.descriptor import json_schema

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/index.md")
#: Numbers that claim nothing: a release, what a reader needs, the name of a chip, the size of an image.
PLAIN = re.compile(
    r"vLLM (?:\d[\d.]*(?: to )?)+|\bYou need [^.]*\d\.\d+[^.]*\.|\bFor X you need [^.]*\.|\bH\d00\b|\d+x\d+"
)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)*|\b(?:two|three|four|five|six|seven|eight|nine|ten)\b")
LINK = "\N{LINK SYMBOL}"


def written(inline: Token) -> str:
    """A text; each code is one word, and a mark follows a link."""
    marks = {"softbreak": " ", "link_close": LINK, "code_inline": "X", "image": ""}
    return "".join(marks.get(part.type, part.content) for part in inline.children or [])


def unlinked(text: str) -> list[str]:
    """Sentences with a number and without a link."""
    sentences = re.split(r"(?<=[.?!])\s+(?=[A-Z])", PLAIN.sub("", text))
    return [sentence for sentence in sentences if NUMBER.search(sentence) and LINK not in sentence]


def blocks(page: str) -> list[tuple[str, str]]:
    """The kind of each block of text, and the text."""
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text(encoding="utf-8"))
    return [(tokens[i - 1].type, written(token)) for i, token in enumerate(tokens) if token.type == "inline"]


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("It is 3 times as fast.", 1),
        (f"It is 3 times{LINK} as fast.", 0),
        (f"It is fast{LINK}. It takes two minutes.", 1),
        ("It serves vLLM 0.20 to 0.33 on an H200.", 0),
        ("You need Python 3.11 or newer, git and make.", 0),
        ("You need it. It saves 3.5 ms.", 1),
    ],
)
def test_a_claim_is_seen(text: str, claims: int) -> None:
    assert len(unlinked(text)) == claims


@pytest.mark.parametrize("page", PAGES)
def test_every_number_links_to_its_measurement(page: str) -> None:
    found = [sentence for kind, text in blocks(page) if kind == "paragraph_open" for sentence in unlinked(text)]
    assert found == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_of_results_links_to_its_page(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").partition("<!-- summary")[2].partition("<!-- end -->")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 5
    assert [row for row in rows if not re.match(r"\| \[[^]]+\]\((?:docs/)?measured/\w+\.md\) \|", row)] == []


def test_every_promise_links_to_its_evidence() -> None:
    promises = [text for _, text in blocks("README.md") if text.startswith("It is ")]
    assert [text.split(".")[0] for text in promises] == ["It is proven", "It is honest", "It is safe", "It is small"]
    assert [text for text in promises if LINK not in text] == []


def test_small_ports_are_small() -> None:
    """Fewer lines than upstream's, in every model that has both ports."""
    text = (ROOT / "docs/measured/upstream.md").read_text(encoding="utf-8")
    lines = {
        name: (int(theirs), int(ours))
        for name, theirs, ours in re.findall(r"^\| `(\w+)` \| (\d+) \| \d+ \| (\d+) \|", text, re.MULTILINE)
    }
    assert len(lines) > 12
    assert [name for name, (theirs, ours) in lines.items() if ours >= theirs] == []


def test_counts_in_words_are_the_tool_s() -> None:
    """Generations, of which the tool has never supported the first, and layouts."""
    known = list((ROOT / "scaffold/protocol/known").glob("v*.json"))
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{words[len(known) + 1]} incompatible generations" in readme
    concepts = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    assert f"{words[len(known) + 1]} incompatible generations" in concepts
    assert f"supports the last {words[len(known)]}" in concepts
    assert f"{words[len(json_schema()['oneOf'])]} layouts" in (ROOT / "docs/index.md").read_text(encoding="utf-8")
