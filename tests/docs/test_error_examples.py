"""The worked examples of the page of errors: the tool says what the page says, and nothing once the mistake is gone."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from scaffold.diagnostics.catalogue import all_codes

sys.path.append(str(Path(__file__).parents[2] / "docs/reference"))
import run_examples

EXAMPLES = run_examples.examples()
KEPT = run_examples.kept()


def test_there_are_thirty_and_each_has_a_code_of_its_own() -> None:
    codes = [example.code for example in EXAMPLES]
    assert len(codes) == len(set(codes)) == 30
    assert set(codes) <= set(all_codes())
    assert list(KEPT) == codes, "run: python docs/reference/run_examples.py"


@pytest.mark.parametrize(
    "example",
    [pytest.param(each, id=each.code, marks=[pytest.mark.trees] if each.needs_tree else []) for each in EXAMPLES],
)
def test_the_tool_says_what_the_page_says(example, request) -> None:
    if example.needs_tree:
        request.getfixturevalue("release_tree")(run_examples.RELEASE)
    if example.code == "VCG470" and shutil.which("nvidia-smi"):
        pytest.skip("the example is a machine without a GPU")
    assert run_examples.said(example) == KEPT[example.code], "run: python docs/reference/run_examples.py"
    if example.code != "VCG470":  # its correction is the whole proof, which other tests run
        assert "error[" not in run_examples.run(example, right=True)
