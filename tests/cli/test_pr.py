"""`pr` on real trees: the text, the rules, and what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cli_scene import DOCS, MODEL, TEST

from scaffold import __version__
from scaffold.descriptor.load import shipped_path
from scaffold.pull_request import PortChange, ProofOnRecord, describe_change, find_change, pull_request_title
from scaffold.verify import numeric
from scaffold.verify.numeric import Check, NumericReport, NumericRequest
from scaffold.workflow import load_port, prepare_port

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


def git(root: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


def test_the_text_says_what_was_done(run, small_tree, tmp_path):
    measured = tmp_path / "bench.json"
    measured.write_text(json.dumps(BENCHMARK))
    patch = run("new", "internvl", "--vllm", small_tree, "--diff").out
    assert run("new", "internvl", "--vllm", small_tree).code == 0

    done = run("pr", "internvl", "--vllm", small_tree, "--benchmark", measured)

    assert done.code == 0, done.err
    headings = [line for line in done.out.splitlines() if line.startswith("## ")]
    assert headings == ["## Purpose", "## Test Plan", "## Test Result"]
    for path in (MODEL, TEST, DOCS):
        (line,) = [line for line in done.out.splitlines() if f"`{path}`" in line]
        section = patch.partition(f"+++ b/{path}\n")[2].partition("\n--- a/")[0]
        added = sum(text.startswith("+") for text in section.splitlines())
        assert line.endswith(f"(+{added} line{'s' * (added != 1)})")
    assert "- An item has `n` input rows and `n * k` output tokens." in done.out
    assert "- implement SupportsEncoderCudaGraph in InternVLChatModel: `" in done.out
    assert f"pytest {TEST} -k internvl" in done.out
    assert f"pip install 'vitcg-scaffold[cpu]=={__version__}'\nvitcg-scaffold verify internvl --vllm ." in done.out
    assert re.search(
        r"- Size: \d+ lines are added in the package, for 10 methods of the protocol and 3 helpers\.", done.out
    )
    assert "The numerical proof was not run on these files." in done.out
    assert "| 224x224 | 64 | 20.00 | 5.00 | 4.12 | 4.00 | 0.21 | 1.03 |" in done.out
    assert "on one GPU (vllm 0.22.0; 2026-01-01)" in done.out
    assert "Title: [Model][Multimodal] Support encoder CUDA graphs for InternVLChatModel" in done.err
    assert "open  commits carry Signed-off-by" in done.err


def test_a_gate_on_the_encoder_is_told(release_tree):
    port, tree = load_port("llava"), release_tree("0.33.0")
    prepared = prepare_port(port, tree)

    text = describe_change(PortChange(prepared, tree, tree.root, prepared.changed), port, proof=ProofOnRecord((), ()))

    assert '- Nothing is captured unless `self.config.vision_config.model_type != "pixtral"`' in text
    assert "- let a model say that it has no graphs: `vllm/model_executor/models/interfaces.py` (+10 lines)" in text


@pytest.mark.parametrize("release", ["0.24.0", "0.30.0", "0.33.0"])
def test_notes_on_sequences_are_the_code(release, release_tree):
    """Of releases with and without spare sequences: what a graph holds is said in the words of the capture method."""
    port, tree = load_port("qwen2_5_vl"), release_tree(release)
    prepared = prepare_port(port, tree, replace=True)
    [model] = [change for change in prepared.changed if "/models/qwen2_5_vl.py" in change.path]

    text = describe_change(PortChange(prepared, tree, tree.root, (model,)), port, proof=ProofOnRecord((), ()))

    quoted = [code for line in text.splitlines() if "sequences" in line for code in re.findall("`([^`]+)`", line)]
    assert len(quoted) == (6 if release == "0.33.0" else 8)
    source = " ".join(prepared.plan.methods.source.split())
    assert [code for code in quoted if code not in source] == []
    assert ("claims shares of the largest budget" in text) is (release == "0.30.0")
    threads = ("raised for a batch of more frames than its graph has", "#43403, which is open", "#58122, which is open")
    assert [said in text for said in threads] == [release == "0.33.0"] * 3
    assert "- replace the implementation of SupportsEncoderCudaGraph in Qwen2_5_VLForConditionalGeneration" in text
    inherit = "- subclasses of Qwen2_5_VLForConditionalGeneration inherit the port: "
    [heirs] = [line for line in text.splitlines() if line.startswith(inherit)]
    assert "OpenCUAForConditionalGeneration" in heirs
    asks = [line for line in text.splitlines() if line.startswith(("- Not a dup", "- Model eval", "- AI assist"))]
    assert len(asks) == 3 * (tree.root / "AGENTS.md").exists()


def test_a_replacement_is_called_one(release_tree):
    port, tree = load_port("kimi_vl"), release_tree("0.33.0")
    prepared = prepare_port(port, tree, replace=True)
    change = PortChange(prepared, tree, tree.root, (prepared.changed[0],))

    text = describe_change(change, port, proof=ProofOnRecord((), ()))

    assert pull_request_title(port, change).endswith(
        "Replace the encoder CUDA graph methods of KimiVLForConditionalGeneration"
    )
    replaced = "`SupportsEncoderCudaGraph` in `KimiVLForConditionalGeneration` (image)."
    assert f"Replace the implementation of {replaced}" in text
    assert "`vitcg-scaffold verify kimi_vl --as-is` on the tree before the change" in text
    assert "### What gets worse" not in text


def test_a_text_claims_what_an_explicit_port_does(release_tree):
    port, tree = load_port("llava_next"), release_tree("0.33.0")
    prepared = prepare_port(port, tree)

    text = describe_change(
        PortChange(prepared, tree, tree.root, (prepared.changed[0],)), port, proof=ProofOnRecord((), ())
    )

    held = "self.multi_modal_projector(self._image_pixels_to_features(self.vision_tower, pixels))"
    assert f"- The graph holds `{held}`, as the model's own code has it." in text
    assert "- `_merge_patch_embeddings` is the statements behind it, moved as they were. Eager code calls both." in text
    assert "the model's own code assembles" not in text


def test_what_gets_worse_has_a_section_of_its_own(release_tree):
    """Kimi-K2.5's graphs are off under data parallelism, and its port re-enters the model's code."""
    port, tree = load_port("kimi_k25"), release_tree("0.33.0")
    prepared = prepare_port(port, tree, replace=True)

    text = describe_change(
        PortChange(prepared, tree, tree.root, (prepared.changed[0],)), port, proof=ProofOnRecord((), ())
    )

    section = text.partition("### What gets worse\n")[2].partition("\n## ")[0]
    assert "- No graphs unless `not self.use_data_parallel" in section
    assert "the model's code runs twice" in section


@pytest.mark.parametrize("name", ["gemma3_mm", "mllama4", "internvl"])
def test_the_test_plan_selects_the_entry_by_its_key(name, release_tree, tmp_path):
    """The key in vLLM's test, which need not be the name of the descriptor; and no advice that `bench` refuses."""
    draft = tmp_path / "draft.yaml"
    shipped = shipped_path(name).read_text("utf-8")
    draft.write_text(f"# yaml-language-server: $schema={tmp_path.as_uri()}/descriptor.schema.json\n{shipped}", "utf-8")
    port, tree = load_port(str(draft)), release_tree("0.33.0")
    prepared = prepare_port(port, tree, replace=True)
    test = next(change for change in prepared.changes if change.path == TEST)

    text = describe_change(PortChange(prepared, tree, tree.root, (test,)), port, proof=ProofOnRecord((), ()))

    (entry,) = port.tests
    assert f"pytest {TEST} -k {entry.key}\n" in text
    assert f'    "{entry.key}": VitCudagraphTestConfig' in test.after.decode()
    assert f"run `vitcg-scaffold bench {draft}` on a GPU" in text
    # A reviewer has neither the file nor its folder: the text has it, and the command takes it by its name. What leads
    # the author's editor to a schema stays away.
    save = "# draft.yaml is below; save it here first\n"
    assert f"{save}vitcg-scaffold verify draft.yaml --vllm . --tail all\n" in text
    assert str(tmp_path) not in text.replace(f"bench {draft}", "")
    assert f"````yaml\n{shipped}" in text


@pytest.mark.parametrize(("name", "code"), [("glm4_1v", "VCG523"), ("mllama4", "VCG522"), ("minimax_m3", "VCG524")])
def test_the_text_has_the_notes_of_new(name, code, release_tree):
    """What a replacement leaves and takes away, and a place that is missing: told of the tree before the port."""
    port, tree = load_port(name), release_tree("0.33.0")
    prepared = prepare_port(port, tree, replace=True)
    ported = tree.with_files({change.path: change.after for change in prepared.changed})

    text = describe_change(
        find_change(port, prepare_port(port, ported, replace=True), ported, tree), port, proof=ProofOnRecord((), ())
    )

    told = text.splitlines()
    notes = [note for note in prepared.notes if note.code == code]
    assert notes
    for note in notes:
        assert f"- {note.message}{':' if note.notes else '.'}" in told
        assert {f"  - {detail}" for detail in note.notes} <= set(told)
    assert f"- {prepared.plan.files[0].reason}: `{prepared.plan.files[0].path}`" in text


@pytest.mark.parametrize(
    ("step", "verdict"),
    [
        ("pytest -v -s models/multimodal/generation/test_vit_cudagraph.py -m core_model", "ok"),
        ("pytest models/multimodal/generation/test_vit_cudagraph.py", "ok"),
        ("pytest models/multimodal/generation/test_vit_cudagraph.py -m 'slow_test'", "open"),
        ("pytest models/multimodal --ignore models/multimodal/generation/test_vit_cudagraph.py", "open"),
        ("pytest models/multimodal -m core_model --ignore=models/multimodal/generation/test_vit_cudagraph.py", "open"),
        ("pytest models/multimodal/generation -m 'not core_model'", "open"),
        ("pytest models/multimodal/generation -m 'not slow_test'", "ok"),
        ("pytest models/multimodal/generation/", "ok"),
        ("pytest models/multimodal/gen", "open"),
    ],
)
def test_a_step_of_ci_has_to_select_the_entry(run, ported, step, verdict):
    pipeline = ported / ".buildkite/test_areas/models.yaml"
    pipeline.parent.mkdir(parents=True)
    pipeline.write_text(f"steps:\n- commands:\n  - {step}\n")
    # What a stranger's tree may hold beside it: nobody waits for a pipe.
    os.mkfifo(pipeline.with_name("a.yaml"))
    pipeline.with_name("b.yaml").write_bytes(b"\xff pytest")
    pipeline.with_name("c.yaml").mkdir()
    done = run("pr", "internvl", "--vllm", ported)
    (line,) = [line for line in done.err.splitlines() if "a step of CI" in line]
    assert line.split()[0] == verdict


def test_the_headings_are_those_of_the_tree(run, ported):
    template = ported / ".github/PULL_REQUEST_TEMPLATE.md"
    template.parent.mkdir()
    template.write_text("## Overview\n\n## Extra\n\n## Validation\n\n---\n- [ ] a box to tick\n")

    done = run("pr", "internvl", "--vllm", ported)

    assert done.code == 0
    lines = done.out.splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## Overview", "## Extra", "## Validation"]
    assert lines[lines.index("## Extra") + 2] == "<!-- please fill in -->"
    assert lines[-1] == "- [ ] a box to tick"


def test_the_file_is_written_whole(run, ported, tmp_path):
    output = tmp_path / "pr.md"

    assert run("pr", "internvl", "--vllm", ported, "-o", output).code == 0
    assert output.read_text().startswith("## Purpose\n\nRun the vision encoder of `InternVLChatModel`")

    done = run("pr", "internvl", "--vllm", ported, "-o", tmp_path / "no/such/pr.md")
    assert (done.code, "VCG709" in done.err) == (7, True)


def test_the_rules_of_a_checkout(run, small_tree):
    git(small_tree, "init", "-q")
    git(small_tree, "add", "-A", "-f")
    git(small_tree, "commit", "-qm", "release")
    assert run("new", "internvl", "--vllm", small_tree).code == 0

    def verdicts() -> tuple[int, dict[str, str]]:
        done = run("pr", "internvl", "--vllm", small_tree)
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
        done = run("pr", "internvl", "--vllm", small_tree, *arguments)
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
    done = run("pr", "internvl", "--vllm", small_tree, "--base", release_tree("0.22.0").root)
    assert done.code == 0, done.err
    assert MODEL in done.out


# -- the numerical proof on record -------------------------------------------------------------------------------------

GOOD = Check("a: small", "image", True, 0.0, 2e-7)
RULE = "the numerical proof of these files passed"
COMMAND = "`vitcg-scaffold verify internvl --vllm {} --tail all`"


@pytest.fixture
def verified(run, monkeypatch):
    """`verified(TREE, ...)`: `verify` with these comparisons instead of a lab; its requests."""

    def call(tree: object, *checks: Check, options: tuple[object, ...] = ("--tail", "all")) -> list[NumericRequest]:
        asked: list[NumericRequest] = []

        def check(requests, watch):
            asked.extend(requests)
            return tuple(NumericReport("internvl", "0.22.0", each.tail, checks, hits=3, misses=1) for each in requests)

        monkeypatch.setattr(numeric, "check_numerics_all", check)
        passed = all(check.passed for check in checks)
        assert run("verify", "internvl", "--vllm", tree, "--device", "cpu", *options).code == (0 if passed else 6)
        return asked

    return call


def proof_of(run, tree: object, *options: object) -> tuple[int, str, list[str]]:
    """What `pr` says of the proof: its exit code, the rule, and the lines of the text that tell it."""
    done = run("pr", "internvl", "--vllm", tree, *options)
    (rule,) = [line for line in done.err.splitlines() if RULE in line]
    lines = done.out.partition("## Test Result\n\n")[2].partition("\n<!-- no benchmark")[0].splitlines()
    return done.code, " ".join(rule.split()), [line for line in lines if line]


def test_a_proof_of_the_tree_before_is_told(run, verified, ported, release_tree):
    """`verify` on a release, `new` into a copy, `pr`: the files are the same."""
    before = {path: release_tree("0.22.0").read_bytes(path) for path in (MODEL, TEST, DOCS)}
    after = {path: (ported / path).read_bytes() for path in before}
    restore(ported, before)
    (request, _) = verified(ported, GOOD, replace(GOOD, modality="video", max_rel=3e-7))
    assert (request.tree, set(request.overlay), request.before) == (ported, {MODEL}, {})
    restore(ported, after)

    code, rule, lines = proof_of(run, ported)

    assert (code, rule) == (0, f"ok {RULE}")
    told = lines.index("These bytes ran. In a checkout of this change, `sha256sum --check` takes the lines:")
    assert lines[4:told] == [
        "| fa2 | image | 1 of 1 | 2e-07 |",
        "| fa2 | video | 1 of 1 | 3e-07 |",
        "| fa3 | image | 1 of 1 | 2e-07 |",
        "| fa3 | video | 1 of 1 | 3e-07 |",
        "PASS: 2 of 2 checks, 3 replayed, 1 eager, 0 hazards (fa2)",
        "PASS: 2 of 2 checks, 3 replayed, 1 eager, 0 hazards (fa3)",
    ]
    assert (lines[told + 1], lines[-2]) == ("```text", "```")
    assert lines[-1].startswith("It was run with Python `CPython")
    digests = lines[told + 2 : -2]
    assert [line.split()[1] for line in digests] == [MODEL], "the lab runs no test, page or example"
    text = "\n".join(digests).encode() + b"\n"
    check = partial(subprocess.run, ["sha256sum", "--check"], input=text, cwd=ported, capture_output=True, check=False)
    assert check().returncode == 0
    (ported / MODEL).write_bytes(after[MODEL] + b"\n")
    assert check().returncode == 1


def restore(root: Path, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        (root / path).write_bytes(content)


def test_the_values_of_another_configuration_are_told(run, verified, ported):
    """`--set` makes another model than the port's."""
    checks = (GOOD, replace(GOOD, modality="video"))
    values = ("--recipe", "automatic", "--set", "vision_config.depth=1")
    asked = verified(ported, *checks, options=("--tail", "all", *values))
    assert asked[0].automatic.set == {"vision_config": {"depth": 1}}

    code, rule, lines = proof_of(run, ported)

    assert (code, rule) == (0, f'ok {RULE}: with --set {{"vision_config": {{"depth": 1}}}}')
    assert '--set `{"vision_config": {"depth": 1}}`' in lines[-1]
    verified(ported, *checks)
    assert proof_of(run, ported)[1] == f"ok {RULE}"


def test_a_port_that_stands_is_compared_with_what_new_found(run, verified, ported, release_tree):
    (request, _) = verified(ported, GOOD, replace(GOOD, modality="video"))

    assert request.overlay == {MODEL: (ported / MODEL).read_bytes()}
    assert request.before == {MODEL: release_tree("0.22.0").read_bytes(MODEL)}
    assert proof_of(run, ported)[:2] == (0, f"ok {RULE}")


def test_without_what_was_there_before_a_port_is_compared_with_itself(run, verified, ported, release_tree, tmp_path):
    """And `pr` is told by --base, for which `verify` makes the port once more."""
    before = shutil.copytree(ported, tmp_path / "before")
    restore(before, {path: release_tree("0.22.0").read_bytes(path) for path in (MODEL, TEST, DOCS)})
    shutil.rmtree(ported / ".vitcg-scaffold")
    (request, _) = verified(ported, GOOD)
    assert (request.overlay, request.before) == ({}, {})
    assert "is compared with itself alone" in run("verify", "internvl", "--vllm", ported, "--device", "cpu").err
    base = ("--base", before)
    code, rule, _ = proof_of(run, ported, *base)
    assert (code, rule) == (0, f"open {RULE}: none is on record; run {COMMAND.format(base[1])}")

    verified(base[1], GOOD, replace(GOOD, modality="video"))

    assert proof_of(run, ported, *base)[:2] == (0, f"ok {RULE}")


def test_a_proof_of_the_base_is_none_of_a_tree_with_other_changes(run, verified, ported, tmp_path, release_tree):
    before = shutil.copytree(ported, tmp_path / "before")
    restore(before, {path: release_tree("0.22.0").read_bytes(path) for path in (MODEL, TEST, DOCS)})
    verified(before, GOOD, replace(GOOD, modality="video"))
    assert proof_of(run, ported, "--base", before)[:2] == (0, f"ok {RULE}")
    (ported / "vllm/extra.py").write_text("x = 1\n")

    code, rule, lines = proof_of(run, ported, "--base", before)

    way = "name with --base the tree before the port"
    assert (code, rule) == (0, f"open {RULE}: not proven: vllm/extra.py differs from the base, too; {way}")
    assert lines == ["Not proven: vllm/extra.py differs from the tree before the port, too."]

    (before / "vllm/removed.py").write_text("x = 1\n")

    assert "vllm/extra.py (with 1 more) differs" in proof_of(run, ported, "--base", before)[1]


def test_no_proof_of_these_files_is_said(run, verified, ported):
    missing = (0, f"open {RULE}: none is on record; run {COMMAND.format(ported)}")

    def told() -> tuple[int, str]:
        code, rule, lines = proof_of(run, ported)
        assert (lines == ["The numerical proof was not run on these files."]) == ("none is on record" in rule)
        return code, rule

    assert told() == missing
    verified(ported, GOOD, options=("--as-is",))
    assert told() == missing, "a proof of the tree as it is says nothing of the tree before"
    verified(ported, GOOD)
    assert told() != missing
    other = ported / "vllm/model_executor/models/utils.py"
    other.write_text("x = 1\n")
    assert told() == missing, "the tree has changed"
    other.unlink()
    assert told() != missing


def test_an_edited_port_needs_a_proof_of_its_own_bytes(run, verified, ported):
    model = ported / MODEL
    model.write_text(model.read_text().replace('modalities=["image", "video"]', 'modalities=["image"]'))
    as_is = ("--as-is", "--tail", "all")

    refused = run("pr", "internvl", "--vllm", ported)
    verified(ported, replace(GOOD, passed=False), options=as_is)
    failed = run("pr", "internvl", "--vllm", ported)
    verified(ported, GOOD, replace(GOOD, modality="video"), options=as_is)
    done = run("pr", "internvl", "--vllm", ported)

    for stopped in (refused, failed):
        assert (stopped.code, stopped.out) == (5, "")
        assert "error[VCG511]" in stopped.err
        assert f"verify internvl --vllm {ported} --as-is` proves the tree's" in stopped.err
    assert done.code == 0, done.err
    assert f"ok  {RULE}" in done.err
    assert f"- Edited by hand after it was generated: `{MODEL}` (+1 -1 lines)" in done.out
    assert "`embed_multimodal` of these files: it does not compare with the tree before the change." in done.out
    assert "vitcg-scaffold verify internvl --vllm . --as-is --tail all" in done.out
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert f"{digest}  {MODEL}" in done.out
    model.write_text(model.read_text() + "\n")
    assert run("pr", "internvl", "--vllm", ported).code == 5


def test_an_edit_beside_the_port_is_said(run, verified, ported):
    entry = ported / TEST
    entry.write_text(entry.read_text().replace("What is in this image", "What does this image show"))
    verified(ported, GOOD)
    done = run("pr", "internvl", "--vllm", ported)
    assert done.code == 0
    assert (
        "open  the change is what the descriptor generates: `MODEL_CONFIGS['internvl']` in the tree is not" in done.err
    )


def test_what_was_not_run_is_named(run, verified, ported):
    verified(ported, GOOD, options=("--tail", "fa3"))

    code, rule, lines = proof_of(run, ported)

    lacks = "fa2 image, fa2 video, fa3 video"
    assert (code, rule) == (0, f"open {RULE}: not run: {lacks}; run {COMMAND.format(ported)}")
    assert lines[-1] == f"Not run: {lacks}."


def test_a_proof_that_failed_breaks_the_rule(run, verified, ported):
    verified(ported, replace(GOOD, passed=False, max_abs=2.0, max_rel=math.nan))

    code, rule, lines = proof_of(run, ported)

    assert (code, rule) == (1, f"FAIL {RULE}: the last one failed: {COMMAND.format(ported)}")
    assert lines[4] == "| fa2 | image | 0 of 1 | 0 |"
    assert "FAIL: 0 of 1 checks, 3 replayed, 1 eager, 0 hazards (fa2)" in lines


def test_real_graphs_are_told_by_their_machine(run, ported, monkeypatch):
    monkeypatch.setattr(numeric, "check_numerics_all", lambda requests, watch: [NumericReport("internvl", "", "fa2")])
    monkeypatch.setattr(numeric, "find_installed", lambda request: request.tree)
    real = NumericReport("internvl", "0.22.0", "fa2", (GOOD,), hits=3, machine="a GPU")
    monkeypatch.setattr(numeric, "check_real_graphs", lambda request, installed, watch: real)
    assert run("verify", "internvl", "--vllm", ported).code == 6

    code, rule, lines = proof_of(run, ported)

    assert (code, rule.partition(":")[0]) == (1, f"FAIL {RULE}")
    assert lines[4:7] == [
        "| real CUDA graphs | image | 1 of 1 | 2e-07 |",
        "FAIL: 0 of 0 checks, 0 replayed, 0 eager, 0 hazards (fa2)",
        "PASS: 1 of 1 checks, 3 replayed, 0 eager, on a GPU",
    ]


def test_a_result_that_cannot_be_kept_is_no_error(run, verified, ported, tmp_path):
    (tmp_path / "cache").write_text("no folder")

    verified(ported, GOOD)

    assert "`pr` cannot quote this result:" in run("verify", "internvl", "--vllm", ported, "--device", "cpu").err


@pytest.mark.lab
def test_the_proof_is_against_the_tree_before(run, tmp_path):
    """On a whole tree, with the real lab: `verify` finds the pristine files by the record of `new`, `pr` its result."""
    copy = tmp_path / "vllm"
    made = run("new", "internvl", "--vllm", "0.22.0", "--into", copy)
    assert made.code == 0
    assert "short numerical proof: PASS" in made.err
    proven = run("verify", "internvl", "--vllm", copy, "--tail", "all", "--device", "cpu")
    assert proven.code == 0, proven.err
    assert "eager results unchanged, bit for bit" in proven.out

    done = run("pr", "internvl", "--vllm", copy)

    assert done.code == 0, done.err
    rows = [line for line in done.out.splitlines() if line.startswith(("| fa2 |", "| fa3 |"))]
    assert len(rows) >= 4
    for row in rows:
        passed, _, total = row.split("|")[3].strip().partition(" of ")
        assert passed == total, row
    assert done.out.count("PASS: ") == 2
