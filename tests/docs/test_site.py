"""The built site in a real browser: a phone, a tablet and a desktop. `VITCG_PICTURES` names a folder for pictures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the `dev` extra")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from browser import Browser, browser, find_browser, served

ROOT = Path(__file__).resolve().parents[2]
COMMAND = find_browser()
pytestmark = pytest.mark.skipif(COMMAND is None, reason="needs Chromium on PATH (Debian: apt-get install chromium)")
WIDTHS = (390, 768, 1280)
#: Pages that people see first, and those with the widest tables.
SHOWN = (
    "",
    "operators/",
    "containers/",
    "reach/",
    "matrix/",
    "measured/engine/",
    "measured/manager/",
    "reference/errors/",
)

#: How many pixels each table is wider than the box that it scrolls in, and how many that box is past the window.
TABLES = """[...document.querySelectorAll("article table:not(.highlighttable)")].map(table => {
  const box = table.closest(".md-typeset__scrollwrap") || table.parentElement
  return [Math.round(table.getBoundingClientRect().width) - box.clientWidth,
          Math.round(box.getBoundingClientRect().right) - innerWidth,
          table.innerText.slice(0, 60)]
})"""
#: Texts whose contrast with what is behind them is below 4.5, the least of WCAG 2 (AA).
PALE = """(() => {
  const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true})
  const read = colour => { context.clearRect(0, 0, 1, 1); context.fillStyle = colour; context.fillRect(0, 0, 1, 1)
                           return [...context.getImageData(0, 0, 1, 1).data] }
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] / 255 + below[i] * (1 - top[3] / 255))
  const behind = element => { if (!element) return [255, 255, 255]
    const own = read(getComputedStyle(element).backgroundColor)
    return own[3] == 255 ? own.slice(0, 3) : over(own, behind(element.parentElement)) }
  const light = colour => colour.map(c => c / 255).map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0)
  return [...document.querySelectorAll("article :is(h1, h2, h3, p, li, td, th, a:not(.headerlink), code, pre span)")]
    .filter(element => [...element.childNodes].some(node => node.nodeType == 3 && node.data.trim()))
    .map(element => { const below = behind(element), ink = over(read(getComputedStyle(element).color), below)
      const [low, high] = [light(below), light(ink)].sort((a, b) => a - b)
      return [Math.round((high + .05) / (low + .05) * 100) / 100, element.tagName, element.innerText.slice(0, 40)] })
    .filter(([contrast]) => contrast < 4.5)
})()"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as found:
        yield found


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    assert COMMAND is not None
    with browser(COMMAND) as found:
        yield found


def keep(page: Browser, name: str) -> None:
    """A picture, for those who want to look."""
    if "VITCG_PICTURES" in os.environ:
        folder = Path(os.environ["VITCG_PICTURES"])
        folder.mkdir(parents=True, exist_ok=True)
        page.picture(folder / f"{name}.png")


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["shown", "all"])
def test_nothing_runs_past_an_edge(site, address, page, whole):
    """On a desktop every table fits; elsewhere a wide one scrolls in a box that fits."""
    found = []
    pages = {f"{path.parent.relative_to(site).as_posix()}/".removeprefix("./") for path in site.rglob("index.html")}
    assert len(pages) > 50
    assert pages >= {*SHOWN}
    tables = 0
    for name in sorted(pages) if whole else SHOWN:
        page.size(WIDTHS[-1])
        page.open(f"{address}{name}")
        for width in WIDTHS:
            page.size(width)
            page.wait("document.documentElement.scrollWidth <= innerWidth")  # the theme moves its parts
            for wider, past, head in page.run(TABLES):
                tables += 1
                if past > 0 or (width == WIDTHS[-1] and wider > 0):
                    found.append((name, width, wider, past, head))
    assert found == []
    assert tables > (300 if whole else 60)


#: The texts of a picture that are not inside it.
CUT_OFF = """fetch(ADDRESS).then(answer => answer.text()).then(text => {
  const box = document.createElement("div")
  box.innerHTML = text
  document.body.append(box)
  const edge = box.querySelector("svg").getBoundingClientRect()
  return [...box.querySelectorAll("text")].filter(one => {
    const place = one.getBoundingClientRect()
    return place.left < edge.left || place.right > edge.right || place.top < edge.top || place.bottom > edge.bottom
  }).map(one => one.textContent)
})"""


def test_no_word_of_a_picture_is_cut_off(site, address, page):
    page.open(address)
    pictures = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.svg")) if "assets" not in path.parts]
    assert len(pictures) > 10
    found = {name: page.run(CUT_OFF.replace("ADDRESS", f"'/{name}'")) for name in pictures}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_table_past_its_edge_is_seen(address, page):
    page.size(WIDTHS[-1])
    page.open(f"{address}operators/")
    page.run("document.querySelector('article table').style.width = '2000px'")
    assert page.run(TABLES)[0][0] > 1000


@pytest.mark.parametrize(
    ("words", "place"), [("budget", "concepts/?h=budget#budgets"), ("VCG520", "reference/errors/?h=vcg520#vcg520")]
)
@pytest.mark.parametrize("width", WIDTHS)
def test_search_finds(address, page, words, place, width):
    page.size(width)
    page.open(f"{address}?q={words}")
    first = "[...document.querySelectorAll('.md-search-result__item:first-child a')].map(link => link.href)"
    page.wait(f"{first}.some(link => link.endsWith('{place}'))")
    keep(page, f"search-{words}-{width}")


@pytest.mark.parametrize("width", [768, 1280])
def test_an_operators_questions_are_answered_in_the_first_screen(address, page, width):
    """With the MiB that graphs take, which follow the table of answers."""
    page.size(width)
    page.open(f"{address}operators/")
    said = (
        "[...document.querySelectorAll('article p')].find(p => p.innerText.includes('MiB of GPU memory at start-up'))"
    )
    assert page.run(f"{said}.getBoundingClientRect().bottom") < 900  # the height of the window


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", SHOWN)
def test_text_is_legible(address, page, name, scheme):
    page.scheme(scheme)
    page.open(address + name)
    page.wait(f"document.body.dataset.mdColorScheme == '{ {'light': 'default', 'dark': 'slate'}[scheme] }'")
    for width in WIDTHS:
        page.size(width)
        page.wait("document.documentElement.scrollWidth <= innerWidth")
        keep(page, f"{name.replace('/', '-') or 'start-'}{scheme}-{width}")
    assert page.run(PALE) == []


def test_pale_text_is_seen(address, page):
    page.scheme("dark")
    page.open(address)
    page.run("document.querySelector('article p').style.color = '#444'")
    assert page.run(PALE)
