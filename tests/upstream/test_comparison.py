"""docs/measured/upstream.md: its tables are what the releases and the templates say, and its claims hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import compare_upstream
from compare_upstream import COMPARISONS, Count

from scaffold.protocol import read_protocol

VARIANTS = [(comparison, same) for comparison in COMPARISONS for same in (False, True)]


@pytest.fixture(scope="module")
def tables(release_tree):
    for comparison in COMPARISONS:
        release_tree(comparison.before), release_tree(comparison.after)  # fetched, or skipped when offline
    return {
        (comparison.model, same): compare_upstream.compare(comparison, same_protocol=same)
        for comparison, same in VARIANTS
    }


@pytest.mark.trees
@pytest.mark.parametrize(("comparison", "same"), VARIANTS, ids=lambda value: getattr(value, "model", value))
def test_no_file_has_more_lines_than_upstreams(comparison, same, tables):
    table = tables[comparison.model, same]

    assert len(table.rows) == 4
    for path, theirs, ours in table.rows:
        assert 0 < ours.added <= theirs.added, path
        assert ours.removed <= theirs.removed, path
        assert ours.code <= theirs.code, path


@pytest.mark.trees
@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda value: value.model)
def test_the_places_are_upstreams(comparison, tables, release_tree):
    """With the same protocol, whatever upstream changes but its own helpers and what nothing calls, ours changes."""
    table = tables[comparison.model, True]
    uncalled = read_protocol(release_tree(comparison.after)).uncalled

    assert [name for name in table.upstream_only if not name.startswith("_get_") and name not in uncalled] == []
    assert {"imports", "encoder_cudagraph_forward", "select_encoder_cudagraph_items"} <= set(table.both)


@pytest.mark.trees
def test_the_page_is_current(tables, monkeypatch):
    monkeypatch.setattr(
        compare_upstream, "compare", lambda comparison, same_protocol: tables[comparison.model, same_protocol]
    )
    assert compare_upstream.PAGE.read_text("utf-8") == compare_upstream.render(), (
        "run `python benchmarks/compare_upstream.py`"
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a = 1\n", "a = 1\n", Count(0, 0, 0)),
        ("a = 1\n", "a = 2\n", Count(1, 1, 1)),
        ("a = 1\n", "a = 1\n\n\n# why\nb = 2\n", Count(2, 0, 1)),
        ("a = 1\n\nb = 2\n", "a = 1\n", Count(0, 1, 0)),
        ("", 'def f():\n    """Say\n\n    why."""\n    return (\n        1\n    )  # one\n', Count(6, 0, 4)),
        ("", 'text = """\n# not a comment\n"""\n', Count(3, 0, 3)),
    ],
    ids=["nothing", "changed", "comments and blank lines", "removed", "docstring", "string"],
)
def test_lines_are_counted(old, new, expected):
    assert compare_upstream.count(old, new) == expected


def test_a_test_entry_is_its_lines_and_what_came_with_it():
    before = "def known(): ...\nCONFIGS = {}\n"
    text = (
        "def known(): ...\ndef new():\n\n    return 1\ndef other(): ...\n"
        'CONFIGS = {\n    "a": Config(\n        known(), new(),\n    ),\n    "b": Config(other()),\n}\n'
    )

    assert compare_upstream.test_entry(before, text, "a") == [
        "def new():",
        "    return 1",
        '    "a": Config(',
        "        known(), new(),",
        "    ),",
    ]
    assert compare_upstream.test_entry(before, text, "c") == []
