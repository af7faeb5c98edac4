"""docs/measured/upstream.md: its tables are what the releases and the templates say, and its claims hold."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import pytest

from scaffold.descriptor.load import shipped_names
from scaffold.diagnostics.catalogue import all_codes
from scaffold.workflow import load_port

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import compare_upstream

#: A model of each layout.
SAMPLE = ("internvl", "qwen2_5_vl", "idefics3", "deepseek_ocr", "step3_vl", "lfm2_vl")


@pytest.fixture(scope="module")
def both(release_tree):
    """Upstream's port of a model and ours, planned once."""
    release_tree(compare_upstream.RELEASE)
    return cache(compare_upstream.both_ports)


def results() -> dict:
    return json.loads(compare_upstream.RESULTS.read_text("utf-8"))["models"]


@pytest.mark.trees
@pytest.mark.parametrize("name", SAMPLE)
def test_the_page_is_current_of_a_sample(name, both):
    """And no port has more lines than upstream's, nor leaves out a modality that upstream's has."""
    page, defects = compare_upstream.PAGE.read_text("utf-8"), compare_upstream.known_defects()
    row = compare_upstream.row(name, *both(name), results()[name])
    section = compare_upstream.section(name, *both(name), results()[name], defects.get(name, []))

    assert f"\n{row}\n" in page, "run `python benchmarks/compare_upstream.py`"
    assert "\n".join(["", *section, "", ""]) in f"{page}\n", "run `python benchmarks/compare_upstream.py`"
    assert_no_more_than_upstream(name, *both(name))


@pytest.mark.slow
@pytest.mark.trees
def test_the_page_is_current(both, monkeypatch):
    monkeypatch.setattr(compare_upstream, "both_ports", both)
    assert compare_upstream.PAGE.read_text("utf-8") == compare_upstream.render(), (
        "run `python benchmarks/compare_upstream.py`"
    )


@pytest.mark.trees
def test_the_run_is_of_the_ports_that_the_release_has(release_tree):
    """A file that changed, a further model or a code that is gone: the run is an old one."""
    tree, kept = release_tree(compare_upstream.RELEASE), json.loads(compare_upstream.RESULTS.read_text("utf-8"))
    ported = compare_upstream.ported_models()
    assert kept["release"] == tree.release
    assert kept["models"].keys() == {*ported}
    assert {"internvl", "qwen2_vl", "deepseek_vl2", "minimax_m3"} <= {*ported} <= set(shipped_names()) - {"llava"}
    assert {*SAMPLE} <= {*ported}
    assert {type(load_port(name)) for name in SAMPLE} == {type(load_port(name)) for name in ported}
    for name, result in kept["models"].items():
        path, _ = compare_upstream.upstreams_class(name)
        assert result["file"] == hashlib.sha256(tree.read_bytes(path)).hexdigest()[:16], name
        assert len(result["failed"]) < result["checks"]
        assert {code for code, _, _ in result["failed"]} <= all_codes().keys()
    assert {name for name, result in kept["models"].items() if not result["failed"]} == {"lfm2_vl"}


@pytest.mark.slow
@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("name", results())
def test_the_run_finds_today_what_it_found(name):
    assert json.loads(json.dumps(compare_upstream.run(name))) == results()[name]


def assert_no_more_than_upstream(name, theirs, ours):
    """The class that models share is counted for itself."""
    assert ours.lines <= theirs.lines, name
    assert ours.modalities >= theirs.modalities, name


@pytest.mark.slow
@pytest.mark.trees
def test_no_port_has_more_lines_than_upstreams(both):
    for name in compare_upstream.ported_models():
        assert_no_more_than_upstream(name, *both(name))


def test_an_implementation_is_its_methods_and_what_only_they_use():
    source = """
class Tower:
    def bound(self):
        return 1

    def forward(self):
        return 2


class Model:
    def __init__(self):
        self.area = 3

    # about it
    @cached
    def get_encoder_cudagraph_config(self):
        if self.is_multimodal_pruning_enabled:
            return None
        # one comment

        return Config(
            modalities=["image"], buffer_keys=["x", "sequence_lengths"], padding_logics={"x": 1}, paths={"a": 2},
            capture_axes=(widths,),
        )

    def forward(self):
        return self._help(use_data_parallel=False)

    def _help(self, use_data_parallel):
        return "image_embeds", "pos_embeds"
"""
    names = {"get_encoder_cudagraph_config", "forward", "_help", "bound", "area"}

    port = compare_upstream.describe(source, "Model", names, {"get_encoder_cudagraph_config", "forward"})

    assert (port.modalities, port.buffers) == ({"image"}, {"x", "sequence_lengths"})
    assert (port.padded, port.paths, port.embeddings) == ({"x"}, {"a"}, {"image_embeds"})
    assert (port.flashinfer, port.off_with_pruning, port.ranks_apart, port.axes) == (True, True, True, True)
    assert port.methods == {"get_encoder_cudagraph_config", "forward"}
    assert port.helpers == {"_help", "bound", "area"}
    assert (port.lines, port.code) == (9 + 2 + 2 + 2 + 1, 8 + 2 + 2 + 2 + 1)
    assert compare_upstream.differences(port, port) == ["* Only upstream's: nothing.", "* Only ours: nothing."]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("a = 1\n\n\n# why\nb = 2\n", {1, 5}),
        ('def f():\n    """Say\n\n    why."""\n    return (\n        1\n    )  # one\n', {1, 5, 6, 7}),
        ('text = """\n# not a comment\n"""\n', {1, 2, 3}),
    ],
    ids=["comments and blank lines", "docstring", "string"],
)
def test_lines_of_code_are_neither_comments_nor_docstrings(source, code):
    assert compare_upstream.code_lines(source) == code
