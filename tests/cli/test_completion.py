"""Completion as the shells do it: each real one is asked what it offers after a line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from captured import captured
from cli_scene import ROOT

from scaffold.descriptor import shipped_names
from scaffold.protocol.cache import cache_root
from scaffold.protocol.registry import multimodal_names

pytestmark = pytest.mark.trees

Complete = Callable[[str], set[str]]

#: Bash: what its own completion calls. Readline would show COMPREPLY, and paths if it is empty (`compopt -o default`).
BASH = """
eval "$(_VITCG_SCAFFOLD_COMPLETE=bash_source vitcg-scaffold)"
compopt() { echo "option $*" >&2; }
COMP_WORDS=(vitcg-scaffold $LINE); [[ $LINE == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_vitcg_scaffold_completion vitcg-scaffold
printf '%s\\n' "${COMPREPLY[@]}"
"""
#: zsh has no question for a completion: a terminal types the line and TAB, and prints the list.
ZSH = """
import os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("zsh", ["zsh", "-f", "-i"])
def read(until, limit=20):
    shown, end = "", time.monotonic() + limit
    while until not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    return shown
def say(text):
    os.write(terminal, text.encode())
say("PS1='> '; stty cols 200 rows 400; unsetopt zle_bracketed_paste prompt_sp; autoload -U compinit; compinit -u -D\\n")
say("zstyle ':completion:*' list-prompt ''; LISTMAX=9999; bindkey '^I' list-choices\\n")
say('eval "$(_VITCG_SCAFFOLD_COMPLETE=zsh_source vitcg-scaffold)"; echo set""up\\n')
read("setup")
say("vitcg-scaffold " + sys.argv[1] + "\\t")
time.sleep(3)
say("\\x15echo do\\"\\"ne\\n")
print(read("done"))
os.close(terminal)
"""
FISH = """
_VITCG_SCAFFOLD_COMPLETE=fish_source vitcg-scaffold | source
complete -C "vitcg-scaffold $LINE"
"""


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request, tmp_path) -> Complete:
    """`complete("new int")`: the words that a shell offers, in a folder with the file `internal.yaml`."""
    shell = request.param
    if shell != "bash" and shutil.which(shell) is None:  # without bash, `make` does not run either
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "bin" / "vitcg-scaffold"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m scaffold.cli \"$@\"\n")
    program.chmod(0o755)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "internal.yaml").write_text("")

    def words(line: str) -> set[str]:
        settings = {"LINE": line, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "TERM": "dumb"}
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        cache = os.environ.get("VITCG_CACHE_DIR") or str(cache_root())
        run = {
            "bash": ["bash", "--norc", "-c", BASH],
            "zsh": [sys.executable, "-c", ZSH, line],
            "fish": ["fish", "--no-config", "-c", FISH],
        }[shell]
        done = captured(
            run, cwd=tmp_path / "here", env=os.environ | settings | {"PATH": path, "VITCG_CACHE_DIR": cache}, timeout=60
        )
        assert "rror" not in done.stderr, done.stderr
        return {word for word in done.stdout.replace("\t", " ").split() if word}

    return words


def test_shipped_names_and_files(complete: Complete) -> None:
    assert {*shipped_names(), "internal.yaml"} <= complete("new ")
    assert {"internvl", "internal.yaml"} <= complete("new inter")


def test_releases(complete: Complete) -> None:
    assert {"0.32.0", "0.33.0"} <= complete("new internvl --vllm 0.3")


def test_architectures(complete: Complete, release_tree) -> None:
    llava = {name for name in multimodal_names(release_tree("0.33.0")) if name.startswith("Llava")}
    assert len(llava) > 3
    assert llava <= complete("init Llava")


def test_architectures_of_the_release_that_is_named(complete: Complete, release_tree) -> None:
    old, new = (set(multimodal_names(release_tree(release))) for release in ("0.22.0", "0.33.0"))
    added = {name for name in new - old if name.startswith("M")}
    assert added
    offered = complete("init --vllm 0.22.0 M")
    assert {name for name in old if name.startswith("M")} <= offered
    assert not added & offered


def test_commands_and_codes(complete: Complete) -> None:
    assert "validate" in complete("val")
    assert {"VCG520", "VCG521"} <= complete("explain VCG52")


@pytest.mark.parametrize("line", ["init Zeb", "new zeb", "new internvl --vllm zeb"])
def test_nothing_that_does_not_fit(line: str, complete: Complete) -> None:
    assert not {word for word in complete(line) if word.startswith(("Zebra", "internvl", "0.", "Llava"))} - {"internvl"}


def test_paths_are_offered_where_no_word_fits(tmp_path: Path) -> None:
    """Bash takes them from its own completion, which the answer has to ask for before any word."""
    for line, kind in (("new x", "file"), ("init x", "file"), ("new internvl --vllm 0.3", "dir")):
        words = line.split()
        done = subprocess.run(
            [sys.executable, "-m", "scaffold.cli"],
            capture_output=True,
            text=True,
            env=os.environ
            | {
                "PYTHONPATH": str(ROOT),
                "_VITCG_SCAFFOLD_COMPLETE": "bash_complete",
                "COMP_WORDS": f"vitcg-scaffold {line}",
                "COMP_CWORD": str(len(words)),
            },
            check=True,
        )
        assert done.stdout.splitlines()[0] == f"{kind},{words[-1]}"
