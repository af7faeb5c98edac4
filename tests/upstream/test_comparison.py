"""docs/measured/upstream.md: its tables are what the releases and the templates say, and its claims hold."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from scaffold.descriptor.load import shipped_names
from scaffold.diagnostics.catalogue import all_codes

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import compare_upstream
from compare_upstream import COMPARISONS, Count

from scaffold.protocol import read_protocol

VARIANTS = [(comparison, same) for comparison in COMPARISONS for same in (False, True)]


#: Lines that hand on `use_data_parallel`, which upstream's port leaves to the tower: its signature, and a call.
PASSED = {"vllm/model_executor/models/internvl.py": 2}


@pytest.fixture(scope="module")
def tables(release_tree):
    for comparison in COMPARISONS:
        release_tree(comparison.before), release_tree(comparison.after)  # fetched, or skipped when offline
    return {
        (comparison.model, same): compare_upstream.compare(comparison, same_protocol=same)
        for comparison, same in VARIANTS
    }


@pytest.mark.trees
@pytest.mark.parametrize(("comparison", "same"), VARIANTS, ids=lambda value: getattr(value, "model", value))
def test_no_file_has_more_lines_than_upstreams(comparison, same, tables):
    table = tables[comparison.model, same]

    assert len(table.rows) == 4
    for path, theirs, ours in table.rows:
        assert 0 < ours.added <= theirs.added, path
        assert ours.removed <= theirs.removed + PASSED.get(path, 0), path
        assert ours.code <= theirs.code, path


@pytest.mark.trees
@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda value: value.model)
def test_the_places_are_upstreams(comparison, tables, release_tree):
    """With the same protocol, whatever upstream changes but its own helpers and what nothing calls, ours changes."""
    table = tables[comparison.model, True]
    uncalled = read_protocol(release_tree(comparison.after)).uncalled

    assert [name for name in table.upstream_only if not name.startswith("_get_") and name not in uncalled] == []
    assert {"imports", "encoder_cudagraph_forward", "select_encoder_cudagraph_items"} <= set(table.both)


@pytest.fixture(scope="module")
def ports(release_tree):
    """Upstream's port and ours, of every model that the release has both of."""
    release_tree(compare_upstream.RELEASE)
    return {name: compare_upstream.both_ports(name) for name in compare_upstream.ported_models()}


@pytest.mark.trees
def test_the_page_is_current(tables, ports, monkeypatch):
    monkeypatch.setattr(
        compare_upstream, "compare", lambda comparison, same_protocol: tables[comparison.model, same_protocol]
    )
    monkeypatch.setattr(compare_upstream, "both_ports", ports.__getitem__)
    assert compare_upstream.PAGE.read_text("utf-8") == compare_upstream.render(), (
        "run `python benchmarks/compare_upstream.py`"
    )


@pytest.mark.trees
def test_the_run_is_of_the_ports_that_the_release_has(release_tree, ports):
    """A file that changed, a further model or a code that is gone: the run is an old one."""
    tree, kept = release_tree(compare_upstream.RELEASE), json.loads(compare_upstream.RESULTS.read_text("utf-8"))
    assert kept["release"] == tree.release
    assert kept["models"].keys() == ports.keys()
    assert {"internvl", "qwen2_vl", "deepseek_vl2", "minimax_m3"} <= ports.keys() <= set(shipped_names()) - {"llava"}
    for name, result in kept["models"].items():
        path, _ = compare_upstream.upstreams_class(name)
        assert result["file"] == hashlib.sha256(tree.read_bytes(path)).hexdigest()[:16], name
        assert len(result["failed"]) < result["checks"]
        assert {code for code, _, _ in result["failed"]} <= all_codes().keys()
    assert {name for name, result in kept["models"].items() if not result["failed"]} == {"lfm2_vl"}


@pytest.mark.slow
@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize("name", json.loads(compare_upstream.RESULTS.read_text("utf-8"))["models"])
def test_the_run_finds_today_what_it_found(name):
    kept = json.loads(compare_upstream.RESULTS.read_text("utf-8"))["models"]
    assert json.loads(json.dumps(compare_upstream.run(name))) == kept[name]


@pytest.mark.trees
def test_no_port_has_more_lines_than_upstreams(ports):
    """The class that models share is counted for itself. And none leaves a modality out that upstream's has."""
    for name, (theirs, ours) in ports.items():
        assert ours.lines <= theirs.lines, name
        assert ours.modalities >= theirs.modalities, name


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
    ("old", "new", "expected"),
    [
        ("a = 1\n", "a = 1\n", Count(0, 0, 0)),
        ("a = 1\n", "a = 2\n", Count(1, 1, 1)),
        ("a = 1\n", "a = 1\n\n\n# why\nb = 2\n", Count(2, 0, 1)),
        ("a = 1\n\nb = 2\n", "a = 1\n", Count(0, 1, 0)),
        ("", 'def f():\n    """Say\n\n    why."""\n    return (\n        1\n    )  # one\n', Count(6, 0, 4)),
        ("", 'text = """\n# not a comment\n"""\n', Count(3, 0, 3)),
    ],
    ids=["nothing", "changed", "comments and blank lines", "removed", "docstring", "string"],
)
def test_lines_are_counted(old, new, expected):
    assert compare_upstream.count(old, new) == expected


def test_a_test_entry_is_its_lines_and_what_came_with_it():
    before = "def known(): ...\nCONFIGS = {}\n"
    text = (
        "def known(): ...\ndef new():\n\n    return 1\ndef other(): ...\n"
        'CONFIGS = {\n    "a": Config(\n        known(), new(),\n    ),\n    "b": Config(other()),\n}\n'
    )

    assert compare_upstream.test_entry(before, text, "a") == [
        "def new():",
        "    return 1",
        '    "a": Config(',
        "        known(), new(),",
        "    ),",
    ]
    assert compare_upstream.test_entry(before, text, "c") == []
