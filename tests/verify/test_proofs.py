"""What `verify` found last: kept, found again for the same files alone, and never an error when it is damaged."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from scaffold.verify import proofs
from scaffold.verify.numeric import Check, NumericReport
from scaffold.verify.numeric.model import ObservedHazard
from scaffold.verify.proofs import find_reports, identify_proof, keep_reports

MODEL = "vllm/model.py"
GOOD = Check("a: small", "image", True, 0.0, 2e-7, group="small")
REPORTS = (
    NumericReport("internvl", "0.22.0", "fa3", (GOOD,), hits=3, misses=1, sequences=5, guessed=("a",)),
    NumericReport("internvl", "0.22.0", "fa2", (GOOD,), (ObservedHazard("host sync", "item", "a.py:1", "run", 2),)),
    NumericReport("internvl", "0.22.0", "fa2", (GOOD,), hits=3, machine="a GPU"),
)


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(proofs, "cache_root", lambda: tmp_path / "cache")
    root = tmp_path / "tree"
    for path in ("vllm/__init__.py", MODEL, "vllm/data.json", "vllm/__pycache__/model.py", "docs/a.md"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("old")
    return root


def test_the_last_result_is_found_again() -> None:
    keep_reports("one", REPORTS[:1])
    keep_reports("two", REPORTS[1:])
    assert find_reports("one") == REPORTS[:1]
    keep_reports("one", REPORTS)
    assert find_reports("one") == REPORTS
    assert find_reports("three") == ()


def test_a_failure_stays_one() -> None:
    wrong = Check("a: small", "image", False, math.nan, math.inf)
    keep_reports("one", [NumericReport("m", "", "fa2", (wrong,)), NumericReport("m", "", "fa2")])
    assert [report.passed for report in find_reports("one")] == [False, False]


#: What of a tree or a port is another proof.
CHANGES: dict[str, Mapping[str, object]] = {
    "the model": {"model": "step3_vl"},
    "a ported file": {"after": {MODEL: b"other"}},
    "a further ported file": {"after": {MODEL: b"new", "vllm/more.py": b""}},
    "what the ported file was": {"before": {MODEL: b"other"}},
    "another file of the package": {"write": "vllm/__init__.py"},
    "a new file of the package": {"write": "vllm/further.py"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_port_or_tree_has_another_name(change: str, tree: Path) -> None:
    same: dict[str, object] = {"model": "internvl", "before": {}, "after": {MODEL: b"new"}}
    first = identify_proof(root=tree, **same)  # type: ignore[arg-type]
    how = dict(CHANGES[change])
    written = how.pop("write", None)
    if written:
        (tree / str(written)).write_text("other")
    assert identify_proof(root=tree, **same | how) != first  # type: ignore[arg-type]


def test_the_same_port_has_the_same_name(tree: Path) -> None:
    """Before it was written and after, with files of other kinds, and without those outside of the package."""
    first = identify_proof("internvl", tree, {}, {MODEL: b"new"})
    (tree / MODEL).write_text("new")
    for path in ("vllm/data.json", "vllm/__pycache__/model.py", "docs/a.md"):
        (tree / path).write_text("other")
    assert first == identify_proof(
        "internvl", tree, {MODEL: b"old", "docs/a.md": b"old"}, {"docs/a.md": b"new", MODEL: b"new"}
    )


@pytest.mark.parametrize(
    "text", ["", "[", "{}", "[1]", '{"a": 1}', '[{"tail": ""}]', '[{"tail": "fa2"}]', "[" * 100_000]
)
def test_a_damaged_result_is_none(text: str, tmp_path: Path) -> None:
    keep_reports("one", REPORTS)
    (tmp_path / "cache/proofs/one.json").write_text(text)
    assert find_reports("one") == ()


def test_a_pipe_for_a_result_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cache/proofs").mkdir(parents=True)
    os.mkfifo(tmp_path / "cache/proofs/one.json")
    assert find_reports("one") == ()
    keep_reports("one", REPORTS)
    assert find_reports("one") == REPORTS


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(OSError, match="cache"):
        keep_reports("one", REPORTS)


def test_a_file_that_a_port_brings_was_not_there(tree: Path) -> None:
    """The same port has the same name, seen from the tree before it and from the tree that has it."""
    brought = "vllm/brought.py"
    first = identify_proof("internvl", tree, {}, {MODEL: b"new", brought: b"more"})
    (tree / brought).write_bytes(b"more")
    assert identify_proof("internvl", tree, {}, {MODEL: b"new", brought: b"more"}) != first
    assert identify_proof("internvl", tree, {brought: b""}, {MODEL: b"new", brought: b"more"}) == first
