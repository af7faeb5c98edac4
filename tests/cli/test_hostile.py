"""What somebody else's tree may carry: a repository whose settings run programs, special files, code of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cli_scene import DOCS, PLACES, PROTOCOL, ROOT, child, contents, environment
from init_draft import draft_is
from test_new import git, make_repository

from scaffold.cli.output import write_output
from scaffold.diagnostics import DiagnosticError
from scaffold.protocol import open_tree
from scaffold.verify.numeric import Check, NumericReport
from scaffold.verify.proofs import Basis, KeptProof, identify_proof, keep_proof
from scaffold.workflow import load_port, numeric_requests

pytestmark = pytest.mark.trees


@pytest.fixture
def trapped(small_tree, tmp_path) -> Path:
    """A checkout in which everything that git can be told to run leaves a file `witness` beside the tree."""
    trap = tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $*" >> {shlex.quote(str(tmp_path / "witness"))}\nexit 1\n')
    trap.chmod(0o755)
    make_repository(small_tree)
    git(small_tree, "tag", "v0.22.0")
    (small_tree / ".git/info/attributes").write_text("* filter=trap diff=trap merge=trap\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "post-checkout", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman"):
        (hooks / name).symlink_to(trap)
    settings = {
        **{f"filter.trap.{kind}": trap for kind in ("clean", "smudge", "process")},
        "filter.trap.required": "true",
        **{f"diff.trap.{kind}": trap for kind in ("textconv", "command")},
        "merge.trap.driver": trap,
        "diff.external": trap,
        **{f"core.{kind}": trap for kind in ("fsmonitor", "pager", "editor", "sshCommand", "gitProxy", "askPass")},
        "core.hooksPath": hooks,
        "core.alternateRefsCommand": trap,
        "log.showSignature": "true",
        "gpg.program": trap,
        "credential.helper": f"!{trap}",
        **{f"alias.{name}": f"!{trap}" for name in ("ls-files", "ls-tree", "rev-list", "st")},
        **{f"pager.{name}": trap for name in ("log", "show", "describe", "ls-files", "rev-list", "status")},
        # Objects that a partial clone has left out are fetched when they are asked for.
        "remote.origin.url": f"ext::{trap}",
        "remote.origin.uploadpack": trap,
        "remote.origin.promisor": "true",
        "protocol.allow": "always",
        "extensions.partialClone": "origin",
        "core.repositoryFormatVersion": "1",
    }
    for name, value in settings.items():
        git(small_tree, "config", name, str(value))
    for path in small_tree.rglob("*.*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path, (1, 1))  # so that git looks into every file again
    return small_tree


def sprung(root: Path) -> str:
    witness = root.parent / "witness"
    return witness.read_text() if witness.exists() else ""


def sign(root: Path) -> None:
    """The last commit again, with something that looks like a signature."""
    commit = git(root, "cat-file", "commit", "HEAD")
    head, _, message = commit.partition("\n\n")
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n abc\n -----END PGP SIGNATURE-----"
    signed = git(root, "hash-object", "-t", "commit", "-w", "--stdin", text=f"{head}\n{signature}\n\n{message}")
    git(root, "-c", "core.hooksPath=/dev/null", "update-ref", "--no-deref", "HEAD", signed.strip())


@pytest.mark.parametrize("command", ["status --porcelain", "log -1", "diff", "show HEAD:PKG-INFO --textconv"])
def test_the_traps_work(trapped, command):
    """Or the next test shows nothing."""
    sign(trapped)
    (trapped.parent / "witness").unlink(missing_ok=True)
    subprocess.run(["git", *command.split()], cwd=trapped, check=False, capture_output=True, timeout=60)
    assert sprung(trapped)


def test_no_command_runs_what_a_repository_names(run, trapped, monkeypatch):
    assert run("plan", "internvl", "--vllm", trapped).code == 0
    assert run("new", "internvl", "--vllm", trapped, "--check").code == 1
    assert run("new", "internvl", "--vllm", trapped).code == 0
    assert run("pr", "internvl", "--vllm", trapped).code == 0
    assert run("new", "internvl", "--vllm", trapped).code == 0
    assert run("revert", trapped).code == 0
    with monkeypatch.context() as patch:
        draft_is("internvl", patch.setattr)
        assert run("init", "internvl", "--vllm", trapped, "--no-input").code == 0
    assert run("revert", "--unfinished", trapped).code == 0
    assert not sprung(trapped)


def test_nothing_is_fetched_for_a_partial_clone(run, trapped):
    """git would run the remote's helper for a tree of the last commit that is not there."""
    (small,) = git(trapped, "rev-parse", "HEAD^{tree}").split()
    blob = trapped / ".git/objects" / small[:2] / small[2:]
    assert blob.is_file()
    blob.unlink()
    subprocess.run(["git", "ls-tree", "HEAD"], cwd=trapped, check=False, capture_output=True, timeout=60)
    assert sprung(trapped), "the trap must work, or this test shows nothing"
    (trapped.parent / "witness").unlink()

    done = run("new", "internvl", "--vllm", trapped)

    assert (done.code, "error[VCG508]" in done.err) == (5, True)
    assert not sprung(trapped)


def test_a_signature_is_not_taken_for_a_missing_sign_off(run, trapped):
    """`log.showSignature` puts gpg's words in front of the message, and runs `gpg.program` for them."""
    assert run("new", "internvl", "--vllm", trapped).code == 0
    for name in ("filter.trap.clean", "filter.trap.process", "filter.trap.required", "core.fsmonitor"):
        git(trapped, "config", "--unset", name)
    git(trapped, "-c", "core.hooksPath=/dev/null", "commit", "-qasm", "Port InternVL")
    sign(trapped)
    (trapped.parent / "witness").unlink(missing_ok=True)

    done = run("pr", "internvl", "--vllm", trapped)

    assert done.code == 0, done.err
    assert "ok  commits carry Signed-off-by" in done.err
    assert not sprung(trapped)


# -- special files: whoever opens a pipe waits for a writer that never comes -------------------------------------------


@pytest.fixture
def impatient():
    """A command that waits is stopped, and fails."""

    def stop(*_arguments: object) -> None:
        raise TimeoutError("the command waits")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def pipe(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("path", [*PLACES, *PROTOCOL, "pyproject.toml", "PKG-INFO", "vllm/_version.py", "ruff.toml"])
def test_pipe_in_a_tree(run, small_tree, impatient, path):
    (small_tree / "PKG-INFO").unlink()
    pipe(small_tree / path)

    for command in ("new", "plan"):
        done = run(command, "internvl", "--vllm", small_tree)
        refused = (6, "VCG626") if path in ("pyproject.toml", "ruff.toml") else (4, "VCG4")
        assert done.code == 0 or (done.code == refused[0] and f"error[{refused[1]}" in done.err), done.err
    assert stat.S_ISFIFO((small_tree / path).stat().st_mode)


def test_pipe_where_a_line_is_to_be_shown(run, copied_tree, impatient):
    """The report of 0.33's own implementation shows its line; the model file is read before, the docs page is not."""
    root = copied_tree("0.33.0", "pyproject.toml", *PLACES, *PROTOCOL).root
    pipe(root / DOCS)

    done = run("new", "internvl", "--vllm", root, "--replace")

    assert (done.code, f"{DOCS}" in done.err) == (4, True)


@pytest.mark.parametrize(
    ("path", "after", "codes"),
    [
        ("journal.json", "new", {"VCG707"}),
        ("lock", "new", {"VCG707"}),
        ("runs/1.json", "new", {"VCG707"}),
        ("blobs/1/0.old", "new", {"VCG703"}),
        ("runs/7.json", "revert", {"VCG707"}),
    ],
)
def test_pipe_among_our_records(run, ported, impatient, path, after, codes):
    if after == "revert":
        assert run("revert", ported).code == 0
    pipe(ported / ".vitcg-scaffold" / path)

    done = run("revert", ported)

    assert done.code == 7, done.err
    assert set(re.findall(r"error\[(VCG\d+)\]", done.err)) == codes
    assert run("revert", "--unfinished", ported).code in (0, 7)


def test_pipe_for_a_descriptor(run, impatient):
    pipe(Path("model.yaml"))

    done = run("validate", "model.yaml")

    assert (done.code, "error[VCG100]" in done.err) == (3, True), done.err


def test_pipe_for_a_manifest(run, impatient):
    pipe(Path("generated/MANIFEST.json"))

    done = run("new", "--all", "--check")

    assert done.code in (3, 5), done.err


def test_the_draft_of_an_output_follows_no_link(run, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr("scaffold.cli.output.secrets.token_hex", lambda _: "known")
    (tmp_path / "here/.out.known").symlink_to(victim)

    with pytest.raises(DiagnosticError, match="cannot write"):
        write_output(Path("out"), "text")

    assert victim.read_text() == "precious"
    assert not Path("out").exists()


@pytest.mark.parametrize("format", ["text", "json", "github", "sarif"])
def test_names_that_are_no_text(run, format):
    name = os.fsdecode(b"\xff\x1b[31m.yaml")
    Path(name).write_text("schema: 1\n")

    done = run("validate", name, "--format", format)

    assert (done.code, "VCG114" in done.out + done.err) == (3, True)
    assert format == "github" or "\x1b" not in done.out + done.err


# -- our own records, damaged ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"format": 1, "files": ' + "[" * 100_000,
        "9" * 5_000,
        "{}",
        "null",
        "",
        '{"format": 1, "id": ' + "9" * 4000 + ', "label": "x", "files": [], "made_dirs": [], "dropped_dirs": []}',
        '{"format": 1, "id": 1, "label": "x", "files": [], "made_dirs": ["a\\u0000b"], "dropped_dirs": []}',
        '{"format": 1, "id": 1, "label": "\\ud800", "files": [], "made_dirs": ["\\ud800"], "dropped_dirs": []}',
        '{"format": 1, "id": true, "label": "x", "files": [], "made_dirs": [], "dropped_dirs": []}',
        '{"format": 1, "id": 1, "label": "x", "files": [{"path": "../x", "before": null, "after": 3}], '
        '"made_dirs": [], "dropped_dirs": []}',
    ],
    ids=lambda text: text[:40] or "empty",
)
@pytest.mark.parametrize("name", ["journal.json", "runs/1.json"])
def test_damaged_records_end_in_a_diagnostic(run, ported, name, text):
    before = contents(ported)
    (ported / ".vitcg-scaffold" / name).write_text(text)

    commands = (
        "revert --unfinished",
        "revert",
        "new internvl --vllm",
        "--format json revert --unfinished",
        "--format sarif revert",
    )
    for command in commands:
        done = run(*command.split(), ported)
        assert done.code in (0, 5, 7), (command, done.err)
        assert done.code == 0 or "VCG" in done.err + done.out
    assert contents(ported) == before


# -- what cannot be undone ---------------------------------------------------------------------------------------------


def test_revert_says_that_a_hard_link_is_lost(run, small_tree, tmp_path):
    (tmp_path / "second.md").hardlink_to(small_tree / DOCS)
    before = contents(small_tree)
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    assert (tmp_path / "second.md").read_bytes() == before[DOCS]

    done = run("revert", small_tree)

    assert done.code == 0
    assert contents(small_tree) == before
    assert done.err.startswith(f"info[VCG514]: {DOCS} had a second name, a hard link, and is a file of its own now\n")
    assert done.err.count("info[") == 1
    assert run("new", "internvl", "--vllm", small_tree).code == 0
    assert "VCG514" not in run("revert", small_tree).err


# -- code of the tree --------------------------------------------------------------------------------------------------

#: Runs before the command line: notes all code of the tree that is executed, wherever a link to it lies or whatever its
#: text is called, what is loaded of it, and every program that is run.
WATCH = f"""
import os, sys
tree, log = os.environ["TREE"], os.open(os.environ["LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(*words):
    os.write(log, (" ".join(map(str, words)) + "\\n").encode())
def in_tree(path):
    return isinstance(path, str) and os.path.isfile(path) and os.path.realpath(path).startswith(tree + os.sep)
def hook(event, arguments):
    if event == "exec":
        called, caller = getattr(arguments[0], "co_filename", ""), sys._getframe(1).f_code.co_filename
        if in_tree(called) or caller.startswith({str(ROOT / "scaffold")!r}):
            note("executed", called, "by", caller)
    elif event in ("import", "ctypes.dlopen") and in_tree(arguments[event == "import"]):
        note("loaded", *arguments[:2])
    elif event == "subprocess.Popen":
        program, words = arguments[0], arguments[1]
        note("program", os.path.basename(os.fsdecode(program)), *map(os.fsdecode, words[1:]))
    elif event in ("socket.connect", "socket.getaddrinfo"):
        note("network", *arguments[1:3])
    elif event in ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"):
        note(event, arguments[0] if arguments else "")
sys.addaudithook(hook)
"""

#: Each as it is run in the tree's own folder, where Python would find the tree's modules first, and its exit code.
READERS = (
    ("plan internvl --vllm .", 0),
    ("plan internvl --vllm . -v", 0),
    ("new internvl --vllm . --diff", 0),
    ("new internvl --vllm . --check", 1),
    ("new internvl --vllm .", 0),
    ("pr internvl --vllm .", 0),
    ("init InternVLChatModel --vllm . --no-input --no-run -o ../draft.yaml", 4),
    ("inspect --vllm .", 0),
    ("inspect qwen2_5_vl --vllm .", 0),
    ("revert .", 0),
    ("revert --unfinished .", 0),
    ("validate internvl", 0),
    ("validate --schema", 0),
    ("explain VCG101", 0),
    ("new internvl --check --into ../generated", 1),
    ("budgets --trace ../trace.json", 3),
    ("doctor", None),  # what it finds is this environment's
)


@pytest.fixture
def whole_tree(release_tree, tmp_path) -> Path:
    """A checkout of all of 0.22.0 in which whatever is imported, or run by a program, leaves a file `witness`."""
    root = tmp_path / "tree"
    source = release_tree("0.22.0").root
    shutil.copytree(source / "vllm", root / "vllm", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ("pyproject.toml", "PKG-INFO", *PLACES):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, root / path)
    trap = f"open({str(tmp_path / 'witness')!r}, 'a').write(__file__)\n"
    for name in ("yaml", "click", "libcst", "ruff", "sitecustomize", "usercustomize", "conftest", "setup", "json"):
        (root / f"{name}.py").write_text(trap)
    for path in [*root.rglob("__init__.py")]:
        path.write_text(trap + path.read_text())
    make_repository(root)
    return root


def test_only_verify_runs_code_of_the_tree(whole_tree, tmp_path, monkeypatch):
    """`pr` runs with a result of `verify` and without: it tells it, and runs nothing for it."""
    monkeypatch.setenv("VITCG_CACHE_DIR", str(tmp_path / "cache"))
    log = tmp_path / "log"

    (tmp_path / "trace.json").write_text("{}")

    def watch(command: str, code: int | None) -> str:
        log.unlink(missing_ok=True)
        done = child(
            *command.split(), before=WATCH, cwd=whole_tree, TREE=str(whole_tree), LOG=str(log), PYTHONSAFEPATH="1"
        )
        assert code in (done.returncode, None), done.stderr
        seen = log.read_text().splitlines() if log.exists() else []
        assert not (tmp_path / "witness").exists(), command
        assert not [line for line in seen if not line.startswith("program ")], (command, seen)
        of_driver = {"nvidia-smi"} if command == "doctor" else set()
        assert {line.split()[1] for line in seen} <= {"ruff", "git"} | of_driver, (command, seen)
        return done.stdout

    (request,) = numeric_requests(load_port("internvl"), open_tree(whole_tree, label="."))
    proof = identify_proof("internvl", request.tree, request.before, request.overlay)
    report = NumericReport("internvl", "0.22.0", "fa2", (Check("a", "image", True, 0.0, 0.0),))
    for command, code in READERS:
        said = watch(command, code)
        if command.startswith("pr "):
            assert "was not run on these files" in said
            with monkeypatch.context() as the_childs:
                # A proof names the variables that decide which code Python finds.
                for variable, value in environment(PYTHONSAFEPATH="1").items():
                    the_childs.setenv(variable, value)
                basis = Basis.today("internvl", "", False, None, values={}, real=False)
            keep_proof(proof, KeptProof(basis, (report,)))
            said = watch(command, code)
            assert "PASS: 1 of 1 checks" in said
            assert "was not run on these files" not in said


SCRIPTS = (
    "sys.path.insert(0, tree)\nimport vllm",
    "link = tree + '-link'\nos.symlink(tree, link)\nsys.path.insert(0, link)\nimport vllm.version",
    "import runpy\nrunpy.run_path(tree + '/setup.py')",
    "import socket\nopen(tree + '/../witness', 'w')\nsocket.getaddrinfo('127.0.0.1', 9)",
)


def test_the_watch_sees_what_is_executed(whole_tree, tmp_path):
    """Or the test above shows nothing."""
    for script in SCRIPTS:
        log, witness = tmp_path / "log", tmp_path / "witness"
        variables = environment(TREE=str(whole_tree), LOG=str(log))
        command = [sys.executable, "-c", f"{WATCH}\n{script}"]
        subprocess.run(command, env=variables, check=False, capture_output=True, cwd=tmp_path)
        assert witness.exists(), script
        assert ("network" if "socket" in script else "executed") in log.read_text(), script
        log.unlink()
        witness.unlink()


# -- what a hostile file of the tree costs -----------------------------------------------------------------------------

MODEL = "vllm/model_executor/models/internvl.py"
HOSTILE = "vllm/model_executor/models/hostile.py"
NAMES = "from .internvl import InternVLChatModel\nclass H(InternVLChatModel):\n    "


@pytest.mark.parametrize(
    "text",
    ["q = x" + ".a" * 5000, "q = 1" + "+1" * 20_000, "q = " + "-" * 100_000 + "1", "q = " + "not " * 100_000 + "x",
     "q = " + "lambda:" * 20_000 + "1", "if a: pass" + "\n    elif b: pass" * 20_000, "q = " + "9" * 5000,
     "type = int; type X = (", "q = 0x" + "f" * 5000],
    ids=["attributes", "sum", "signs", "nots", "lambdas", "elifs", "digits", "newer syntax", "hexadecimal"],
)  # fmt: skip
@pytest.mark.parametrize("command", [("new", "internvl", "--diff"), ("plan", "internvl")], ids=["new", "plan"])
def test_a_file_that_cannot_be_read_is_named_with_its_line(run, small_tree, command, text):
    (small_tree / HOSTILE).write_text(NAMES + text + "\n")
    done = run(*command, "--vllm", small_tree)
    assert done.code == 4
    assert re.search(rf"{HOSTILE}:[234](:\d+)?: error\[VCG412\]", done.err)
    assert f"this is Python {sys.version_info[0]}.{sys.version_info[1]}" in done.err


@pytest.mark.parametrize("text", ["x" + ".a" * 900, "1" + "+1" * 900, "x if grid_thw else " * 900 + "x"])
def test_a_deep_tower_is_refused(run, small_tree, text):
    tower = "from torch import nn\nclass H(nn.Module):\n    def forward(self, x, grid_thw):\n        return "
    (small_tree / HOSTILE).write_text(tower + text + "\n")
    done = run("inspect", "hostile:H", "--vllm", small_tree)
    assert (done.code, f"{HOSTILE}:4:1: error[VCG412]" in done.err) == (4, True)


@pytest.mark.parametrize(
    "statement",
    ["return 1", "with " + ", ".join("a" * 30) + ": pass", "def f(a, a): pass", "break"],
)
def test_a_file_that_does_not_compile_is_not_called_our_bug(run, small_tree, statement):
    with (small_tree / MODEL).open("a") as file:
        file.write(f"\n\n{statement}\n")
    done = run("new", "internvl", "--vllm", small_tree, "--diff")
    assert (done.code, "error[VCG412]" in done.err, "bug" in done.err) == (4, True, False)


def test_huge_files_and_files_that_wait_are_passed_over(run, small_tree):
    with (small_tree / HOSTILE).open("wb") as file:
        file.truncate(40 << 30)
    os.mkfifo(small_tree / "vllm/model_executor/models/pipe.py")
    (small_tree / "vllm/zero.py").symlink_to("/dev/zero")
    (small_tree / "vllm/messages.py").symlink_to("/proc/kmsg")
    assert run("plan", "internvl", "--vllm", small_tree).code == 0


def test_a_huge_file_that_is_needed_is_refused(run, small_tree):
    with (small_tree / MODEL).open("r+b") as file:
        file.truncate(40 << 30)
    done = run("plan", "internvl", "--vllm", small_tree)
    assert (done.code, "it has more than 10,000,000 bytes" in done.err) == (4, True)


def test_settings_that_lead_to_a_pipe_are_refused(run, small_tree):
    os.mkfifo(small_tree / "pipe")
    (small_tree / "ruff.toml").write_text('extend = "pipe"\n')
    done = run("new", "internvl", "--vllm", small_tree, "--check")
    assert "error[VCG626]" in done.err
    assert f"{small_tree}/pipe:1:1" in done.err
