"""Hand edits: never lost unasked, shown as the user's own difference, and three ways out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from regen_scene import Scene

ADAPTER = "vitcg_adapters/v0_30/my_model.py"
OLD, NEW = "# A replay of video tiles", "# My own words: a replay of video tiles"


def make_generated_differ(scene: Scene) -> None:
    """The descriptor changes what is generated for the same adapter, far from the edit."""
    scene.change_descriptor("budget: {min: k}", "budget: {min: 2 * k}")


def test_edit_is_shown_and_stops_the_run(scene: Scene) -> None:
    edited = scene.edit(ADAPTER, OLD, NEW)
    make_generated_differ(scene)
    before = scene.content()

    result = scene.regen()

    assert result.exit == 5
    assert "error[VCG533]" in result.err
    assert f"-        {OLD}" in result.err
    assert f"+        {NEW}" in result.err
    # The user's own difference: what the descriptor changed is no part of it.
    assert "2 * self.num_image_token" not in result.err
    assert scene.content() == before
    assert scene.content()[ADAPTER] == edited


def test_new_without_a_tree_overwrites_no_edit_either(scene: Scene) -> None:
    scene.edit(ADAPTER, OLD, NEW)
    make_generated_differ(scene)
    before = scene.content()

    result = scene.run("new", str(scene.descriptor), "--into", str(scene.folder))

    assert (result.exit, "error[VCG533]" in result.err, f"+        {NEW}" in result.err) == (5, True, True)
    assert scene.content() == before


@pytest.mark.parametrize(
    "ways", [("--adopt", "--merge"), ("--take-generated", "--adopt"), ("--merge", "--take-generated")]
)
def test_ways_out_exclude_each_other(scene: Scene, ways: tuple[str, str]) -> None:
    """The last one must not win: it may be the one that drops the edit."""
    scene.edit(ADAPTER, OLD, NEW)
    before = scene.content()

    result = scene.regen(*ways)

    assert (result.exit, "exclude each other" in result.err) == (2, True)
    assert scene.content() == before


def test_take_generated_drops_the_edit(scene: Scene) -> None:
    before = scene.content()
    scene.edit(ADAPTER, OLD, NEW)

    assert scene.regen("--take-generated").exit == 0
    assert scene.content() == before


def test_adopted_edit_stands_until_something_else_is_generated(scene: Scene) -> None:
    edited = scene.edit(ADAPTER, OLD, NEW)

    assert scene.regen("--adopt").exit == 0
    assert scene.content()[ADAPTER] == edited
    assert [entry["path"] for entry in scene.manifest()["files"] if "adopted" in entry] == [ADAPTER]
    for arguments in (("--check",), ()):
        assert scene.regen(*arguments).exit == 0
    assert scene.content()[ADAPTER] == edited

    make_generated_differ(scene)
    refused = scene.regen()
    assert (refused.exit, "VCG533" in refused.err, "2 * self" in refused.err) == (5, True, False)
    assert scene.content()[ADAPTER] == edited


def test_edit_after_adopting_is_noticed(scene: Scene) -> None:
    scene.edit(ADAPTER, OLD, NEW)
    assert scene.regen("--adopt").exit == 0
    scene.edit(ADAPTER, NEW, "# Words again")

    assert scene.regen("--check").exit == 1


def test_adopted_file_that_goes_back_to_what_is_generated_is_clean(scene: Scene) -> None:
    before = scene.content()
    scene.edit(ADAPTER, OLD, NEW)
    assert scene.regen("--adopt").exit == 0
    scene.edit(ADAPTER, NEW, OLD)

    assert scene.regen().exit == 0
    assert scene.content() == before


@pytest.mark.parametrize("adopted", [False, True])
def test_merge_carries_the_edit_over(scene: Scene, adopted: bool) -> None:
    scene.edit(ADAPTER, OLD, NEW)
    if adopted:
        assert scene.regen("--adopt").exit == 0
    make_generated_differ(scene)

    assert scene.regen("--merge").exit == 0

    text = scene.read(ADAPTER)
    assert NEW in text
    assert "min(2 * self.num_image_token, max_budget)" in text
    assert scene.regen("--check").exit == 0
    # And once more: the base of the next merge is what was generated this time.
    scene.change_descriptor("budget: {min: 2 * k}", "budget: {min: 3 * k}")
    assert scene.regen("--merge").exit == 0
    assert NEW in scene.read(ADAPTER)
    assert "min(3 * self.num_image_token, max_budget)" in scene.read(ADAPTER)
    assert scene.regen("--check").exit == 0


def test_merge_without_a_change_of_ours_adopts(scene: Scene) -> None:
    edited = scene.edit(ADAPTER, OLD, NEW)

    assert scene.regen("--merge").exit == 0
    assert scene.content()[ADAPTER] == edited
    assert scene.regen("--check").exit == 0


def test_merge_with_conflicts_marks_them_and_waits(scene: Scene) -> None:
    scene.edit(ADAPTER, "return min(self.num_image_token, max_budget)", "return min(7, max_budget)")
    make_generated_differ(scene)

    result = scene.regen("--merge")

    assert (result.exit, "error[VCG536]" in result.err) == (5, True)
    text = scene.read(ADAPTER)
    for mark in ("<<<<<<< your edit", "||||||| generated before", ">>>>>>> generated now"):
        assert mark in text
    assert scene.regen("--check").exit == 1
    early = scene.regen("--adopt")
    assert (early.exit, "still has conflict marks" in early.err) == (5, True)

    start, end = text.index("<<<<<<<"), text.index(">>>>>>> generated now\n") + len(">>>>>>> generated now\n")
    resolved = text[:start] + "        return min(9, max_budget), max_budget\n" + text[end:]
    (scene.folder / ADAPTER).write_text(resolved, "utf-8")
    assert scene.regen("--adopt").exit == 0
    assert scene.regen("--check").exit == 0


def lose_local_bases(scene: Scene) -> None:
    shutil.rmtree(scene.folder / ".vitcg-scaffold")


def test_lost_base_is_said_and_nothing_is_written(scene: Scene) -> None:
    scene.edit(ADAPTER, OLD, NEW)
    make_generated_differ(scene)
    lose_local_bases(scene)
    before = scene.content()

    result = scene.regen("--merge")

    assert (result.exit, "error[VCG537]" in result.err) == (5, True)
    assert scene.content() == before
    # The difference to show is lost as well; what is shown instead is called by its name.
    assert "generated now (what was edited is lost)" in scene.regen().err


@pytest.mark.parametrize("edit_is_committed", [False, True])
def test_base_is_found_in_git(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit_is_committed: bool
) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    git("add", "out")
    git("commit", "-qm", "generated")
    scene.edit(ADAPTER, OLD, NEW)
    if edit_is_committed:
        git("commit", "-qam", "edited")
    make_generated_differ(scene)
    lose_local_bases(scene)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "of a hook that called us"))

    assert scene.regen("--merge").exit == 0
    assert NEW in scene.read(ADAPTER)
    assert "2 * self.num_image_token" in scene.read(ADAPTER)


def test_kept_base_is_not_trusted(scene: Scene) -> None:
    """Bytes that do not have the hash of the manifest are no base, wherever they lie."""
    scene.edit(ADAPTER, OLD, NEW)
    make_generated_differ(scene)
    for path in (scene.folder / ".vitcg-scaffold/bases").iterdir():
        path.write_bytes(b"something else\n")

    assert "VCG537" in scene.regen("--merge").err


def test_without_git_a_merge_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scene.edit(ADAPTER, OLD, NEW)
    make_generated_differ(scene)
    before = scene.content()
    monkeypatch.setenv("PATH", str(tmp_path))

    result = scene.regen("--merge", format="json")

    assert (result.exit, result.codes) == (5, ["VCG538"])
    assert scene.content() == before


def test_edited_and_unedited_files_are_all_or_nothing(scene: Scene) -> None:
    """One edit stops the whole run; with a way out all of it is written."""
    scene.edit(ADAPTER, OLD, NEW)
    make_generated_differ(scene)
    other = "vitcg_adapters/v0_22/my_model.py"

    assert scene.regen().exit == 5
    assert "2 * self" not in scene.read(other)
    assert scene.regen("--merge").exit == 0
    assert "2 * self" in scene.read(other)


def test_foreign_file_in_the_place_of_an_output_counts_as_edited(scene: Scene) -> None:
    (scene.folder / ADAPTER).write_text("print('mine')\n", "utf-8")

    assert scene.regen().exit == 5
    assert scene.read(ADAPTER) == "print('mine')\n"


def test_shared_package_file_is_guarded_too(scene: Scene) -> None:
    scene.edit("vitcg_adapters/__init__.py", "from typing import Any", "from typing import Any  # edited")

    assert scene.regen().exit == 5
    assert scene.regen("--take-generated").exit == 0
    assert scene.regen("--check").exit == 0
