"""The manifest is read as something that somebody else wrote; headers say what they can prove."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from regen_scene import Scene

from scaffold.adapters.header import MARKER, add_header, is_unedited, origin
from scaffold.adapters.manifest import Manifest, read_manifest
from scaffold.diagnostics import DiagnosticError


def manifest(**facts: Any) -> dict[str, Any]:
    return {"schema": 2, "descriptors": ["internvl"], **facts}


TAMPERED: dict[str, Any] = {
    "an unknown field": manifest(files=[]),
    "another schema": manifest(schema=1),
    "no schema": {"descriptors": []},
    "no descriptors": {"schema": 2},
    "a list": [],
    "descriptors that are no list": manifest(descriptors="internvl"),
    "an absolute descriptor": manifest(descriptors=["/etc/passwd.yaml"]),
    "a descriptor that is no YAML": manifest(descriptors=["../../.ssh/id_rsa"]),
    "a descriptor with a backslash": manifest(descriptors=["..\\a.yaml"]),
    "a descriptor that is no text": manifest(descriptors=[1]),
    "digests that are no object": manifest(built=[]),
    "digests that are null": manifest(built=None),
    "a digest of a file elsewhere": manifest(built={"vitcg_adapters/../../a.py": "0" * 64}),
    "a digest that is none": manifest(built={"vitcg_adapters/v0_23/a.py": "0" * 63}),
    "a digest that is no text": manifest(built={"vitcg_adapters/v0_23/a.py": 0}),
}


@pytest.mark.parametrize("facts", TAMPERED.values(), ids=TAMPERED.keys())
def test_tampered_manifest_is_not_used(scene: Scene, facts: Any) -> None:
    (scene.folder / "MANIFEST.json").write_text(json.dumps(facts), "utf-8")
    before = scene.content()

    for arguments in (("--check",), (), ("--allow-dirty",)):
        result = scene.regen(*arguments, format="json")
        assert (result.exit, result.codes) == (5, ["VCG534"])
    assert scene.content() == before


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


def test_manifest_says_what_the_folder_is_made_of(scene: Scene) -> None:
    assert scene.read("MANIFEST.json") == '{\n"schema": 2,\n"descriptors": ["../my_model.yaml"]\n}\n'
    assert read_manifest(scene.folder) == Manifest(("../my_model.yaml",))


def test_manifest_states_the_digests_where_it_is_asked_to(scene: Scene) -> None:
    """By `"built": {}`, which a run fills."""
    kept = scene.content()
    (scene.folder / "MANIFEST.json").write_text('{"schema": 2, "descriptors": ["../my_model.yaml"], "built": {}}')
    assert scene.regen("--check").exit == 1

    assert scene.regen().exit == 0
    found = read_manifest(scene.folder)
    assert found is not None
    assert found.built == {
        path: hashlib.sha256(content).hexdigest()
        for path, content in kept.items()
        if path.startswith("vitcg_adapters/v") and not path.startswith("vitcg_adapters/v0_30/")
    }
    assert len(found.built) == 6
    assert found.encode() == (scene.folder / "MANIFEST.json").read_bytes()
    assert {path for path, content in scene.content().items() if kept.get(path) != content} == {
        "MANIFEST.json",
        ".gitignore",
    }
    assert scene.regen("--check").exit == 0


# -- headers ----------------------------------------------------------------------------------------------------------

HEADER = {"source": "a.yaml", "command": "vitcg-scaffold new a", "spec": "0" * 16}


@pytest.mark.parametrize("path", ["a/b.py", "a/b.md", ".gitattributes"])
def test_header_is_read_back(path: str) -> None:
    content = add_header(path, "body\n", **HEADER).encode()

    assert origin(path, content) == "a.yaml"
    assert is_unedited(path, content)


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
