"""MkDocs runs these on the pages of the site: `hooks` in `mkdocs.yml`."""

from __future__ import annotations

import re
from typing import Any

#: Code in a sentence, and a word in it that a browser would break after its first hyphen, such as `--yes`.
CODE = re.compile(r"(?<!<span></span>)<code>[^<]*</code>")
WORD = re.compile(r"(?<![\w./-])(?=[\w-]{2,30}(?![\w./-]))\w*-[\w-]+")
#: A path that is too long for a column of a table.
PATH = re.compile(r"[\w./-]{40,}")

#: The line below the head of a Markdown table.
RULE = re.compile(r"^\|(?: *:?-+:? *\|)+$", re.MULTILINE)
#: So many columns fit beside the navigation without the table of contents, and so many beside neither.
WITHOUT_CONTENTS, ALONE = 10, 16


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Give a page with a wide table the room of the columns beside it, and let the search find concepts first."""
    if page.file.src_uri == "concepts.md":
        page.meta["search"] = {"boost": 3}
    columns = max((rule[0].count("|") - 1 for rule in RULE.finditer(markdown)), default=0)
    if columns >= WITHOUT_CONTENTS:
        page.meta["hide"] = ["toc", "navigation"] if columns >= ALONE else ["toc"]
    return markdown


def on_page_content(html: str, **_: Any) -> str:
    """Keep such a word in one line, and let such a path break. Neither changes the text that somebody copies."""
    words = CODE.sub(lambda code: WORD.sub(r'<span class="word">\g<0></span>', code[0]), html)
    return CODE.sub(lambda code: PATH.sub(lambda path: re.sub("[/_]", r"\g<0><wbr>", path[0]), code[0]), words)
