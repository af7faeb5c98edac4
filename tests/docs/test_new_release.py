"""The weekly look for a release that the tool does not know: real releases in the place of a new one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import new_release


def test_a_release_is_new_if_no_known_one_is_as_new() -> None:
    known = ["0.9.0", "0.33.0"]
    assert new_release.newer_than(known, ["0.10.0", "0.33.0", "0.34.0", "0.33.1"]) == ["0.33.1", "0.34.0"]
    assert new_release.newer_than(known, known) == []


@pytest.mark.trees
def test_what_a_release_changes_is_said(release_tree, monkeypatch) -> None:
    names = ("cohere_compass", "internvl", "qwen2_vl")
    monkeypatch.setattr(new_release, "shipped_names", lambda: names)
    later, earlier = release_tree("0.30.0"), release_tree("0.29.0")

    said = list(new_release.changes(later, earlier))
    assert "* Protocol: generation v0_30" in said
    assert "* Gone: none" in said
    assert "* Descriptors that give no port any more: none" in said
    assert "* Descriptors that give one now: `cohere_compass`" in said
    (new,) = (line for line in said if line.startswith("* New multimodal"))
    assert "`CohereCompassForConditionalGeneration`" in new

    back = list(new_release.changes(earlier, later))
    assert "* Descriptors that give no port any more: 1" in back
    assert any(line.startswith("  * `cohere_compass`: VCG") for line in back)


@pytest.mark.trees
def test_an_unknown_protocol_is_said_with_its_difference(release_tree) -> None:
    tree = release_tree("0.33.0")
    path = "vllm/model_executor/models/interfaces.py"
    text = tree.read(path)
    old = "def encoder_eager_forward(\n        self,\n"
    assert old in text
    changed = tree.with_files({path: text.replace(old, f"{old}        num_items: int,\n").encode()})
    said = new_release.protocol_of(changed)
    assert said.startswith("VCG415: ")
    assert "parameter `num_items: int` added" in said


def test_an_issue_is_opened_once(tmp_path: Path, monkeypatch, capsys) -> None:
    """`gh` is a program that keeps what it is given."""
    program = tmp_path / "gh"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$2" = list ]; then cat "$KEPT/issues"; exit; fi\n'
        'cat > "$KEPT/body"; printf \'[{"title": "%s"}]\' "$4" > "$KEPT/issues"\n'
    )
    program.chmod(0o755)
    (tmp_path / "issues").write_text("[]")
    monkeypatch.setenv("KEPT", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    title = new_release.title_of("0.34.0")

    new_release.open_issue(title, "its text\n")
    assert json.loads((tmp_path / "issues").read_text()) == [{"title": title}]
    assert (tmp_path / "body").read_text() == "its text\n"

    new_release.open_issue(title, "another text\n")
    assert (tmp_path / "body").read_text() == "its text\n"
    assert "There is an issue" in capsys.readouterr().out
