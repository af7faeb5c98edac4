"""The catalogue and the code name the same codes, each with one meaning."""

from __future__ import annotations

import re
from pathlib import Path

import scaffold
from scaffold.diagnostics.catalogue import all_codes

SOURCES = Path(scaffold.__file__).parent
#: Codes as strings of their own, as they are given to `Diagnostic`; not those that a text mentions.
RAISED = re.compile(r'"(VCG\d{3})"')


def test_every_code_that_is_raised_is_explained_and_the_other_way_round() -> None:
    raised = {code for path in SOURCES.rglob("*.py") for code in RAISED.findall(path.read_text("utf-8"))}
    assert raised == set(all_codes())


def test_every_heading_is_a_code_with_an_explanation_and_no_code_has_two_meanings() -> None:
    headings = re.findall(r"^#+ (\S+)", (SOURCES / "diagnostics/codes.md").read_text("utf-8"), re.MULTILINE)
    assert headings == ["Codes", *(f"{code}:" for code in all_codes())]
    assert all(code.explanation for code in all_codes().values())
