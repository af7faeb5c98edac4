"""What a port adds to vLLM's tests for a comparison of outputs, and what the added test does with its runner.

`tests/lab/test_compared_replays.py` runs the functions for workers on models.
"""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from changed_ports import port_of

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


POOLING = "tests/models/multimodal/pooling/test_vit_cudagraph.py"


def pooling_file(tree: Any, **changes: Any) -> dict[str, str]:
    """The files of PaliGemma's port with these changes to the entry of ColPali."""
    port = port_of("paligemma", {f"integration.pooling.{key}": value for key, value in changes.items()})
    return {change.path: (change.after or b"").decode() for change in prepare_port(port, tree).changed}


def test_a_port_brings_the_test_of_pooling_models(release_tree):
    tree = release_tree("0.33.0")
    files = pooling_file(tree)

    assert '    "colpali": PoolingTestConfig(\n' in files[POOLING]
    assert "from functools import partial\n" in files[POOLING]
    assert "def check_encoder_cudagraph_outputs" in files[HELPERS]
    plain = pooling_file(tree, dummy_arch=None, image_prompt="<image>", max_model_len=2048)[POOLING]
    assert "partial" not in plain
    assert "dummy_hf_overrides" not in plain
    assert '        image_prompt="<image>",\n        max_model_len=2048,\n    ),\n' in plain
    assert POOLING not in pooling_file(release_tree("0.30.0"))


def test_a_pooling_model_alone_brings_the_helpers_and_leaves_the_generation_test(release_tree):
    port = port_of("paligemma", {"integration.test": None})
    prepared = prepare_port(port, release_tree("0.33.0"))

    paths = {change.path for change in prepared.changed}
    assert {POOLING, HELPERS} <= paths
    assert GENERATION not in paths
    assert not [note for note in prepared.notes if note.code == "VCG524"]


def test_a_later_pooling_model_adds_its_entry(release_tree):
    tree = release_tree("0.33.0")
    first = pooling_file(tree, dummy_arch=None)
    later = tree.with_files({path: text.encode() for path, text in first.items() if path in (POOLING, HELPERS)})

    second = pooling_file(later, key="other")

    assert HELPERS not in second
    assert [line for line in second[POOLING].splitlines() if "PoolingTestConfig(" in line] == [
        '    "colpali": PoolingTestConfig(',
        '    "other": PoolingTestConfig(',
    ]
    assert "from functools import partial\n" in second[POOLING]
    assert POOLING not in pooling_file(later)  # the entry is there
    plain = pooling_file(later, key="other", dummy_arch=None)[POOLING]
    assert "partial" not in plain


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
    assert "# too: the test only shows that nothing raises.\n" in files[GENERATION]


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
    assert planned(functions={**registry.functions, "vllm_runner": ""}) == ["PutMethods"]


@pytest.mark.parametrize("lacking", ["test_vit_cudagraph_image", "_check_eonly_encoder_outputs"])
def test_a_comparison_needs_the_tests_that_it_is_for(release_tree, lacking):
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
        llm = SimpleNamespace(encode=self.encode)
        yield SimpleNamespace(collective_rpc=self.collective_rpc, llm=llm, get_inputs=self.get_inputs)

    def get_inputs(self, prompts: list[str], images: list[str]) -> list[str]:
        return [prompt + image for prompt, image in zip(prompts, images, strict=True)]

    def encode(self, inputs: list[str], pooling_task: str) -> list[str]:
        self.asked.append(" ".join([pooling_task, *inputs]))
        return inputs

    def collective_rpc(self, method: str) -> tuple[int, ...]:
        self.asked.append(method)
        return self.hits if method == "hits" else ()


def test_the_test_of_pooling_models_needs_replays(release_tree, monkeypatch):
    [node] = [
        node for node in ast.parse(pooling_file(release_tree("0.33.0"))[POOLING]).body if isinstance(node, FunctionNode)
    ]
    node.decorator_list = []
    config = SimpleNamespace(
        model="m", image_prompt="p", pooling_task="embed", max_model_len=8, vllm_runner_kwargs={"revision": "r"}
    )
    names: dict[str, Any] = {
        "POOLING_CONFIGS": {"m": config},
        "check_encoder_cudagraph_outputs": "check",
        "get_encoder_cudagraph_hits": "hits",
    }
    exec(ast.unparse(node), names)
    run, assets = names["test_vit_cudagraph_outputs"], [SimpleNamespace(pil_image="a"), SimpleNamespace(pil_image="b")]
    runner = Runner(1)

    run("m", runner, assets, monkeypatch)

    assert runner.asked == ["m", "check", "embed pa pb", "hits"]
    with pytest.raises(AssertionError):
        run("m", Runner(0), assets, monkeypatch)


#: vLLM's fixtures and two of its tests, with a runner that says what it is asked.
CONFTEST = """
import os
from contextlib import contextmanager
from types import SimpleNamespace
import pytest

@pytest.fixture(scope="session")
def vllm_runner():
    @contextmanager
    def runner(model):
        def collective_rpc(method):
            print("asked", model, method, os.environ.get("VLLM_ALLOW_INSECURE_SERIALIZATION"))
            return [2, 0 if model == "off" else 1]
        yield SimpleNamespace(collective_rpc=collective_rpc)
    return runner
"""
TESTS = """
from contextlib import contextmanager
from types import SimpleNamespace
import pytest

MODEL_CONFIGS = {name: SimpleNamespace(check_outputs=name != "plain") for name in ("plain", "right", "off")}
check_encoder_cudagraph_outputs, get_encoder_cudagraph_hits = "check", "hits"

@pytest.mark.parametrize("model_id", MODEL_CONFIGS)
def test_vit_cudagraph_image(model_id, vllm_runner):
    with vllm_runner(model_id) as model:
        print("runs", model_id)
"""


def test_a_runner_compares_from_the_start_and_needs_replays_of_each_worker(release_tree, tmp_path):
    """In pytest, with the fixture that a port adds before the tests: entries that do not ask for it run as before."""
    text = ported(release_tree("0.33.0"), "llava_next")[GENERATION]
    nodes = [node for node in ast.parse(text).body if isinstance(node, FunctionNode)]
    names = [node.name for node in nodes]
    assert names.index("vllm_runner") + 1 == names.index("test_vit_cudagraph_image")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(f"{TESTS}\n\n{ast.unparse(nodes[names.index('vllm_runner')])}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir=."]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": ""})

    said = [line for line in done.stdout.splitlines() if line.startswith(("asked ", "runs ", "PASSED", "FAILED"))]
    right = ["asked right check 1", "runs right", "asked right hits 1"]
    off = ["asked off check 1", "runs off", "asked off hits 1"]
    assert [line for line in said if line.startswith(("asked", "runs"))] == [*off, "runs plain", *right], done.stdout
    outcomes = {line.split()[1].partition("[")[2].rstrip("]"): line.split()[0] for line in said if "::" in line}
    assert outcomes == {"plain": "PASSED", "right": "PASSED", "off": "FAILED"}
