"""A release whose five models were generated is still the release to its own tests, linters and import rules."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from captured import captured
from release_tests import GENERATION, UNIT, run_tests

from scaffold.descriptor import shipped_names
from scaffold.workflow import load_port

pytestmark = [pytest.mark.trees, pytest.mark.lab]

MODELS = ("internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "step3_vl")
MODULES = tuple(f"vllm.model_executor.models.{model}" for model in MODELS)
EXAMPLE = "examples/generate/multimodal/vision_language_offline.py"

POOLING = "tests/models/multimodal/pooling/test_vit_cudagraph.py"


def releases(*sample: str, slow: tuple[str, ...]) -> list:
    return [*sample, *(pytest.param(release, marks=pytest.mark.slow) for release in slow)]


@pytest.mark.parametrize(
    "release", releases(slow=("0.21.0", "0.23.0", "0.24.0", "0.26.0", "0.28.0", "0.30.0", "0.33.0"))
)
def test_the_releases_unit_test_comes_out_as_before(release, release_tree, ported_copy):
    """The manager's own; `tests/runtime/test_vllm_binding.py` runs it on ours."""
    before = run_tests(release_tree(release).root, UNIT)
    after = run_tests(ported_copy(release), UNIT, imports=MODULES)

    # 0.24 to 0.26 fail a test of their own, on the pristine tree as well.
    assert before.code == (1 if "failed" in before.outcomes.values() else 0), before.text
    assert after.code == before.code, after.text
    assert after.outcomes == before.outcomes
    assert list(after.outcomes.values()).count("failed") <= 1
    # What needs no GPU ran.
    assert list(after.outcomes.values()).count("passed") > 20


@pytest.mark.parametrize("release", releases(slow=("0.21.0", "0.22.0", "0.26.0", "0.30.0", "0.33.0")))
def test_the_generated_entries_collect(release, release_tree, ported_copy):
    """On 0.21 the entries of all models but two are new; later releases have entries, which stay."""
    source = release_tree(release).read(GENERATION)
    after = run_tests(ported_copy(release), GENERATION, "--collect-only")

    assert after.code == 0, after.text
    for model in MODELS:
        (entry,) = load_port(model).tests
        for modality in ("image", "video"):
            assert f"{GENERATION}::test_vit_cudagraph_{modality}[{entry.key}]" in after.collected
    new = {model for model in MODELS if f'"{load_port(model).tests[0].key}": VitCudagraph' not in source}
    if release == "0.21.0":
        assert new == {"internvl", "qwen2_vl", "step3_vl"}
    found = {re.sub(r".*\[(.*)\]", r"\1", name) for name in after.collected}
    before = set(re.findall(r'^    "(\w+)": VitCudagraphTestConfig', source, re.MULTILINE))
    assert found == before | {load_port(model).tests[0].key for model in new}


def test_the_comparison_collects_and_passes_the_type_check(release_tree, ported_copy, tmp_path):
    """vLLM's `mypy` hook reads the tests of models each for itself (`tools/pre_commit/mypy.py`)."""
    root = ported_copy("0.33.0", ("paligemma",))
    expected = {GENERATION: "test_vit_cudagraph_image[paligemma]", POOLING: "test_vit_cudagraph_outputs[colpali]"}
    for file, name in expected.items():
        after = run_tests(root, file, "--collect-only")
        assert after.code == 0, after.text
        assert f"{file}::{name}" in after.collected
    pytest.importorskip("pydantic", reason="the release's configuration of mypy loads its plugin")
    files = [path for path in changed_files(release_tree("0.33.0").root, root) if path.startswith("tests/")]
    assert len(files) == 3
    separate = ["--follow-imports", "skip", "--no-site-packages", "--cache-dir", str(tmp_path)]
    done = captured([sys.executable, "-m", "mypy", *separate, *files], cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr


#: The checks of `.pre-commit-config.yaml` that look at Python files one by one, and need neither git nor a network.
HOOKS = ("check_spdx_header", "check_forbidden_imports", "check_torch_cuda", "check_boolean_context_manager")


@pytest.mark.parametrize(
    "release",
    releases(
        "0.21.0",
        "0.33.0",
        slow=("0.20.0", "0.22.0", "0.23.0", "0.24.0", "0.26.0", "0.28.0", "0.30.0", "0.32.0"),
    ),
)
def test_the_files_pass_the_releases_own_checks(release, release_tree, ported_copy):
    """Not only nothing new: the release's files have no finding, so the ported ones must have none."""
    root, pristine = ported_copy(release), release_tree(release)
    files = changed_files(pristine.root, root)
    assert {f"vllm/model_executor/models/{model}.py" for model in MODELS} <= set(files)
    python = [path for path in files if path.endswith(".py")]

    assert ruff(root, "check", *python) == ruff(root, "format", "--check", *python) == ""
    for hook in HOOKS:
        script = root / "tools/pre_commit" / f"{hook}.py"
        assert script.is_file(), f"{release} has no {hook}"
        done = captured([sys.executable, str(script), *python], cwd=root)
        assert done.returncode == 0, done.stdout + done.stderr
    # A header that were missing would have been added, not only reported.
    assert changed_files(pristine.root, root) == files


@pytest.mark.parametrize(
    ("release", "models"),
    [
        ("0.33.0", MODELS),
        pytest.param("0.33.0", tuple(shipped_names()), marks=pytest.mark.slow, id="0.33.0-every model"),
        pytest.param("0.32.0", tuple(shipped_names()), marks=pytest.mark.slow, id="0.32.0-every model"),
    ],
)
def test_the_files_pass_the_releases_type_check(release, models, release_tree, ported_copy, tmp_path):
    """Its `mypy` hook reads model files since 0.32, in an environment that has pydantic and no torch."""
    pytest.importorskip("pydantic", reason="the release's configuration of mypy loads its plugin")
    root, pristine = ported_copy(release, models), release_tree(release)
    files = [path for path in changed_files(pristine.root, root) if path.startswith("vllm/")]
    assert len(files) >= len(models)

    command = [sys.executable, "-m", "mypy", "--no-site-packages", "--cache-dir", str(tmp_path), *files]
    done = captured(command, cwd=root)

    assert done.returncode == 0, done.stdout + done.stderr


def ruff(root: Path, *arguments: str) -> str:
    """Findings under the release's own configuration, nothing if there are none."""
    from ruff.__main__ import find_ruff_bin

    command = [find_ruff_bin(), arguments[0], "--no-cache", "--quiet", *arguments[1:]]
    done = captured(command, cwd=root)
    return done.stdout + done.stderr if done.returncode else ""


def changed_files(pristine: Path, root: Path) -> list[str]:
    """Files of the working copy that differ from the release's; only the folders that a port may touch."""
    return sorted(
        path.relative_to(root).as_posix()
        for folder in ("vllm/model_executor/models", "vllm/models", "tests/models", "docs/design", "examples")
        for path in (root / folder).rglob("*")
        if path.is_file() and not is_as_before(path, pristine / path.relative_to(root))
    )


def is_as_before(path: Path, pristine: Path) -> bool:
    return pristine.is_file() and path.read_bytes() == pristine.read_bytes()
