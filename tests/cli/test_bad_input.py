"""What can be wrong with a tree, a disk or a run: each a diagnostic and an exit code, and nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from captured import captured
from cli_scene import DOCS, EXAMPLE, MODEL, PLACES, PROTOCOL, TEST, child, contents, environment
from test_new import git, make_repository

from scaffold.publish import disk

pytestmark = pytest.mark.trees

INTERFACES, DEFS, MANAGER = PROTOCOL
Spoil = Callable[[Path], None]


def edit(path: str, old: str, new: str) -> Spoil:
    """Replace the first `old` in one file; it must be there."""

    def spoil(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text, (path, old)
        (root / path).write_text(text.replace(old, new, 1))

    return spoil


def remove(path: str) -> Spoil:
    return lambda root: (root / path).unlink()


def twice(path: str, as_path: str) -> Spoil:
    return lambda root: (root / as_path).write_bytes((root / path).read_bytes())


def append(path: str, text: str) -> Spoil:
    return lambda root: (root / path).write_text((root / path).read_text() + text)


def cut_table(root: Path) -> None:
    lines = (root / DOCS).read_text().splitlines(keepends=True)
    (root / DOCS).write_text("".join(line for line in lines if not line.startswith("|")))


#: what is done to a tree of 0.22.0 -> exit code, diagnostic, and words of it
TREES: dict[str, tuple[Spoil, int, str, tuple[str, ...]]] = {
    "no package": (remove("vllm/__init__.py"), 4, "VCG400", ("is not a vLLM source tree", "`vllm/__init__.py`")),
    "no interfaces": (remove(INTERFACES), 4, "VCG410", ("interfaces.py",)),
    "no protocol": (
        edit(INTERFACES, "class SupportsEncoderCudaGraph(", "class SupportsGraphs("),
        4,
        "VCG413",
        ("SupportsEncoderCudaGraph",),
    ),
    "no manager": (remove(MANAGER), 4, "VCG416", ("EncoderCudaGraphManager",)),
    "no model": (remove(MODEL), 4, "VCG420", ("internvl",)),
    "no class": (edit(MODEL, "class InternVLChatModel(", "class InternVLChat("), 4, "VCG420", ("`InternVLChat`",)),
    "no test": (remove(TEST), 4, "VCG421", ("MODEL_CONFIGS",)),
    "no table": (cut_table, 4, "VCG422", ("CG for Image",)),
    "no example": (remove(EXAMPLE), 4, "VCG423", ("MODELS_SUPPORT_VIT_CUDA_GRAPH",)),
    "model twice": (append(MODEL, "\n\nclass InternVLChatModel:\n    pass\n"), 4, "VCG424", (MODEL,)),
    "test twice": (append(TEST, "\n\nMODEL_CONFIGS = {}\n"), 4, "VCG424", (TEST,)),
    "example twice": (append(EXAMPLE, "\n\nMODELS_SUPPORT_VIT_CUDA_GRAPH = []\n"), 4, "VCG424", (EXAMPLE,)),
    "odd registry": (edit(TEST, "MODEL_CONFIGS", "MODEL_CONFIGS = dict()\nX"), 4, "VCG425", (TEST,)),
    "not Python": (append(MODEL, "\n<<<<<<< HEAD\n"), 4, "VCG412", ("internvl.py",)),
    "not UTF-8": (lambda root: (root / MODEL).write_bytes(b"x = '\xff'\n"), 4, "VCG411", ("0xff",)),
    "other meaning": (append(MODEL, "\n\nEncoderCudaGraphConfig = int\n"), 4, "VCG433", ("EncoderCudaGraphConfig",)),
    "unknown protocol": (
        edit(INTERFACES, "def get_encoder_cudagraph_config(", "def get_encoder_graph_config("),
        4,
        "VCG415",
        ("get_encoder_cudagraph_config", "get_encoder_graph_config", "v0_22"),
    ),
    "a new parameter": (
        edit(
            INTERFACES, "def get_input_modality(\n        self,", "def get_input_modality(\n        self, stage: int,"
        ),
        4,
        "VCG415",
        ("get_input_modality", "stage"),
    ),
}


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, None) for name in TREES), ("no table", "--diff"), ("unknown protocol", "--check")]
)
def test_tree_that_is_not_understood(run, small_tree, name, mode):
    spoil, code, diagnostic, words = TREES[name]
    spoil(small_tree)
    before = contents(small_tree)

    done = run("new", "internvl", "--vllm", small_tree, *([mode] if mode else []))

    assert (done.code, done.out) == (code, "")
    assert f"error[{diagnostic}]" in done.err
    assert " = help: " in done.err
    for word in words:
        assert word in done.err
    assert contents(small_tree) == before
    assert not (small_tree / ".vitcg-scaffold").exists()


@pytest.mark.parametrize(
    ("target", "code", "diagnostic", "words"),
    [
        ("/no/such/tree", 4, "VCG401", "does not exist"),
        ("here.txt", 4, "VCG401", "is not a folder"),
        (".", 4, "VCG400", "is not a vLLM source tree"),
        ("..", 4, "VCG400", "did you mean `"),
        ("../tree/vllm", 4, "VCG400", "give its top folder"),
        ("0.19.0", 4, "VCG414", "a module that is not in it"),
        ("0.18.0", 4, "VCG413", "has no protocol"),
        ("0.30.0", 5, "VCG520", "--replace"),
    ],
)
def test_target(run, small_tree, tmp_path, target, code, diagnostic, words):
    (tmp_path / "here/here.txt").touch()

    done = run("new", "internvl", "--vllm", target)

    assert (done.code, done.out) == (code, "")
    assert f"error[{diagnostic}]" in done.err
    assert words in done.err
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["here.txt"]


def test_unknown_release_is_answered_with_the_nearest(run, tmp_path, monkeypatch):
    index = tmp_path / "index"
    index.mkdir()
    for version in ("0.22.0", "0.22.1", "0.33.0"):
        (index / f"vllm-{version}.tar.gz").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", index.as_uri())  # a space in a plain path would end it
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    done = run("new", "internvl", "--vllm", "0.22.7")

    assert done.code == 4
    assert "error[VCG403]: there is no release `0.22.7` of vLLM" in done.err
    assert "help: did you mean `0.22.1` or `0.22.0` or `0.33.0`?" in done.err


def test_every_problem_of_a_descriptor_at_once(run, small_tree):
    (Path.cwd() / "bad.yaml").write_text(
        "schema: 1\nlayout: tyles\nmodel: {module: m, class: 7, towr: x}\nbudget: {}\n"
    )
    before = contents(small_tree)

    done = run("new", "bad.yaml", "--vllm", small_tree, "--format", "json")

    document = json.loads(done.out)
    assert (done.code, document["exit_code"]) == (3, 3)
    assert document["counts"]["error"] >= 4
    assert {item["span"]["line"] for item in document["diagnostics"]} >= {2, 3, 4}
    assert contents(small_tree) == before


@pytest.mark.parametrize(
    ("call", "problem", "diagnostic"),
    [("mkdir", errno.EROFS, "VCG701"), ("write", errno.ENOSPC, "VCG702"), ("replace", errno.EIO, "VCG703")],
)
def test_disk_says_no(run, small_tree, monkeypatch, call, problem, diagnostic):
    """One error of each code. Each error of each call is tried in tests/publish/test_publish_failures.py."""
    before = contents(small_tree)

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(problem, os.strerror(problem))

    with monkeypatch.context() as patch:
        patch.setattr(disk, call, fail)
        done = run("new", "internvl", "--vllm", small_tree)
    assert (done.code, done.out) == (7, "")
    assert f"error[{diagnostic}]" in done.err
    assert contents(small_tree) == before
    assert run("new", "internvl", "--vllm", small_tree).code == 0


def test_read_only_tree_can_still_be_looked_at(run, small_tree, monkeypatch):
    def refuse(_path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(disk, "mkdir", refuse)

    assert run("new", "internvl", "--vllm", small_tree, "--diff").code == 0
    done = run("new", "internvl", "--vllm", small_tree)
    assert done.code == 7
    assert "use --diff to see the changes only" in done.err


def test_release_in_the_cache_is_never_written(run, release_tree):
    root = release_tree("0.22.0").root

    done = run("new", "internvl", "--vllm", root)

    assert done.code == 7
    assert "error[VCG701]" in done.err
    assert "`--vllm 0.22.0`" in done.err
    assert not (root / ".vitcg-scaffold").exists()
    assert run("new", "internvl", "--vllm", root, "--check").code == 1


def test_working_copy_without_space_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("scaffold.protocol.releases.shutil.copytree", full)

    done = run("new", "internvl", "--vllm", "0.22.0", "--static")

    assert done.code == 7
    assert "error[VCG711]" in done.err
    assert list((tmp_path / "here").iterdir()) == []


def test_dirty_files_are_refused(run, small_tree):
    """What makes a file dirty is tested in tests/publish/test_publish_dirty.py."""
    make_repository(small_tree)
    for path in PLACES:
        with (small_tree / path).open("a") as stream:
            stream.write("\n")
    before = contents(small_tree)

    done = run("new", "internvl", "--vllm", small_tree)

    assert (done.code, done.out) == (5, "")
    for path in PLACES:
        assert f"error[VCG507]: {path} has changes that are not committed" in done.err
    assert "--allow-dirty" in done.err
    assert contents(small_tree) == before
    assert run("new", "internvl", "--vllm", small_tree, "--allow-dirty").code == 0
    assert run("revert", small_tree).code == 0
    assert contents(small_tree) == before


def test_dirty_file_elsewhere_does_not_matter(run, small_tree):
    make_repository(small_tree)
    (small_tree / "vllm/__init__.py").write_text("# mine\n")

    assert run("new", "internvl", "--vllm", small_tree).code == 0
    assert " M vllm/__init__.py" in git(small_tree, "status", "--porcelain")


def test_checkout_without_git_is_noted(run, small_tree, monkeypatch):
    make_repository(small_tree)

    def absent(*_arguments: object, **_options: object) -> str:
        raise FileNotFoundError("git")

    monkeypatch.setattr("scaffold.publish.dirty._git", absent)

    done = run("new", "internvl", "--vllm", small_tree)

    assert done.code == 0
    assert "info[VCG509]" in done.err


def test_edited_since_the_run_is_not_reverted_unasked(run, small_tree):
    before = contents(small_tree)
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    append(DOCS, "\nMine.\n")(small_tree)

    done = run("revert", small_tree)

    assert (done.code, done.out) == (5, "")
    assert f"error[VCG504]: {DOCS}" in done.err
    assert run("revert", small_tree, "--force").code == 0
    assert contents(small_tree) == before


#: Python that runs in the child before the command line.
AT_REPLACE = """
import os, signal, time
from pathlib import Path
from scaffold.publish import disk
real, calls = disk.replace, 0
def replace(source, target):
    global calls
    calls += 1
    if calls == {number}:
        {action}
    real(source, target)
disk.replace = replace
"""
BEFORE_PLANNING = """
import os, signal, scaffold.protocol
real = scaffold.protocol.read_protocol
def read(tree):
    os.kill(os.getpid(), signal.{name})
    return real(tree)
scaffold.protocol.read_protocol = read
"""


@pytest.mark.parametrize(("name", "code", "said"), [("SIGINT", 130, "Interrupted."), ("SIGTERM", 143, "Terminated.")])
def test_signal_while_publishing(small_tree, name, code, said):
    """The third to the sixth rename move the new files: a signal between them undoes what is there. A signal at every
    call is tried in tests/publish/test_publish_kill.py."""
    before = contents(small_tree)

    done = child(
        "new",
        "internvl",
        "--vllm",
        small_tree,
        before=AT_REPLACE.format(number=4, action=f"os.kill(os.getpid(), signal.{name})"),
    )

    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(small_tree) == before
    assert child("revert", "--unfinished", small_tree).stderr == "Nothing to repair.\n"


AT_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(name, *_):
        if name == "scaffold.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
signal.signal(signal.SIGINT, signal.default_int_handler)
from scaffold.cli import main
main(["--help"])
"""


def test_ctrl_c_while_python_imports_the_command_line():
    """The first tenth of a second of each run. It ended in a traceback."""
    done = captured([sys.executable, "-c", AT_IMPORT], env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nInterrupted.\n")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_while_planning(small_tree, name, code):
    done = child("new", "internvl", "--vllm", small_tree, before=BEFORE_PLANNING.format(name=name))

    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
    assert not (small_tree / ".vitcg-scaffold").exists()


@pytest.mark.parametrize("options", [[], ["--unfinished"]])
def test_killed_run_is_repaired(run, small_tree, options):
    before = contents(small_tree)
    kill = AT_REPLACE.format(number=5, action="os.kill(os.getpid(), signal.SIGKILL)")
    assert child("new", "internvl", "--vllm", small_tree, before=kill).returncode == -9
    assert contents(small_tree) != before

    for arguments in (["--diff"], ["--check"], []):
        done = run("new", "internvl", "--vllm", small_tree, *arguments)
        assert (done.code, done.out) == (7, "")
        assert "error[VCG706]: an earlier run (`new internvl`) was killed" in done.err
        assert f"vitcg-scaffold revert --unfinished {shlex.quote(str(small_tree))}" in done.err

    done = run("revert", *options, small_tree)

    assert done.code == 0
    assert done.err == "Rolled back the unfinished run: new internvl\n"
    assert contents(small_tree) == before
    assert run("new", "internvl", "--vllm", small_tree).code == 0


def test_a_finished_run_is_no_unfinished_one(run, small_tree):
    before = contents(small_tree)
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    ported = contents(small_tree)

    done = run("revert", "--unfinished", small_tree)
    assert (done.code, done.err, contents(small_tree)) == (0, "Nothing to repair.\n", ported)
    assert run("revert", small_tree).code == 0
    assert contents(small_tree) == before


def test_revert_says_that_a_hard_link_is_lost(run, small_tree, tmp_path):
    (tmp_path / "second.py").hardlink_to(small_tree / MODEL)
    kill = AT_REPLACE.format(number=5, action="os.kill(os.getpid(), signal.SIGKILL)")
    assert child("new", "internvl", "--vllm", small_tree, before=kill).returncode == -9
    assert not (small_tree / MODEL).samefile(tmp_path / "second.py")

    done = run("revert", small_tree)

    assert done.code == 0
    assert f"info[VCG514]: {MODEL} had a second name, a hard link" in done.err
    assert done.err.count("info[") == 1


def test_two_runs_at_once(run, small_tree, monkeypatch):
    """A second run starts while the first one moves its files."""
    second = []
    real = disk.replace

    def replace(source: Path, target: Path) -> None:
        if not second:
            second.append(None)
            second[0] = child("new", "internvl", "--vllm", small_tree)
        real(source, target)

    monkeypatch.setattr(disk, "replace", replace)

    first = run("new", "internvl", "--vllm", small_tree)

    assert first.code == 0
    assert (second[0].returncode, second[0].stdout) == (7, "")
    assert "error[VCG705]: another run is writing" in second[0].stderr
    assert run("new", "internvl", "--vllm", small_tree, "--check").code == 0


def test_a_proof_that_refuses(run, small_tree, tmp_path, monkeypatch):
    """A template gone wrong: exit 6, nothing in the tree, and the refused files where they can be looked at."""
    from scaffold.plan import planner

    real = planner.render_methods

    def render(*arguments: object) -> object:
        methods = real(*arguments)
        source = methods.source.replace("def encoder_eager_forward(", "def eager_forward(")
        assert source != methods.source
        return replace(methods, source=source)

    monkeypatch.setattr(planner, "render_methods", render)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    before = contents(small_tree)

    done = run("new", "internvl", "--vllm", small_tree)

    assert (done.code, done.out) == (6, "")
    assert "error[VCG610]" in done.err
    assert contents(small_tree) == before
    (folder,) = (tmp_path / "temporary").glob("vitcg-refused-*")
    assert f"the refused files are in {folder}" in done.err
    assert set(contents(folder)) == set(PLACES)
    assert b"def eager_forward(" in contents(folder)[MODEL]


def test_refused_files_that_cannot_be_kept(run, small_tree, monkeypatch):
    from scaffold.plan import planner

    real = planner.render_methods

    def render(*arguments: object) -> object:
        methods = real(*arguments)
        return replace(methods, source=methods.source.replace("self", "slf"))

    def full(**_options: str) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(planner, "render_methods", render)
    monkeypatch.setattr("tempfile.mkdtemp", full)

    done = run("new", "internvl", "--vllm", small_tree)

    assert done.code == 6
    assert "could not be kept: [Errno 28] No space left on device" in done.err


@pytest.mark.parametrize(("workspace", "file"), [(None, "m.yaml"), (".", "here/m.yaml"), ("elsewhere", "m.yaml")])
def test_annotations_have_names_from_the_root_of_the_repository(run, tmp_path, monkeypatch, workspace, file):
    """The runner looks for a file there, wherever the command ran."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    if workspace is not None:
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / workspace))
    Path("m.yaml").write_text("schema: 1\n", "utf-8")

    assert f"::error file={file},line=1," in run("validate", "./m.yaml", "--format", "github").out
