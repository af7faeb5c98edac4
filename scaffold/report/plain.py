"""Makes text harmless for an output: the one place that decides how a character or a line may act on a reader.

Names of files, texts of a tree and of a descriptor come from strangers. On a terminal a control character moves the
cursor or colours a line, an override of the direction turns text around, and a line feed in a name forges a line. The
runner of a GitHub workflow takes lines for commands.
"""

from __future__ import annotations

import json
import re
from typing import Any


def one_line(text: str) -> str:
    """Text that stays in its line and as it reads: what is not printable is shown as an escape, such as `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def lines_of(text: str) -> str:
    """The same for a text that was laid out in lines: its line feeds and tabs stay."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def without_commands(text: str) -> str:
    """Text in which a runner of GitHub finds no command.

    It looks for `::NAME ...::` at the start of a line, after white space of any kind, and for `##[NAME ...]` anywhere
    (actions/runner, `ActionCommand.cs`). A carriage return ends a line for it, too. It compares as its language sorts,
    which passes over marks and characters without a width, so all that is no visible ASCII counts as absent here.
    """
    text = re.sub(r"(^|\r)([^!-~\r\n]*):(?=[^!-~\r\n]*:)", r"\1\2\\x3a", text, flags=re.MULTILINE)
    return re.sub(r"#([^!-~\r\n]*)#([^!-~\r\n]*)\[", r"#\1#\2\\x5b", text)


def json_of(value: Any) -> str:
    """A JSON document for programs, in ASCII: whatever a string holds, a terminal shows it as an escape."""
    return json.dumps(value, indent=2) + "\n"
