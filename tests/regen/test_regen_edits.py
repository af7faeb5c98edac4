"""Hand edits: shown by a check, overwritten by a run, and never lost where nothing else holds them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from regen_scene import Scene

ADAPTER = "vitcg_adapters/v0_30/my_model.py"
OLD, NEW = "# A replay of video tiles", "# My own words: a replay of video tiles"


def commit(folder: Path) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    for arguments in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-qm", "all of it")):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def test_check_shows_the_edit_and_says_what_protects_it(scene: Scene) -> None:
    scene.edit(ADAPTER, OLD, NEW)

    result = scene.regen("--check")

    assert result.exit == 1
    assert "error[VCG533]" in result.err
    assert f"-        {NEW}" in result.err
    assert f"+        {OLD}" in result.err
    assert "version control protects it" in result.err


def test_committed_edit_is_overwritten_and_comes_back(scene: Scene, tmp_path: Path) -> None:
    generated = scene.content()
    scene.edit(ADAPTER, OLD, NEW)
    edited = scene.content()
    commit(tmp_path)

    assert scene.regen().exit == 0
    assert scene.content() == generated
    assert scene.run("revert", str(scene.folder)).exit == 0
    assert scene.content() == edited


@pytest.mark.parametrize("in_git", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_edit_that_only_exists_there_stops_the_whole_run(
    scene: Scene, tmp_path: Path, in_git: bool, named: bool
) -> None:
    """Also files without an edit stay: all or nothing."""
    if in_git:
        commit(tmp_path)
    generated = scene.content()
    edited = scene.edit(ADAPTER, OLD, NEW)
    scene.change_descriptor("budget: {min: k, why: One tile.}", "budget: {min: 2 * k}")
    before = scene.content()
    arguments = ("new", str(scene.descriptor) if named else "--all", "--into", str(scene.folder))

    refused = scene.run(*arguments, format="json")

    assert (refused.exit, refused.codes) == (5, ["VCG507"])
    # The path as every other message of the command has it, so that a git command takes it.
    assert json.loads(refused.out)["diagnostics"][0]["message"].startswith(f"{scene.folder}/{ADAPTER} ")
    assert scene.content() == before
    assert scene.run(*arguments, "--allow-dirty").exit == 0
    assert scene.content()[ADAPTER] not in (edited, generated[ADAPTER])
    assert scene.regen("--check").exit == 0


def test_uncommitted_output_of_an_older_run_is_no_edit(scene: Scene, tmp_path: Path) -> None:
    """Two runs with a change of the descriptor between them, and no commit."""
    commit(tmp_path)
    for text in ("budget: {min: 2 * k}", "budget: {min: 3 * k}"):
        scene.change_descriptor("budget: {min: k, why: One tile.}", text)
        assert scene.regen().exit == 0
        scene.change_descriptor(text, "budget: {min: k, why: One tile.}")
    # Nor is what came from another machine.
    (scene.folder / ".vitcg-scaffold").rename(tmp_path / "elsewhere")
    assert scene.regen().exit == 0


def test_foreign_file_in_the_place_of_an_output_counts_as_edited(scene: Scene) -> None:
    (scene.folder / ADAPTER).write_text("print('mine')\n", "utf-8")

    assert scene.regen().exit == 5
    assert scene.read(ADAPTER) == "print('mine')\n"


def test_shared_package_file_is_guarded_too(scene: Scene) -> None:
    scene.edit("vitcg_adapters/__init__.py", "from typing import Any", "from typing import Any  # edited")

    assert scene.regen().exit == 5
    assert scene.regen("--allow-dirty").exit == 0
    assert scene.regen("--check").exit == 0
