"""The unit tests that repairs bring to vLLM, with a release's classes: red before the repair, and green with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_rules import found_in, repairs_of, with_text

from scaffold.fix.repair import apply_repairs
from scaffold.fix.unit_tests import UNIT_TESTS, put_tests
from scaffold.verify.numeric.overlay import build_overlay, changed_modules
from scaffold.verify.numeric.runner import _bytecode_cache
from scaffold.verify.style import check_style

pytestmark = pytest.mark.trees

KIMI = "vllm/model_executor/models/kimi_vl.py"
OFFSETS = {"[8]": "assert torch.Size([3]) == torch.Size([9])"}
INSIDE = {"": "assert (0, 1) == (1, 0)"}
#: each repair of 0.27 to 0.33 whose edit is in a port: what is wrong before it, by the parameters of a test
RED = {
    ("ernie45_vl", "finished once"): {"": "AssertionError: Expected 'mock' to have been called once. Called 2 times."},
    ("gemma3_mm", "rows by budget alone"): {"[1]": "assert 1 == (2048 // 256)"},
    ("glm4_1v", "capture rounds up"): {"[3]": "assert 396 >= (100 * 4)", "[8]": "assert 384 >= (100 * 4)"},
    ("glm4_1v", "pad as captured"): OFFSETS,
    ("internvl", "no sharding inside"): INSIDE,
    ("kimi_vl", "bound in rows"): {"": "assert tensor(64) == 256"},
    ("mllama4", "no graphs where ranks share layers"): {"[True]": "AssertionError: assert ['image'] == []"},
    ("qwen2_vl", "pad as captured"): OFFSETS,
    ("qwen3_vl", "pad as captured"): OFFSETS,
    ("step3_vl", "copy on clone"): {"": "assert not tensor(True)"},
    ("step3_vl", "no sharding inside"): INSIDE,
}


@pytest.mark.lab
@pytest.mark.parametrize("version", [pytest.param("0.27.0", marks=pytest.mark.slow), "0.33.0"])
def test_each_test_fails_before_its_repair_and_passes_with_it(release_tree, tmp_path, version):
    tree, jobs = release_tree(version), []
    pristine = tmp_path / "pristine"
    build_overlay(tree.root, {}, pristine)
    places = [place for place in RED if place[1] in repairs_of(tree, place[0])]
    assert [place for place in RED if place not in places] == (
        [("ernie45_vl", "finished once")] * (version == "0.27.0")
    )
    for model, rule in places:
        files = {change.path: change.after or b"" for change in apply_repairs(tree, [repairs_of(tree, model)[rule]])}
        changed = tmp_path / f"{model} {rule}"
        build_overlay(tree.root, files, changed)
        for root, modules in ((pristine, []), (changed, changed_modules(files))):
            tests = files[UNIT_TESTS].decode()
            jobs.append({"recipe": model, "root": str(root), "changed": modules, "tests": tests})
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("unit_child.py")],
        input=json.dumps({"root": str(pristine), "bytecode_cache": _bytecode_cache(), "jobs": jobs}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    before = [
        {f"[{name.partition('[')[2]}" if "[" in name else "": said for name, said in one.items() if said != "passed"}
        for one in found[::2]
    ]
    assert dict(zip(places, before, strict=True)) == {place: RED[place] for place in places}
    assert [[*one.values()] for one in found[1::2]] == [["passed"] * len(one) for one in found[::2]]


@pytest.mark.parametrize(("model", "rule"), RED, ids=map(", ".join, RED))
def test_a_test_is_short_and_in_the_format_of_the_tree(release_tree, model, rule):
    tree = release_tree("0.33.0")
    (change,) = put_tests(tree, [repairs_of(tree, model)[rule].test])
    text = (change.after or b"").decode()
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n"), "a new file"
    assert check_style(None, text, change.path, tree.root) == ()
    assert max(map(len, text.splitlines())) <= 88
    body = text[text.index("\ndef test_") :]
    assert len(body.splitlines()) <= 45


def test_a_second_repair_adds_its_test_to_the_file(release_tree):
    tree = release_tree("0.33.0")
    tests = [repairs_of(tree, model)[rule].test for model, rule in RED]
    (alone,) = put_tests(tree, tests[:1])
    later = tree.with_files({UNIT_TESTS: alone.after or b""})
    (both,) = put_tests(later, tests[:2])
    text = (both.after or b"").decode()
    assert (both.before, text.count("\ndef test_"), text.count("SPDX-License")) == (alone.after, 2, 1)
    assert check_style((both.before or b"").decode(), text, UNIT_TESTS, tree.root) == ()
    assert put_tests(tree.with_files({UNIT_TESTS: both.after or b""}), tests[:2]) == ()
    assert put_tests(tree, ["", ""]) == ()


def test_a_port_that_reads_more_than_the_stubs_have_gets_no_test(release_tree):
    """Nor does one of an older release, whose manager calls it in another way, or of a tree without its tests."""
    tree = release_tree("0.33.0")
    more = with_text(tree, KIMI, "kh, kw = self.config", "self.more.here\n        kh, kw = self.config")
    assert found_in(more, "kimi_vl")["bound in rows"].test == ""
    helper = with_text(tree, KIMI, "kh, kw = self.config", "self._get_grid_hws(self)\n        kh, kw = self.config")
    assert found_in(helper, "kimi_vl")["bound in rows"].test, "a method of its own is followed"
    assert repairs_of(release_tree("0.26.0"), "qwen2_vl")["pad as captured"].test == ""
