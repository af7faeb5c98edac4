"""Formatting of changed lines only, and lint findings that are new, with the target's own settings."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaffold.diagnostics import DiagnosticError, Severity
from scaffold.verify import check_style, format_changed, style

PATH = "pkg/m.py"
UGLY = "x = {  'a':1 }\n\n\n\n\ndef f( a ):\n    return a\n"


@pytest.fixture
def root(tmp_path: Path) -> Callable[..., Path]:
    def make(settings: str | None = "[tool.ruff]\nline-length = 60\n", name: str = "pyproject.toml") -> Path:
        (tmp_path / "pkg").mkdir()
        if settings is not None:
            (tmp_path / name).write_text(settings)
        return tmp_path

    return make


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    style._run_ruff.cache_clear()
    style._settings.cache_clear()
    style._ruff_binary.cache_clear()
    yield
    style._run_ruff.cache_clear()
    style._settings.cache_clear()
    style._ruff_binary.cache_clear()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (UGLY, UGLY + "\n\ny = {  'b':2 }\n", UGLY + '\n\ny = {"b": 2}\n'),
        (UGLY, UGLY + "y = {  'b':2 }\n", UGLY + 'y = {"b": 2}\n'),
        (UGLY, UGLY.replace("def f( a ):", "def f( a,b ):"), "x = {  'a':1 }\n\n\ndef f(a, b):\n    return a\n"),
        (UGLY, UGLY, UGLY),
        ("x = {  'a':1 }\n", "y = {  'a':1 }\n", 'y = {"a": 1}\n'),
        (None, "x = {  'a':1 }\n", 'x = {"a": 1}\n'),
        ("x = 1\n", "x = 2\n", "x = 2\n"),
        (
            "def f(a):\n    return a\n",
            "def f(aaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, c):\n    return a\n",
            "def f(\n    aaaaaaaaaaaaaaaaaaaaaa,\n    bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb,\n    c,\n):\n    return a\n",
        ),
        ("x = 1\n\n\n\n\ndef f(): ...\n", "def f(): ...\n", "def f(): ...\n"),
        ("x = 1\r\n", "x = 1\r\ny = {  'b':2 }\r\n", 'x = 1\r\ny = {"b": 2}\r\n'),
        ("\ufeffx = 1\n", "\ufeffx = 1\ny = {  'b':2 }\n", '\ufeffx = 1\ny = {"b": 2}\n'),
    ],
    ids=[
        "appended",
        "appended without blank lines",
        "one line",
        "nothing",
        "all lines",
        "a new file",
        "formatted already",
        "longer",
        "taken away",
        "CRLF",
        "BOM",
    ],
)
def test_only_changed_lines_are_formatted(
    root: Callable[..., Path], before: str | None, after: str, expected: str
) -> None:
    assert format_changed(before, after, path=PATH, config_root=root()) == expected


def test_markdown_is_left_alone(root: Callable[..., Path]) -> None:
    tree = root()
    assert format_changed("a\n", "a  \n", path="docs/x.md", config_root=tree) == "a  \n"
    assert check_style("a\n", "a  \n", "docs/x.md", tree) == ()


def test_a_file_far_from_its_format_is_formatted_block_by_block(root: Callable[..., Path]) -> None:
    before = "x = 1;\ndef f( a ):\n  if a :\n    return  a\ny = [ 1,\n2]\n"
    after = (
        before.replace("return  a", "return  a+1").replace("def f( a ):", "def f( a,b ):") + "w = 1\nz = {  'b':2 }\n"
    )
    result = format_changed(before, after, path=PATH, config_root=root())
    assert "return a + 1" in result
    assert 'z = {"b": 2}' in result
    assert "y = [ 1,\n2]\n" in result
    assert result.startswith("x = 1;\n")


def test_blank_lines_that_are_no_neighbours_stay(root: Callable[..., Path]) -> None:
    """The formatter wants a line below the docstring, which is not beside the header that an edit has changed."""
    tree = root()
    before = 'class A(dict):\n    """Text."""\n    x = 1\n'
    after = before.replace("dict", "dict, ConnectionAbortedError, ConnectionRefusedError, ConnectionResetError")

    result = format_changed(before, after, path=PATH, config_root=tree)

    assert result.endswith('\n):\n    """Text."""\n    x = 1\n')
    assert check_style(before, result, PATH, tree) == ()


@pytest.mark.parametrize(
    ("after", "formatted"),
    [
        ("a\nb\nc\n", "(\nb\n)\n"),  # half of a change is no Python
        ("a\nb\nc\n", "a2\nb\nc2\n"),  # half of a change is another program
        ("a\nb\n", "(a, b)\n"),  # the change spans a line that is not ours
    ],
)
def test_a_formatting_that_cannot_be_split_is_not_taken(after: str, formatted: str) -> None:
    assert style._take_hunks(after, formatted, {0}) is None


def test_no_settings_means_the_defaults_and_nobody_elses(root: Callable[..., Path]) -> None:
    outer = root("[tool.ruff]\nline-length = 20\n")
    (outer / "inner/pkg").mkdir(parents=True)
    text = "value = some_function(one, two)\n"
    assert format_changed(None, text, path=PATH, config_root=outer / "inner") == text
    assert format_changed(None, text, path=PATH, config_root=outer) != text


def test_settings_may_be_in_their_own_file(root: Callable[..., Path]) -> None:
    text = "value = some_function(one, two)\n"
    assert format_changed(None, text, path=PATH, config_root=root("line-length = 20\n", "ruff.toml")) != text


SETTINGS = '[tool.ruff.lint]\nselect = ["E", "F", "I"]\n'


@pytest.mark.parametrize(
    ("before", "after", "rules"),
    [
        ("import os\n", "import os\nimport re\n\nprint(re)\n", []),
        ("import os\n", "import os\nimport re\n", ["F401"]),
        ("import os\nimport re\n\nprint(re)\n", "import os\nimport re\n\nprint(re)\nprint(nothing)\n", ["F821"]),
        ("import re\n\nprint(re)\n", "import re\nimport os\n\nprint(re, os)\n", ["I001"]),
        ("import re\nimport os\n\nprint(re, os)\n", "import io\nimport re\nimport os\n\nprint(re, os, io)\n", []),
        ("x = 1\n", f"x = 1\ny = '{'a' * 90}'\n".replace("'", '"'), ["E501"]),
        (None, "import os\n", ["F401"]),
        (None, "x = 1\n", []),
        ("x = 1\n", "x = 1\n", []),
    ],
)
def test_only_new_findings_are_reported(
    root: Callable[..., Path], before: str | None, after: str, rules: list[str]
) -> None:
    found = check_style(before, after, PATH, root(SETTINGS))
    assert [item.code for item in found] == ["VCG620"] * len(rules)
    assert all(rule in item.message for rule, item in zip(rules, found, strict=True))


def test_changed_lines_out_of_format_are_reported(root: Callable[..., Path]) -> None:
    (found,) = check_style("x = 1\n", "x = 1\ny = {  'b':2 }\n", PATH, root(SETTINGS))
    assert (found.code, found.span and found.span.line) == ("VCG621", 2)


def test_lines_of_a_file_in_a_format_of_its_own_are_nobodys_model(root: Callable[..., Path]) -> None:
    before = "x = {  'a':1 }\nprint('a',\n      'b')\n"
    assert check_style(before, before.replace("'b')", "'b',\n      end='')"), PATH, root(SETTINGS)) == ()


@pytest.mark.parametrize(
    "settings",
    [
        '[tool.ruff.lint]\nselect = ["E", "NOSUCH999"]\n',
        '[tool.ruff]\nrequired-version = "==0.1.0"\n',
        "[tool.ruff]\nno-such-setting = true\n",
        "[tool.ruff\n",
        "[tool.ruff]\nx = " + "[" * 5000,
        "[tool.ruff]\nextend = 1\n",
    ],
    ids=["unknown rule", "pinned version", "unknown setting", "broken file", "deep file", "no path"],
)
def test_settings_that_ruff_rejects_are_replaced_and_said(root: Callable[..., Path], settings: str) -> None:
    tree = root(settings)
    assert format_changed("x = 1\n", "x = 1\ny = {  'b':2 }\n", path=PATH, config_root=tree) == 'x = 1\ny = {"b": 2}\n'
    found = check_style("x = 1\n", "x = 1\nimport os\n", PATH, tree)
    assert [item.code for item in found] == ["VCG622", "VCG620", "VCG620"]
    assert found[0].severity is Severity.WARNING
    assert "ruff does not accept the target's settings" in found[0].message


def test_a_file_in_the_format_stays_in_it(root: Callable[..., Path]) -> None:
    """The formatter opens a header up on lines that the edit did not touch."""
    tree = root()
    before = "class A(\n    Aaaaaaaaaaaaaaaaaaaaa, Bbbbbbbbbbbbbbbbbbbbbbb, Ccccccc\n):\n    x = 1\n"
    assert style.is_formatted(before, PATH, tree)

    result = format_changed(before, before.replace("class A(\n", "class A(\n    Mixin,\n"), path=PATH, config_root=tree)

    assert "    Mixin,\n    Aaaaaaaaaaaaaaaaaaaaa,\n    Bbbbbbbbbbbbbbbbbbbbbbb,\n    Ccccccc,\n" in result
    assert style.is_formatted(result, PATH, tree)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"pyproject.toml": '[tool.ruff]\nextend = "PIPE"\n'}, "it is not a regular file"),
        ({"ruff.toml": 'extend = "ROOT/PIPE"\n'}, "it is not a regular file"),
        ({"ruff.toml": 'extend = "~/PIPE"\n'}, "it is not a regular file"),
        ({"ruff.toml": 'extend = "$HOME/PIPE"\n'}, "the path in `extend` cannot be followed: `$HOME/PIPE`"),
        ({"ruff.toml": 'extend = "${NO_SUCH:-PIPE}"\n'}, "the path in `extend` cannot be followed: `${NO_SUCH:-PIPE}`"),
        ({"ruff.toml": 'extend = "a.toml"\n', "a.toml": 'extend = "pkg/../PIPE"\n'}, "it is not a regular file"),
        ({"ruff.toml": 'extend = "ruff.toml"\n'}, "more than 20 settings extend each other"),
        ({"ruff.toml": 'extend = "/dev/zero"\n'}, "it is not a regular file"),
        ({"ruff.toml": 'extend = "large.toml"\n', "large.toml": "#" * 1_000_001}, "it has more than 1,000,000 bytes"),
        ({"ruff.toml": 'extend = "none.toml"\n'}, "No such file or directory"),
        ({"ruff.toml": "PIPE"}, "it is not a regular file"),
        ({"pkg/.ruff.toml": "PIPE"}, "it is not a regular file"),
        ({"pyproject.toml": "PIPE"}, "it is not a regular file"),
        ({"pyproject.toml": '[tool]\nruff = {extend = "PIPE"}\n'}, "it is not a regular file"),
        ({"pyproject.toml": '[ tool . ruff ]\nextend = "PIPE"\n'}, "it is not a regular file"),
        ({"pyproject.toml": '"tool" = {"\\u0072uff".extend = "PIPE"}\n'}, "it is not a regular file"),
        ({"ruff.toml": "", "pyproject.toml": "PIPE"}, "it is not a regular file"),
        ({"ruff.toml": "", "../pyproject.toml": "PIPE"}, "it is not a regular file"),
        ({"pkg/ruff.toml": "", "ruff.toml": 'extend = "PIPE"\n'}, "it is not a regular file"),
        ({"ruff.toml": f"[a{'.b' * 201}]\n"}, "a line has more than 200 dots"),
    ],
)
def test_settings_that_ruff_would_wait_for_are_refused_before_it_starts(
    root: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, files: dict[str, str], reason: str
) -> None:
    tree = root(None) / "tree"
    (tree / "pkg").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tree))
    monkeypatch.setattr(style.subprocess, "run", lambda *_, **__: pytest.fail("ruff was started"))
    os.mkfifo(tree / "PIPE")
    for name, text in files.items():
        if text == "PIPE":
            os.mkfifo(tree / name)
        else:
            (tree / name).write_text(text.replace("ROOT", str(tree)))
    with pytest.raises(DiagnosticError) as caught:
        format_changed("x = 1\n", "x = 2\n", path=PATH, config_root=tree)
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("VCG626", f"the tree's ruff settings cannot be used: {reason}")


@pytest.mark.parametrize("base", ["line-length = 20\n", "[tool.ruff]\nline-length = 20\n"], ids=["own", "shared"])
def test_extended_settings_are_used(root: Callable[..., Path], base: str) -> None:
    name = "pyproject.toml" if "tool" in base else "base.toml"
    tree = root(f'extend = "more/{name}"\n', "ruff.toml")
    (tree / "more").mkdir()
    (tree / "more" / name).write_text(base)
    (tree.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 200\n")
    text = "value = some_function(one, two)\n"
    assert format_changed(None, text, path=PATH, config_root=tree) != text
    (tree / "more" / name).write_text("[tool.other]\n" if "tool" in base else "")
    style._settings.cache_clear()
    style._run_ruff.cache_clear()
    assert format_changed(None, text, path=PATH, config_root=tree) == text


@pytest.mark.parametrize("text", ["tool = 1\n", "[tool.other]\nx = 1\n", "[tool]\nruff = 1\n"])
def test_a_project_without_settings_of_ruff(root: Callable[..., Path], text: str) -> None:
    code = "value = some_function(one, two)\n"
    assert format_changed(None, code, path=PATH, config_root=root(text)) == code


@pytest.mark.parametrize("where", ["extend", "cache-dir", "src"])
def test_no_setting_reads_the_environment_of_the_caller(
    root: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("SOME_SECRET", "geheim")
    value = "'${SOME_SECRET}/x'"
    tree = root(f"{where} = {f'[{value}]' if where == 'src' else value}\n", "ruff.toml")
    given: list[dict[str, str]] = []
    run = subprocess.run
    monkeypatch.setattr(
        style.subprocess, "run", lambda *words, env, **how: (given.append(env), run(*words, env=env, **how))[1]
    )
    if where == "extend":
        with pytest.raises(DiagnosticError) as caught:
            check_style("x = 1\n", "x = 2\n", PATH, tree)
        found = caught.value.diagnostics
        assert found[0].span is not None
        assert found[0].span.file == str(tree / "ruff.toml")
    else:
        found = check_style("x = 1\n", "x = 2\n", PATH, tree)
        assert given
    assert "geheim" not in str(found) + str(given)


def test_deprecated_settings_are_no_error(root: Callable[..., Path]) -> None:
    tree = root('[tool.ruff]\nselect = ["E", "F"]\nignore = ["E731"]\n')
    found = check_style("x = 1\n", "x = 1\ny = lambda: 0\n", PATH, tree)
    assert found == ()


def test_text_that_ruff_cannot_read_is_an_error(root: Callable[..., Path]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        format_changed("x = 1\n", "x = (\n", path=PATH, config_root=root())
    assert caught.value.diagnostics[0].code == "VCG623"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError("no such file"), "reinstall vitcg-scaffold; ruff is one of its dependencies"),
        (
            subprocess.TimeoutExpired("ruff", 60),
            "give it more of the machine, or look for what it waits for: `ruff format --diff` in the tree",
        ),
    ],
)
def test_ruff_that_does_not_run(
    root: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, error: Exception, advice: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(style.subprocess, "run", fail)
    with pytest.raises(DiagnosticError) as caught:
        format_changed("x = 1\n", "x = 2\n", path=PATH, config_root=root())
    (found,) = caught.value.diagnostics
    assert (found.code, found.help) == ("VCG623", advice)


def test_ruff_that_is_not_installed(root: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError("ruff")

    monkeypatch.setattr("ruff.__main__.find_ruff_bin", fail)
    with pytest.raises(DiagnosticError) as caught:
        format_changed("x = 1\n", "x = 2\n", path=PATH, config_root=root())
    assert "not installed" in caught.value.diagnostics[0].message
