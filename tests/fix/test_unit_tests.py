"""The unit tests that repairs bring to vLLM, with a release's classes: red before the repair, and green with it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_rules import found_in, repairs_of, with_text

from scaffold.diagnostics import DiagnosticError
from scaffold.fix.repair import apply_repairs
from scaffold.fix.unit_tests import put_tests
from scaffold.verify.numeric.overlay import build_overlay, changed_modules
from scaffold.verify.numeric.runner import _bytecode_cache
from scaffold.verify.style import check_style

pytestmark = pytest.mark.trees

KIMI = "vllm/model_executor/models/kimi_vl.py"
OFFSETS = {"[8]": "assert torch.Size([3]) == torch.Size([9])"}
#: each repair of 0.27 to 0.33 whose edit is in a port: what is wrong before it, by the parameters of a test
RED = {
    ("ernie45_vl", "finished once"): {"": "AssertionError: Expected 'mock' to have been called once. Called 2 times."},
    ("gemma3_mm", "rows by budget alone"): {"": "assert 1 == (2048 // 256)"},
    ("glm4_1v", "capture rounds up"): {"[3]": "assert 396 >= (100 * 4)", "[8]": "assert 384 >= (100 * 4)"},
    ("glm4_1v", "pad as captured"): OFFSETS,
    ("internvl", "no sharding inside"): {"": "assert (0, 3) == (3, 0)"},
    ("kimi_vl", "bound in rows"): {"": "assert tensor(64) == 256"},
    ("mllama4", "no layer split over ranks"): {"[True-8]": "assert torch.Size([4, 6]) == (8, 6)"},
    ("qwen2_vl", "pad as captured"): OFFSETS,
    ("qwen3_vl", "pad as captured"): OFFSETS,
    ("step3_vl", "copy on clone"): {"": "assert not tensor(True)"},
    ("step3_vl", "no sharding inside"): {"": "assert (0, 2) == (2, 0)"},
}


def alone(text: str, before: str) -> str:
    """What a file has gained: its new functions behind those of its imports, old ones and new, that they use.

    The other tests of a model's file import what only a whole installation has.
    """
    new = [node for node in ast.parse(text).body if ast.unparse(node) not in map(ast.unparse, ast.parse(before).body)]
    functions = [node for node in new if isinstance(node, ast.FunctionDef)]
    used = {node.id for one in functions for node in ast.walk(one) if isinstance(node, ast.Name)}
    imports = [node for node in ast.parse(text).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in imports:
        node.names = [one for one in node.names if (one.asname or one.name) in used]
    return "\n".join(ast.unparse(node) for node in [*imports, *functions] if getattr(node, "names", True))


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
        path = repairs_of(tree, model)[rule].test.path
        tests = alone(files[path].decode(), tree.read(path) if tree.exists(path) else "")
        changed = tmp_path / f"{model} {rule}"
        build_overlay(tree.root, files, changed)
        for root, modules in ((pristine, []), (changed, changed_modules(files))):
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
    text, before = (change.after or b"").decode(), (change.before or b"").decode()
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert check_style(before or None, text, change.path, tree.root) == ()
    own = [line for line in text.splitlines() if line not in before.splitlines()]
    assert max(map(len, own)) <= 88
    body = text[text.rindex("\ndef test_") :]
    assert len(body.splitlines()) <= 45


FILES = {
    "ernie45_vl": ("test_ernie45_vl", False), "gemma3_mm": ("test_gemma3", True), "glm4_1v": ("test_glm4_1v", True),
    "internvl": ("test_internvl", True), "kimi_vl": ("test_kimi_vl", False), "mllama4": ("test_mllama4", True),
    "qwen2_vl": ("test_qwen2_vl", True), "qwen3_vl": ("test_qwen3_vl", True), "step3_vl": ("test_step3_vl", False),
}  # fmt: skip


def test_a_test_goes_to_the_file_of_its_model(release_tree):
    """Two pull requests for two models never make the same file."""
    tree = release_tree("0.33.0")
    found = {}
    for model, rule in RED:
        path = repairs_of(tree, model)[rule].test.path
        assert path == f"tests/models/multimodal/processing/{FILES[model][0]}.py"
        found[model] = (Path(path).stem, tree.exists(path))
    assert found == FILES


@pytest.mark.parametrize("model", ["glm4_1v", "kimi_vl"], ids=["its file is there", "a new file"])
def test_a_second_repair_adds_its_test_behind_the_others(release_tree, model):
    tree = release_tree("0.33.0")
    first = repairs_of(tree, model)[next(rule for one, rule in RED if one == model)].test
    second = replace(first, source=first.source.replace("def test_", "def test_again_"))
    (alone,) = put_tests(tree, [first])
    (both,) = put_tests(tree, [second, first])
    later = tree.with_files({first.path: alone.after or b""})
    (added,) = put_tests(later, [first, second])
    before, text, last = ((one or b"").decode() for one in (alone.before, alone.after, added.after))
    assert text.count("\ndef test_") == before.count("\ndef test_") + 1
    assert last.startswith(text)
    assert (last.count("\ndef test_again_"), last.count("SPDX-License")) == (1, 1)
    assert check_style(text, last, first.path, tree.root) == ()
    assert len((both.after or b"").splitlines()) == len(last.splitlines())
    assert put_tests(tree.with_files({first.path: added.after or b""}), [first, second]) == ()
    assert put_tests(tree, [None, None]) == ()


def test_a_name_that_means_something_else_is_refused(release_tree):
    tree = release_tree("0.33.0")
    test = repairs_of(tree, "kimi_vl")["bound in rows"].test
    with pytest.raises(DiagnosticError, match="VCG433"):
        put_tests(tree.with_files({test.path: b"def SimpleNamespace():\n    pass\n"}), [test])


def test_a_port_that_reads_more_than_the_stubs_have_gets_no_test(release_tree):
    """Nor does one of an older release, whose manager calls it in another way, or of a tree without its tests."""
    tree = release_tree("0.33.0")
    more = with_text(tree, KIMI, "kh, kw = self.config", "self.more.here\n        kh, kw = self.config")
    assert found_in(more, "kimi_vl")["bound in rows"].test is None
    helper = with_text(tree, KIMI, "kh, kw = self.config", "self._get_grid_hws(self)\n        kh, kw = self.config")
    assert found_in(helper, "kimi_vl")["bound in rows"].test, "a method of its own is followed"
    assert repairs_of(release_tree("0.26.0"), "qwen2_vl")["pad as captured"].test is None
