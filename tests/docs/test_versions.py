"""Versions: the changelog has a section of the package's, and no former name outlives the version of its end."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from packaging.version import Version

import scaffold
from scaffold.cli.app import FORMER, FORMER_UNTIL

LINES = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
HEADINGS = [line.removeprefix("## ") for line in LINES if line.startswith("## ")]


def test_the_changelog_begins_with_what_no_version_has_and_names_the_packages_version() -> None:
    assert HEADINGS[0] == "[Unreleased]"
    dated = [re.fullmatch(r"\[(\S+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in HEADINGS[1:]]
    assert all(dated), HEADINGS
    versions = [Version(found[1]) for found in dated if found]
    assert versions == sorted(versions, reverse=True)
    assert versions[0] == Version(scaffold.__version__)
    assert all(datetime.date.fromisoformat(found[2]) for found in dated if found)


def test_a_change_is_one_line() -> None:
    body = LINES[LINES.index("## [Unreleased]") :]
    assert [line for line in body if line[:1].isspace()] == []
    assert [line for line in body if len(line) > 240] == []


def test_former_names_go_with_the_version_that_they_name() -> None:
    assert FORMER == {} or Version(scaffold.__version__) < Version(FORMER_UNTIL), "remove the former names"
