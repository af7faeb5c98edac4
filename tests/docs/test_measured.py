"""Pages on measurements are what `benchmarks/results/` says: whole pages, and no number that somebody typed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from captured import captured

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import measured
import measured_summary
import pages
from measured import ROOT, PageError

from scaffold.cli.app import COMMANDS

#: A measured number: a decimal, or a whole one with its unit. Code, links and releases are none.
NOT_PROSE = r"`[^`\n]*`|^```.*?^```$|\]\([^)]*\)|(?:vLLM|Python|--vllm) \d[\d.]*(?: (?:to|and) \d[\d.]*)?"
NUMBER = r"(?<![\w.-])(?:\d+\.\d+|\d+(?= (?:%|ms|MiB|of \d)))"


def numbers(text: str) -> list[str]:
    """The measured numbers of a text."""
    prose = re.sub(NOT_PROSE, lambda found: " " * len(found[0]), text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(NUMBER, prose)


def test_the_walk_shows_commands_that_there_are():
    """The record has former names; whoever types one from the page finds it in no list."""
    page = (ROOT / "docs/measured/walkthrough.md").read_text("utf-8")
    typed = re.findall(r"`(?:VITCG_\w+=\S+ )?vitcg-scaffold ([^`\s]+)([^`]*)`", page)
    assert len(typed) > 30
    assert {name for name, _ in typed} <= set(COMMANDS)
    assert not [rest for _, rest in typed if "--no-verify" in rest]


def test_pages_say_what_was_measured():
    done = captured(
        [sys.executable, ROOT / "benchmarks/pages.py", "--check"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""}
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run: benchmarks/pages.py"


def literals(path: Path) -> Iterator[str]:
    """Every text in a module but docstrings; pieces of an f-string are joined around what it puts in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            skipped.update(part.format_spec for part in node.values if isinstance(part, ast.FormattedValue))
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


def written_in(path: Path) -> Iterator[str]:
    """What a person wrote in a generator, or in a page's text around its holes."""
    if path.suffix == ".py":
        yield from literals(path)
    else:
        yield re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "{}", path.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(
    "path",
    sorted([*Path(measured.__file__).parent.glob("measured*.py"), *measured.TEXTS.glob("*.md")]),
    ids=lambda path: path.name,
)
def test_no_number_of_a_page_is_typed(path):
    assert [(text, found) for text in written_in(path) if (found := numbers(text))] == []


def test_literals_are_seen(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""1.5 ms"""\n\ndef f(x):\n    "2.5"\n    return f"{x:.2f} of 3.5", "4 %", "vLLM 0.33"\n')
    assert [found for text in written_in(module) for found in numbers(text)] == ["3.5", "4"]
    page = tmp_path / "page.md"
    page.write_text("{{ format(x * 2.5, '.2f') }} of 3.5, {% if x %}4 %{% endif %}, vLLM 0.33\n")
    assert [found for text in written_in(page) for found in numbers(text)] == ["3.5", "4"]


def test_the_readme_has_measured_numbers_in_its_table_only():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    head, _, rest = text.partition(measured_summary.START)
    table, _, tail = rest.partition(measured_summary.END)
    assert len(numbers(table)) > 10
    assert numbers(head + tail) == []


def test_a_start_page_keeps_what_is_around_its_table():
    start, end = measured_summary.START, measured_summary.END
    document = measured_summary.put("README.md", f"before\n{start}\nold\n{end}\nafter\n")
    reach, speed = measured_summary.reach("docs/"), measured_summary.speed("docs/", all_rows=False)
    picture = f"![{measured_summary.WORDS}](docs/measured/results.svg)"
    assert document == f"before\n{start}\n\n{reach}\n\n{picture}\n\n{speed}\n\n{end}\nafter\n"
    longer = measured_summary.speed("docs/").splitlines()
    assert set(speed.splitlines()) < set(longer)
    assert [line for line in longer if line not in speed] == [line for line in longer if "streams.md" in line][1:]
    with pytest.raises(PageError, match=r"README.md has no `<!-- summary"):
        measured_summary.put("README.md", "no table")


def test_the_index_has_every_page():
    index = (ROOT / "docs/measured/index.md").read_text(encoding="utf-8")
    there = {path.name for path in (ROOT / "docs/measured").glob("*.md")} - {"index.md"}
    assert [name for name in sorted(there) if f"({name})" not in index] == []


def test_prose_is_wrapped_and_tables_are_not():
    words = "word " * 40
    table = measured.table(["a", "b"], [["1", words]])
    text = measured.document(f"# {words}", f" {words}\n  {words}", f"* one\n* {words}", table)
    made, heading, prose, first, *rest = text.split("\n\n")
    assert made == measured.MADE
    assert len(heading) > 120 < max(map(len, rest[-1].splitlines()))
    assert max(map(len, [*prose.splitlines(), *first.splitlines()])) <= 120
    assert first.startswith("* one\n* word")
    assert first.splitlines()[2].startswith("  word")


def test_another_result_is_another_page(monkeypatch):
    """The numbers come from the files: all times of our manager a tenth longer, and the pages say so."""
    load = measured.load

    def slower(name):
        result = load(name)
        for model in result.get("models", {}).values():
            for key in [key for key in model.get("summary", {}) if key.startswith("ours") and "/exact" in key]:
                model["summary"][key] *= 1.1
        return result

    monkeypatch.setattr("measured_manager.load", slower)
    changed = {path for path, text in pages.written().items() if pages.text_of(path) != text}

    assert {path.relative_to(ROOT).as_posix() for path in changed} == {
        *measured_summary.PLACES,
        "docs/measured/manager.md",
        "docs/measured/results.svg",
    }
