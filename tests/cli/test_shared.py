"""`new --shared` and `pr --shared`: the shared part is a change of its own, and the port then is the model's alone."""

from __future__ import annotations

import pytest

from scaffold.plan.manager import MANAGER_TESTS

pytestmark = pytest.mark.trees

MANAGER = "vllm/v1/worker/encoder_cudagraph.py"
HELPERS = "tests/models/utils.py"
ENTRIES = "tests/models/multimodal/generation/test_vit_cudagraph.py"
DOCS = "docs/design/cuda_graphs_multimodal.md"
EXAMPLE = "examples/generate/multimodal/vision_language_offline.py"
MODEL = "vllm/model_executor/models/llava_next.py"
FILES = (
    MANAGER, MANAGER_TESTS, HELPERS, ENTRIES, MODEL, "vllm/v1/worker/encoder_cudagraph_defs.py",
    "vllm/model_executor/models/interfaces.py", "vllm/model_executor/models/registry.py",
    "vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/mm/encoder_runner.py", "pyproject.toml",
    DOCS, EXAMPLE, "vllm/v1/attention/ops/vit_attn_wrappers.py",
    "vllm/model_executor/models/paligemma.py",
)  # fmt: skip


@pytest.fixture
def tree(copied_tree):
    return copied_tree("0.33.0", *FILES).root


def changed(tree, before) -> set[str]:
    return {path for path in FILES if (tree / path).read_bytes() != before[path]}


def test_what_ports_share_comes_first_and_a_port_is_the_model_alone(run, tree) -> None:
    def state():
        return {path: (tree / path).read_bytes() for path in FILES}

    clean = state()
    assert run("new", "llava_next", "--vllm", tree, "--shared", "--check").code == 1
    looked = run("new", "llava_next", "--vllm", tree, "--shared", "--diff")
    assert (looked.code, state() == clean) == (0, True)
    assert "check_outputs: bool = False" in looked.out
    assert "llava" not in looked.out

    done = run("new", "llava_next", "--vllm", tree, "--shared", "--static")
    assert done.code == 0, done.err
    assert f"Then the port: vitcg-scaffold new llava_next --vllm {tree}" in done.err
    assert changed(tree, clean) == {MANAGER, MANAGER_TESTS, HELPERS, ENTRIES}
    shared = state()
    assert run("new", "llava_next", "--vllm", tree, "--shared", "--check").code == 0
    again = run("new", "llava_next", "--vllm", tree, "--shared", "--static")
    assert "nothing to do, the tree has what ports share already" in again.err
    assert "Next, the whole numerical proof" not in again.err
    assert "Proven statically only" not in again.err

    told = run("pr", "llava_next", "--vllm", tree, "--shared")
    assert "Title: [Multimodal] Prepare the manager and the tests of encoder CUDA graphs" in told.err
    assert "what users can run is documented" not in told.err
    assert "vllm-project/vllm#58122, which is open, has this aim" in told.out
    assert "may ask for `check_outputs`" in told.out
    assert f"pytest {MANAGER_TESTS}" in told.out
    assert "LlavaNextForConditionalGeneration`" not in told.out

    assert run("new", "llava_next", "--vllm", tree, "--static", "--allow-dirty").code == 0
    assert changed(tree, shared) == {MODEL, ENTRIES, DOCS, EXAMPLE}
    alone = run("pr", "llava_next", "--vllm", tree)
    assert "a pull request has one aim" not in alone.err
    assert "58122" not in alone.out


def test_a_pull_request_of_both_is_told_to_be_two(run, tree) -> None:
    assert run("new", "llava_next", "--vllm", tree, "--static").code == 0

    told = run("pr", "llava_next", "--vllm", tree)

    said = f"on the tree before the port `vitcg-scaffold new llava_next --vllm {tree} --shared` writes what ports share"
    assert f"open  a pull request has one aim: {said}" in told.err
    refused = run("pr", "llava_next", "--vllm", tree, "--shared")
    assert (refused.code, "VCG512" in refused.err) == (5, True)


def test_a_model_without_embeddings_prepares_the_tests_alone(run, tree) -> None:
    before = {path: (tree / path).read_bytes() for path in FILES}

    done = run("new", "paligemma", "--vllm", tree, "--shared", "--static")
    assert done.code == 0, done.err
    assert changed(tree, before) == {HELPERS, ENTRIES}

    told = run("pr", "paligemma", "--vllm", tree, "--shared")
    assert "Title: [Multimodal] Prepare the tests of encoder CUDA graphs for further models" in told.err
    assert "open, has this aim" not in told.out
    # The checks of the manager are left for the next model, which asks for one.
    missing = run("pr", "llava_next", "--vllm", tree, "--shared")
    assert (missing.code, "VCG511" in missing.err) == (5, True)


def test_only_a_tree_of_vllm_has_what_ports_share(run, tree, tmp_path) -> None:
    assert run("new", "llava_next", "--shared").code == 2
    assert run("new", "llava_next", "--vllm", tree, "--package", tmp_path, "--shared").code == 2
    (tmp_path / "rows").write_text("{}")
    assert run("pr", "llava_next", "--vllm", tree, "--shared", "--benchmark", tmp_path / "rows").code == 2
