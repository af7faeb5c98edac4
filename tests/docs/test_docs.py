"""The pages: what is made from the code is up to date, links lead somewhere, and MkDocs builds them."""

from __future__ import annotations

import pkgutil
import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from captured import captured
from markdown_it import MarkdownIt
from markdown_it.token import Token

from scaffold.cli.app import COMMANDS, FORMER
from scaffold.descriptor import json_schema

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


@pytest.mark.parametrize("script", ["reference/generate.py", "pictures/generate.py"])
def test_what_is_made_from_the_code_is_up_to_date(script: str) -> None:
    done = captured([sys.executable, DOCS / script, "--check"])
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: python docs/{script}"


def test_an_outdated_page_is_noticed(tmp_path: Path) -> None:
    copy = tmp_path / "reference"
    copy.mkdir()
    for path in (DOCS / "reference").iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    (copy / "cli.md").write_text("edited\n")
    check = [sys.executable, copy / "generate.py", "--check"]
    done = captured(check)
    assert (done.returncode, done.stdout) == (1, "outdated: docs/reference/cli.md\n")
    assert (copy / "cli.md").read_text() == "edited\n"


def tokens(page: Path) -> list[Token]:
    parsed = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    return [child for token in parsed for child in [token, *(token.children or [])]]


def anchors(page: Path) -> set[str]:
    """What a heading can be linked as, on a forge and in MkDocs."""
    found: set[str] = set()
    previous = None
    for token in tokens(page):
        if previous is not None and previous.type == "heading_open":
            words = re.sub(r"[^\w\- ]", "", token.content.lower().replace("`", "")).strip()
            found.add(words.replace(" ", "-"))
        previous = token
    return found


def test_the_descriptor_page_has_every_key_of_every_layout_once() -> None:
    """Each section has one heading and a row for each of its keys; each layout has rows for its own."""
    text = (DOCS / "reference/descriptor.md").read_text(encoding="utf-8")
    sections = {
        heading: re.findall(r"^\| `(\w+)`(?: \(required\))? \|", body, re.MULTILINE)
        for heading, body in re.findall(r"^##+ (.*?)$(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    assert len(sections) == len(re.findall(r"^##+ ", text, re.MULTILINE))
    listed = sorted(keys for keys in sections.values() if keys)
    schema = json_schema()
    for definition in schema["$defs"].values():
        if "properties" in definition:
            listed.remove(list(definition["properties"]))
    for branch in schema["oneOf"]:
        own = sections[f"Layout `{branch['properties']['layout']['const']}`"]
        assert set(branch["properties"]) == {*sections["Every layout"], *own}


def test_guides_are_read_to_the_end() -> None:
    """One task and at most 150 lines each; the README on two screens. Tables are longer. A record is one page."""
    long = {"docs/matrix.md", "docs/reach.md"}
    lines = {page.relative_to(ROOT).as_posix(): len(page.read_text("utf-8").splitlines()) for page in DOCS.glob("*.md")}
    records = [len(page.read_text("utf-8").splitlines()) for page in (DOCS / "decisions").glob("*.md")]
    assert records
    assert max(records) <= 80
    assert {page: count for page, count in lines.items() if page not in long and count > 150} == {}
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 90


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for token in tokens(page):
        target = token.attrGet("href") or token.attrGet("src")
        if not isinstance(target, str) or re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(f"{target}: no such file")
        elif anchor and file.suffix == ".md" and anchor.lower() not in anchors(file):
            broken.append(f"{target}: no such heading")
    assert not broken


def test_every_page_can_be_reached() -> None:
    """From the README by links; a page that nobody finds is not there."""
    reached, open_pages = set(), [ROOT / "README.md"]
    while open_pages:
        page = open_pages.pop()
        if page in reached:
            continue
        reached.add(page)
        for token in tokens(page):
            target = token.attrGet("href")
            if isinstance(target, str) and ".md" in target and not re.match(r"[a-z]+:", target):
                file = (page.parent / unquote(target).partition("#")[0]).resolve()
                if file.exists():
                    open_pages.append(file)
    assert {page.relative_to(ROOT).as_posix() for page in PAGES if page not in reached} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """Paths of this repository in code style; `v0_34` is the invented generation of a rehearsal."""
    named = {code for token in tokens(page) if token.type == "code_inline" for code in token.content.split()}
    ours = re.compile(r"(?:scaffold|tests|docs|benchmarks|generated|templates|\.ci)/[\w./-]*\w/?")
    missing = [name for name in named if ours.fullmatch(name) and "v0_34" not in name and not (ROOT / name).exists()]
    # Places in a vLLM tree may have such names, too.
    assert [name for name in missing if not name.startswith(("tests/models/", "docs/design/"))] == []


def test_functions_of_the_design_page_exist() -> None:
    page = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", page, re.MULTILINE)
    assert len(rows) > 15
    for packages, functions in rows:
        homes = re.findall(r"`(\w+)`", packages)
        for function in re.findall(r"`([\w.]+)`", functions):
            assert any(_exists(f"scaffold.{home}.{function}") for home in homes), f"{packages}: {function}"


def _exists(dotted: str) -> bool:
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def test_the_start_page_names_every_command_once() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = [code.split()[0] for row in rows for code in re.findall(r"`([^`]+)`", row)]
    assert sorted(named) == sorted(COMMANDS)


def test_nothing_names_a_former_command() -> None:
    """Pages, messages, templates, hooks and workflows follow the commands that there are. Records of the past stay."""
    listed = captured(["git", "ls-files"], cwd=ROOT).stdout.split("\n")
    if not any(listed):
        pytest.skip("a source distribution has no list of its files")
    past = ("docs/measured/", "benchmarks/results/", "CHANGELOG.md", "tests/")
    names = re.compile(rf"vitcg-scaffold (?:{'|'.join(FORMER)})\b")
    texts = {name: ROOT / name for name in listed if name and not name.startswith(past)}
    found = [name for name, path in texts.items() if path.is_file() and names.search(path.read_text("utf-8", "ignore"))]
    assert found == []


def test_the_readme_shows_the_shipped_descriptor() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(layout: .*?)^```$", text, re.MULTILINE | re.DOTALL)
    shipped = (ROOT / "scaffold/descriptor/shipped/llava.yaml").read_text(encoding="utf-8")
    assert shown in shipped
    assert len(shown.splitlines()) <= 8


def test_mkdocs_builds_the_pages(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the `dev` extra")
    done = captured([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/reference/errors/index.html").is_file()
    pages = {path.parent.name: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("index.html")}
    assert '<code>init <span class="word">--yes</span></code>' in pages["reach"]
    blocks = "".join(re.findall(r"<pre>.*?</pre>", "".join(pages.values()), re.DOTALL))
    assert "--vllm" in blocks
    assert '<span class="word">' not in blocks
