"""Runs unit tests that `fix` writes with a release's classes, by pytest: `python unit_child.py`, as `probing` says.

A job has the root of a tree, its modules that differ from the release's, and the text of tests. The answer is the
outcome of each test, by its name.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

from probing import run_jobs


class Outcomes:
    """A plugin: what each test gave."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            error = report.longrepr.reprcrash.message if report.failed else ""  # type: ignore[union-attr]
            self.found[report.nodeid.rpartition("::")[2]] = error.splitlines()[0] if error else "passed"


def serve(asked: dict[str, Any], job: dict[str, Any]) -> dict[str, str]:
    from scaffold.verify.numeric import cpu_imports

    if job["changed"]:
        cpu_imports.switch_tree(Path(asked["root"]), Path(job["root"]))
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "test_alone.py")
        file.write_text(job["tests"], encoding="utf-8")
        # Without vLLM's own conftest, which imports what only a whole installation has.
        pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", "-c", "/dev/null", str(file)], [outcomes])
    return outcomes.found


if __name__ == "__main__":
    run_jobs(serve)
