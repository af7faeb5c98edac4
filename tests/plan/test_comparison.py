"""What a port adds to vLLM's tests for a comparison of outputs, and what the added test does with its runner.

`tests/lab/test_comparison.py` runs the functions for workers on models.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from scaffold.edit.operations import Edit
from scaffold.plan import comparison
from scaffold.protocol import find_test_registry
from scaffold.syntax import FunctionNode
from scaffold.workflow import load_port, prepare_port

pytestmark = pytest.mark.trees

GENERATION, HELPERS = "tests/models/multimodal/generation/test_vit_cudagraph.py", "tests/models/utils.py"


def ported(tree: Any, model: str) -> dict[str, str]:
    return {change.path: (change.after or b"").decode() for change in prepare_port(load_port(model), tree).changed}


def kinds(edits: Iterator[Edit]) -> list[str]:
    return [type(edit).__name__ for edit in edits]


def test_a_later_port_adds_its_entry_alone(release_tree):
    tree = release_tree("0.33.0")
    first = ported(tree, "llava_next")
    assert first[GENERATION].count("check_outputs=True") == 1
    later = tree.with_files({path: text.encode() for path, text in first.items()})

    second = ported(later, "paligemma")

    assert HELPERS not in second
    added = set(second[GENERATION].splitlines()) - set(first[GENERATION].splitlines())
    assert not [line for line in added if line.startswith(("def test", "from", "import", "    check_outputs"))]
    assert second[GENERATION].count("check_outputs=True") == 2


def test_a_release_without_calls_of_workers_in_its_test_gets_the_entry_alone(release_tree):
    tree = release_tree("0.30.0")
    files = ported(tree, "llava_next")

    assert HELPERS not in files
    assert "check_outputs" not in files[GENERATION]
    assert "# text is random: the test only shows that nothing raises.\n" in files[GENERATION]


def test_what_a_tree_has_already_is_not_planned(release_tree):
    tree = release_tree("0.33.0")
    registry = find_test_registry(tree)
    assert registry is not None

    def planned(**changes: Any) -> list[str]:
        return kinds(comparison.comparison_edits(dataclasses.replace(registry, **changes)))

    assert planned() == ["PutMethods", "AddImport", "AddImport", "AddImport", "PutFunction"]
    assert planned(imports=(*registry.imports, "contextmanager")).count("AddImport") == 2
    field = dataclasses.replace(registry.entry_fields[0], name="check_outputs")
    assert planned(entry_fields=(field,)) == ["AddImport", "AddImport", "AddImport", "PutFunction"]
    assert planned(functions={**registry.functions, "test_vit_cudagraph_outputs": ""}) == ["PutMethods"]


@pytest.mark.parametrize("lacking", ["test_vit_cudagraph_image", "_check_eonly_encoder_outputs"])
def test_a_comparison_needs_the_tests_that_it_runs(release_tree, lacking):
    tree = release_tree("0.33.0")
    registry = find_test_registry(tree)
    assert registry is not None
    assert comparison.can_compare(registry, tree)

    functions = {name: code for name, code in registry.functions.items() if name != lacking}
    assert not comparison.can_compare(dataclasses.replace(registry, functions=functions), tree)


def test_a_comparison_needs_the_helpers_of_all_tests(release_tree):
    tree = release_tree("0.33.0")
    registry = find_test_registry(tree)
    assert registry is not None

    assert not comparison.can_compare(registry, tree.with_files({HELPERS: b""}))


class Runner:
    """Stands in for vLLM's: its workers have served `hits` items, and it keeps what they were asked."""

    def __init__(self, *hits: int) -> None:
        self.hits, self.asked = hits, list[str]()

    @contextmanager
    def __call__(self, model: str, **settings: Any) -> Iterator[Any]:
        self.asked.append(model)
        yield SimpleNamespace(collective_rpc=self.collective_rpc)

    def collective_rpc(self, method: str) -> tuple[int, ...]:
        self.asked.append(method)
        return self.hits if method == "hits" else ()


@pytest.fixture
def added_test(release_tree) -> Any:
    """The test that a port adds, over tests that start a runner."""
    tree = release_tree("0.33.0")
    text = ported(tree, "llava_next")[GENERATION]
    [node] = [
        node
        for node in ast.parse(text).body
        if isinstance(node, FunctionNode) and node.name == "test_vit_cudagraph_outputs"
    ]
    node.decorator_list = []

    def run(model_id: str, runner: Any, assets: str) -> None:
        with runner(model_id) as model:
            model.collective_rpc(f"run {assets}")

    names: dict[str, Any] = {
        "contextmanager": contextmanager,
        "check_encoder_cudagraph_outputs": "check",
        "get_encoder_cudagraph_hits": "hits",
        "test_vit_cudagraph_image": run,
        "test_vit_cudagraph_video": run,
    }
    exec(ast.unparse(node), names)
    return names["test_vit_cudagraph_outputs"]


@pytest.mark.parametrize("modality", ["image", "video"])
def test_each_worker_compares_before_the_test_and_is_asked_for_replays_after_it(added_test, modality, monkeypatch):
    runner = Runner(2, 1)

    added_test("m", modality, runner, "images", "videos", monkeypatch)

    assert runner.asked == ["m", "check", f"run {modality}s", "hits"]


def test_a_worker_without_replays_fails_the_test(added_test, monkeypatch):
    with pytest.raises(AssertionError):
        added_test("m", "image", Runner(2, 0), "images", "videos", monkeypatch)
