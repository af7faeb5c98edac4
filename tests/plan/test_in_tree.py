"""Shipped models whose port in a tree is another than their adapters': of a split tower, or of images alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scaffold.descriptor
from scaffold.adapters.header import spec_hash
from scaffold.descriptor import PackedPort, RowsPort, load_descriptor
from scaffold.workflow import load_port, prepare_port

SHIPPED = Path(scaffold.descriptor.__file__).parent / "shipped"
NAMES = sorted(path.stem for path in (SHIPPED / "in_tree").iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_both_descriptors_are_of_one_model(name: str) -> None:
    port = load_descriptor(name)
    other = port.in_tree
    assert other is not None
    assert isinstance(other, PackedPort) or (other.layout == port.layout and other.explicit is not None)
    assert (other.name, other.reference, other.warnings) == (name, name, ())
    assert (other.module, other.class_name, other.output) == (port.module, port.class_name, port.output)
    mine, its = port.integration, other.integration
    assert (mine.docs, mine.example, len(its.test)) == (its.docs, its.example, len(mine.test))
    for adapters, trees in zip(mine.test, its.test, strict=True):
        # One of images alone asks for a budget that holds a test image, and has no prompt of a video.
        beside = {key: getattr(adapters, key) for key in ("video_prompt", "compilation_overrides")}
        assert trees.replace(**beside) == adapters
    assert [*other.modalities] == ["image"]
    # An adapter reads nothing of it, and a file of a user has none.
    assert spec_hash(port) == spec_hash(port.replace(in_tree=None))
    assert load_descriptor(SHIPPED / f"{name}.yaml").in_tree == other
    assert other.file == f"in_tree/{name}.yaml"


@pytest.mark.trees
def test_a_tower_with_a_method_for_its_metadata_is_captured_whole(release_tree: Any) -> None:
    port, tree = load_port("kimi_vl"), release_tree("0.33.0")
    assert isinstance(port, RowsPort)
    prepared = prepare_port(port, tree, replace=True)
    [change] = prepared.package
    text = (change.after or b"").decode()
    assert (prepared.plan.port.layout, prepared.plan.reenters) == ("packed", False)
    assert "self.multi_modal_projector(\n            self.vision_tower(inputs[" in text
    # A graph's longest sequence has all of its rows, which are four a token. Eager calls have metadata, too.
    assert "max_seqlen_override=token_budget * m**2," in text
    assert "encoder_metadata=self.vision_tower.prepare_encoder_metadata(grid_hw)," in text
    assert len(text.splitlines()) < len(tree.read(change.path).splitlines())
    again = tree.with_files({change.path: change.after for change in prepared.changed})
    assert not prepare_port(port, again).changed


@pytest.mark.trees
@pytest.mark.parametrize("copied", [False, True])
def test_a_tower_without_one_runs_its_code_again(copied: bool, release_tree: Any) -> None:
    tree = release_tree("0.23.0")
    port = load_port("kimi_vl")
    prepared = prepare_port(port.replace(in_tree=None) if copied else port, tree)
    [note] = [note for note in prepared.notes if note.code == "VCG466"]
    assert ("has no method for its metadata" in note.message) is not copied
    assert (prepared.plan.port.layout, prepared.plan.reenters) == ("rows", True)


@pytest.mark.trees
@pytest.mark.parametrize(("version", "modalities"), [("0.26.0", ["image", "video"]), ("0.27.0", ["image"])])
def test_images_alone_have_an_explicit_port_where_the_protocol_has_one(
    version: str, modalities: list[str], release_tree: Any
) -> None:
    plan = prepare_port(load_port("llava_onevision"), release_tree(version)).plan
    assert ([*plan.port.modalities], plan.reenters) == (modalities, version == "0.26.0")
    notes = [note.message for note in plan.notes if note.code == "VCG466"]
    assert ["before 0.27" in note for note in notes] == [True] * plan.reenters
    left = [note for note in plan.notes if note.code == "VCG447"]
    assert [note.message.split(":")[0] for note in left] == ["items of video run eagerly"] * (not plan.reenters)
    assert all("the plugin's adapter" in str(note.help) and note.span is not None for note in left)
