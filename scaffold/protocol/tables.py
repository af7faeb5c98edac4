"""Tables of a Markdown document, by the positions of a Markdown parser's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class MarkdownTable:
    """One table. Lines count from 1; cells are Markdown text without the padding around them."""

    line: int
    header: tuple[str, ...]
    row_lines: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]


@lru_cache(maxsize=4)  # the planner asks, then the editor
def find_tables(text: str) -> tuple[MarkdownTable, ...]:
    """Every table of a document, as the GitHub dialect reads it."""
    from markdown_it import MarkdownIt

    tables: list[MarkdownTable] = []
    rows: list[tuple[int, tuple[str, ...]]] = []
    cells: list[str] = []
    line = 0
    in_cell = False
    # We compare cells as the file writes them, so we leave out the inline rules, two thirds of the work.
    parser = MarkdownIt("commonmark").enable("table").disable(["inline", "text_join"])
    for token in parser.parse(text):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            assert token.map is not None
            cells, line = [], token.map[0] + 1
        elif token.type in ("th_open", "td_open"):
            in_cell = True
        elif token.type == "inline" and in_cell:
            cells.append(token.content.strip())
            in_cell = False
        elif token.type == "tr_close":
            rows.append((line, tuple(cells)))
        elif token.type == "table_close":
            (first, header), *body = rows
            tables.append(MarkdownTable(first, header, tuple(line for line, _ in body), tuple(row for _, row in body)))
    return tuple(tables)
