"""`docs/fix.md`: each row of what is repaired in 0.33 is what a run gives."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from scaffold.changes import FileChange
from scaffold.fix import apply_repairs, fix_port
from scaffold.pull_request import changed_lines
from scaffold.workflow import load_port

PAGE = (Path(__file__).parents[2] / "docs/fix.md").read_text(encoding="utf-8")
LINES = r"(?:\+(\d+) -(\d+)|none)"
ROW = rf"^\| `(\w+)` \| (\d+) of (\d+) \| (\d+) \| {LINES} \| (.*) \| (\d+) \| {LINES} \| (.*) \|$"
ROWS = re.findall(ROW, PAGE, re.MULTILINE)
MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
#: Lines of the manager that a rule changes.
MANAGER_LINES = {"embeddings run eagerly": 8, "many frames run eagerly": 12}


def names_in(cell: str) -> list[str]:
    return [] if cell == "none" else cell.split(", ")


def lines_of(changes: Iterable[FileChange]) -> tuple[int, int]:
    """What the package gains and loses."""
    counted = [changed_lines(change) for change in changes if change.path.startswith("vllm/")]
    return sum(added for added, _ in counted), sum(removed for _, removed in counted)


def test_there_are_rows_by_name_and_all_ports_are_mended() -> None:
    names = [row[0] for row in ROWS]
    assert (len(names), names) == (13, sorted(names))
    assert {row[7] for row in ROWS} == {"0"}, "no check fails with --with-open"
    own, whole = ([int(row[i] or 0) + int(row[i + 1] or 0) for row in ROWS] for i in (4, 8))
    assert max(own) <= 25
    # The manager's lines are counted with each model, and written once.
    shared = [sum(MANAGER_LINES.get(rule, 0) for rule in names_in(row[10])) for row in ROWS]
    assert sum(lines - others <= 25 for lines, others in zip(whole, shared, strict=True)) >= 12


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the `cpu` extra")
@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_what_a_run_gives(release_tree, row) -> None:
    model, failing, checks, after, added, removed, rules, at_last, all_added, all_removed, further = row
    tree = release_tree("0.33.0")
    fix = fix_port(load_port(model), tree)
    before, left = fix.proven.before, fix.proven.left
    assert (len(before.defects), len(before.checks)) == (int(failing), int(checks))
    assert len(fix.proven.after.defects) == int(after)
    assert lines_of(fix.changes) == (int(added or 0), int(removed or 0))
    assert [repair.name for repair in fix.proven.repairs] == names_in(rules)
    # What is left is proven on top, and what --with-open writes.
    assert [one.repair.name for one in left] == names_in(further)
    assert len(left[-1].after.defects if left else fix.proven.after.defects) == int(at_last)
    changes = apply_repairs(tree, [*fix.proven.repairs, *(one.repair for one in left)])
    assert lines_of(changes) == (int(all_added), int(all_removed))
    assert sum(lines_of(change for change in changes if change.path != MANAGER)) <= 27
    assert sum(lines_of(change for change in changes if change.path == MANAGER)) <= 20
    assert all(repair.test for repair in fix.proven.repairs), "a unit test comes with it"
