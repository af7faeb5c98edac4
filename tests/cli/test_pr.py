"""`pr` on real trees: the text, the rules, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cli_scene import DOCS, MODEL, TEST

pytestmark = pytest.mark.trees

ROW = {"workload": "224x224", "tokens": 64, "eager_ms": 20.0, "exact_ms": 4.0, "vllm_ms": 5.0, "ours_ms": 4.125,
       "vllm_right": True, "ours_right": True}  # fmt: skip
BENCHMARK = {
    "model": "internvl",
    "machine": "one GPU",
    "versions": {"vllm": "0.22.0"},
    "date": "2026-01-01",
    "rows": [ROW],
}


@pytest.fixture
def ported(run, small_tree) -> Path:
    """A tree with the files that a port of InternVL touches, ported."""
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    return small_tree


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def test_the_text_says_what_was_done(run, small_tree, tmp_path):
    measured = tmp_path / "bench.json"
    measured.write_text(json.dumps(BENCHMARK))
    patch = run("new", "internvl", "--vllm", small_tree, "--diff").out
    assert run("new", "internvl", "--vllm", small_tree).code == 0

    done = run("pr", "internvl", "--vllm", small_tree, "--no-verify", "--benchmark", measured)

    assert done.code == 0, done.err
    headings = [line for line in done.out.splitlines() if line.startswith("## ")]
    assert headings == ["## Purpose", "## Test Plan", "## Test Result"]
    for path in (MODEL, TEST, DOCS):
        (line,) = [line for line in done.out.splitlines() if f"`{path}`" in line]
        section = patch.partition(f"+++ b/{path}\n")[2].partition("\n--- a/")[0]
        assert line.endswith(f"(+{sum(text.startswith('+') for text in section.splitlines())} lines)")
    assert "- An item has `n` input rows and `n * k` output tokens." in done.out
    assert f"pytest {TEST} -k internvl" in done.out
    assert "the numerical proof was not run" in done.out
    assert "| 224x224 | 64 | 20.00 | 5.00 | 4.12 | 4.00 | 0.21 | 1.03 |" in done.out
    assert "on one GPU (vllm 0.22.0; 2026-01-01)" in done.out
    assert "Title: [Model][Multimodal] Support encoder CUDA graphs for InternVLChatModel" in done.err
    assert "open  commits carry Signed-off-by" in done.err


def test_the_headings_are_those_of_the_tree(run, ported):
    template = ported / ".github/PULL_REQUEST_TEMPLATE.md"
    template.parent.mkdir()
    template.write_text("## Overview\n\n## Extra\n\n## Validation\n\n---\n- [ ] a box to tick\n")

    done = run("pr", "internvl", "--vllm", ported, "--no-verify")

    assert done.code == 0
    lines = done.out.splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## Overview", "## Extra", "## Validation"]
    assert lines[lines.index("## Extra") + 2] == "<!-- please fill in -->"
    assert lines[-1] == "- [ ] a box to tick"


def test_the_file_is_written_whole(run, ported, tmp_path):
    output = tmp_path / "pr.md"

    assert run("pr", "internvl", "--vllm", ported, "--no-verify", "-o", output).code == 0
    assert output.read_text().startswith("## Purpose\n\nRun the vision encoder of `InternVLChatModel`")

    done = run("pr", "internvl", "--vllm", ported, "--no-verify", "-o", tmp_path / "no/such/pr.md")
    assert (done.code, "VCG709" in done.err) == (7, True)


def test_the_rules_of_a_checkout(run, small_tree):
    git(small_tree, "init", "-q")
    git(small_tree, "add", "-A", "-f")
    git(small_tree, "commit", "-qm", "release")
    assert run("new", "internvl", "--vllm", small_tree).code == 0

    def verdicts() -> tuple[int, dict[str, str]]:
        done = run("pr", "internvl", "--vllm", small_tree, "--no-verify")
        lines = [line.split(maxsplit=1) for line in done.err.splitlines()]
        return done.code, {line[1]: line[0] for line in lines if line[:1] and line[0] in ("ok", "FAIL", "open")}

    code, found = verdicts()
    assert code == 0
    assert found["nothing else is changed in the checkout"] == "ok"
    assert "open" in found.values()

    git(small_tree, "commit", "-qam", "Port InternVL")
    code, found = verdicts()
    assert code == 1
    assert [verdict for rule, verdict in found.items() if rule.startswith("commits carry Signed-off-by")] == ["FAIL"]

    git(small_tree, "commit", "-q", "--amend", "-s", "-m", "Port InternVL")
    code, found = verdicts()
    assert code == 0
    assert [verdict for rule, verdict in found.items() if rule.startswith("commits carry Signed-off-by")] == ["ok"]

    (small_tree / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.22.0\n\nedited\n")
    code, found = verdicts()
    assert code == 1
    assert found["nothing else is changed in the checkout: PKG-INFO"] == "FAIL"


def test_what_is_not_there_is_refused(run, small_tree, tmp_path, release_tree):
    def refused(*arguments: object) -> tuple[int, list[str]]:
        done = run("pr", "internvl", "--vllm", small_tree, "--no-verify", *arguments)
        assert done.out == ""
        return done.code, [code for code in ("VCG511", "VCG512", "VCG513") if code in done.err]

    assert refused() == (5, ["VCG511"])
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    for name, content in (("empty", ""), ("rows", '{"rows": []}'), ("list", "[]")):
        (tmp_path / name).write_text(content)
        assert refused("--benchmark", tmp_path / name) == (5, ["VCG513"]), name
    model = small_tree / MODEL
    model.write_text(model.read_text().replace('modalities=["image", "video"]', 'modalities=["image"]'))
    assert refused() == (5, ["VCG511"])
    assert run("revert", small_tree, "--force").code == 0
    assert refused() == (5, ["VCG511"])
    # Without our own record of the run, the tree before it has to be named.
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    subprocess.run(["rm", "-r", small_tree / ".vitcg-scaffold"], check=True)
    assert refused() == (5, ["VCG512"])
    done = run("pr", "internvl", "--vllm", small_tree, "--no-verify", "--base", release_tree("0.22.0").root)
    assert done.code == 0, done.err
    assert MODEL in done.out


@pytest.mark.lab
def test_the_proof_is_run_against_the_tree_before(run, tmp_path):
    """On a whole tree: the record of `new` gives the pristine files, and a planted mistake is found through it."""
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    copy = tmp_path / "vllm"
    assert run("new", "internvl", "--vllm", "0.22.0", "--into", copy).code == 0

    done = run("pr", "internvl", "--vllm", copy)

    assert done.code == 0, done.err
    rows = [line for line in done.out.splitlines() if line.startswith(("| fa2 |", "| fa3 |"))]
    assert len(rows) >= 4
    assert "eager unchanged" not in done.out
    for row in rows:
        passed, _, total = row.split("|")[3].strip().partition(" of ")
        assert passed == total, row
    assert done.out.count("PASS: ") == 2
