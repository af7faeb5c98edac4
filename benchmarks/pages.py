"""Write the numbers of `results/*.json` into the pages, or check that they stand there.

    python benchmarks/pages.py            # after a results file was replaced
    python benchmarks/pages.py --check    # exit 1, with the difference, if a page says another number

A new kind of result: a module `measured_NAME.py` with `parts()`, and its name in `KINDS`.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import measured_bench
import measured_cut
import measured_engine
import measured_fuzz
import measured_graphs
import measured_manager
import measured_ports
import measured_reach
import measured_stream
import measured_summary
import measured_tuning
from measured import ROOT, PageError, Part

KINDS = (
    measured_summary, measured_ports, measured_graphs, measured_manager, measured_tuning, measured_engine,
    measured_bench, measured_stream, measured_fuzz, measured_reach, measured_cut,
)  # fmt: skip


def all_parts() -> list[Part]:
    """Every block and sentence."""
    return [part for kind in KINDS for part in kind.parts()]


def written(parts: Iterable[Part], root: Path = ROOT) -> dict[Path, str]:
    """Each page that has a part, with the numbers of now."""
    pages: dict[Path, str] = {}
    for part in parts:
        path = root / part.page
        pages[path] = part.put(pages.get(path) or text_of(path))
    return pages


def text_of(path: Path) -> str:
    """What stands there now; a picture may not be there yet."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not current")
    check = options.parse_args().check
    try:
        pages = written(all_parts())
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
            path.write_text(text, encoding="utf-8")
            print(f"written: {name}")
    return int(check and bool(outdated))


if __name__ == "__main__":
    sys.exit(main())
