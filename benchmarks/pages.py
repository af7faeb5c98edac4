"""Write the pages on measurements from `results/*.json`, or check that they agree with the results.

    python benchmarks/pages.py            # after a results file was replaced
    python benchmarks/pages.py --check    # exit 1, with the difference, if a page is not current

A new kind of result needs a text in `texts/`, a module `measured_NAME.py` with `pages()`, and its name in `KINDS`. Only
two tables are not on a page of their own: the summary in README.md and on the start page, and the memory on the page of
operators, each between two marks.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from importlib import import_module
from pathlib import Path

import measured_index
import measured_reach
import measured_summary
from measured import ROOT, Page, PageError

#: In the order of the index.
KINDS = [
    import_module(f"measured_{name}")
    for name in (
        "ports", "graphs", "cut", "host", "manager", "memory", "stream", "tuning", "fp8", "attention", "engine",
        "bench", "harm", "fuzz", "walkthrough",
    )
]  # fmt: skip


def all_pages() -> list[Page]:
    """Every page and picture."""
    made = [page for kind in KINDS for page in kind.pages()]
    return [measured_index.page_of(made), *made, *measured_reach.pages(), *measured_summary.pages()]


def written() -> dict[Path, str]:
    """The text that each file must have."""
    found = {ROOT / page.path: page.text for page in all_pages()}
    for name in measured_summary.PLACES:
        found[ROOT / name] = measured_summary.put(name, text_of(ROOT / name))
    operators = ROOT / measured_summary.OPERATORS
    found[operators] = measured_summary.put_memory(text_of(operators))
    return found


def text_of(path: Path) -> str:
    """The text of a file; empty where there is none yet."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not current")
    check = options.parse_args().check
    try:
        pages = written()
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    outdated = {path: text for path, text in pages.items() if text_of(path) != text}
    for path, text in outdated.items():
        name = path.relative_to(ROOT).as_posix()
        if check:
            before = text_of(path).splitlines()
            print(*difflib.unified_diff(before, text.splitlines(), name, name, lineterm="", n=0), sep="\n")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"written: {name}")
    return int(check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
