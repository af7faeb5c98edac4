"""Add one row to a Markdown table: markdown-it finds the table, one line of text is spliced in, nothing else is
touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaffold.edit.document import split_lines
from scaffold.edit.faults import ambiguous_anchor, missing_anchor
from scaffold.edit.operations import AddTableRow


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a document: line indices (from 0) of the header and of each body row, and all cells."""

    header_line: int
    header: tuple[str, ...]
    row_lines: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(plain_key(row[0]) for row in self.rows)


def plain_key(cell: str) -> str:
    """A cell's text as a key: without the backticks and the space around it."""
    return cell.replace("`", "").strip()


def find_tables(text: str) -> tuple[Table, ...]:
    """Every table of a Markdown document, as the GitHub dialect reads it."""
    from markdown_it import MarkdownIt

    tables: list[Table] = []
    cells: list[str] = []
    rows: list[tuple[int, tuple[str, ...]]] = []
    in_cell = False
    # Cells are compared as they are written, so the inline rules, two thirds of the work, are left out.
    parser = MarkdownIt("commonmark").enable("table").disable(["inline", "text_join"])
    for token in parser.parse(text):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open":
            cells = []
            line = token.map[0] if token.map else 0
        elif token.type in ("th_open", "td_open"):
            in_cell = True
        elif token.type == "inline" and in_cell:
            cells.append(token.content.strip())
            in_cell = False
        elif token.type == "tr_close":
            rows.append((line, tuple(cells)))
        elif token.type == "table_close":
            (first, header), *body = rows
            tables.append(Table(first, header, tuple(line for line, _ in body), tuple(row for _, row in body)))
    return tuple(tables)


def add_table_row(text: str, edit: AddTableRow, path: str) -> str:
    """The document with the row. Errors: VCG430, VCG431."""
    tables = find_tables(text)
    found = [table for table in tables if table.header == edit.header]
    if not found:
        raise missing_anchor(
            path, "table with the header", _title(edit.header), (_title(table.header) for table in tables)
        )
    if len(found) > 1:
        raise ambiguous_anchor(
            path, "table with the header", _title(edit.header), (table.header_line + 1 for table in found)
        )
    table = found[0]
    keys = table.keys
    wanted = plain_key(edit.row_key)
    if wanted in keys:
        return text
    place = len(keys)
    if len(keys) >= 2 and list(keys) == sorted(keys):
        place = sum(key < wanted for key in keys)
    lines = split_lines(text)
    # The line above the new row: a body row, or the delimiter line under the header.
    above = table.row_lines[place - 1] if place else table.header_line + 1
    row = _render_row(edit.cells, table, lines)
    newline = next((line[len(line.rstrip("\r\n")) :] for line in lines if line.endswith(("\n", "\r"))), "\n")
    if lines[above].endswith(("\n", "\r")):
        lines.insert(above + 1, row + newline)
    else:  # the table ends the file, and the file has no newline at its end
        lines[above] += newline
        lines.append(row)
    return "".join(lines)


def _title(header: tuple[str, ...]) -> str:
    return " | ".join(header)


def _render_row(cells: tuple[str, ...], table: Table, lines: list[str]) -> str:
    """The row in the table's own dialect: its outer pipes, its indentation, its alignment if every line is aligned."""
    model = lines[table.row_lines[-1] if table.row_lines else table.header_line].rstrip("\r\n")
    start = len(model) - len(model.lstrip(" \t>"))
    opens = model[start:].startswith("|")
    closes = model.rstrip().endswith("|")
    escaped = [cell.strip().replace("\\|", "|").replace("|", "\\|") for cell in cells]
    widths = _common_widths(table, lines, start)
    if widths:
        escaped = [cell.ljust(width) for cell, width in zip(escaped, widths, strict=True)]
    return model[:start] + ("| " if opens else "") + " | ".join(escaped) + (" |" if closes else "")


def _common_widths(table: Table, lines: list[str], start: int) -> list[int]:
    """The columns' widths if all lines of the table put their pipes at the same places, else nothing."""
    numbers = [table.header_line, *table.row_lines]
    rows = [lines[number].rstrip("\r\n")[start:] for number in numbers]
    pipes = [
        [place for place, char in enumerate(row) if char == "|" and row[place - 1 : place] != "\\"] for row in rows
    ]
    if len(rows) < 2 or any(row != pipes[0] for row in pipes) or len(pipes[0]) != len(table.header) + 1:
        return []
    return [right - left - 3 for left, right in zip(pipes[0], pipes[0][1:], strict=False)]
