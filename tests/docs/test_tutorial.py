"""The tutorial, run: every command in its order in one folder, and every line that it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from captured import captured

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"

pytestmark = [pytest.mark.trees, pytest.mark.lab]


@dataclass(frozen=True)
class Step:
    """A command, lines that its output has in this order, and its exit code."""

    command: str
    lines: tuple[str, ...]
    code: int = 0


def read_steps(text: str) -> list[Step]:
    steps: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            code = 0
            if lines and (found := re.fullmatch(r"\[exit (\d+)\]", lines[-1])):
                code = int(found[1])
                lines.pop()
            steps.append(Step(command, tuple(lines), code))
    return steps


def check_step(step: Step, done: subprocess.CompletedProcess[str]) -> None:
    """A command ended as the page says, and said what it shows."""
    said = f"$ {step.command}\n{done.stdout}{done.stderr}"
    assert done.returncode == step.code, said
    for stream in (done.stdout.splitlines(), done.stderr.splitlines()):
        shown = [line for line in step.lines if line in stream]
        assert [line for line in stream if line in shown][: len(shown)] == shown, f"the order differs\n{said}"
    missing = [line for line in step.lines if line not in (done.stdout + "\n" + done.stderr).splitlines()]
    assert not missing, f"not said: {missing}\n{said}"


def test_the_steps_are_read() -> None:
    text = "```console\n$ a b\none\n[exit 3]\n$ c\n```\n\n```sh\n$ no\n```\n"
    assert read_steps(text) == [Step("a b", ("one",), 3), Step("c", ())]
    assert len(read_steps(TUTORIAL.read_text(encoding="utf-8"))) == 12


def test_the_tutorial(release_tree, tmp_path: Path) -> None:
    release_tree("0.21.0")  # fetched before, so that the progress of a download is not in the output
    for step in read_steps(TUTORIAL.read_text(encoding="utf-8")):
        program, *arguments = shlex.split(step.command)
        assert program == "vitcg-scaffold"
        done = captured([sys.executable, "-m", "scaffold.cli", *arguments], cwd=tmp_path, env=_environment())
        check_step(step, done)
    assert "PASS" in (tmp_path / "pr.md").read_text(encoding="utf-8")


def _environment() -> dict[str, str]:
    import os

    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "200"}
