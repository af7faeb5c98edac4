"""The catalogue and the code name the same codes, each with one meaning."""

from __future__ import annotations

import re
from pathlib import Path

import scaffold
from scaffold.diagnostics.catalogue import all_codes

SOURCES = Path(scaffold.__file__).parent
CATALOGUE = SOURCES / "diagnostics/catalogue"


def _codes_in(path: Path) -> list[str]:
    """Codes as strings of their own, as they are given to `Diagnostic`; not those that a text mentions."""
    return re.findall(r'"(VCG\d{3})"', path.read_text("utf-8"))


def test_every_code_that_is_raised_is_explained_and_the_other_way_round() -> None:
    raised = {code for path in SOURCES.rglob("*.py") if not path.is_relative_to(CATALOGUE) for code in _codes_in(path)}
    assert raised == set(all_codes())


def test_every_stage_is_listed_and_no_code_has_two_meanings() -> None:
    listed = [code for path in CATALOGUE.glob("*.py") for code in _codes_in(path)]
    assert sorted(listed) == list(all_codes())
