"""`vitcg-scaffold init` as a user runs it: files, flags, a terminal, and everything that can be wrong."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from init_draft import RUN, nothing_fits, tiles_fit

from scaffold.cli.app import main
from scaffold.cli.console import Console
from scaffold.cli.watching import TimedLine
from scaffold.publish import disk

pytestmark = pytest.mark.trees

ARCH = "InternVLChatModel"
MODELS = "vllm/model_executor/models"
FILES = tuple(f"{MODELS}/{name}.py" for name in ("registry", "internvl", "intern_vit", "qwen2_vl", "phi3v"))
PROTOCOL_FILES = (
    f"{MODELS}/interfaces.py",
    "vllm/v1/worker/encoder_cudagraph_defs.py",
    "vllm/v1/worker/encoder_cudagraph.py",
)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(copied_tree) -> Path:
    """The files of 0.22.0 that a draft of InternVL reads, and other models."""
    return copied_tree("0.22.0", *FILES).root


@pytest.fixture
def run(capfdbinary, monkeypatch, tmp_path):
    """`run("init", ...)` in an empty folder, with a run that shows all but one value; exit code and both streams."""
    tiles_fit(monkeypatch.setattr)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: object) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments)])
        captured = capfdbinary.readouterr()
        return int(stop.value.code or 0), captured.out.decode(), captured.err.decode()

    return call


class TestOutput:
    def test_to_standard_output(self, run, tree):
        code, out, err = run("init", ARCH, "--vllm", tree)
        assert code == 0
        editors, title, *_ = out.splitlines()
        assert editors.startswith("# yaml-language-server: $schema=file:///")
        assert title.startswith("# InternVLChatModel: drafted from a run in vLLM 0.22.0.")
        assert "  k: TODO\n" in out
        assert "warning[VCG390]: `let.k` is an open question" in err
        assert "1 of 1 question open" in err

    def test_an_existing_file_is_kept(self, run, tree):
        Path("my.yaml").write_text("mine")
        code, out, err = run("init", ARCH, "--vllm", tree, "-o", "my.yaml")
        assert (code, out) == (5, "")
        assert "VCG510" in err
        assert Path("my.yaml").read_text() == "mine"

    def test_force_replaces_it_and_keeps_its_mode(self, run, tree):
        Path("my.yaml").write_text("mine")
        Path("my.yaml").chmod(0o600)
        assert run("init", ARCH, "--vllm", tree, "-o", "my.yaml", "--force")[0] == 0
        assert "schema: 1" in Path("my.yaml").read_text()
        assert Path("my.yaml").stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("call", ["create", "write", "fsync", "replace"])
    def test_written_whole_or_not_at_all(self, call, run, tree, monkeypatch):
        Path("my.yaml").write_text("mine")

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(disk, call, fail)
        code, _, err = run("init", ARCH, "--vllm", tree, "-o", "my.yaml", "--force")
        assert code == 7
        assert "VCG709" in err
        assert "No space left" in err
        assert Path("my.yaml").read_text() == "mine"
        assert [path.name for path in Path().iterdir()] == ["my.yaml"]

    def test_a_missing_folder(self, run, tree):
        code, _, err = run("init", ARCH, "--vllm", tree, "-o", "nowhere/my.yaml")
        assert code == 7
        assert "cannot write `nowhere/my.yaml`" in err

    def test_the_tree_is_only_read(self, run, tree):
        before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
        assert run("init", ARCH, "--vllm", tree, "-o", "my.yaml")[0] == 0
        assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before

    def test_json_lists_the_questions(self, run, tree):
        code, out, _ = run("init", ARCH, "--vllm", tree, "-o", "my.yaml", "--format", "json")
        assert code == 0
        assert [found["code"] for found in json.loads(out)["diagnostics"]] == ["VCG488", "VCG390"]


#: arguments after `init`, with TREE for the tree -> exit code, words of the message
WRONG = {
    "unknown architecture": (["InternVLChatModell"], 4, "did you mean `InternVLChatModel`"),
    "part of a name": (["internvlchat"], 4, "did you mean `InternVLChatModel`"),
    "nothing like it": (["Zebra"], 4, "`architectures` of the checkpoint's config.json"),
    "a text model": (["LlamaForCausalLM"], 4, "is not multimodal"),
    "a file without a model": ([f"{MODELS}/intern_vit.py"], 4, "no multimodal model class"),
    "a file with two": ([f"{MODELS}/qwen2_vl.py:Qwen2VisionTransformer"], 4, "is no multimodal model"),
    "an unknown class": ([f"{MODELS}/internvl.py:InternVL"], 4, "InternVLChatModel"),
    "no file": ([f"{MODELS}/zebra.py"], 4, "is neither a file nor one of the tree"),
    "a file of elsewhere": ([str(Path(__file__))], 4, "is no file of the tree"),
    "a module that is missing": (["Qwen2_5_VLForConditionalGeneration"], 4, "which is not in the tree"),
    "an answer without value": ([ARCH, "--answer", "let.k"], 2, "is not KEY=VALUE"),
    "an answer to nothing": ([ARCH, "--answer", "let.kk=1"], 2, "Did you mean `let.k`?"),
    "sound by a recipe": ([ARCH, "--audio", "--recipe", __file__], 2, "--audio goes without --recipe"),
    "all answers and none": ([ARCH, "--yes", "--no-input"], 2, "exclude each other"),
    "values without a run": ([ARCH, "--no-run", "--set", "a=1"], 2, "--no-run runs nothing"),
    "a recording without a run": ([ARCH, "--no-run", "--show-recording"], 2, "--no-run runs nothing"),
    "a run without a run": ([ARCH, "--no-run", "--run"], 2, "--no-run runs nothing"),
    "a draft as JSON": ([ARCH, "--json"], 2, "--json goes with --show-recording"),
    "code of no checkpoint": ([ARCH, "--show-recording", "--trust-remote-code"], 2, "name its folder"),
    "a wrong answer": ([ARCH, "--answer", "let.k=self.tokens("], 3, "`k: self.tokens(    # answered`"),
    "an unknown name": ([ARCH, "--answer", "let.k=zebra"], 3, "the name `zebra` is not defined"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name, run, tree):
    arguments, expected, words = WRONG[name]
    code, out, err = run("init", *arguments, "--vllm", tree, "-o", "my.yaml")
    assert (code, out) == (expected, ""), err
    assert words in err
    assert not Path("my.yaml").exists()


def test_the_sound_of_a_model_is_recorded_on_request(run, tree, monkeypatch):
    import scaffold.verify.numeric

    asked = []
    monkeypatch.setattr(scaffold.verify.numeric, "record_run", lambda request, **_: asked.append(request) or RUN)
    for options in ([], ["--audio"]):
        run("init", ARCH, "--vllm", tree, *options)
    images, sound = asked
    assert images.recipe == "internvl"  # that knows images and videos alone
    assert sound.automatic.modalities == ("audio",)


#: `--vllm` and further arguments -> code, the release to take instead
EARLY = {
    "before the protocol": ("0.18.0", [], "VCG413", "0.20.0"),
    "where it cannot be enabled": ("0.19.0", [], "VCG414", "0.20.0"),
    "before cuts": ("0.21.7", ["--layout", "cut"], "VCG442", "0.22.0"),
    "before crops": ("v0.20", ["--layout", "crops"], "VCG442", "0.22.0"),
    "before rows": ("0.22.9", ["--layout", "rows"], "VCG446", "0.23.0"),
}


@pytest.mark.parametrize("case", EARLY)
def test_a_release_without_the_graphs_is_not_fetched(case, run, monkeypatch, tmp_path):
    """Nothing is in the cache, and nothing may come into it."""
    monkeypatch.setenv("VITCG_CACHE_DIR", str(tmp_path / "cache"))
    release, arguments, code, first = EARLY[case]
    status, out, err = run("init", ARCH, "--vllm", release, *arguments)
    assert (status, out) == (4, ""), err
    assert f"error[{code}]" in err
    assert f"draft the model from {first} or later" in err
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("release", "lacks"), [("0.21.0", "cut (0.22.0), crops (0.22.0), rows (0.23.0)"), ("0.22.0", "rows (0.23.0)")]
)
def test_layouts_that_a_release_lacks_are_named_before_it_is_fetched(release, lacks, run, monkeypatch) -> None:
    def fetch(*_: object) -> None:
        raise click.UsageError("this would fetch")

    monkeypatch.setattr("scaffold.cli.init.open_target", fetch)
    code, _, err = run("init", ARCH, "--vllm", release)
    first, *rest = err.splitlines()
    assert (code, first.endswith(f"or later: {lacks}"), "this would fetch" in rest[-1]) == (2, True, True)
    assert "brackets" not in run("init", ARCH, "--vllm", "0.23.0")[2]
    assert "brackets" not in run("init", ARCH, "--vllm", release, "--layout", "packed")[2]


def typed(err: str) -> list[str]:
    """The arguments of the command that a run names as the next one."""
    _, found, rest = err.rpartition("Next: `vitcg-scaffold ")
    assert found, err
    return shlex.split(rest.partition("`")[0])


def test_what_init_says_to_type_next_works(run, tree):
    """From the first command to a plan, each as it was printed: without a file, with an open question, answered."""
    code, _, err = run("init", ARCH, "--vllm", tree)
    assert code == 0
    code, _, err = run(*typed(err))
    assert code == 0, err
    assert Path("internvl.yaml").is_file()
    code, _, refused = run(*typed(err))
    assert (code, "error[VCG390]" in refused, "internvl.yaml:" in refused) == (3, True, True), refused
    assert "candidate: self.num_image_token" in refused
    Path("internvl.yaml").write_text(Path("internvl.yaml").read_text().replace("TODO", "self.num_image_token"))
    assert run("validate", "internvl.yaml")[0] == 0

    code, _, err = run("init", ARCH, "--vllm", tree, "-o", "two words.yaml", "--yes")
    assert (code, "1 question, all answered. Next: `vitcg-scaffold plan 'two words.yaml'" in err) == (0, True), err
    assert "info[VCG487]" in err
    assert typed(err) == ["plan", "two words.yaml", "--vllm", str(tree)]
    code, out, err = run("init", ARCH, "--vllm", tree, "--answer", "let.k=self.num_image_token")
    assert "k: self.num_image_token    # answered\n" in out
    Path("answered.yaml").write_text(out)
    assert run("validate", "answered.yaml")[0] == 0
    assert typed(err)[4:] == ["--answer", "let.k=self.num_image_token", "-o", "internvl.yaml"]


def test_a_refusal_leaves_a_file_to_start_from(run, tree, monkeypatch):
    """What is known, and every reason with its line; no command takes it for a port."""
    nothing_fits(monkeypatch.setattr)
    code, out, err = run("init", "Phi3VForCausalLM", "--vllm", tree)
    assert (code, out) == (4, "")
    assert "error[VCG483]: the model is beyond the layouts" in err
    assert not list(Path().iterdir())
    hint = f"No draft. For a file with what is known of the model: vitcg-scaffold init Phi3VForCausalLM --vllm {tree} "
    assert f"{hint}-o start.yaml\n" in err
    err = err.replace(f"{hint}-o start.yaml\n", "")

    code, out, again = run("init", "Phi3VForCausalLM", "--vllm", tree, "-o", "my.yaml")
    assert code == 4
    assert out == "wrote my.yaml: no port, but what is known of the model and what is in the way of one\n"
    assert again == err
    text = Path("my.yaml").read_text()
    assert "It has no layout: this is no port." in text
    assert "  class: Phi3VForCausalLM    # vllm/model_executor/models/phi3v.py:" in text
    assert "# input `pixel_values`: batched, of image" in text
    for reason in ("no rows", "no offsets"):
        assert re.search(rf"#   look at: {MODELS}/phi3v\.py:\d+: {reason}\b", text)
    for command in ("validate my.yaml", f"plan my.yaml --vllm {tree}", f"new my.yaml --vllm {tree} --diff"):
        code, _, err = run(*command.split())
        assert code == 3
        assert err.count("error[") == 1
        assert "error[VCG390]: `layout` is an open question: no layout fits the model as it is written" in err


@pytest.mark.parametrize("options", [(), ("--yes",), ("-o", "my.yaml")])
def test_a_model_that_a_port_of_its_base_serves_needs_nothing(options, run):
    """There is no draft, and no next command that would refuse it."""
    code, out, err = run("init", "JinaVLForRanking", "--vllm", "0.33.0", *options)
    assert (code, out) == (0, "")
    name, base = "JinaVLForSequenceClassification", "Qwen2VLForConditionalGeneration"
    assert f"info[VCG485]: {name} inherits the port of {base}: nothing is to be done" in err
    assert "Next:" not in err
    assert not Path("my.yaml").exists()


def test_a_port_of_its_own_is_drafted_on_request(run):
    """The next commands are those that take such a draft."""
    name = ("init", ARCH, "--vllm", "0.33.0", "--yes", "--force")
    assert f"Next: `vitcg-scaffold {shlex.join(name[:4])} --yes --force -o " in run(*name)[2]
    code, _, err = run(*name, "-o", "my.yaml")
    assert code == 0
    assert "warning[VCG485]" in err
    assert "Next: `vitcg-scaffold plan my.yaml --vllm 0.33.0 --replace`" in err
    assert run("plan", "my.yaml", "--vllm", "0.33.0", "--replace")[0] == 0


@pytest.mark.parametrize("model", ["StepVLForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"])
def test_a_model_with_an_encoding_of_its_own_is_looked_at(model, run):
    """Its own methods run the encoder: nothing shows that the port of its base is right."""
    assert "nothing is to be done" not in run("init", model, "--vllm", "0.33.0")[2]


def test_a_refusal_of_a_model_without_an_encoder_runs_and_leaves_nothing(run):
    """It makes models of other classes."""
    code, out, err = run("init", "MiniCPMV", "--vllm", "0.33.0", "-o", "my.yaml")
    assert (code, out, "error[VCG483]" in err, "Runs the code" in err) == (4, "", True, False)
    assert not Path("my.yaml").exists()


def test_names_of_a_model_are_taken_as_messages_say_them(run):
    """MiniCPM-V's architecture makes models of other classes; the references that the refusal names are taken."""
    _, _, err = run("init", "MiniCPMV", "--vllm", "0.33.0")
    assert "info[VCG488]: the descriptor `minicpmv` comes with the tool and ports MiniCPMVBaseModel" in err
    assert "`vitcg-scaffold plan minicpmv --vllm 0.33.0`" in err
    named = re.findall(r"`(init [^`]+)`", err)
    assert "init minicpmv:MiniCPMV2_0" in named
    for command in named:
        assert "VCG481" not in (answer := run(*command.split(), "--vllm", "0.33.0")[2])
        assert "VCG482" not in answer
        assert ("VCG488" in answer) == ("2_0" not in command)  # the port leaves that one out
    _, out, _ = run("init", "minicpmv.py:MiniCPMV2_0", "--vllm", "0.33.0")
    assert "  class: MiniCPMV2_0 " in out
    assert "did you mean `minicpmv:MiniCPMV2_0`?" in run("init", "MiniCPMV2_0", "--vllm", "0.33.0")[2]


def test_a_name_without_its_task_is_an_architecture(run):
    """The task is in most names. Two models that differ in nothing else are not guessed."""
    whole = run("init", "LlavaNextVideoForConditionalGeneration", "--vllm", "0.33.0")
    assert run("init", "LlavaNextVideo", "--vllm", "0.33.0")[:2] == whole[:2]
    assert whole[0] == 0
    code, _, err = run("init", "InternVL", "--vllm", "0.33.0")
    assert code == 4
    assert "did you mean `InternVLChatModel`" in err


def test_a_refusal_names_the_graphs_that_came_later(run, monkeypatch):
    """Both layouts of LLaVA-NeXT-Video's encoder are younger than the release."""
    nothing_fits(monkeypatch.setattr)
    status, _, err = run("init", "LlavaNextVideoForConditionalGeneration", "--vllm", "0.21.0")
    assert status == 4
    assert "error[VCG483]" in err
    assert "cuts came with vLLM 0.22.0" in err
    assert "rows came with vLLM 0.23.0" in err


def test_a_model_of_another_package_needs_its_package(run, tree):
    """No later command would find it: without one, a port changes files of vLLM's package."""
    (tree / "plugin").mkdir()
    (tree / "plugin/model.py").write_bytes((tree / MODELS / "internvl.py").read_bytes())
    for given in ("plugin/model.py", str(tree / "plugin/model.py")):
        code, _, err = run("init", given, "--vllm", tree, "-o", "my.yaml")
        assert (code, "VCG482" in err, "name its package with --package" in err) == (4, True, True), err


def test_a_fork_with_its_own_version_is_called_one(run, copied_tree):
    tree = copied_tree("0.22.0", *FILES, *PROTOCOL_FILES).root
    (tree / "PKG-INFO").write_text("Version: 0.1.0\n")
    title = run("init", ARCH, "--vllm", tree)[1].splitlines()[1]
    assert "drafted from a run in a vLLM of its own version 0.1.0, protocol v0_22." in title
    out = run("protocol", "--vllm", tree)[1]
    assert "  version      a vLLM of its own version 0.1.0, protocol v0_22\n" in out


class TestYes:
    def test_first_candidates_are_taken_and_said(self, run, tree):
        code, out, err = run("init", ARCH, "--vllm", tree, "--yes")
        assert code == 0
        assert "  k: self.num_image_token    # answered\n" in out
        assert "let.k: took the first candidate, self.num_image_token (set by the model, " in err

    def test_an_answer_that_was_given_is_kept(self, run, tree):
        _, out, err = run("init", ARCH, "--vllm", tree, "--yes", "--answer", "let.k=self.tokens")
        assert "  k: self.tokens    # answered\n" in out
        assert "took" not in err

    def test_a_question_without_candidates(self, run, tree, monkeypatch):
        tiles_fit(monkeypatch.setattr, ())
        code, out, err = run("init", ARCH, "--vllm", tree, "--yes", "-o", "my.yaml")
        assert (code, out) == (3, "")
        assert "error[VCG390]: `let.k` has no candidate: " in err
        assert "say `--answer let.k=VALUE`" in err
        assert "my.yaml" not in err
        assert not Path("my.yaml").exists()


class TestFiles:
    @pytest.mark.parametrize("folder", ["", "tree"])
    def test_by_path_in_the_tree_or_on_disk(self, folder, run, tree):
        given = tree / MODELS / "internvl.py" if folder else f"{MODELS}/internvl.py"
        assert "class: InternVLChatModel" in run("init", given, "--vllm", tree)[1]

    def test_one_class_of_several(self, run, tree):
        """Two classes are registered, one of them only inherits: the other one is meant."""
        out = run("init", f"{MODELS}/qwen2_vl.py", "--vllm", tree)[1]
        assert "class: Qwen2VLForConditionalGeneration" in out
        out = run("init", f"{MODELS}/qwen2_vl.py:Tarsier2ForConditionalGeneration", "--vllm", tree, "--force")[1]
        assert "class: Tarsier2ForConditionalGeneration" in out


# --- on a terminal --------------------------------------------------------------------------------------------------


INTERRUPT = "interrupt"


def terminal(tree: Path, folder: Path, typed: str, *more: str) -> tuple[int, str]:
    """A run whose standard input and error are a terminal, and what the terminal shows. `typed` follows the prompt."""
    parent, child = pty.openpty()
    # A job in the background ignores interrupts, and so do its children unless they ask for them.
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from init_draft import tiles_fit; tiles_fit(); "
        "from scaffold.cli.app import main; main(sys.argv[1:])"
    )
    options = ["-o", "my.yaml", "--color", "never", *more]
    with subprocess.Popen(
        [sys.executable, "-c", script, "init", ARCH, "--vllm", str(tree), *options],
        stdin=child,
        stderr=child,
        stdout=subprocess.PIPE,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "COLUMNS": "120", "TERM": "dumb"},
    ) as process:
        os.close(child)
        shown = b""
        deadline, interrupt_at = time.monotonic() + 60, 0.0
        while time.monotonic() < deadline:
            if select.select([parent], [], [], 1)[0]:
                try:
                    shown += os.read(parent, 4096)
                except OSError:  # Linux says so when the other end is closed
                    break
            if not typed or b"\nlet.k [" not in shown:
                continue
            if typed != INTERRUPT:
                os.write(parent, typed.encode())
                typed = ""
            elif time.monotonic() > interrupt_at:
                # Again later: a signal right before the read begins is noticed only when the read ends.
                process.send_signal(signal.SIGINT)
                interrupt_at = time.monotonic() + 4
        else:
            process.kill()
        process.wait()
    os.close(parent)
    return process.returncode, shown.decode()


class TestTerminal:
    @pytest.mark.parametrize(
        ("typed", "more", "words", "said"),
        [
            # An empty answer takes the first candidate; one that cannot be is asked for again, and `-` puts it off.
            ("\n", [], ["let.k: the tokens of one tile", "candidate: self.num"], "self.num_image_token    # answered"),
            ("6o4\nself.tokens\n", [], ["this cannot be: ", "Enter takes the first"], "self.tokens    # answered"),
            ("-\n", [], ["`-` leaves the question open: TODO in the draft", "1 of 1 question open"], "TODO"),
            ("", ["--no-input"], [], "TODO"),
        ],
    )
    def test_what_is_typed_is_the_answer(self, typed, more, words, said, tree, tmp_path):
        code, shown = terminal(tree, tmp_path, typed, *more)
        assert code == 0, shown
        assert shown.count("\nlet.k [") == typed.count("\n")
        assert all(word in shown for word in words), shown
        assert f"  k: {said}\n" in (tmp_path / "my.yaml").read_text()

    def test_interrupted_nothing_is_written(self, tree, tmp_path):
        code, shown = terminal(tree, tmp_path, INTERRUPT)
        assert (code, shown.splitlines()[-1]) == (130, "Interrupted."), shown
        assert not (tmp_path / "my.yaml").exists()

    def test_existing_file_is_refused_before_anything_is_asked(self, tree, tmp_path):
        (tmp_path / "my.yaml").write_text("mine")
        code, shown = terminal(tree, tmp_path, "")
        assert code == 5
        assert "let.k" not in shown


@pytest.mark.parametrize("live", [True, False])
def test_seconds_are_counted_in_front_of_what_runs(live, monkeypatch, capsys):
    moments = iter([10.0, 10.4, 13.9])
    monkeypatch.setattr("scaffold.cli.watching.time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: live)
    with TimedLine(Console()) as line:
        line.status("imports vLLM")
        line.tick()
    shown = capsys.readouterr().err
    assert shown.split("\r\x1b[K") == (["", "0 s: imports vLLM", "3 s: imports vLLM", ""] if live else [""])
