"""`fix` on the command line: what it writes, says and refuses. The lab is a few lines here; the last test has the real
one.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_scene import PROTOCOL, contents
from test_new import make_repository
from test_verify import BAD, SMALL

from scaffold.verify.numeric import NumericReport, runner
from scaffold.verify.numeric.reports import FROZEN, ROUND_UP, Check, captured_short

pytestmark = pytest.mark.trees

KIMI = "vllm/model_executor/models/kimi_vl.py"
TESTS = "tests/models/multimodal/processing/test_kimi_vl.py"
WRONG = b"max_seqlen_override=token_budget,"
MENDED = b"max_seqlen_override=token_budget * kh * kw,"
LONG = replace(BAD, detail=f"an attention sequence has 256 rows, {FROZEN} 64")
SHORT = Check("a context of 63 tokens", "image", False, code="VCG662")
#: vLLM's manager that does not answer None for precomputed embeddings.
NOT_READY = b'''    ) -> list[torch.Tensor]:
        """Execute encoder using'''
EAGER = Check("eager unchanged: small", "image", True, 0.0, 0.0, code="VCG651")
EMBEDS = Check("precomputed embeddings, one item", "image", False, detail="KeyError", code="VCG660")

#: A lab that counts the faults in the files: the bound is wrong or right there, and each has its checks.
CHILD = """
import json, pathlib, sys
def say(**event): print(json.dumps(event), flush=True)
json.loads(sys.stdin.readline())
reports = json.loads({reports!r})
for line in sys.stdin:
    request = json.loads(line)
    root = pathlib.Path(request["changed_root" if request["changed_modules"] else "root"])
    found = sum(fault in (root / path).read_bytes() for path, fault in {faults!r})
    say(event="report", data=reports[found])
    say(event="ended", status=0)
"""


def lab(monkeypatch, *checks: tuple[Check, ...], faults: tuple[tuple[str, bytes], ...] = ((KIMI, WRONG),)) -> None:
    """`checks` of the port with all faults, with one less, and so on."""
    reports = [NumericReport("kimi_vl", "", "fa2", one, hits=1, sequences=9).to_json() for one in checks[::-1]]
    script = CHILD.format(reports=json.dumps(reports), faults=faults)
    monkeypatch.setattr(runner._Child, "command", (sys.executable, "-c", script))


@pytest.fixture
def tree(copied_tree) -> Path:
    return copied_tree("0.33.0", "pyproject.toml", KIMI, *PROTOCOL).root


@pytest.fixture
def mends(monkeypatch) -> None:
    lab(monkeypatch, (SMALL, LONG), (SMALL, replace(LONG, passed=True, detail=""), EAGER))


def test_it_writes_the_repair_and_nothing_else(run, tree, mends):
    before = contents(tree)

    done = run("fix", "kimi_vl", "--vllm", tree)

    assert done.code == 0, done.err
    after = contents(tree)
    assert {path for path in after if after[path] != before.get(path)} == {KIMI}
    assert after[KIMI] == before[KIMI].replace(WRONG, MENDED)
    assert [" ".join(line.split()) for line in done.out.splitlines()] == [
        f"bound in rows: the bound is `token_budget * kh * kw` ({tree}/{KIMI}:491:33); mends 2 checks",
        f"changed {KIMI} (+1 -1 lines)",
        "kimi_vl: 2 of 6 checks failed, 0 fail with the repair; 2 eager results are the same bits",
    ]
    assert "kimi_vl: 2 of 6 checks fail (fa2 attention tails, fa3 attention tails)" in done.err
    again = run("fix", "kimi_vl", "--vllm", tree)
    assert (again.code, again.out) == (0, "kimi_vl: nothing to repair, 0 of 8 checks fail\n")
    assert contents(tree) == after
    assert run("revert", tree).code == 0
    assert contents(tree) == before


def test_check_and_diff_write_nothing(run, tree, mends):
    before = contents(tree)

    shown = run("fix", "kimi_vl", "--vllm", tree, "--diff", "--tail", "fa3")
    checked = run("fix", "kimi_vl", "--vllm", tree, "--check", "--tail", "fa3", "--format", "json")

    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[0] == f"--- a/{KIMI}"
    assert [line for line in shown.out.splitlines()[2:] if line[0] in "+-"] == [
        f"-            {WRONG.decode()}", f"+            {MENDED.decode()}"
    ]  # fmt: skip
    assert checked.code == 1
    (found,) = json.loads(checked.out)["diagnostics"]
    assert (found["code"], found["message"].partition(":")[0]) == ("VCG527", "bound in rows")
    assert f"fix kimi_vl --vllm {tree} --tail fa3" in checked.err
    assert contents(tree) == before
    assert run("fix", "kimi_vl", "--vllm", tree).code == 0
    assert run("fix", "kimi_vl", "--vllm", tree, "--check").code == 0


def test_a_repair_that_spoils_another_check_is_not_written(run, tree, monkeypatch):
    lab(monkeypatch, (SMALL, LONG), (replace(SMALL, passed=False), replace(LONG, passed=True), EAGER))
    before = contents(tree)
    done = run("fix", "kimi_vl", "--vllm", tree)
    assert (done.code, contents(tree)) == (0, before)
    assert "`bound in rows` is not kept: the check `a: small` (image, fa2) fails with it" in done.err
    assert "warning[VCG528]: no rule repairs 2 failing checks of kimi_vl" in done.err
    assert "needs a hand: VCG650, 2 checks on fa2, fa3: image b: small: an attention sequence" in done.err


def test_what_is_no_defect_and_what_is_open_upstream_is_said_apart(run, tree, monkeypatch):
    lab(monkeypatch, (SMALL, EMBEDS, SHORT), (SMALL,))
    done = run("fix", "kimi_vl", "--vllm", tree)
    assert (done.code, done.out) == (0, "kimi_vl: nothing to repair, 2 of 8 checks fail\n")
    assert "open upstream: VCG660, 2 checks on fa2, fa3" in done.err
    assert "no rule repairs 2 failing checks" in done.err
    assert "No defect: VCG662, 2 checks on fa2, fa3" in done.err
    assert "needs a hand" not in done.err


def test_the_text_claims_the_repairs_and_says_what_still_fails(run, tree, monkeypatch):
    lab(monkeypatch, (SMALL, LONG, SHORT, EMBEDS), (SMALL, replace(LONG, passed=True), SHORT, EMBEDS, EAGER))

    done = run("fix", "kimi_vl", "--vllm", tree, "--text", "pr.md")

    assert done.code == 0, done.err
    assert (
        "Title: [Bugfix][Multimodal] Encoder CUDA graphs of KimiVLForConditionalGeneration: bound in rows\n" in done.err
    )
    text = Path("pr.md").read_text()
    assert f"Now the bound is `token_budget * kh * kw` (`{KIMI}:491`)." in text
    outside, _, folded = text.partition("<details><summary>Checks of vitcg-scaffold on a CPU: ")
    assert folded.startswith("4 of 10 failed before, and 2 fail after</summary>\n\n")
    assert "\n2 eager results are the same bits as before.\n" in folded
    assert "| image: small | 2 (fa2, fa3) | pass | VCG650: an attention sequence has 256 rows" in text
    assert "These checks still fail, and have threads of their own:\n\n- VCG660, 2 checks" in outside
    assert "VCG662" not in text, "it shows no defect, and the terminal says so"
    assert "No defect: VCG662, 2 checks" in done.err
    assert "These checks still fail:" not in text
    assert folded.endswith("\n\n</details>\n")
    assert f"`{KIMI}`, +1 -1 lines" in text
    assert "```sh\nvitcg-scaffold verify kimi_vl --vllm . --as-is --tail all\n```" in folded
    assert "What it costs" not in text
    assert "No unit test for bound in rows: the port reads more than small stubs have, or the tree has no" in text
    assert "Put here what the unit tests say" not in text
    Path("pr.md").unlink()
    assert run("fix", "kimi_vl", "--vllm", tree, "--text", "pr.md").code == 0
    assert not Path("pr.md").exists(), "there is nothing to claim"


def test_the_text_says_what_a_repair_costs(run, copied_tree, monkeypatch):
    path = "vllm/model_executor/models/gemma3_mm.py"
    short = replace(LONG, detail=f"{captured_short('pixel_values')} 3 entries, and a replay brings 8: {ROUND_UP}",
                    code="VCG654")  # fmt: skip
    lab(
        monkeypatch, (SMALL, short), (SMALL, replace(short, passed=True), EAGER), faults=((path, b"num_images = min("),)
    )
    tree = copied_tree("0.33.0", "pyproject.toml", path, *PROTOCOL).root
    done = run("fix", "gemma3_mm", "--vllm", tree, "--text", "pr.md")
    assert done.code == 0, done.err
    option = "`encoder_cudagraph_max_vision_items_per_batch`"
    claims = Path("pr.md").read_text().partition("## Test Plan")[0]
    assert f"a replay raises where the limit of items ({option}) is below the rows of a full budget. Now" in claims
    assert f"\n- What it costs: {option} no longer bounds the captured rows" in claims


def test_what_an_open_pull_request_has_is_named_and_written_on_request_only(run, copied_tree, monkeypatch):
    path = "vllm/model_executor/models/step3_vl.py"
    heir = "vllm/model_executor/models/step_vl.py"
    alias = Check("a: mixed", "image", False, detail="it aliases the graph's memory", code="VCG658")
    wrong, right = (SMALL, alias), (SMALL, replace(alias, passed=True), EAGER)
    lab(monkeypatch, wrong, right, faults=((path, b"len(parts) > 1 else parts[0]"),))
    tree = copied_tree("0.33.0", "pyproject.toml", path, heir, *PROTOCOL).root

    before = contents(tree)
    left = run("fix", "step3_vl", "--vllm", tree, "--text", "pr.md")
    assert (left.code, contents(tree), Path("pr.md").exists()) == (0, before, False), left.err
    assert left.out.splitlines() == [
        "step3_vl: nothing to repair, 2 of 6 checks fail",
        "not written: copy on clone; mends 2 checks; vllm-project/vllm#52115 is an open pull request that has it",
    ]
    assert f"fix step3_vl --vllm {tree} --text pr.md --with-open" in left.err
    assert "VCG528" not in left.err, "no defect that needs a hand"
    assert run("fix", "step3_vl", "--vllm", tree, "--check").code == 0
    shown = run("fix", "step3_vl", "--vllm", tree, "--diff")
    assert (shown.out, "not written: copy on clone" in shown.err) == ("", True)
    assert run("fix", "step3_vl", "--vllm", tree, "--check", "--with-open").code == 1

    done = run("fix", "step3_vl", "--vllm", tree, "--text", "pr.md", "--with-open")

    assert done.code == 0, done.err
    said = "vllm-project/vllm#52115 is an open pull request that mends this (copy on clone)"
    assert f"{said}: send no other" in done.err
    assert "These classes run the repaired methods, too, and were not run: StepVLForConditionalGeneration" in done.err
    text = Path("pr.md").read_text()
    assert f"- {said}: comment there instead." in text
    assert "too, and were not run: StepVLForConditionalGeneration." in text


def test_the_text_names_what_is_left_to_an_open_pull_request(run, copied_tree, monkeypatch):
    """Here the repair of one port is written, and that of vLLM's manager is not."""
    path = "vllm/model_executor/models/glm4_1v.py"
    fields = path.replace("glm4_1v", "qwen2_vl")  # of its processor
    tree = copied_tree("0.33.0", "pyproject.toml", path, fields, *PROTOCOL).root
    short = replace(LONG, detail=ROUND_UP, code="VCG654")
    longer = replace(short, passed=True)
    lab(
        monkeypatch,
        (SMALL, short, EMBEDS),
        (SMALL, longer, EMBEDS, EAGER),
        (SMALL, longer, replace(EMBEDS, passed=True), EAGER),
        faults=((path, b"= token_budget // max_batch_size"), ("vllm/v1/worker/encoder_cudagraph.py", NOT_READY)),
    )
    done = run("fix", "glm4_1v", "--vllm", tree, "--tail", "fa2", "--text", "pr.md")
    assert done.code == 0, done.err
    assert "not written: embeddings run eagerly; mends 1 checks; vllm-project/vllm#58122 is an open" in done.out
    text = Path("pr.md").read_text()
    heading = "These checks still fail, and have threads of their own:"
    assert f"{heading}\n\n- 1 that pass with embeddings run eagerly: vllm-project/vllm#58122 is an open pull" in text
    assert "vllm/v1/worker/encoder_cudagraph.py" not in text
    assert text.count("VCG660") == 0


def test_a_unit_test_comes_with_a_repair(run, copied_tree, mends):
    """In the file that another repair has begun, too, and the text names it."""
    first = f"{TESTS.rpartition('/')[0]}/__init__.py"
    tree = copied_tree("0.33.0", "pyproject.toml", KIMI, first, *PROTOCOL).root
    (tree / TESTS).write_text("# SPDX-License-Identifier: Apache-2.0\n\n\ndef test_other():\n    pass\n")

    done = run("fix", "kimi_vl", "--vllm", tree, "--text", "pr.md")

    assert done.code == 0, done.err
    tests = (tree / TESTS).read_text()
    assert "def test_other()" in tests
    assert "def test_kimi_vl_capture_bounds_a_sequence_by_its_patches()" in tests
    assert "from vllm.model_executor.models.kimi_vl import KimiVLForConditionalGeneration\n" in tests
    text = Path("pr.md").read_text()
    assert f"```sh\npytest {TESTS}::test_kimi_vl_capture_bounds_a_sequence_by_its_patches\n```" in text
    assert "Put here what the unit tests say before and after." in text
    assert run("revert", tree).code == 0
    assert "kimi" not in (tree / TESTS).read_text()


def test_a_release_is_run_and_its_working_copy_is_written(run, release_tree, mends):
    release = release_tree("0.33.0").root
    done = run("fix", "kimi_vl", "--vllm", "0.33.0")
    assert done.code == 0, done.err
    copy = Path("vllm-0.33.0")
    assert MENDED in (copy / KIMI).read_bytes()
    assert WRONG in (release / KIMI).read_bytes()
    # The file of unit tests may have those of other models, and no proof is of it.
    own = (copy / TESTS).read_text()
    (copy / TESTS).write_text(f"{own}\n\ndef test_other():\n    pass\n")
    again = run("fix", "kimi_vl", "--vllm", "0.33.0", "--allow-dirty")
    assert again.code == 0, again.err
    assert f"unchanged  {KIMI}" in again.out, "the release has the fault, and the copy its repair"
    assert f"unchanged  {TESTS}" in again.out
    assert run("fix", "kimi_vl", "--vllm", "0.33.0", "--check", "--into", copy).code == 0
    assert run("fix", "kimi_vl", "--vllm", "0.33.0", "--check").code == 1, "the release itself"

    (copy / KIMI).write_bytes((release / KIMI).read_bytes() + b"\nimport antigravity\n")
    other = contents(copy)
    assert "error[VCG507]" in run("fix", "kimi_vl", "--vllm", "0.33.0").err
    refused = run("fix", "kimi_vl", "--vllm", "0.33.0", "--allow-dirty")

    assert (refused.code, contents(copy)) == (5, other)
    assert f"error[VCG526]: {KIMI} is not the file of vllm-0.33.0, which was run" in refused.err
    assert "--vllm vllm-0.33.0" in refused.err


def test_uncommitted_changes_are_refused_before_anything_is_run(run, tree, mends, monkeypatch):
    make_repository(tree)
    (tree / KIMI).write_bytes((tree / KIMI).read_bytes() + b"\n# mine\n")
    asked = []
    original = runner._Bench.check
    monkeypatch.setattr(runner._Bench, "check", lambda self, request: asked.append(1) or original(self, request))
    done = run("fix", "kimi_vl", "--vllm", tree)
    assert (done.code, "VCG507" in done.err, asked) == (5, True, [])
    assert run("fix", "kimi_vl", "--vllm", tree, "--allow-dirty").code == 0
    assert (tree / KIMI).read_bytes().endswith(b"\n# mine\n")
    assert MENDED in (tree / KIMI).read_bytes()


def test_wrong_uses(run, tree, mends):
    both = run("fix", "kimi_vl", "--vllm", tree, "--diff", "--check")
    assert (both.code, "--diff and --check exclude each other" in both.err) == (2, True)
    other = run("fix", "kimi_vl", "--vllm", tree, "--tail", "cudnn")
    assert (other.code, "is not for cudnn" in other.err) == (2, True)
    into = run("fix", "kimi_vl", "--vllm", tree, "--into", "x")
    assert (into.code, "--into names the working copy" in into.err) == (2, True)


def test_help_says_that_the_code_runs(run):
    assert "Runs the tree's code" in " ".join(run("fix", "--help").out.split())


def test_a_replacement_names_the_fix_where_there_is_a_place_for_one(run, release_tree):
    release_tree("0.33.0")
    named = run("new", "kimi_vl", "--vllm", "0.33.0", "--replace", "--diff")
    assert (
        "a few lines only (`bound in rows`). To see them: vitcg-scaffold fix kimi_vl --vllm 0.33.0 --diff" in named.err
    )
    for none in ("lfm2_vl", "deepseek_vl2"):  # the second one's is in an open pull request
        assert "a few lines only" not in run("new", none, "--vllm", "0.33.0", "--replace", "--diff").err


@pytest.mark.lab
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the `cpu` extra")
def test_kimi_vl_is_wrong_in_0_33_and_one_line_mends_it(run, release_tree):
    """The real lab: 32 of 68 checks show a defect as released, none with the repair."""
    pristine = (release_tree("0.33.0").root / KIMI).read_bytes()

    done = run("fix", "kimi_vl", "--vllm", "0.33.0")

    assert done.code == 0, done.err
    assert "kimi_vl: 32 of 68 checks failed, 0 fail with the repair; 64 eager results are the same bits" in done.out
    assert f"{KIMI}  (+1 -1 lines)" in done.out
    assert (Path("vllm-0.33.0") / KIMI).read_bytes() == pristine.replace(WRONG, MENDED)
