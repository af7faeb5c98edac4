"""The page on models of other packages, run: two plugins of the package index, up to their proofs."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from captured import captured
from test_tutorial import ROOT, check_step, read_steps

PAGE = ROOT / "docs" / "plugin-packages.md"


def read_page() -> dict[str, list]:
    """The steps of the page by the heading above them."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {name: steps for name, _, text in (part.partition("\n") for part in parts) if (steps := read_steps(text))}


def test_the_page_has_two_packages_each_up_to_a_proof() -> None:
    proofs = {name: [step for step in steps if " verify " in step.command] for name, steps in read_page().items()}
    assert len(proofs) == 2
    assert all(any(line.startswith("PASS") for step in steps for line in step.lines) for steps in proofs.values())


@pytest.mark.slow
@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("name", read_page())
def test_the_steps_of_a_package(name: str, release_tree, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, module in (("vitcg-scaffold", "scaffold.cli"), ("pip", "pip")):
        (programs / program).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        (programs / program).chmod(0o755)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "generated")]),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "COLUMNS": "200",
    }
    steps = read_page()[name]
    for release in sorted({word for step in steps for word in step.command.split() if word.startswith("0.3")}):
        release_tree(release)  # fetched before, so that the progress of a download is not in the output
    for step in steps:
        done = captured(["bash", "-c", step.command], cwd=tmp_path, env=env)
        check_step(step, done)
