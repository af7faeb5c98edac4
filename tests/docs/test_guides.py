"""Every command of every guide: this module runs it, or names the test that does, or finds the GPU's record of it.

A line of a shell block belongs to the first of these that takes it:

* a server, the operators' page, a measurement: `tests/plugin/test_operators.py` and
  `tests/cli/test_measuring_guides.py` run what `operator_page` finds on the pages;
* a step of the tutorial: `test_tutorial.py`; one with a plugin of the index: `test_plugin_packages.py`;
* a command for a release that is not there yet: `tests/drill` rehearses these with an invented one;
* all others: `test_the_commands_of_a_page_run` below, page by page, in their order.

So a new line runs here unless another test already reads it from its page.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import operator_page
import pytest
import test_plugin_packages
import test_tutorial
from captured import captured
from markdown_it import MarkdownIt
from test_assistants import options_of

from scaffold.cli.app import COMMANDS, FORMER
from scaffold.protocol.cache import cache_root

ROOT = operator_page.ROOT
RESULTS = ROOT / "benchmarks" / "results"
#: Blocks of these hold no commands of a shell, or have a test of their own (`test_containers.py`).
NO_COMMANDS = {"dockerfile", "jinja", "json", "python", "text", "yaml"}
#: Pages whose commands take a minute.
SLOW = {"docs/fix.md", "docs/verify.md"}
ELSEWHERE = {
    *operator_page.commands(),
    *operator_page.serve_commands(),
    *(line for lines in operator_page.own_adapter_commands().values() for line in lines),
    *operator_page.measuring_commands(),
    *(
        step.command
        for page in (test_tutorial.TUTORIAL, test_plugin_packages.PAGE)
        for step in test_tutorial.read_steps(page.read_text(encoding="utf-8"))
    ),
}


#: The release of `docs/new-generation.md`.
INVENTED = "0.34.0"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def lines_of(page: Path) -> list[str]:
    """Every command of a page's blocks. A block of an unknown kind is a mistake."""
    found: list[str] = []
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type not in ("fence", "code_block"):
            continue
        lines = token.content.splitlines()
        if token.info == "sh":
            found += lines
        elif token.info == "console":
            found += [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        else:
            assert token.info in NO_COMMANDS, f"{name_of(page)}: a block of {token.info or 'no language'}"
            assert not [line for line in lines if line.startswith(("vitcg-scaffold ", "$ "))], name_of(page)
    return found


HERE = {
    name_of(page): lines
    for page in operator_page.GUIDES
    if (lines := [line for line in lines_of(page) if line not in ELSEWHERE and INVENTED not in line])
}


def targets_of_ci() -> set[str]:
    """Targets of make that CI's one command runs."""
    assert (ROOT / ".ci/run").read_text(encoding="utf-8").rstrip().endswith("exec make test")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    needs = dict(re.findall(r"^([a-z-]+):(.*?)(?:##.*)?$", makefile, re.MULTILINE))
    found, open_targets = set(), ["test"]
    while open_targets:
        target = open_targets.pop()
        found.add(target)
        open_targets += needs.get(target, "").split()
    return found


def test_the_invented_release_is_not_there() -> None:
    assert INVENTED not in "".join(path.read_text("utf-8") for path in (ROOT / "scaffold/protocol/known").iterdir())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """This tree beside an environment that is set up: `make` finds nothing to install in it."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for path in ROOT.iterdir():
        if path.name != ".venv":
            (checkout / path.name).symlink_to(path)
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    tool = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m scaffold.cli "$@"\n'
    (programs / "vitcg-scaffold").write_text(tool, encoding="utf-8")
    (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    (programs / "activate").write_text(f'PATH={shlex.quote(str(programs))}:"$PATH"\n', encoding="utf-8")
    for program in ("vitcg-scaffold", "python"):
        (programs / program).chmod(0o755)
    (checkout / ".venv" / ".ready").touch()
    return checkout


#: What the reader of a page has before its first command: a ported tree named PATH, and a result.
BEFORE = {
    "docs/bench.md": f"""
        cp {shlex.quote(str(RESULTS / "bench_h200_qwen2_5_vl.json"))} bench.json
        vitcg-scaffold new qwen2_5_vl --vllm 0.20.0 --static
        mv vllm-0.20.0 PATH
    """
}


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in HERE])
def test_the_commands_of_a_page_run(page: str, checkout: Path, tmp_path: Path) -> None:
    """All in one shell. What CI runs anyway is only planned: targets of `make test`, and tests of this suite."""
    lines = [
        line.replace("make ", "make --dry-run ", 1)
        if line.startswith("make ") and line.split()[1] in targets_of_ci() - {"setup"}
        else line
        for line in HERE[page]
    ]
    env = os.environ | {
        "HOME": str(tmp_path / "home"),
        "VITCG_CACHE_DIR": str(cache_root()),  # not that of another home
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "generated")]),
        "PATH": os.pathsep.join([str(checkout / ".venv/bin"), os.environ["PATH"]]),
        "PYTEST_ADDOPTS": "--collect-only",
    }
    done = captured(
        ["bash", "-exc", "\n".join([BEFORE.get(page, ""), *lines])],
        cwd=checkout, env=env, stdin=subprocess.DEVNULL
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


# -- what needs a GPU


def on_record() -> set[str]:
    """Commands that `benchmarks/engine_commands.py` ran on GPUs."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("engine_commands_*.json")]
    return {run["command"] for result in results for run in result["commands"] if run["outcome"] == "ran"}


#: The operators' page says that all but pip ran on GPUs. No CPU starts a server for several of them, or measures.
ON_GPUS = {
    *(line for line in operator_page.commands() if not line.startswith("pip ")),
    *(line for line in operator_page.serve_commands() if "tensor-parallel" in line),
    *operator_page.measuring_commands(),
}


@pytest.mark.parametrize("command", sorted(ON_GPUS))
def test_a_command_ran_on_a_gpu(command: str) -> None:
    assert command in on_record(), "run: python benchmarks/engine_commands.py"


# -- what a page only names


def named_on(page: Path) -> list[list[str]]:
    """Words of every command of ours in a page's text and blocks."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    codes = [child.content for token in tokens for child in token.children or [] if child.type == "code_inline"]
    codes += [
        line for token in tokens if token.type == "fence" and token.info == "sh" for line in token.content.splitlines()
    ]
    return [shlex.split(code, comments=True) for code in codes if code.startswith("vitcg-scaffold ")]


PAGES = sorted([*operator_page.GUIDES, *(ROOT / "docs/reference").glob("*.md"), *(ROOT / "docs/measured").glob("*.md")])


@pytest.mark.parametrize("page", [page for page in PAGES if "vitcg-scaffold " in page.read_text("utf-8")], ids=name_of)
def test_a_page_names_commands_and_options_that_exist(page: Path) -> None:
    for _, name, *words in named_on(page):
        if name.startswith("-"):
            continue
        if page.parent.name == "measured":  # a record of what was typed then
            name = FORMER.get(name, (name,))[0]  # noqa: PLW2901
        assert name in COMMANDS, f"{name_of(page)}: {name}"
        options = {*options_of(name), "--help"}
        unknown = {word for word in words if word.startswith("-") and word.partition("=")[0] not in options}
        assert not unknown, f"{name_of(page)}: {name} {unknown}"
