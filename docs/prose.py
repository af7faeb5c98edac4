"""Reads the project's prose for sentences that have to be read twice; `make lint` runs it over `PAGES`.

    python docs/prose.py [FILE ...]

It reads the paragraphs, list items and table cells of Markdown, and the docstrings and comments of Python, but no code
and no headings. Each line of output is `file:line: the words: what to write`; the exit code is 1 if there is one.
`tests/docs/test_prose.py` has a bad sentence for each rule, and a better one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.py", "scaffold/**/*.py")
#: The most words of a sentence.
LONGEST = 45

BE = r"(?:is|are|was|were|be|been|being)"
DONE = (
    r"(?:(?!When|Then|Often|divided)\w+(?:ed|en|wn)"
    r"|built|cut|found|held|kept|left|made|meant|put|read|run|said|sent|set|told)"
)
EACH = r"(?:item|frame|image|call|layout|property|patch|tile|sequence|token|model|second|batch|line|octave)"

#: A pattern, and what to write instead. `^` is the beginning of a sentence.
RULES = (
    (r"\bnobody (?:has |had )?(?:wrote|written|\w+ed)\b", "say what it is, such as `unwritten memory`"),
    (r"\b(?:none|most|all|some|one|half|part) of which\b", "start a new sentence"),
    (rf"^(?i:(?:not )?(?:only )?{DONE}) {BE}\b", "the subject comes first"),
    (r"^What\b[^?]*$", "name the thing that `what` stands for"),
    (r"^Of (?!course)", "the subject comes first"),
    (r"^(?:Who|Whoever)\b[^?]*$", "name the reader or the user"),
    (rf"\b{BE} (?:also )?asked (?:of|for)\b", "active: `we ask X`, `X tells`"),
    (rf"\b{BE} (?:also |then |not |still )*said\b", "active: `X reports`, `X states`"),
    (rf"\b{BE} (?:\w+ly )?{DONE} by (?!\w+ing\b|hand\b|default\b|itself\b)", "active: the actor comes first"),
    (r"\b(?<!stand-)stands? (?:in(?! for)|on|at|there|beside|behind|below|above|before)\b", "`is`"),
    (rf"\b(?:one|once|twice|lines?|entry|length|rows?|tokens?|tiles?|lists?|values?|steps) an? {EACH}\b", "`per`"),
    (r"\b(?:hence|thereby|therein|whence|lest|for want of|[Tt]he (?:former|latter))\b", "plainer words"),
    (r"\b(?:do|does|did) so, too\b", "repeat the verb"),
    (r"\bas far as\b", "`where`, or `up to`"),
)  # fmt: skip


def of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each paragraph, item and cell, with code as one word."""
    line, before = 0, ""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline" and before != "heading_open":
            yield line, "".join("X" if part.type == "code_inline" else part.content or " " for part in token.children)
        before = token.type


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring's paragraphs, and of each block of comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (found := ast.get_docstring(node)):
            paragraphs = re.split(r"\n\s*\n", found)
            yield from ((node.body[0].lineno, re.sub(r"`[^`]*`", "X", part)) for part in paragraphs)
    for block in re.finditer(r"(?:^[ \t]*#.*\n)+|(?<=  )# .*$", text, re.MULTILINE):
        words = re.sub(r"^[ \t]*#[:! ]*", "", block[0], flags=re.MULTILINE)
        yield text.count("\n", 0, block.start()) + 1, re.sub(r"`[^`]*`", "X", words)


def complaints(paragraph: str) -> Iterator[str]:
    """What is wrong with each sentence."""
    for sentence in re.split(r"(?<=[.!?:;])(?<!e\.g\.)\s+(?=[\"*`(\[A-Z])", " ".join(paragraph.split())):
        plain = sentence.lstrip("*_\"'([ ")
        for pattern, better in RULES:
            if found := re.search(pattern, plain):
                yield f"`{found[0][:60]}`: {better}"
        if (count := len(re.findall(r"\w+", plain))) > LONGEST:
            yield f"`{plain[:40]}...`: {count} words; {LONGEST} at most"


def main(arguments: list[str]) -> int:
    files = [Path(name).resolve() for name in arguments] or sorted({file for glob in PAGES for file in ROOT.glob(glob)})
    found = [
        f"{path.relative_to(ROOT)}:{line}: {complaint}"
        for path in files
        for line, paragraph in (of_python if path.suffix == ".py" else of_markdown)(path.read_text(encoding="utf-8"))
        for complaint in complaints(paragraph)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
