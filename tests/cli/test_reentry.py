"""A port that would run the model's code twice: `new` and `pr` refuse it, `--reenter` goes on, `init` knows it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from cli_scene import contents
from init_draft import draft_is

from scaffold.descriptor.load import shipped_path

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MIXIN = "vllm/model_executor/models/encoder_cudagraph_paths.py"


@pytest.fixture
def draft() -> Path:
    """DeepSeek-OCR 2's descriptor as a file in the current folder, as if somebody had drafted it."""
    shipped = shipped_path("deepseek_ocr2")
    assert shipped is not None
    path = Path("mine.yaml")
    path.write_text(shipped.read_text("utf-8"), "utf-8")
    return path


@pytest.mark.parametrize("mode", [(), ("--check",), ("--static",), ("--replace",)])
def test_new_refuses_and_names_the_adapter(run, release_tree, mode):
    release_tree(RELEASE)

    done = run("new", "deepseek_ocr2", "--vllm", RELEASE, *mode)

    assert (done.code, done.out) == (4, "")
    assert done.err.startswith(
        "deepseek_ocr2.yaml:4:9: error[VCG466]: the port runs the model's code again for each batch: "
    )
    assert "its adapter, vitcg_adapters.v0_30.deepseek_ocr2: our manager needs no second run" in done.err
    assert "`new` with --reenter writes the port all the same" in done.err
    assert "1 error; explain one with: vitcg-scaffold explain VCG466" in done.err
    assert list(Path().iterdir()) == []


def test_an_own_descriptor_gets_commands_that_work(run, release_tree, draft):
    release_tree(RELEASE)

    done = run("new", draft, "--vllm", RELEASE)

    assert done.code == 4
    [help_text] = [line for line in done.err.splitlines() if "= help: " in line]
    commands = [shlex.split(text)[1:] for text in re.findall(r"`(vitcg-scaffold [^`]+)`", help_text)]
    assert commands == [["verify", "mine.yaml", "--vllm", RELEASE], ["new", "mine.yaml", "--into", "generated"]]
    made = run(*commands[1])
    assert made.code == 0
    assert Path("generated/vitcg_adapters/v0_30/mine.py").is_file()
    assert f"vLLM finds them with PYTHONPATH={Path('generated').resolve()} (docs/own-adapters.md" in made.err
    assert "What a vLLM tree gets of it: vitcg-scaffold plan mine.yaml --vllm TREE" in made.err


@pytest.mark.parametrize(
    ("name", "release", "reason"),
    [
        ("phi3v", "0.22.0", "no adapter either: the plugin serves vLLM 0.23.0 to 0.33.0."),
        ("minicpmv", "0.29.0", "no adapter either: its methods go into a class whose subclasses vLLM makes"),
        ("llava_next", "0.24.0", "vitcg_adapters.v0_24.llava_next"),
    ],
)
def test_without_an_adapter_it_says_so(run, release_tree, name, release, reason):
    release_tree(release)

    done = run("new", name, "--vllm", release)

    assert done.code == 4
    assert reason in done.err


def test_upstreams_port_stays(run, release_tree):
    """With --replace, too; and nobody is led there: VCG520 says what the swap would give."""
    release_tree(RELEASE)

    first = run("new", "deepseek_ocr", "--vllm", RELEASE)
    second = run("new", "deepseek_ocr", "--vllm", RELEASE, "--replace")

    assert first.code == 5
    assert "help: keep them, since the generated port would run the model's code twice (VCG466)" in first.err
    assert second.code == 4
    assert "error[VCG466]" in second.err
    assert list(Path().iterdir()) == []


def test_a_repair_of_what_would_go_is_named(run, release_tree):
    release_tree(RELEASE)

    done = run("new", "kimi_vl", "--vllm", RELEASE, "--replace", "--check")

    assert "vitcg-scaffold fix kimi_vl --vllm 0.33.0 --diff" in done.err


def test_a_look_at_it_is_free(run, release_tree):
    release_tree(RELEASE)

    shown = run("new", "deepseek_ocr2", "--vllm", RELEASE, "--diff")
    planned = run("plan", "deepseek_ocr2", "--vllm", RELEASE)

    for done in (shown, planned):
        assert done.code == 0
        assert "deepseek_ocr2.yaml:4:9: info[VCG466]: " in done.err
        assert "vitcg_adapters.v0_30.deepseek_ocr2" in done.err
        assert MIXIN in done.out
        assert done.err.splitlines()[-1].startswith("`new` writes no such port into a tree (VCG466)")


def test_a_fork_gets_it_when_asked(run, release_tree, tmp_path):
    release_tree(RELEASE)
    words = ("deepseek_ocr2", "--vllm", "./fork")

    asked = run("new", "deepseek_ocr2", "--vllm", RELEASE, "--reenter", "--check")
    written = run("new", "deepseek_ocr2", "--vllm", RELEASE, "--reenter", "--static", "--into", "fork")

    assert asked.code == 1
    assert "To change them: vitcg-scaffold new deepseek_ocr2 --vllm 0.33.0 --reenter\n" in asked.err
    assert written.code == 0
    assert "info[VCG466]" in written.err
    assert f"changed  {MIXIN}" in written.out
    # What is there is no news.
    before = contents(Path("fork/vllm/model_executor/models"))
    again = run("new", *words)
    assert again.code == 0
    assert "nothing to do" in again.err
    assert contents(Path("fork/vllm/model_executor/models")) == before
    # But what a reviewer of vLLM gets.
    refused, described = run("pr", *words), run("pr", *words, "--reenter")
    assert (refused.code, refused.out) == (4, "")
    assert "error[VCG466]" in refused.err
    assert "- For each batch that is replayed the model's code runs twice" in described.out


def test_a_missing_port_is_asked_for_with_the_option(run, release_tree):
    release_tree(RELEASE)

    done = run("pr", "deepseek_ocr2", "--vllm", RELEASE, "--reenter")

    assert done.code == 5
    assert "run `vitcg-scaffold new deepseek_ocr2 --vllm vllm-0.33.0 --reenter` first" in done.err


def test_an_explicit_port_needs_no_option(run, release_tree):
    release_tree(RELEASE)

    done = run("new", "llava_next", "--vllm", RELEASE, "--check")

    assert done.code == 1
    assert "VCG466" not in done.err
    assert "To change them: vitcg-scaffold new llava_next --vllm 0.33.0\n" in done.err


def test_adapters_know_no_such_option(run):
    done = run("new", "deepseek_ocr2", "--reenter")

    assert done.code == 2
    assert "--reenter is for a port in a tree" in done.err


def test_a_model_without_adapters_is_for_a_fork(run):
    done = run("new", "minicpmv")

    assert done.code == 3
    assert "port it into a fork, where the model's code tells: `vitcg-scaffold new minicpmv --vllm TREE --reenter`" in (
        done.err
    )


@pytest.mark.parametrize(
    ("model", "architecture", "release", "ending"),
    [
        (
            "paligemma",
            "PaliGemmaForConditionalGeneration",
            RELEASE,
            ": this gives a port for a tree. Next: `vitcg-scaffold plan my.yaml --vllm 0.33.0`\n",
        ),
        (
            "phi3v",
            "Phi3VForCausalLM",
            RELEASE,
            ": this gives an adapter for the plugin, and no port for a tree (VCG466). Next: `vitcg-scaffold verify "
            "my.yaml --vllm 0.33.0`, then `vitcg-scaffold new my.yaml --into generated`\n",
        ),
        (
            "phi3v",
            "Phi3VForCausalLM",
            "0.22.0",
            ": a port would run the model's code twice, and no adapter can be made (VCG466). Next: `vitcg-scaffold "
            "plan my.yaml --vllm 0.22.0`\n",
        ),
    ],
)
def test_a_draft_ends_with_what_it_gives(run, release_tree, monkeypatch, model, architecture, release, ending):
    release_tree(release)
    draft_is(model, monkeypatch.setattr)

    done = run("init", architecture, "--vllm", release, "--yes", "-o", "my.yaml")

    assert done.code == 0, done.err
    assert done.err.endswith(ending)


def test_a_draft_that_no_plan_takes_leads_to_the_plan(run, release_tree, monkeypatch):
    """Which gives the reason."""
    from scaffold import plan
    from scaffold.diagnostics import Diagnostic, DiagnosticError

    def refuse(*_, **__):
        raise DiagnosticError(Diagnostic("VCG465", "`scale` lives across the encoder's call"))

    release_tree(RELEASE)
    monkeypatch.setattr(plan, "plan_changes", refuse)
    draft_is("paligemma", monkeypatch.setattr)

    done = run("init", "PaliGemmaForConditionalGeneration", "--vllm", RELEASE, "--yes", "-o", "my.yaml")

    assert done.err.endswith("open. Next: `vitcg-scaffold plan my.yaml --vllm 0.33.0`\n")
