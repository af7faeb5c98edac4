"""The numerical proof of `new`: whose code it runs unasked, and that nothing is written that it shows to be wrong.

The lab is a few lines here, as in `test_verify.py`; the last test has the real one.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from cli_scene import MODEL, contents
from test_verify import BAD, SMALL, lab

from scaffold.cli import watching
from scaffold.descriptor.load import shipped_path
from scaffold.verify.numeric import runner

pytestmark = pytest.mark.trees

PROVEN = "short numerical proof: PASS: 1 of 1 checks"
UNASKED = "Proven statically only: `new` runs the code of a folder only with --verify."

#: A lab whose run ends in this error.
FAILING = """
import json, sys
json.loads(sys.stdin.readline())
error = dict(role="tree", stage="import", kind={kind!r}, message="no such thing\\nat all", help="", traceback=[])
for line in sys.stdin:
    print(json.dumps(dict(event="error", **error)), flush=True)
    print(json.dumps(dict(event="ended", status=1)), flush=True)
"""


@pytest.fixture
def asked(monkeypatch):
    """The trees that the lab was asked to run, in order."""
    trees: list[Path] = []
    original = runner._Bench.check

    def note(self, request):
        trees.append(request.tree)
        return original(self, request)

    monkeypatch.setattr(runner._Bench, "check", note)
    return trees


def test_the_code_of_a_folder_runs_only_when_it_is_asked_for(run, small_tree, monkeypatch, asked):
    lab(monkeypatch, runner._Child, SMALL)

    done = run("new", "internvl", "--vllm", small_tree)

    assert (done.code, asked) == (0, [])
    assert UNASKED in done.err
    assert "To prove it numerically: vitcg-scaffold verify internvl --vllm" in done.err
    assert run("revert", small_tree).code == 0
    done = run("new", "internvl", "--vllm", small_tree, "--verify")
    assert (done.code, asked) == (0, [small_tree])
    assert PROVEN in done.err
    assert "statically only" not in done.err
    again = run("new", "internvl", "--vllm", small_tree, "--verify")
    assert (again.code, asked) == (0, [small_tree]), "there is nothing left to prove"


def test_a_release_runs_unasked_and_a_changed_copy_of_it_does_not(run, release_tree, monkeypatch, asked):
    """A folder that is named like the working copy may be anybody's; what is proven is the release's own code."""
    release = release_tree("0.22.0").root
    lab(monkeypatch, runner._Child, SMALL)

    assert PROVEN in run("new", "internvl", "--vllm", "0.22.0").err
    assert asked == [release]
    assert PROVEN in run("new", "mllama4", "--vllm", "0.22.0").err
    assert asked == [release, release]
    copy = Path("vllm-0.22.0")
    assert run("revert", copy).code == 0
    path = copy / MODEL.replace("internvl", "mllama4")
    path.write_text(f"{path.read_text()}\nimport antigravity\n")

    done = run("new", "mllama4", "--vllm", "0.22.0")

    assert done.code == 0, done.err
    assert UNASKED in done.err
    assert asked == [release, release]


def test_the_installed_package_runs_unasked(run, installed_tree, monkeypatch, asked):
    lab(monkeypatch, runner._Child, SMALL)

    assert PROVEN in run("new", "internvl", "--vllm", "installed").err
    assert asked == [installed_tree]


def test_what_is_wrong_is_not_written(run, small_tree, monkeypatch):
    before = contents(small_tree)
    lab(monkeypatch, runner._Child, SMALL, BAD)

    done = run("new", "internvl", "--vllm", small_tree, "--verify")

    assert done.code == 6
    assert "error[VCG650]" in done.err
    assert "--static writes these files all the same" in done.err
    assert contents(small_tree) == before
    dump = Path(done.err.partition("the refused files are in ")[2].split()[0])
    assert b"get_encoder_cudagraph_config" in (dump / MODEL).read_bytes()
    assert run("new", "internvl", "--vllm", small_tree, "--static").code == 0
    assert contents(small_tree)[MODEL] == (dump / MODEL).read_bytes()


@pytest.mark.parametrize(
    ("kind", "code", "exit_code"), [("ModuleNotFoundError", "VCG656", 4), ("NoRecipe", "VCG668", 6)]
)
def test_a_lab_that_decides_nothing(run, installed_tree, monkeypatch, kind, code, exit_code):
    """It is said in one line where nobody asked for the proof, and an error where somebody did."""
    monkeypatch.setattr(runner._Child, "command", (sys.executable, "-c", FAILING.format(kind=kind)))
    before = contents(installed_tree)

    done = run("new", "internvl", "--vllm", "installed", "--verify")
    assert (done.code, f"error[{code}]" in done.err, contents(installed_tree) == before) == (exit_code, True, True)
    done = run("new", "internvl", "--vllm", "installed")
    assert (done.code, contents(installed_tree) == before) == (0, False)
    (line,) = [line for line in done.err.splitlines() if line.startswith("Proven statically only: ")]
    assert "no such thing. To prove it numerically: vitcg-scaffold verify internvl --vllm" in line


def test_without_torch_there_is_nothing_to_run_it_with(run, installed_tree, monkeypatch, asked):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch" else found(name, *more)
    )

    done = run("new", "internvl", "--vllm", "installed")

    assert (done.code, asked) == (0, [])
    assert "Proven statically only: torch is not installed here (it comes with the `cpu` extra)." in done.err


def test_an_interrupted_proof_leaves_no_file_and_no_process(run, tmp_path, monkeypatch):
    lab(monkeypatch, runner._Child, SMALL, SMALL)  # a process that no other test has left running
    started = []
    original = runner._Child.__init__

    def note(self, *arguments):
        original(self, *arguments)
        started.append(self._process)

    def interrupt(self, text, total):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner._Child, "__init__", note)
    monkeypatch.setattr(watching.StatusLine, "case", interrupt)

    done = run("new", "internvl", "--vllm", "0.22.0")

    assert (done.code, done.err.splitlines()[-1]) == (130, "Interrupted.")
    assert list((tmp_path / "here").iterdir()) == []
    assert [process.poll() is not None for process in started] == [True]


@pytest.mark.parametrize("options", [("--diff",), ("--check",)])
def test_looking_runs_nothing(run, small_tree, options):
    done = run("new", "internvl", "--vllm", small_tree, "--verify", *options)
    assert (done.code, "--verify goes with a tree that `new` writes to" in done.err) == (2, True)
    assert run("new", "internvl", "--verify").code == 2


@pytest.mark.lab
def test_a_wrong_port_of_a_real_release_is_refused(run, tmp_path):
    """One token an image too many, which no static proof can know: the real lab shows it."""
    text = shipped_path("internvl").read_text("utf-8")
    right = "item: {rows: n, tokens: n * k}"
    assert text.count(right) == 1
    Path("internvl.yaml").write_text(text.replace(right, "item: {rows: n, tokens: n * k + 1}"))

    done = run("new", "internvl.yaml", "--vllm", "0.22.0")

    assert done.code == 6, done.err
    assert "error[VCG65" in done.err
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["internvl.yaml"]


@pytest.mark.parametrize("kind", ["NoRecipe", "ModuleNotFoundError"])
def test_a_descriptor_cannot_switch_its_proof_off(run, installed_tree, monkeypatch, kind):
    monkeypatch.setattr(runner._Child, "command", (sys.executable, "-c", FAILING.format(kind=kind)))
    path = shipped_path("internvl")
    assert path is not None
    Path("internvl.yaml").write_text(f"{path.read_text()}\nverify: {{set: {{anything: 1}}}}\n")
    before = contents(installed_tree)

    done = run("new", "internvl.yaml", "--vllm", "installed")

    assert (done.code, contents(installed_tree) == before) == (6, True)
    assert "error[VCG647]" in done.err
    assert "to write without the proof: --static" in done.err
    done = run("new", "internvl.yaml", "--vllm", "installed", "--static")
    assert (done.code, contents(installed_tree) == before) == (0, False)
    assert "Proven statically only: --static was given" in done.err


def test_a_proof_and_none_exclude_each_other(run, small_tree):
    assert run("new", "internvl", "--vllm", small_tree, "--static", "--verify").code == 2
