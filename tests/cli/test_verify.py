"""`verify` on the command line: a line a property, what is said of real graphs, JSON. The lab is a few lines here."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace

import pytest
from cli_scene import MODEL

from scaffold.verify.numeric import NumericReport, Property, installed, runner
from scaffold.verify.numeric.reports import Check

SMALL = Check("a: small", "image", True, 0.0, 2e-7, group="small")
LARGE = Check("a: large", "image", True, 0.0, 0.0, group="large", source="processor.py:7")
BAD = Check("b: small", "image", False, 2.0, 0.5, "item 1; buffer 'x' is stale", group="small")

CHILD = """
import json, os, sys
def say(**event): print(json.dumps(event), flush=True)
json.loads(sys.stdin.readline())
say(event="progress", text="imported")
for line in sys.stdin:
    json.loads(line)
    say(event="case", text="image: small", total=3)
    for found in json.loads({found!r}): say(event="property", data=found)
    say(event="progress", text="ran a")
    say(event="report", data=json.loads({report!r}))
    say(event="ended", status=0)
"""


def lab(monkeypatch, cls, *checks: Check, machine: str = "", guessed: tuple[str, ...] = ()) -> None:
    """Let the process of this class report these checks; the first property comes before the report."""
    from dataclasses import asdict

    report = NumericReport("internvl", "", "fa2", checks, hits=3, misses=1, machine=machine, guessed=guessed)
    first = [asdict(found) for found in report.properties()[:1]]
    assert isinstance(report.properties()[0], Property)
    script = CHILD.format(found=json.dumps(first), report=json.dumps(report.to_json()))
    monkeypatch.setattr(cls, "command", (sys.executable, "-c", script))


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(installed, "_gpus", lambda: 0)


@pytest.fixture
def gpu(monkeypatch, small_tree):
    monkeypatch.setattr(installed, "_gpus", lambda: 1)
    monkeypatch.setattr(installed, "_cuda_of_torch", lambda: "13.0")
    monkeypatch.setattr(installed, "_installed_root", lambda: small_tree)


@pytest.mark.trees
def test_one_line_a_property(run, small_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, SMALL, LARGE, SMALL)
    done = run("verify", "internvl", "--vllm", small_tree)
    assert done.code == 0, done.err
    assert [" ".join(line.split()) for line in done.out.splitlines()] == [
        "internvl on 0.22.0, fa3 attention tails",
        "ok image small 2 compared largest error 2e-07",
        "ok image large 1 compared largest error 0 [processor.py:7]",
        "ok all no unwritten memory reaches a result 3 compared all of it is NaN",
        "ok all metadata on the host no sync, no copy, no shape from data in a capture",
        "PASS: 3 of 3 checks, 3 replayed, 1 eager, 0 hazards",
        "real CUDA graphs were not run: there is no GPU here",
    ]
    assert "ran a" not in done.err
    verbose = run("verify", "internvl", "--vllm", small_tree, "-v", "--device", "cpu")
    assert "ran a" in verbose.err
    assert verbose.out.count("a: small") == 2
    assert verbose.out.splitlines()[-1] == "real CUDA graphs were not run: --device cpu was asked for"


@pytest.mark.trees
@pytest.mark.parametrize("guessed", [(), ("vision_config.norm_type",)])
def test_a_guess_can_be_replaced(run, small_tree, monkeypatch, no_gpu, guessed):
    lab(monkeypatch, runner._Child, SMALL, LARGE, SMALL, guessed=guessed)
    done = run("verify", "internvl", "--vllm", small_tree)
    assert done.code == 0, done.err
    assert (
        ("values with --config config.json" in done.err)
        is ("PASS (guessed configuration)" in done.out)
        is bool(guessed)
    )


@pytest.mark.trees
def test_a_failure_names_item_and_cause(run, small_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, SMALL, BAD)
    done = run("verify", "internvl", "--vllm", small_tree, "--tail", "all")
    assert done.code == 6
    assert done.out.count("1 of 2 differ  b: small: item 1; buffer 'x' is stale") == 2, "once for each tail"
    assert done.err.count("error[VCG650]") == 1, "the same failure of two kernels is one"


@pytest.mark.parametrize(("kind", "code", "said"), [("ModuleNotFoundError", 4, "VCG656"), ("NoRecipe", 6, "VCG668")])
def test_a_tree_that_does_not_run_refutes_no_port(run, small_tree, monkeypatch, no_gpu, kind, code, said):
    """Exit 6 says that a proof refused the port: where torch is missing, none ran."""
    error = {"role": "tree", "stage": "import", "kind": kind, "message": "torch", "help": "", "traceback": []}
    said_by_child = "\n".join(json.dumps(one) for one in ({"event": "error", **error}, {"event": "ended", "status": 1}))
    script = f"import sys\nfor _ in sys.stdin: print({said_by_child!r}, flush=True)"
    monkeypatch.setattr(runner._Child, "command", (sys.executable, "-c", script))
    done = run("verify", "internvl", "--vllm", small_tree)
    assert (done.code, f"error[{said}]" in done.err) == (code, True)
    assert ("pip install 'vitcg-scaffold[cpu]'" in done.err) == (code == 4)


@pytest.mark.trees
def test_a_tree_with_another_state_of_the_port_is_refused(run, ported, monkeypatch, no_gpu):
    """What would run is the generated port, and not what is there."""
    lab(monkeypatch, runner._Child, SMALL)
    assert run("verify", "internvl", "--vllm", ported).code == 0
    model = ported / MODEL
    model.write_text(model.read_text().replace('modalities=["image", "video"]', 'modalities=["image"]'))

    done, own = (run("verify", "internvl", "--vllm", ported, *more) for more in ((), ("--as-is",)))

    assert (done.code, done.out) == (5, "")
    assert "error[VCG511]: the port of InternVLChatModel in the tree is not the one that internvl" in done.err
    assert 'note: the tree has `modalities=["image"],`' in done.err
    assert "--as-is` proves the tree's" in done.err
    assert own.code == 0


@pytest.mark.trees
def test_a_port_of_somebody_else_is_said_not_to_run(run, release_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, SMALL)
    release_tree("0.33.0")

    done = run("verify", "internvl", "--vllm", "0.33.0")

    assert done.code == 0
    assert "the generated one takes its place" in done.err
    assert "For the tree's own: vitcg-scaffold verify internvl --vllm 0.33.0 --as-is" in done.err


@pytest.mark.trees
def test_subclasses_are_proven_too_with_models_of_their_own(run, release_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, SMALL)
    tree = release_tree("0.33.0").root

    done = run("verify", "step3_vl", "--vllm", tree, "--subclasses", "--json")
    none = run("verify", "kimi_vl", "--vllm", tree, "--subclasses")

    assert (done.code, len(json.loads(done.out))) == (0, 4)
    heads = [line for line in done.err.splitlines() if "attention tails" in line]
    assert [head.partition(" on ")[0] for head in heads] == [
        "step3_vl",
        "step3p7",
        "step_vl",
        "Step5ForConditionalGeneration with an automatic recipe",
    ]
    assert "vLLM serves no class that inherits from KimiVLForConditionalGeneration" in none.err


@pytest.mark.trees
@pytest.mark.parametrize(
    ("model", "kernels"),
    [("qwen3_vl", ["fa2 attention tails", "fa3 attention tails", "FlashInfer's attention"]),
     ("qwen2_vl", ["fa2 attention tails", "fa3 attention tails"])],
)  # fmt: skip
def test_all_kernels_are_those_that_the_model_may_have(run, release_tree, monkeypatch, no_gpu, model, kernels):
    lab(monkeypatch, runner._Child, SMALL)
    done = run("verify", model, "--vllm", release_tree("0.33.0").root, "--tail", "all")
    assert done.code == 0, done.err
    heads = [line for line in done.out.splitlines() if line.startswith(model)]
    assert heads == [f"{model} on 0.33.0, {kernel}" for kernel in kernels]


@pytest.mark.trees
@pytest.mark.parametrize(("model", "release"), [("qwen2_vl", "0.33.0"), ("qwen2_5_vl", "0.21.0")])
def test_flashinfer_is_refused_for_a_tower_that_is_not_for_it(run, release_tree, no_gpu, model, release):
    done = run("verify", model, "--vllm", release_tree(release).root, "--tail", "cudnn")
    assert (done.code, done.out) == (2, "")
    assert "is not for FLASHINFER; use fa2, fa3 or all" in done.err


@pytest.mark.trees
def test_a_gpu_that_is_asked_for_has_to_be_there(run, small_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, SMALL)
    done = run("verify", "internvl", "--vllm", small_tree, "--device", "cuda")
    assert (done.code, done.out) == (4, "")
    assert "VCG470" in done.err
    assert "real CUDA graphs cannot be run: there is no GPU here" in done.err


@pytest.mark.trees
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_adds_real_graphs_and_takes_nothing_away(run, small_tree, monkeypatch, gpu, device):
    lab(monkeypatch, runner._Child, SMALL)
    lab(monkeypatch, runner._RealChild, LARGE, machine="a GPU")
    done = run("verify", "internvl", "--vllm", small_tree, "--device", device)
    assert done.code == 0, done.err
    verdicts = [line for line in done.out.splitlines() if line.startswith("PASS")]
    assert verdicts == [
        "PASS: 1 of 1 checks, 3 replayed, 1 eager, 0 hazards",
        "PASS: 1 of 1 checks, 3 replayed, 1 eager, on a GPU",
    ]
    assert "internvl on 0.22.0, real CUDA graphs" in done.out.splitlines()
    lab(monkeypatch, runner._Child, SMALL, BAD)
    assert run("verify", "internvl", "--vllm", small_tree, "--device", device).code == 6


@pytest.mark.trees
def test_json_is_the_reports_and_nothing_else(run, small_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, SMALL)
    done = run("verify", "internvl", "--vllm", small_tree, "--json")
    (report,) = json.loads(done.out)
    assert report["checks"][0]["name"] == "a: small"
    assert {"hazards", "hits", "misses", "negative_lengths"} < set(report)
    said = {name: report[name] for name in ("recipe", "release", "tail", "passed", "problems")}
    assert said == {"recipe": "internvl", "release": "0.22.0", "tail": "fa3", "passed": True, "problems": []}
    assert "PASS: 1 of 1 checks" in done.err


@pytest.mark.trees
def test_json_says_what_failed_and_is_json_where_an_error_is_not_finite(run, small_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, BAD, replace(BAD, max_abs=math.nan, max_rel=math.inf))
    done = run("verify", "internvl", "--vllm", small_tree, "--json")
    (report,) = json.loads(done.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert done.code == 6
    assert report["passed"] is False
    assert [(check["passed"], check["max_abs"], check["max_rel"]) for check in report["checks"]] == [
        (False, 2.0, 0.5),
        (False, None, None),
    ]
    assert [problem["code"] for problem in report["problems"]] == ["VCG650", "VCG650"]
    assert "item 1; buffer 'x' is stale" in report["problems"][0]["message"]


@pytest.mark.trees
def test_a_terminal_sees_what_is_being_compared(run, small_tree, monkeypatch, no_gpu):
    lab(monkeypatch, runner._Child, SMALL)
    monkeypatch.setattr(sys.stderr.__class__, "isatty", lambda stream: True, raising=False)
    done = run("verify", "internvl", "--vllm", small_tree)
    assert "\r\x1b[K1 of 3: image: small\r\x1b[K" in done.err
    assert done.err.endswith("\r\x1b[K"), "the last line is clear for what follows"
    assert "\x1b" not in done.out
