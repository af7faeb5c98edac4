"""The one Jinja environment: sandboxed, strict about undefined names, and with filters as the only way into code.

A template must read like the code that it makes. Values reach code through `pyrepr` (a literal), `ident` (a checked
identifier), `path` (a checked attribute path), `comment` (the words of a comment) or an expression's own `python()`. A
bare `{{ value }}` of a string that came from a descriptor is a mistake, which `finalize` turns into an error.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment


class Code(str):
    """Text that is source code already: the result of a filter, of `Expression.python()` or of a macro."""

    __slots__ = ()


def template_root() -> Path:
    """Where the templates lie: inside the wheel, or at the top of a checkout."""
    packaged = Path(__file__).parent.parent / "_templates"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent.parent / "templates"


def pyrepr(value: object) -> Code:
    """A Python literal of `value`, with the double quotes that ruff and black use."""
    if isinstance(value, str):
        text = repr(value)
        if text.startswith("'") and '"' not in value:
            text = '"' + text[1:-1].replace("\\'", "'") + '"'
        return Code(text)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(pyrepr(item) for item in value)
        if isinstance(value, list):
            return Code(f"[{inner}]")
        return Code(f"({inner},)" if len(value) == 1 else f"({inner})")
    if isinstance(value, dict):
        return Code("{" + ", ".join(f"{pyrepr(key)}: {pyrepr(item)}" for key, item in value.items()) + "}")
    if value is None or isinstance(value, (bool, int, float)):
        return Code(repr(value))
    raise TypeError(f"no literal for {type(value).__name__}")


def wrapped(value: object, columns: int) -> Code:
    """`pyrepr`, but of a text with more columns parts behind each other that begin at its blanks."""
    if not isinstance(value, str) or len(value) <= columns:
        return pyrepr(value)
    lines = [""]
    for word in re.findall(r"\S*\s*", value):
        lines[-1:] = [lines[-1] + word] if len(lines[-1] + word) <= columns else [lines[-1], word]
    return Code(f"({' '.join(pyrepr(line) for line in lines if line)})")


def pydict(items: Mapping[str, str]) -> Code:
    """A dict display whose keys are data and whose values are code."""
    return Code("{" + ", ".join(f"{pyrepr(key)}: {value}" for key, value in items.items()) + "}")


def ident(value: str) -> Code:
    """`value` as an identifier; anything else is a mistake of the caller, since descriptors are checked before."""
    if not value.isidentifier() or keyword.iskeyword(value):
        raise ValueError(f"not an identifier: {value!r}")
    return Code(value)


def path(value: str) -> Code:
    """`value` as a dotted path of identifiers, such as `self.vision_model.use_data_parallel`."""
    for part in value.split("."):
        ident(part)
    return Code(value)


def comment(text: str | None) -> list[Code]:
    """The lines of a comment, without `#`, for a place eight columns or less below a method; none where there is none.

    Every white space of `text` is a place to break, so no text can end the comment and go on as code. No other place is
    one: a line begins with a whole word, which the descriptor has judged.
    """
    words = " ".join((text or "").split())
    return [Code(line) for line in textwrap.wrap(words, 74, break_on_hyphens=False, break_long_words=False)]


def _finalize(value: Any) -> Any:
    if value is None:
        raise TypeError("a template printed None")
    if isinstance(value, str) and not isinstance(value, Code):
        raise TypeError(f"a template printed the bare string {value!r}: use pyrepr, ident or path")
    return value


@cache
def _environment() -> SandboxedEnvironment:
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(
        loader=FileSystemLoader(template_root()),
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        # `#` starts a comment in the code that is made, so template comments keep Jinja's `{# #}` only.
    )
    environment.filters.update(pyrepr=pyrepr, wrapped=wrapped, ident=ident, path=path, pydict=pydict, comment=comment)
    return environment


def render_template(name: str, /, **values: object) -> str:
    """Render `templates/NAME`. Pure: the same values give the same text on every machine."""
    return _environment().get_template(name).render(**values)
