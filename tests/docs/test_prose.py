"""The prose linter: each rule catches its sentence, a better sentence passes, and code is no prose."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
import prose

#: A sentence that one rule catches, with the words that it names, and a better one.
SENTENCES = [
    ("Memory that nobody wrote is poisoned.", "nobody wrote", "Unwritten memory is filled with NaN."),
    ("It has two keys, none of which is read.", "none of which", "It has two keys. No code reads them."),
    ("Refused is only what tells nothing.", "Refused is", "`init` refuses only models without image inputs."),
    ("What of a capture is left costs 1 ms.", "What", "Beyond warm-up, a capture costs 1 ms."),
    ("Of fewer than six turns there is no interval.", "Of ", "Fewer than six turns give no interval."),
    ("Who reads this knows it.", "Who", "A reader of this page knows it."),
    ("Where an input lies is asked of the release.", "is asked of", "We ask the release where its inputs live."),
    ("That is also said in the log.", "is also said", "The log also reports that."),
    ("Every command is run by a test.", "is run by ", "A test runs every command."),
    ("The check stands behind the replay.", "stands behind", "The check follows the replay."),
    ("A video has one row a patch.", "row a patch", "A video has one row per patch."),
    ("The former is faster.", "former", "Graphs are faster."),
    ("Keye and Siglip2 do so, too.", "do so, too", "Keye and Siglip2 also do that."),
    ("All have adapters, as far as a tree allows it.", "as far as", "All have adapters where a tree allows it."),
    ("And " * 46 + "so on.", "48 words", "One idea per sentence."),
]


@pytest.mark.parametrize(("bad", "words", "better"), SENTENCES, ids=[words for _, words, _ in SENTENCES])
def test_a_rule_catches_its_sentence(bad: str, words: str, better: str) -> None:
    assert any(words in complaint.partition(": ")[0] + complaint for complaint in prose.complaints(bad))
    assert list(prose.complaints(better)) == []


def test_every_rule_has_a_sentence() -> None:
    caught = {pattern for pattern, _ in prose.RULES for bad, _, _ in SENTENCES if prose.re.search(pattern, bad)}
    assert caught == {pattern for pattern, _ in prose.RULES}


@pytest.mark.parametrize(
    "sentence",
    ["Of course it is.", "What is a budget?", "The padding is done by repeating the last one.", "It is set by default.",
     "No CPU can stand in for that.",
     "`What nobody wrote` is a title."],
)  # fmt: skip
def test_a_plain_sentence_passes(sentence: str) -> None:
    (paragraph,) = (text for _, text in prose.of_markdown(sentence))
    assert list(prose.complaints(paragraph)) == []


def test_places_are_those_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = "# What it is\n\nGood.\n\n* good\n* That is said.\n\n```sh\nis said\n```\n\n| a |\n| --- |\n| is said |\n"
    module = 'x = "is said"\n\n\ndef f():\n    """Good.\n\n    That is said.\n    """\n    # It is\n    # said.\n'
    assert [(line, list(prose.complaints(text)) != []) for line, text in prose.of_markdown(page)] == [
        (3, False), (5, False), (6, True), (12, False), (14, True),
    ]  # fmt: skip
    assert [(line, list(prose.complaints(text)) != []) for line, text in prose.of_python(module)] == [
        (5, False), (5, True), (9, True),
    ]  # fmt: skip


def test_the_pages_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([]) == 0, capsys.readouterr().out
