"""Step3-VL on releases of every generation: what `new` plans is proven, is complete, and is nothing the second time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_port_on_releases import DOCS, EXAMPLE, TEST, write_over

from scaffold.protocol import SourceTree
from scaffold.workflow import load_spec, prepare_port

MODEL = "vllm/model_executor/models/step3_vl.py"
#: Release -> files that change. From 0.22 on the release has an implementation, and lists it in the other places.
RELEASES = {
    "0.20.0": {MODEL, TEST, DOCS, "examples/offline_inference/vision_language.py"},
    "0.21.0": {MODEL, TEST, DOCS, EXAMPLE},
    **{f"0.{minor}.0": {MODEL} for minor in (22, 23, 24, 26, 27, 30, 33)},
}

pytestmark = pytest.mark.trees


@pytest.mark.parametrize("release", RELEASES)
def test_port_changes_what_it_should_and_nothing_twice(
    release_tree: Callable[[str], SourceTree], tmp_path: Path, release: str
) -> None:
    tree = release_tree(release)
    spec = load_spec("step3_vl")

    port = prepare_port(spec, tree, replace=release >= "0.22")

    assert {change.path for change in port.changed} == RELEASES[release]
    ported = write_over(tree, port, tmp_path)
    assert prepare_port(spec, ported).changed == ()
    assert prepare_port(spec, ported, replace=True).changed == ()


def test_constants_come_from_the_tree(release_tree: Callable[[str], SourceTree]) -> None:
    port = prepare_port(load_spec("step3_vl"), release_tree("0.21.0"))

    (model,) = (change for change in port.changed if change.path == MODEL)
    before, after = ((text or b"").decode() for text in (model.before, model.after))
    assert after.count("504") == before.count("504")
    assert "Step3VLImageProcessor().patch_size" in after
