"""Add one row to a Markdown table: one line of text is spliced in, nothing else is touched."""

from __future__ import annotations

from itertools import pairwise

from scaffold.edit.document import line_end, split_lines
from scaffold.edit.faults import ambiguous_anchor, missing_anchor
from scaffold.edit.operations import AddTableRow
from scaffold.protocol.tables import MarkdownTable, find_tables


def plain_key(cell: str) -> str:
    """A cell's text as a key: without the backticks and the space around it."""
    return cell.replace("`", "").strip()


def add_table_row(text: str, edit: AddTableRow, path: str) -> str:
    """The document with the row. Errors: VCG430, VCG431."""
    tables = find_tables(text)
    found = [table for table in tables if table.header == edit.header]
    if not found:
        raise missing_anchor(
            path, "table with the header", _title(edit.header), (_title(table.header) for table in tables)
        )
    if len(found) > 1:
        raise ambiguous_anchor(path, "table with the header", _title(edit.header), (table.line for table in found))
    table = found[0]
    keys = [plain_key(row[0]) for row in table.rows]
    wanted = plain_key(edit.row_key)
    if wanted in keys:
        return text
    place = _place(keys, wanted)
    lines = split_lines(text)
    # The line above the new row: a body row, or the delimiter line under the header.
    above = (table.row_lines[place - 1] if place else table.line + 1) - 1
    row = _render_row(edit.cells, table, lines)
    newline = line_end(lines)
    if lines[above].endswith(("\n", "\r")):
        lines.insert(above + 1, row + newline)
    else:  # the table ends the file, and the file has no newline at its end
        lines[above] += newline
        lines.append(row)
    return "".join(lines)


def _place(keys: list[str], key: str) -> int:
    """Where the fewest rows are out of order beside the new one; the end of a table that is in no order.

    vLLM's table is in order but for the rows that somebody put at the end or below a relative.
    """
    ordered = sum(left <= right for left, right in pairwise(keys))
    if not ordered or 2 * ordered < len(keys) - 1:
        return len(keys)

    def misplaced(place: int) -> int:
        return sum(other > key for other in keys[:place]) + sum(other < key for other in keys[place:])

    return min(range(len(keys), -1, -1), key=misplaced)


def _title(header: tuple[str, ...]) -> str:
    return " | ".join(header)


def _render_row(cells: tuple[str, ...], table: MarkdownTable, lines: list[str]) -> str:
    """The row in the table's own dialect: its outer pipes, its indentation, its alignment if every line is aligned."""
    model = lines[(table.row_lines[-1] if table.row_lines else table.line) - 1].rstrip("\r\n")
    start = len(model) - len(model.lstrip(" \t>"))
    opens = model[start:].startswith("|")
    closes = model.rstrip().endswith("|")
    escaped = [cell.strip().replace("\\|", "|").replace("|", "\\|") for cell in cells]
    widths = _common_widths(table, lines, start)
    if widths:
        escaped = [cell.ljust(width) for cell, width in zip(escaped, widths, strict=True)]
    return model[:start] + ("| " if opens else "") + " | ".join(escaped) + (" |" if closes else "")


def _common_widths(table: MarkdownTable, lines: list[str], start: int) -> list[int]:
    """The columns' widths if all lines of the table put their pipes at the same places, else nothing."""
    rows = [lines[number - 1].rstrip("\r\n")[start:] for number in (table.line, *table.row_lines)]
    pipes = [
        [place for place, char in enumerate(row) if char == "|" and row[place - 1 : place] != "\\"] for row in rows
    ]
    if len(rows) < 2 or any(row != pipes[0] for row in pipes) or len(pipes[0]) != len(table.header) + 1:
        return []
    return [right - left - 3 for left, right in zip(pipes[0], pipes[0][1:], strict=False)]
