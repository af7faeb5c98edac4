"""No output is a command: neither of a workflow's runner, nor of a terminal, whatever files and folders are called."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cli_scene import MODEL, ROOT, environment

from scaffold.report.plain import one_line, without_commands

INTERNVL = ROOT / "scaffold/descriptor/shipped/internvl.yaml"
FORMATS = ("text", "json", "github", "sarif")
#: Names that say something to a runner or to a terminal.
NAMES = (
    "::stop-commands::x",
    "a\n::error title=FORGED::b",
    " \u3000::error title=FORGED::c",
    "a\r::error title=FORGED::d",
    "\ufe0f::error title=FORGED::e",  # a runner compares as its language sorts, which passes over this
    ":\ufe0f:error title=FORGED::f",
    "a##[error]g",
    "#\u034f#[add-mask]h",
    "\x1b]0;title\x07\x1b[31mred",
    "a\u202egnp.exe",
    "a\u2028::add-mask::i",
    "a\x85::add-mask::j",
    "a\u200bb",
    os.fsdecode(b"\xff::error::k"),
)
#: All in one, for the commands that take a second.
WORST = "::stop-commands::x\n::error title=FORGED::b\r\u3000\ufe0f::warning::c ##[error]g \x1b[31m \u202e"
#: A command of ours: its values are escaped.
OURS = re.compile(r"::(error|warning|notice) ([^:]*,)?title=VCG\d{3}::[^\r\n]*")


def commands(output: str) -> list[str]:
    """What a runner takes for a command, ours excepted (actions/runner, ActionCommand.cs)."""
    found = []
    for line in re.split(r"\r\n|\r|\n", output):
        seen = "".join(char for char in line if " " <= char <= "~")
        if (seen.lstrip().startswith("::") or "##[" in seen) and not OURS.fullmatch(line):
            found.append(line)
    return found


def check(done, format: str) -> None:
    text = done.out + done.err
    assert re.sub(r"[\n\t]", "", text).isprintable(), ascii(text)
    if not re.search("^## Purpose|^Traceback", text, re.MULTILINE):  # these have lines of a template, of an exception
        assert not re.search(r"^::error title=FORGED::b", text, re.MULTILINE), "a name forged a line"
    if format == "github":
        assert commands(text) == []


def test_the_reading_of_a_runner():
    """Or the tests below show nothing."""
    assert len(commands("::error::x\n  ::error::x\r::x::\n\ufe0f::a::\na ##[error]x")) == 5
    assert commands("::error file=a%3A%3A,line=1,title=VCG101::text\nall ::error::\n\\x3a:error::") == []


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_a_descriptor_of_that_name_is_refused(run, name, format):
    path = Path(f"{name}.yaml")
    path.write_bytes(INTERNVL.read_bytes())
    for command in (("validate", path), ("new", path), ("new", path, "--check")):
        done = run("--format", format, *command)
        assert (done.code, "VCG114" in done.out + done.err) == (3, True), done
        check(done, format)


@pytest.mark.parametrize("name", ["a", "A-b_c.d", "9", "..", "-x"])
def test_names_for_descriptors(run, name):
    Path(f"{name}.yaml").write_bytes(INTERNVL.read_bytes())
    assert run("validate", f"./{name}.yaml").code == 0


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_that_name(run, name, format):
    folder = Path(name)
    folder.mkdir()
    (folder / "good.yaml").write_bytes(INTERNVL.read_bytes())
    (folder / "bad.yaml").write_text("schema: 1\nmodel: [")
    for path, code in (("good.yaml", 0), ("bad.yaml", 3), ("none.yaml", 3)):
        done = run("--format", format, "validate", folder / path)
        assert done.code == code, done
        check(done, format)
    done = run("--format", format, "verify", folder / "good.yaml", "--vllm", folder, "--config", folder / "none")
    assert done.code == 2
    check(done, format)


@pytest.mark.trees
@pytest.mark.parametrize("format", FORMATS)
def test_a_tree_of_that_name(run, small_tree, format):
    """Descriptor, tree and a file in the tree are called so, and the tree's own text says so."""
    folder = Path(WORST)
    folder.mkdir()
    descriptor = folder / "internvl.yaml"
    descriptor.write_bytes(INTERNVL.read_bytes())
    tree = folder / "tree"
    small_tree.rename(tree)
    template = tree / ".github/PULL_REQUEST_TEMPLATE.md"
    template.parent.mkdir()
    template.write_text(f"## Purpose\n## {WORST}\n\n---\n{WORST}\n")
    other = tree / f"vllm/model_executor/models/{WORST.replace('/', '')}.py"
    other.write_text("class Other(InternVLChatModel):\n    pass\n")
    said = []
    for words, code in (
        (("plan", descriptor, "--vllm", tree, "-v"), 0),
        (("new", descriptor, "--vllm", tree, "--check"), 1),
        (("new", descriptor, "--vllm", tree), 0),
        (("new", descriptor, "--vllm", tree, "--check"), 0),
        (("pr", descriptor, "--vllm", tree), 0),
        (("inspect", "--vllm", tree), 0),
        (("new", descriptor, "--check", "--into", folder / "generated"), 1),
        (("revert", tree), 0),
        (("revert", "--unfinished", tree), 0),
    ):
        done = run("--format", format, *words)
        assert done.code == code, done
        check(done, format)
        said.append(done.out)
    assert r"\x1b" in said[4], "the template is in the description"


@pytest.mark.trees
def test_a_patch_is_exact_for_programs_and_harmless_in_a_log(run, small_tree):
    """Lines of the tree stand around a change."""
    model = small_tree / MODEL
    text = model.read_text()
    head, body = re.search(r"(\nclass InternVLChatModel\(.*?\):\n)(.*)", text, re.DOTALL).groups()
    trap = "    _ = '''\n::error title=FORGED::x\n'''\n"
    model.write_text(text.replace(head + body, head + trap + body))

    exact = run("new", "internvl", "--vllm", small_tree, "--diff")
    log = run("new", "internvl", "--vllm", small_tree, "--diff", "--format", "github")

    assert exact.code == log.code == 0
    assert " ::error title=FORGED::x\n" in exact.out
    assert commands(exact.out) != []
    assert " \\x3a:error title=FORGED::x\n" in log.out
    check(log, "github")


def test_what_nobody_foresaw(run, monkeypatch):
    def fail(*_arguments: object) -> None:
        raise RuntimeError(WORST)

    monkeypatch.setattr("scaffold.descriptor.load_descriptor", fail)
    for format in FORMATS:
        for debug in ((), ("--debug",)):
            done = run("--format", format, *debug, "validate", "internvl")
            assert (done.code, "This is a bug" in done.err) == (6, True)
            check(done, format)


@pytest.mark.parametrize("name", NAMES)
def test_the_action(tmp_path, name):
    """The step of action.yml in bash, as a runner runs it, with a file of that name in the command."""
    (step,) = [s for s in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"] if s.get("name") == "Run"]
    assert step["shell"] == "bash"
    shutil.copyfile(INTERNVL, tmp_path / f"{name}.yaml")
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/vitcg-scaffold"
    tool.write_text(f"#!{sys.executable}\nfrom scaffold.cli.app import main\nmain()\n")
    tool.chmod(0o755)
    variables = environment(
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", COMMAND=f"validate {name}.yaml $(touch RCE) `touch RCE` ; id *"
    )
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=tmp_path, env=variables, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 3, output
    assert commands(output) == []
    assert re.sub(r"[\n\t]", "", output).isprintable(), ascii(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"{name}.yaml", "bin"])


@pytest.mark.parametrize("text", [*NAMES, WORST, "###[a]", "\n\n ::a::", "a: b", "##[", "a::b", ""])
def test_text_for_a_log(text):
    made = without_commands(text)
    assert commands(made) == []
    if commands(text) == []:
        assert made in (text, text.replace("::", "\\x3a:", 1), text.replace("##[", "##\\x5b"))


def test_escapes_are_readable():
    assert (
        one_line("a\n\x1b\u202e\x85\udcff\U000e0001 é模\u0301") == r"a\n\x1b\u202e\x85\udcff\U000e0001 é模" + "\u0301"
    )


def test_documents_for_programs_keep_every_character(run):
    Path("模\u202e").mkdir()
    Path("模\u202e/bad.yaml").write_text("schema: 1\nmodel: [")
    for format in ("json", "sarif"):
        done = run("--format", format, "validate", "模\u202e/bad.yaml")
        assert done.out.isascii()
        document = json.loads(done.out)
        if format == "json":
            assert document["diagnostics"][0]["span"]["file"] == "模\u202e/bad.yaml"


def test_one_place_writes():
    """Commands write through the console, which decides what may stand in an output."""
    # A bar, a status line, and "Interrupted." twice: the first, before anything else is imported.
    places = {"__init__.py": 1, "console.py": 7, "watching.py": 1, "app.py": 1}
    found: dict[str, int] = {}
    for path in sorted((ROOT / "scaffold/cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in (
                "click.echo",
                "print",
                "sys.stdout.write",
                "sys.stderr.write",
                "click.secho",
                "click.confirm",
            ):
                found[path.name] = found.get(path.name, 0) + 1
    assert found == places
