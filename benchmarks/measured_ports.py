"""docs/measured/ports.md: the results of `ports_gpu.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from measured import NAMES, RESULTS, Page, PageError, load, mean, table, text_page

#: A result is right when its largest difference to eager is below this share of the largest value.
BOUND = 0.05


def right(row: Mapping[str, Any], side: str) -> bool:
    """Whether a result was right. The files hold null for one that was not finite, and that is wrong."""
    error = row[f"{side}_error"]
    return error is not None and error < BOUND


def release(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(number) for number in row["vllm"].split("."))


def results() -> list[str]:
    return sorted(path.stem for path in RESULTS.glob("ports_h200_*.json"))


def groups() -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(release, model, backend) -> its workloads, in the order of the page: the newest release first."""
    rows = [{**row, "vllm": result["versions"]["vllm"]} for result in map(load, results()) for row in result["rows"]]

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return [-number for number in release(row)], list(NAMES).index(row["model"]), row["backend"]

    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=place):
        found.setdefault((row["vllm"], row["model"], row["backend"]), []).append(row)
    return found


def newest_right() -> tuple[list[int], int]:
    """With vLLM's default attention and the newest release: the number of workloads on which upstream's port of each
    model was right, and of all workloads of a model."""
    found = groups()
    newest = next(iter(found))[0]
    of_newest = [rows for (vllm, _, backend), rows in found.items() if (vllm, backend) == (newest, "FLASH_ATTN")]
    counts = [sum(right(row, "upstream") for row in rows) for rows in of_newest]
    (each,) = {len(rows) for rows in of_newest}
    return counts, each


def pages() -> list[Page]:
    lines, largest, wrong = [], 0.0, []
    for (vllm, model, backend), rows in groups().items():
        fair = [row for row in rows if right(row, "upstream")]
        if not all(right(row, "generated") for row in rows):
            raise PageError("a generated port was wrong: README.md and docs/measured/ports.md say that none was")
        largest = max(largest, *(row["generated_error"] for row in rows))
        wrong += [row["upstream_error"] for row in rows if row["upstream_error"] is not None and row not in fair]
        lines.append(
            [
                vllm.removesuffix(".0"),
                NAMES[model],
                backend,
                f"{len(fair)} of {len(rows)}",
                f"{len(rows)} of {len(rows)}",
                f"{mean(row['generated_ms'] / row['upstream_ms'] for row in fair):.2f}",
            ]
        )
    head = ["vLLM", "model", "attention", "upstream right", "generated right"]
    ports = table([*head, "generated / upstream time, where upstream is right"], lines)
    known = {"ports": ports, "bound": BOUND, "largest": largest, "least": math.floor(100 * min(wrong))}
    return [text_page("ports", results(), known)]
