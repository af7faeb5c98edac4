"""The next protocol change, rehearsed: an invented eighth generation, and how little it takes to speak it.

`invent.py` makes a tree with it from release 0.33. The tool as it is refuses the tree and says what is new. A copy of
the tool gets the profile entry (by the maintainers' command) and the template lines (`generation.patch`), and ports all
models. `docs/new-generation.md` states the size of that change; it is counted here.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from captured import captured
from invent import CHANGED, NEW_NAME, OLD_NAME, RELEASE, invent_tree

import scaffold

REPOSITORY = Path(scaffold.__file__).parent.parent
HERE = Path(__file__).parent
MODELS = ("internvl", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "step3_vl")
#: Files of the tool in which the change may be, and what the docs call them.
PARTS = {".jinja": "templates", ".py": "Python"}

pytestmark = pytest.mark.trees


@pytest.fixture(scope="module")
def tree(release_tree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("drill") / "vllm"
    done = invent_tree(release_tree("0.33.0").root, target)
    # The protocol, the manager, and the hand-written models of the release.
    assert done["renamed"] > 5
    assert done["declared"] > 5
    assert done["given"] == 2  # by the manager: its warm-up and its capture
    return target


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tool as it is."""
    copy = tmp_path_factory.mktemp("today") / "tool"
    for part in ("scaffold", "templates"):
        shutil.copytree(REPOSITORY / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def recorded(today: Path, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tool that has the profile entry, and nothing else."""
    copy = tmp_path_factory.mktemp("recorded") / "tool"
    shutil.copytree(today, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = run(copy, "-m", "scaffold.protocol.record", str(tree), f"{OLD_NAME}={NEW_NAME}")
    assert done.returncode == 0, done.stderr
    return copy


@pytest.fixture(scope="module")
def taught(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tool with the whole change."""
    copy = tmp_path_factory.mktemp("taught") / "tool"
    shutil.copytree(recorded, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # Below a repository, `git apply` would skip what is not in it.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    subprocess.run(["git", "apply", str(HERE / "generation.patch")], cwd=copy, env=environment, check=True)
    return copy


def run(tool: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tool)}
    return captured([sys.executable, *arguments], cwd=tool, env=environment)


def test_unknown_generation_is_refused_method_by_method(today: Path, tree: Path) -> None:
    arguments = ("-m", "scaffold.cli", "--format", "json", "new", "internvl", "--vllm", str(tree), "--check")
    done = run(today, *arguments)

    assert done.returncode == 4, done.stderr
    (found,) = json.loads(done.stdout)["diagnostics"]
    assert found["code"] == "VCG415"
    assert "the nearest is v0_30 (0.30.0 to 0.33.0), with 3 differences" in found["message"]
    removed, added, parameter = found["notes"]
    assert removed == f"method `{OLD_NAME}` removed"
    assert added.startswith(f"method `{NEW_NAME}(self, outputs: ")
    assert parameter == f"method `{CHANGED}`: parameter `step: int` added"


def test_a_forgotten_template_line_is_found_before_anything_is_written(recorded: Path, tree: Path) -> None:
    """Where our own code calls the changed method; the other layouts need no line."""
    done = run(recorded, "-m", "scaffold.cli", "new", "llava", "--vllm", str(tree), "--check")
    assert (done.returncode, "error[VCG440]" in done.stderr) == (4, True), done.stderr
    assert f"`{CHANGED}` of protocol v0_34 demands `step`" in done.stderr

    done = run(recorded, "-m", "scaffold.cli", "new", "step3_vl", "--vllm", str(tree), "--replace", "--check")
    assert (done.returncode, "all static proofs passed" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    "pair", [f"{OLD_NAME}=nothing", f"nothing={NEW_NAME}", f"{CHANGED}={NEW_NAME}", OLD_NAME], ids=str
)
def test_a_wrong_name_is_not_recorded(taught: Path, tree: Path, tmp_path: Path, pair: str) -> None:
    tool = tmp_path / "tool"
    shutil.copytree(taught, tool)
    (tool / "scaffold/protocol/known/v0_34.json").unlink()

    done = run(tool, "-m", "scaffold.protocol.record", str(tree), pair)

    assert done.returncode == 2, done.stderr
    assert done.stderr
    assert not (tool / "scaffold/protocol/known/v0_34.json").exists()


@pytest.mark.lab
def test_taught_tool_ports_every_model_and_the_lab_proves_one(taught: Path, tree: Path) -> None:
    done = run(taught, str(HERE / "run_drill.py"), str(tree))

    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert facts["generation"] == "v" + RELEASE.removesuffix(".0").replace(".", "_")
    assert sorted(facts["ports"]) == sorted(MODELS)
    for name, port in facts["ports"].items():
        assert port["files"], name
        assert port["errors"] == []  # and no proof refused it: that would have raised
        methods = port["methods"]
        assert methods[CHANGED][2:] == ["step", "path"], name
        assert (NEW_NAME in methods) is (name == "step3_vl"), name
        assert OLD_NAME not in methods
    assert facts["lab"]["passed"], "\n".join(facts["lab"]["text"])
    assert facts["lab"]["hits"] > 50
    assert facts["lab"]["misses"] > 5
    assert "v0_34" in facts["adapters"]


def new_lines(today: Path, tool: Path) -> dict[str, int]:
    """Lines that the tool has and today's has not, by kind of file; a profile entry is counted by itself."""
    counts = dict.fromkeys(PARTS.values(), 0)
    for part in ("scaffold", "templates"):
        for path in sorted((tool / part).rglob("*")):
            if path.suffix not in PARTS or "__pycache__" in path.parts:
                continue
            before = today / path.relative_to(tool)
            old = before.read_text("utf-8").splitlines() if before.exists() else []
            difference = difflib.ndiff(old, path.read_text("utf-8").splitlines())
            counts[PARTS[path.suffix]] += sum(line.startswith("+ ") for line in difference)
    return counts


def test_docs_state_the_size_of_the_change(today: Path, taught: Path) -> None:
    entry = (taught / "scaffold/protocol/known/v0_34.json").read_text("utf-8")
    measured = {
        "profile entry, given by hand": len(json.loads(entry)["renamed"]),
        "profile entry, written by the command": len(entry.splitlines()),
        **new_lines(today, taught),
    }
    text = (REPOSITORY / "docs/new-generation.md").read_text("utf-8")
    text = text.partition("\n## What it costs\n")[2].partition("\n## ")[0]
    stated = {name: int(lines) for name, lines in re.findall(r"^\| ([A-Z, a-z]+) \| (\d+) \|$", text, re.MULTILINE)}

    assert stated == measured
    assert measured["Python"] == 0
