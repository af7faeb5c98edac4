"""`docs/fix.md`: each row of what is repaired in 0.33 is what a run gives."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from scaffold.fix import fix_port
from scaffold.pull_request import changed_lines
from scaffold.workflow import load_port

PAGE = (Path(__file__).parents[2] / "docs/fix.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (\d+) of (\d+) \| (\d+) \| \+(\d+) -(\d+) \| (.*) \|$", PAGE, re.MULTILINE)


def test_there_are_rows_by_name_and_twelve_repairs_are_short() -> None:
    names = [row[0] for row in ROWS]
    assert (len(names), names) == (13, sorted(names))
    assert sum(int(added) + int(removed) <= 25 for *_, added, removed, _ in ROWS) >= 12


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the `cpu` extra")
@pytest.mark.parametrize(
    ("model", "failing", "checks", "left", "added", "removed", "rules"), ROWS, ids=[row[0] for row in ROWS]
)
def test_a_row_is_what_a_run_gives(release_tree, model, failing, checks, left, added, removed, rules) -> None:
    fix = fix_port(load_port(model), release_tree("0.33.0"))
    before, after = fix.proven.before, fix.proven.after
    assert (len(before.defects), len(before.checks), len(after.defects)) == (int(failing), int(checks), int(left))
    package = [change for change in fix.changes if change.path.startswith("vllm/")]
    assert tuple(map(sum, zip(*map(changed_lines, package), strict=True))) == (int(added), int(removed))
    assert [repair.name for repair in fix.proven.repairs] == rules.split(", ")
