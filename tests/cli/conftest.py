"""The command line as a user runs it, in this process: exit code and both streams."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from cli_scene import PLACES, PROTOCOL, Outcome, Run

from scaffold.cli.app import main
from scaffold.verify import proofs


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def run(capfdbinary, monkeypatch, tmp_path) -> Run:
    """`run("new", "internvl", ...)` in this process, in an empty current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    # What a test proves is no proof for others. The releases are in the user's cache all the same.
    monkeypatch.setattr(proofs, "cache_folder", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(proofs, "made_folder", lambda name: made(tmp_path / "cache" / name))

    def call(*arguments: str | Path) -> Outcome:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        captured = capfdbinary.readouterr()
        assert isinstance(stop.value.code, int)
        return Outcome(stop.value.code, captured.out.decode(), captured.err.decode())

    return call


@pytest.fixture
def small_tree(copied_tree) -> Path:
    """A writable tree with those files of 0.22.0 that a port of InternVL reads or changes."""
    return copied_tree("0.22.0", "pyproject.toml", *PLACES, *PROTOCOL).root


@pytest.fixture(scope="session")
def kept_ports(tmp_path_factory) -> list[Path]:
    """The tree of `ported`, once a test has made it."""
    return []


@pytest.fixture
def ported(run, small_tree, kept_ports, tmp_path_factory) -> Path:
    """`small_tree` after `new internvl`. The first test runs it, others get a copy."""
    if kept_ports:
        shutil.rmtree(small_tree)
        shutil.copytree(kept_ports[0], small_tree)
    else:
        assert run("new", "internvl", "--vllm", small_tree).code == 0
        kept_ports.append(shutil.copytree(small_tree, tmp_path_factory.mktemp("ported") / "tree"))
    return small_tree


@pytest.fixture
def installed_tree(small_tree, monkeypatch) -> Path:
    """`small_tree` as what `import vllm` finds, also where another test of this process has imported the wheel."""
    monkeypatch.syspath_prepend(small_tree)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    return small_tree
