"""Every command: its help, its formats, its way with terminals and pipes. No tree is needed here."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from captured import captured
from cli_scene import child, environment

from scaffold.cli.app import COMMANDS, FORMER
from scaffold.cli.console import Console
from scaffold.descriptor import TilesPort, shipped_names
from scaffold.diagnostics import Diagnostic, Severity
from scaffold.diagnostics.catalogue import all_codes

BAD = "schema: 1\nlayout: tiles\nlayout: packed\nmodel: {module: m, class: C, towr: x}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_says_how_to_call_it(run, command):
    done = run(command, "--help")

    assert (done.code, done.err) == (0, "")
    assert f"Usage: vitcg-scaffold {command}" in done.out
    assert f"Example:\n    vitcg-scaffold {command}" in done.out


def test_help_lists_every_command_the_exit_codes_and_the_completion(run):
    done = run("--help")

    assert done.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.out
    assert "7 input/output" in " ".join(done.out.split())
    assert 'eval "$(_VITCG_SCAFFOLD_COMPLETE=bash_source vitcg-scaffold)"' in done.out


@pytest.mark.parametrize("former", FORMER)
def test_a_former_name_works_and_names_the_new_one(run, tmp_path, former):
    """The same exit code and output as the new words; one more line on stderr, and no place in a list."""
    (tmp_path / "here/vllm/model_executor/models").mkdir(parents=True)
    (tmp_path / "here/vllm/__init__.py").touch()
    arguments = {"protocol": ["--vllm", "."], "tower": ["internvl", "--vllm", "."], "recover": ["."]}.get(former, [])
    new = [*FORMER[former], *(["--all"] if former == "regen" else [])]

    done, now = run(former, *arguments), run(*new, *arguments)

    line, _, rest = done.err.partition("\n")
    assert line == f"`{former}` is `{' '.join(new)}` now; the old name goes with 0.2."
    assert (done.code, done.out, rest) == (now.code, now.out, now.err)
    assert f"  {former} " not in run("--help").out


@pytest.mark.parametrize(
    ("options", "everything"),
    [
        ([], True),
        (["--check", "--into", "internvl"], True),
        (["--format", "json"], True),
        (["internvl", "--check"], False),
        (["--into", "out", "internvl", "--diff"], False),
    ],
)
def test_regen_is_new_of_the_descriptors_that_it_names(run, options, everything):
    done = run("regen", *options)

    assert done.err.startswith(f"`regen` is `new{' --all' * everything}` now")
    assert ("VCG535" in done.err + done.out) is everything  # there is no manifest


@pytest.mark.parametrize(
    "arguments", [["--help"], ["new", "--help"], ["inspect", "--help"], ["validate", "internvl"], ["--version"]]
)
def test_light_commands_load_nothing_heavy(arguments):
    before = "import atexit\natexit.register(lambda: print(' '.join(sys.modules), file=sys.stderr))"

    loaded = set(child(*arguments, before=before).stderr.split())

    assert "click" in loaded
    assert not loaded & {"libcst", "torch", "pydantic", "jinja2", "scaffold.verify", "scaffold.publish"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nwe"], "No such command 'nwe'. Did you mean 'new'?"),
        (["zzzz"], "No such command 'zzzz'"),
        (["--formt", "json"], "Did you mean '--format'"),
        (["new", "internvl", "--alow-dirty"], "Did you mean '--allow-dirty'"),
        (["new"], "Missing argument 'DESCRIPTOR'"),
        (["new", "internvl", "--vllm", ".", "--diff", "--check"], "--diff and --check exclude each other"),
        (["plan", "internvl"], "Missing option '--vllm'"),
        (["--format", "xml", "validate", "internvl"], "'xml' is not one of"),
        (["explain", "VCG52"], "did you mean VCG520"),
        (["explain", "VCG021"], "did you mean VCG"),
        (["explain", "nonsense"], "run `vitcg-scaffold explain` for the list"),
        (["inspect", "internvl", "--vllm", ".", "--entry", "run"], "go with MODULE:CLASS"),
        (["inspect", "--vllm", ".", "--data", "x"], "go with MODULE:CLASS"),
        (["new", "--all", "internvl"], "--all takes its descriptors from the manifest"),
        (["new", "--all", "--vllm", "."], "--all takes its descriptors from the manifest"),
        (["new", "internvl", "qwen2_vl", "--vllm", "."], "name one DESCRIPTOR"),
        (["revert", "no/such/folder"], "does not exist"),
    ],
)
def test_usage_errors_say_what_was_meant(run, tmp_path, arguments, said):
    (tmp_path / "here/vllm/model_executor/models").mkdir(parents=True)
    (tmp_path / "here/vllm/__init__.py").touch()

    done = run(*arguments)

    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize("code", ["VCG520", "vcg520", "520"])
def test_explain(run, code):
    done = run("explain", code)

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("VCG520: the class implements the protocol already\n\n")
    assert max(map(len, done.out.splitlines())) <= 100


def test_explain_lists_all_codes(run):
    assert [line.split()[0] for line in run("explain").out.splitlines()] == list(all_codes())


def test_schema_is_one_document_in_every_format(run):
    for arguments in (["validate", "--schema"], ["--format", "json", "validate", "--schema"]):
        assert json.loads(run(*arguments).out)["title"] == "vitcg-scaffold descriptor"


@pytest.mark.parametrize("arguments", [["--format", "json", "validate"], ["validate", "--format", "json"]])
@pytest.mark.parametrize(
    ("descriptor", "code", "errors"), [("internvl", 0, 0), ("bad.yaml", 3, None), ("no_such_model", 3, 1)]
)
def test_validate_writes_one_json_document(run, tmp_path, arguments, descriptor, code, errors):
    (tmp_path / "here/bad.yaml").write_text(BAD)

    done = run(*arguments, descriptor)

    document = json.loads(done.out)
    assert document["exit_code"] == done.code == code
    assert document["counts"]["error"] == (len(document["diagnostics"]) if errors is None else errors)


def test_bad_descriptor_is_reported_whole(run, tmp_path):
    (tmp_path / "here/bad.yaml").write_text(BAD)

    done = run("validate", "bad.yaml", "internvl")

    assert (done.code, done.out) == (3, "")
    assert "bad.yaml:3:1: error" in done.err  # the duplicate key
    assert "towr" in done.err  # the unknown one
    assert done.err.count(": error[") > 3
    assert "^" in done.err
    # What stops `validate` stops `new` with the same words, before any tree is looked at.
    assert run("new", "bad.yaml", "--vllm", "/no/such/tree").err.splitlines()[0] == done.err.splitlines()[0]


def test_quiet_prints_errors_only(run, tmp_path):
    (tmp_path / "here/bad.yaml").write_text(BAD)

    assert run("-q", "validate", "internvl").err == ""
    assert run("validate", "internvl", "-q").err == ""
    assert "error[" in run("validate", "bad.yaml", "-q").err


@pytest.mark.parametrize(
    ("arguments", "variables", "colored"),
    [
        ([], {}, False),  # not a terminal
        (["--color", "always"], {}, True),
        (["--color", "always"], {"NO_COLOR": "1"}, True),  # asked for on the line
        (["--color", "never"], {}, False),
    ],
)
def test_colors_off_a_terminal(run, tmp_path, monkeypatch, arguments, variables, colored):
    (tmp_path / "here/bad.yaml").write_text(BAD)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert ("\x1b[" in run("validate", "bad.yaml", *arguments).err) is colored


class _Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colors_on_a_terminal(monkeypatch, variables, colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert Console().wants_color(_Terminal()) is colored  # type: ignore[arg-type]


def test_a_document_on_stdout_moves_everything_else_to_stderr(capsys):
    console = Console(output_format="json")
    console.report([Diagnostic("VCG426", "a note", severity=Severity.INFO)])
    console.document("the patch\n")
    console.result("for people")
    console.finish(1)

    out, err = capsys.readouterr()
    assert out == "the patch\n"
    people, brace, rest = err.partition("{")
    assert people == "for people\n"
    assert json.loads(brace + rest)["exit_code"] == 1


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("vitcg-scaffold va", ["validate"]),
        ("vitcg-scaffold re", ["revert"]),
        ("vitcg-scaffold recover --forc", ["--force"]),
        ("vitcg-scaffold validate ", ["mine.yaml", *shipped_names()]),
        ("vitcg-scaffold new internvl --vllm 0.2", [f"0.{minor}.0" for minor in range(29, 19, -1)]),
        ("vitcg-scaffold new internvl --vllm in", ["installed"]),
        ("vitcg-scaffold new --di", ["--diff"]),
        ("vitcg-scaffold explain vcg52", [f"VCG52{digit}" for digit in range(10)]),
    ],
)
def test_completion(words, offered, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", ".hidden.yaml"):
        (tmp_path / name).touch()
    variables = {
        "_VITCG_SCAFFOLD_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }

    done = child(**variables)
    lines = done.stdout.split()

    assert done.stderr == ""
    assert [line.removeprefix("plain,") for line in lines if line.startswith("plain,")] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell):
    done = child(_VITCG_SCAFFOLD_COMPLETE=f"{shell}_source")

    assert "vitcg" in done.stdout


def test_reader_that_goes_away_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "scaffold.cli", "validate", "--schema"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    assert (process.wait(), process.stderr.read()) == (0, b"")


def test_internal_error_is_owned_up_to(run, monkeypatch):
    def fail(_reference: str) -> None:
        raise RuntimeError("the moon is full")

    monkeypatch.setattr("scaffold.descriptor.load_descriptor", fail)

    done = run("validate", "internvl")

    assert (done.code, done.out) == (6, "")
    assert "error: RuntimeError: the moon is full" in done.err
    assert "bug of vitcg-scaffold. Run again with --debug" in done.err
    assert "Traceback" not in done.err


def test_internal_error_is_one_document_in_a_machine_format(run, monkeypatch):
    def fail(_reference: str) -> None:
        raise RuntimeError("the moon is full")

    monkeypatch.setattr("scaffold.descriptor.load_descriptor", fail)

    done = run("--format", "json", "validate", "internvl")

    assert done.code == 6
    (found,) = json.loads(done.out)["diagnostics"]
    assert (found["code"], found["message"]) == ("VCG625", "RuntimeError: the moon is full")
    assert "bug of vitcg-scaffold. Run again with --debug" in done.err


def test_debug_shows_the_traceback_of_an_internal_error():
    before = "import scaffold.descriptor as d\ndef fail(_): raise RuntimeError('moon')\nd.load_descriptor = fail"

    done = child("validate", "internvl", "--debug", before=before)

    assert done.returncode == 6
    assert "Traceback" in done.stderr
    assert "RuntimeError: moon" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "redirection", "code", "said"),
    [
        ("schema", ">/dev/full", 7, "error[VCG710]: reading or writing failed: No space left on device"),
        ("--help", ">/dev/full", 7, "error[VCG710]"),
        ("validate internvl --format json", ">/dev/full", 7, "error[VCG710]"),
        ("validate internvl", "2>/dev/full", 7, ""),
        ("validate nosuch", "2>/dev/full", 7, ""),
        ("nwe", "2>/dev/full", 7, ""),
        ("schema", ">&-", 0, ""),
        ("validate nosuch", ">&- <&-", 3, "error[VCG100]"),
        ("validate nosuch", "2>&-", 3, ""),
        ("validate internvl", ">&- 2>&- <&-", 0, ""),
        ("plan nosuch --vllm .", "2>&1 | true; exit ${PIPESTATUS[0]}", 3, ""),
    ],
)
def test_output_that_cannot_be_written(arguments, redirection, code, said):
    """A full disk is an error of its own; a stream that the caller closed takes what is meant for it along."""
    command = f"{shlex.quote(sys.executable)} -m scaffold.cli {arguments} {redirection}"

    done = captured(["bash", "-c", command], env=environment(PYTHONHASHSEED="0"))

    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "bug of" not in done.stderr


def test_a_report_is_the_same_in_every_process(tmp_path):
    """Of several problems in one place the order is that of the descriptor's fields, not of hash values."""
    (tmp_path / "bad.yaml").write_text("layout: tiles\n")

    reports = [child("validate", "bad.yaml", cwd=tmp_path, PYTHONHASHSEED=seed).stderr for seed in "12345"]

    missing = [line.split("`")[1] for line in reports[0].splitlines() if "lacks the key" in line]
    required = [key for key, declared in TilesPort.by_key.items() if declared.required and key != "layout"]
    assert missing == required
    assert reports == reports[:1] * 5


@pytest.mark.parametrize(
    ("columns", "total", "drawn"),
    [
        (80, 30_000_000, "Fetching vLLM 0.22.0 ━━━━━━━━━━━━━━━                 15.0 / 30.0 MB"),
        (50, 30_000_000, "Fetching vLLM 0.22.0 ━━━━━━        15.0 / 30.0 MB"),
        (40, 30_000_000, "Fetching vLLM 0.22.0  15.0 / 30.0 MB"),
        (20, 30_000_000, "Fetching vLLM 0.22."),
        (80, None, "Fetching vLLM 0.22.0 15.0 MB"),
    ],
)
def test_progress_stays_on_one_line_of_the_terminal(monkeypatch, capsys, columns, total, drawn):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    console = Console()

    with console.progress("Fetching vLLM 0.22.0") as progress:
        progress(15_000_000, total)

    assert capsys.readouterr().err == f"\r{drawn}\n"
    assert len(drawn) < columns


def test_progress_in_a_log_is_one_line(capsys):
    with Console().progress("Fetching vLLM 0.22.0") as progress:
        for done in range(3):
            progress(done, 30_000_000)

    assert capsys.readouterr().err == "Fetching vLLM 0.22.0 (30 MB)\n"
