"""MkDocs runs these on the pages of the site: `hooks` in `mkdocs.yml`."""

from __future__ import annotations

import re
from typing import Any

#: Code in a sentence, and a word in it that a browser would break after its first hyphen, such as `--yes`.
CODE = re.compile(r"(?<!<span></span>)<code>[^<]*</code>")
WORD = re.compile(r"(?<![\w./-])(?=[\w-]{2,30}(?![\w./-]))\w*-[\w-]+")


def on_page_content(html: str, **_: Any) -> str:
    """Keep such a word in one line. The span changes nothing else, so that a copy has the plain text."""
    return CODE.sub(lambda code: WORD.sub(r'<span class="word">\g<0></span>', code[0]), html)
