"""What `new --all --check` sees, what it says to do, and that a run does it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from regen_scene import Scene

ADAPTER = "vitcg_adapters/v0_30/my_model.py"
OTHER = "vitcg_adapters/v0_23/my_model.py"
DOCS = "docs/adapters.md"
LEFT = "examples/offline.py"


def _outdate(scene: Scene) -> None:
    scene.change_descriptor("models: [InternVL3.5, InternVL3,", "models: [InternVL4, InternVL3.5, InternVL3,")


def _remove(scene: Scene) -> None:
    (scene.folder / ADAPTER).unlink()


def _leave_over(scene: Scene) -> None:
    """An earlier version wrote a file that this one does not."""
    (scene.folder / LEFT).parent.mkdir()
    shutil.copy(scene.folder / OTHER, scene.folder / LEFT)


def _add_foreign(scene: Scene) -> None:
    (scene.folder / "docs/notes.md").write_text("mine\n", "utf-8")


def _edit(scene: Scene) -> None:
    scene.edit(ADAPTER, "# A replay of video tiles", "# My own words: a replay of video tiles")


def _edit_header(scene: Scene) -> None:
    scene.edit(ADAPTER, "do not edit\n", "do not edit\n# but I did\n")


def _tamper_with_manifest(scene: Scene) -> None:
    text = scene.read("MANIFEST.json")
    (scene.folder / "MANIFEST.json").write_text(text.replace("[", "[ "), "utf-8")


def _lose_manifest(scene: Scene) -> None:
    (scene.folder / "MANIFEST.json").unlink()


#: What happens to the folder -> the codes, the path that is named, and what the help must offer.
DRIFTS: list[tuple[Callable[[Scene], None], set[str], str, str]] = [
    (_outdate, {"VCG530"}, DOCS, "run `vitcg-scaffold new --into"),
    (_remove, {"VCG531"}, ADAPTER, "run `vitcg-scaffold new --into"),
    (_leave_over, {"VCG532"}, LEFT, "which removes it"),
    (_add_foreign, {"VCG532"}, "docs/notes.md", "rm "),
    (_edit, {"VCG533"}, ADAPTER, "version control protects it"),
    (_edit_header, {"VCG533"}, ADAPTER, "version control protects it"),
    (_tamper_with_manifest, {"VCG530"}, "MANIFEST.json", "run `vitcg-scaffold new --into"),
]


def test_fresh_folder_has_no_drift(scene: Scene) -> None:
    result = scene.regen("--check")

    assert result.exit == 0
    assert result.out == "checked 11 files from 1 descriptor\n"
    assert result.err == ""


@pytest.mark.parametrize(("spoil", "codes", "path", "offer"), DRIFTS, ids=lambda value: getattr(value, "__name__", ""))
def test_check_reports_each_drift_and_writes_nothing(
    scene: Scene, spoil: Callable[[Scene], None], codes: set[str], path: str, offer: str
) -> None:
    spoil(scene)
    before = scene.content()

    result = scene.regen("--check", format="json")

    assert result.exit == 1
    found = json.loads(result.out)["diagnostics"]
    assert {item["code"] for item in found} == codes
    named = [item for item in found if path in item["message"]]
    assert named, found
    assert offer in named[0]["help"]
    assert "checked 11 files from 1 descriptor" in result.err
    assert scene.content() == before


@pytest.mark.parametrize("spoil", [_outdate, _remove, _leave_over, _tamper_with_manifest])
def test_regen_repairs_what_nobody_edited(scene: Scene, spoil: Callable[[Scene], None]) -> None:
    spoil(scene)

    assert scene.regen().exit == 0
    assert scene.regen("--check").exit == 0
    assert not (scene.folder / LEFT).exists()


def test_what_a_run_says_that_changes_nothing(scene: Scene) -> None:
    assert scene.regen().out == "11 files from 1 descriptor, all current\n"


def _of_another_architecture(scene: Scene) -> str:
    """The scene's descriptor for another name of the class in vLLM's registry."""
    head, found, rest = scene.descriptor.read_text("utf-8").partition("  class: InternVLChatModel\n")
    assert found
    return f"{head}{found}  architecture: OtherChatModel\n{rest}"


@pytest.mark.parametrize("arguments", [(), ("--check",)])
def test_a_descriptor_that_is_gone_is_an_error_of_the_manifest(arguments, scene: Scene) -> None:
    """As the message says, its name goes from the manifest and its files from the folder."""
    other = scene.descriptor.with_name("other.yaml")
    other.write_text(_of_another_architecture(scene), "utf-8")
    added = scene.regen(str(other))
    assert added.exit == 0
    (counts,) = re.findall(r"\d+ files from 1 descriptor \(the folder has (\d+ from 2)\)", added.out)
    checked = scene.regen("--check").out
    assert checked.startswith(f"checked {counts.replace(' from', ' files from')} descriptors")
    assert "vitcg_adapters/v0_30/other.py" in scene.content()
    other.unlink()

    result = scene.regen(*arguments, format="json")

    assert (result.exit, result.codes) == (3, ["VCG100"])
    (found,) = json.loads(result.out)["diagnostics"]
    assert "/MANIFEST.json names" in found["message"]
    (entry,) = re.findall(r"delete (\S+) from", found["help"])
    manifest = scene.folder / "MANIFEST.json"
    names = [name for name in json.loads(manifest.read_text())["descriptors"] if json.dumps(name) != entry]
    assert len(names) == 1
    manifest.write_text(json.dumps({"schema": 2, "descriptors": names}), "utf-8")
    assert scene.regen().exit == 0
    assert "vitcg_adapters/v0_30/other.py" not in scene.content()
    assert scene.regen("--check").exit == 0


def test_a_descriptor_that_no_run_has_named_is_named_by_the_repair(scene: Scene) -> None:
    """`new --all` takes the manifest's alone, so it would repair nothing."""
    other = scene.descriptor.with_name("other.yaml")
    other.write_text(_of_another_architecture(scene), "utf-8")

    result = scene.regen(str(scene.descriptor), str(other), "--check", format="json")

    assert result.exit == 1
    repairs = {item["help"] for item in json.loads(result.out)["diagnostics"]}
    (repair,) = repairs
    (words,) = re.findall(r"^run `vitcg-scaffold (new .+)`$", repair)
    assert scene.run(*shlex.split(words)).exit == 0
    assert scene.regen("--check").exit == 0
    assert "vitcg_adapters/v0_30/other.py" in scene.content()


def test_without_a_manifest_the_descriptor_must_be_named_again(scene: Scene) -> None:
    before = scene.content()
    _lose_manifest(scene)

    result = scene.regen(str(scene.descriptor))
    assert result.exit == 0
    assert scene.content() == before
    assert f"What a vLLM tree gets of it: vitcg-scaffold plan {scene.descriptor} --vllm TREE\n" in result.err
    assert f"Undo with: vitcg-scaffold revert {scene.folder}\n" in result.err


def test_foreign_file_is_never_removed(scene: Scene) -> None:
    _add_foreign(scene)

    result = scene.regen("--allow-dirty")

    assert result.exit == 0
    assert "warning[VCG532]" in result.err
    assert scene.read("docs/notes.md") == "mine\n"


def test_left_over_file_that_was_edited_is_never_removed(scene: Scene) -> None:
    _leave_over(scene)
    edited = scene.edit(LEFT, "# A replay of video tiles", "# My own words: a replay of video tiles")

    result = scene.regen("--allow-dirty")

    assert (result.exit, "warning[VCG532]" in result.err) == (0, True)
    assert scene.content()[LEFT] == edited
    assert scene.regen("--check").exit == 1


def _of_json(out: str) -> set[tuple[str, str, str]]:
    return {(item["code"], item["severity"], item["span"]["file"]) for item in json.loads(out)["diagnostics"]}


def _of_github(out: str) -> set[tuple[str, str, str]]:
    annotation = re.compile(r"::(error|warning) file=([^,]+),.*?title=(VCG\d+)[^:]*::.*")
    lines = [annotation.fullmatch(line) for line in out.splitlines()]
    assert all(lines), out
    return {(line[3], line[1], line[2]) for line in lines if line is not None}


def _of_sarif(out: str) -> set[tuple[str, str, str]]:
    (run,) = json.loads(out)["runs"]
    return {
        (item["ruleId"], item["level"], item["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])
        for item in run["results"]
    }


@pytest.mark.parametrize(("format", "read"), [("json", _of_json), ("github", _of_github), ("sarif", _of_sarif)])
def test_check_speaks_every_format(scene: Scene, format: str, read: Callable[[str], set[tuple[str, str, str]]]) -> None:
    """Changed, missing, extra and hand-edited files in one run: each by its code, at its place."""
    for spoil in (_outdate, _remove, _leave_over, _add_foreign):
        spoil(scene)
    scene.edit(OTHER, "# A replay of video tiles", "# My own words: a replay of video tiles")

    result = scene.regen("--check", format=format)

    assert result.exit == 1
    assert "checked 11 files from 1 descriptor" in result.err
    found = {(code, level, file.rpartition(f"{scene.folder}/")[2]) for code, level, file in read(result.out)}
    assert {
        ("VCG530", "error", DOCS),
        ("VCG531", "error", ADAPTER),
        ("VCG532", "error", LEFT),
        ("VCG532", "error", "docs/notes.md"),
        ("VCG533", "error", OTHER),
    } <= found


def test_check_needs_no_write_permission(scene: Scene) -> None:
    """Not one file is created, touched or removed, `.vitcg-scaffold` included."""
    _edit(scene)
    places = [scene.folder, *scene.folder.rglob("*")]
    before = {place: (place.stat().st_mtime_ns, place.stat().st_ino) for place in places}
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    try:
        assert scene.regen("--check").exit == 1
    finally:
        for place in places:
            place.chmod(0o755 if place.is_dir() else 0o644)
    assert {place: (place.stat().st_mtime_ns, place.stat().st_ino) for place in scene.folder.rglob("*")} == {
        place: facts for place, facts in before.items() if place != scene.folder
    }


def test_checking_nothing_is_an_error(scene: Scene) -> None:
    scene.change_descriptor("layout: tiles", "layout: packed")
    (scene.folder / "MANIFEST.json").write_text('{"schema": 2, "descriptors": []}', "utf-8")

    result = scene.regen("--check", format="json")

    assert result.exit == 3
    assert result.codes == ["VCG535"]
    assert "checked 0 files from 0 descriptors" in result.err


@pytest.mark.parametrize("arguments", [(), ("--check",), ("--diff",)])
def test_a_folder_that_nobody_generated_into_is_one_error(arguments, scene: Scene, monkeypatch) -> None:
    """Nothing is checked or written for descriptors that come with the tool: they are not of the repository."""
    home = scene.descriptor.parent / "repository"
    (home / "descriptors").mkdir(parents=True)
    monkeypatch.chdir(home)
    (home / "descriptors" / "mine.yaml").write_text(scene.descriptor.read_text("utf-8"), "utf-8")

    result = scene.run("new", "--all", *arguments, format="json")

    assert (result.exit, result.codes) == (3, ["VCG535"])
    assert not (home / "generated").exists()
    (found,) = json.loads(result.out)["diagnostics"]
    assert found["help"].endswith("`vitcg-scaffold new descriptors/mine.yaml`")
    # As it was printed, and from then on the check is of these descriptors.
    assert scene.run("new", "descriptors/mine.yaml").exit == 0
    checked = scene.run("new", "--all", "--check")
    assert (checked.exit, "from 1 descriptor" in checked.out) == (0, True)


def test_wrong_descriptor_is_reported_before_anything_else(scene: Scene) -> None:
    scene.change_descriptor("layout: tiles", "layout: tile")
    before = scene.content()

    for arguments in ((), ("--check",), ("--allow-dirty",)):
        assert scene.regen(*arguments).exit == 3
    assert scene.content() == before


@pytest.mark.parametrize("option", ["--allow-dirty", "--diff"])
def test_check_takes_no_option_of_a_run(scene: Scene, option: str) -> None:
    assert scene.regen("--check", option).exit == 2


def test_diff_shows_and_writes_nothing(scene: Scene) -> None:
    _outdate(scene)
    _edit(scene)
    before = scene.content()

    result = scene.regen("--diff")

    assert result.exit == 0
    assert f"+++ b/{DOCS}\n" in result.out
    assert "-        # My own words" in result.out
    assert scene.content() == before


def test_two_descriptors_of_one_name(scene: Scene, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "my_model.yaml"
    other.parent.mkdir()
    other.write_bytes(scene.descriptor.read_bytes())
    before = scene.content()

    result = scene.regen(str(other), format="json")

    assert (result.exit, result.codes) == (5, ["VCG540"])
    assert scene.content() == before


def test_two_descriptors_of_one_architecture(scene: Scene) -> None:
    """The later one would have been served, and nothing would have said so."""
    other = scene.descriptor.with_name("mine.yaml")
    other.write_bytes(scene.descriptor.read_bytes())
    before = scene.content()

    result = scene.regen(str(other), format="json")

    assert (result.exit, result.codes) == (5, ["VCG540"])
    assert "both port `" in result.out
    assert scene.content() == before


def test_name_that_is_no_module(scene: Scene) -> None:
    other = scene.descriptor.with_name("my-model.yaml")
    other.write_bytes(scene.descriptor.read_bytes())

    result = scene.regen(str(other), format="json")

    assert (result.exit, result.codes) == (5, ["VCG541"])


def test_one_descriptor_of_several(scene: Scene) -> None:
    """The others keep their files; what all share is made of both."""
    assert scene.regen("llava").exit == 0
    both = scene.content()
    _outdate(scene)

    assert scene.regen("llava").exit == 0
    content = scene.content()
    assert {path for path in both if content[path] != both[path]} == {"docs/adapters.md"}
    assert content.keys() == both.keys()
    assert scene.regen("--check", "llava").exit == 0
    assert scene.regen("--check").exit == 1
    assert scene.manifest()["descriptors"] == ["../my_model.yaml", "llava"]
    assert '"InternVLChatModel": "my_model"' in scene.read("vitcg_adapters/__init__.py")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_are_not_followed(scene: Scene, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    place = scene.folder / (ADAPTER if kind == "file" else "vitcg_adapters/v0_30")
    place.rename(outside)
    place.symlink_to(outside)

    for arguments in (("--check",), (), ("--allow-dirty",)):
        result = scene.regen(*arguments, format="json")
        assert (result.exit, result.codes) == (5, ["VCG543"])
    assert place.is_symlink()


def test_check_of_a_folder_that_is_not_there_makes_none(scene: Scene) -> None:
    shutil.rmtree(scene.folder)
    assert scene.regen(str(scene.descriptor), "--check").exit == 1
    assert not scene.folder.exists()


def test_run_is_undone_by_revert(scene: Scene) -> None:
    before = scene.content()
    _outdate(scene)
    assert scene.regen().exit == 0
    assert scene.content() != before

    assert scene.run("revert", str(scene.folder)).exit == 0
    assert scene.content() == before


# -- older generations that are built ---------------------------------------------------------------------------------


@pytest.fixture
def building(scene: Scene) -> Scene:
    """A folder whose manifest has the digests of older generations."""
    (scene.folder / "MANIFEST.json").write_text('{"schema": 2, "descriptors": ["../my_model.yaml"], "built": {}}')
    assert scene.regen().exit == 0
    return scene


def test_older_generations_need_not_be_there(building: Scene) -> None:
    before = building.content()
    for name in ("v0_23", "v0_24"):
        shutil.rmtree(building.folder / "vitcg_adapters" / name)

    assert building.regen("--check").exit == 0
    assert building.regen("--check", str(building.descriptor)).exit == 0
    made = building.regen()
    assert made.exit == 0
    assert f"changed  {building.folder}/{OTHER}\n" in made.out
    assert building.content() == before
    _remove(building)
    assert building.regen("--check", format="json").codes == ["VCG531"]


def test_an_older_generation_must_not_change_though_it_is_not_there(building: Scene) -> None:
    """A file of it that is there differs as well."""
    building.change_descriptor("why: One tile.", "why: A tile.")
    result = building.regen("--check", format="json")
    found = {
        item["span"]["file"].rpartition(f"{building.folder}/")[2]: item
        for item in json.loads(result.out)["diagnostics"]
    }
    assert (result.exit, found[OTHER]["code"], found["MANIFEST.json"]["code"]) == (1, "VCG530", "VCG530")
    shutil.rmtree(building.folder / "vitcg_adapters/v0_23")

    result = building.regen("--check")
    assert result.exit == 1
    assert "MANIFEST.json has other digests: adapters of an older generation have changed" in result.err
    assert f'"{OTHER}": ' in result.err
    assert OTHER + " is out" not in result.err


def test_edit_of_an_older_generation_is_seen(building: Scene) -> None:
    building.edit(OTHER, "# A replay of video tiles", "# My own words: a replay of video tiles")

    result = building.regen("--check", format="json")
    assert (result.exit, result.codes) == (1, ["VCG533"])
    assert building.regen("--allow-dirty").exit == 0
    assert building.regen("--check").exit == 0


def test_git_ignores_older_generations(building: Scene, tmp_path: Path) -> None:
    assert _listed(building, tmp_path) == {path for path in building.content() if "/v0_2" not in path}


def test_git_sees_outputs_only(scene: Scene, tmp_path: Path) -> None:
    assert _listed(scene, tmp_path) == set(scene.content())


def _listed(scene: Scene, tmp_path: Path) -> set[str]:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, env=environment)
    listed = subprocess.run(
        ["git", "-C", str(scene.folder), "ls-files", "--others", "--exclude-standard"],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
    )
    return set(listed.stdout.split())
