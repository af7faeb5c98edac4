"""`generated/tests` as pytest runs them: a sample here, all of them by `make generated-tests` or with VITCG_SLOW=1."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest
from captured import captured

import scaffold
from scaffold.protocol import SERVED

REPOSITORY = Path(scaffold.__file__).parent.parent
FOLDER = REPOSITORY / "generated/tests"
FILE = FOLDER / "test_every_adapter.py"
#: One release of each generation and four of the core models; the fifth is `step3_vl`.
SAMPLE = (
    ("internvl", "v0_23", "0.23.0"),
    ("qwen2_5_vl", "v0_24", "0.26.0"),
    ("qwen2_vl", "v0_27", "0.29.0"),  # which normalises raw pixels before the tower, as 0.27 does not
    ("qwen3_vl", "v0_30", "0.30.0"),
)
#: Attention of Pixtral's tower gets a mask before 0.29, so there is nothing to replay.
UNFIT = (("mistral3", "0.27.0"), ("pixtral", "0.27.0"))


def run(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    # Somebody's own options would change what is printed.
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = captured(command, cwd=REPOSITORY, env=own)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def collected() -> list[tuple[str, str, str]]:
    """Every generated test: model, generation and release."""
    code, text = run("--collect-only", str(FOLDER))
    assert code == 0, text
    return re.findall(r"::test_adapter_equals_the_release\[(\w+)-(\w+)-([\d.]+)\]", text)


@pytest.mark.trees
@pytest.mark.lab
@pytest.mark.parametrize(("model", "generation", "release"), SAMPLE[:1] + SAMPLE[2:])
def test_a_generated_test_passes(release_tree, model, generation, release):
    """In this process, which has imported the release for other tests; the second one as pytest runs it, below."""
    release_tree(release)  # fetched, or skipped when offline
    runpy.run_path(str(FILE))["test_adapter_equals_the_release"](model, generation, release)


@pytest.mark.trees
@pytest.mark.lab
def test_a_generated_test_passes_as_pytest_runs_it(release_tree):
    model, generation, release = SAMPLE[1]
    release_tree(release)

    code, text = run(f"{FILE}::test_adapter_equals_the_release[{model}-{generation}-{release}]")

    assert code == 0, text
    assert "1 passed" in text


@pytest.mark.slow
@pytest.mark.trees
@pytest.mark.lab
def test_every_generated_test_passes(collected):
    code, text = run(str(FOLDER))

    assert code == 0, text
    assert f"{len(collected)} passed" in text


def test_every_adapter_is_tested_on_the_first_and_the_last_release_of_its_generation(collected):
    adapters = {
        (path.stem, path.parent.name)
        for path in (FOLDER.parent / "vitcg_adapters").glob("v*/*.py")
        if path.stem[0] != "_" and not path.stem.startswith("encoder_cudagraph_")
    }

    for generation in SERVED:
        for model in {name for name, spoken in adapters if spoken == generation.name}:
            tested = {release for name, spoken, release in collected if (name, spoken) == (model, generation.name)}
            unfit = {release for name, release in UNFIT if name == model}
            assert tested == {generation.first, generation.last} - unfit, (model, generation.name)
    assert {(model, generation) for model, generation, _ in collected} == adapters
    assert set(SAMPLE) <= set(collected)
    assert {generation for _, generation, _ in SAMPLE} == {generation.name for generation in SERVED}
