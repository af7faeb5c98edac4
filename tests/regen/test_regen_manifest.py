"""The manifest is read as something that somebody else wrote; headers say what they can prove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from regen_scene import Scene

from scaffold.adapters.header import MARKER, add_header, is_unedited, read_header
from scaffold.adapters.manifest import Entry, Manifest, is_safe_path, read_manifest
from scaffold.diagnostics import DiagnosticError

SHA = "0" * 64


def entry(**facts: Any) -> dict[str, Any]:
    return {"path": "docs/a.md", "sha256": SHA, "descriptor": None, "generation": None, "protocol": None, **facts}


def manifest(*files: Any, **facts: Any) -> dict[str, Any]:
    return {"schema": 1, "descriptors": ["internvl"], "files": list(files), **facts}


TAMPERED: dict[str, Any] = {
    "a path above the folder": manifest(entry(path="../outside.py")),
    "a path above it further down": manifest(entry(path="docs/../../outside.py")),
    "an absolute path": manifest(entry(path="/etc/passwd")),
    "a folder that outputs do not have": manifest(entry(path="scaffold/a.py")),
    "a top-level file": manifest(entry(path="README.md")),
    "a hidden folder": manifest(entry(path="docs/.git/config")),
    "the tool's own folder": manifest(entry(path=".vitcg-scaffold/lock")),
    "a path that is not normal": manifest(entry(path="docs//a.md")),
    "a path with a line break": manifest(entry(path="docs/a\n.md")),
    "a backslash": manifest(entry(path="docs\\a.md")),
    "no path": manifest(entry(path="")),
    "a number for a path": manifest(entry(path=1)),
    "a hash that is none": manifest(entry(sha256="abc")),
    "an adopted hash that is none": manifest(entry(adopted="abc")),
    "an unknown field": manifest(entry(run="rm")),
    "a missing field": manifest({"path": "docs/a.md", "sha256": SHA}),
    "a list for a generation": manifest(entry(generation=[])),
    "a path listed twice": manifest(entry(), entry()),
    "another schema": manifest(schema=2),
    "no schema": {"descriptors": [], "files": []},
    "a list": [],
    "files that are no list": manifest() | {"files": {}},
    "an entry that is no object": manifest("docs/a.md"),
    "an absolute descriptor": manifest(descriptors=["/etc/passwd.yaml"]),
    "a descriptor that is no YAML": manifest(descriptors=["../../.ssh/id_rsa"]),
    "a descriptor that is no text": manifest(descriptors=[1]),
}


@pytest.mark.parametrize("facts", TAMPERED.values(), ids=TAMPERED.keys())
def test_tampered_manifest_is_not_used(scene: Scene, tmp_path: Path, facts: Any) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("mine\n", "utf-8")
    (scene.folder / "MANIFEST.json").write_text(json.dumps(facts), "utf-8")
    before = scene.content()

    for arguments in (("--check",), (), ("--take-generated",)):
        result = scene.regen(*arguments, format="json")
        assert (result.exit, result.codes) == (5, ["VCG534"])
    assert scene.content() == before
    assert outside.read_text("utf-8") == "mine\n"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"null", b"[" * 100_000, b" " * 4_000_001])
def test_manifest_that_is_no_json(scene: Scene, data: bytes) -> None:
    (scene.folder / "MANIFEST.json").write_bytes(data)

    result = scene.regen("--check", format="json")

    assert (result.exit, result.codes) == (5, ["VCG534"])


def test_manifest_that_is_a_link(scene: Scene, tmp_path: Path) -> None:
    place = scene.folder / "MANIFEST.json"
    place.rename(tmp_path / "elsewhere.json")
    place.symlink_to(tmp_path / "elsewhere.json")

    with pytest.raises(DiagnosticError, match="symbolic link"):
        read_manifest(scene.folder)


def test_claimed_file_with_other_bytes_is_not_removed(scene: Scene) -> None:
    """A manifest that claims a file of the user as ours does not make it ours: the hash must fit as well."""
    mine = scene.folder / "docs/mine.md"
    mine.write_text("mine\n", "utf-8")
    facts = scene.manifest()
    facts["files"].append(entry(path="docs/mine.md"))
    (scene.folder / "MANIFEST.json").write_text(json.dumps(facts), "utf-8")

    assert scene.regen().exit == 5
    assert mine.read_text("utf-8") == "mine\n"


def test_manifest_has_one_sorted_entry_a_line(scene: Scene) -> None:
    lines = scene.read("MANIFEST.json").splitlines()

    assert lines[:4] == ["{", '"schema": 1,', '"descriptors": ["../my_model.yaml"],', '"files": [']
    assert lines[-2:] == ["]", "}"]
    paths = [json.loads(line.rstrip(","))["path"] for line in lines[4:-2]]
    assert paths == sorted(paths)
    assert set(paths) == set(scene.content()) - {"MANIFEST.json"}
    for item in scene.manifest()["files"]:
        assert (item["generation"] is None) == (item["protocol"] is None)


def test_manifest_survives_its_own_encoding() -> None:
    made = Manifest(("a", "../b.yaml"), (Entry("tests/a.py", SHA), Entry("docs/ä.md", SHA, "a", "v0_30", "f", SHA)))
    assert json.loads(made.encode())["files"][0]["path"] == "docs/ä.md"


def test_safe_paths() -> None:
    assert is_safe_path("vitcg_adapters/v0_30/internvl.py")
    assert is_safe_path(".gitattributes")


# -- headers ----------------------------------------------------------------------------------------------------------

HEADER = {"source": "a.yaml", "command": "vitcg-scaffold regen a", "spec": "0" * 16}


@pytest.mark.parametrize("path", ["a/b.py", "a/b.md", ".gitattributes"])
def test_header_is_read_back(path: str) -> None:
    text = add_header(path, "body\n", **HEADER)
    found = read_header(path, text)

    assert found is not None
    assert (found[0].source, found[0].command, found[1]) == ("a.yaml", "vitcg-scaffold regen a", "body\n")
    assert is_unedited(path, text.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("body", "Body"),
        ("body\n", "body"),
        ("body\n", "body\r\n"),
        ("# SPDX", "#SPDX"),
        (MARKER, MARKER + "!"),
        ("a.yaml;", "a.yaml; I said so;\n#"),
        ("body-hash: ", "body-hash: 0"),
        ("# spec-hash", "# a note\n# spec-hash"),
    ],
)
def test_every_edit_of_header_or_body_is_seen(old: str, new: str) -> None:
    text = add_header("a.py", "body\n", **HEADER)
    assert old in text

    assert not is_unedited("a.py", text.replace(old, new).encode())


def test_bytes_that_are_no_text_are_not_ours() -> None:
    assert not is_unedited("a.py", b"\xff\xff")
