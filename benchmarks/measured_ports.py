"""Numbers of `ports_gpu.py` on the pages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from measured import NAMES, RESULTS, Block, PageError, Part, Sentence, load, mean, table

#: A result is right when its largest difference to eager is below this share of the largest value.
BOUND = 0.05


def right(row: Mapping[str, Any], side: str) -> bool:
    """Not so where the result was not finite, which the files hold as null."""
    error = row[f"{side}_error"]
    return error is not None and error < BOUND


def release(row: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(number) for number in row["vllm"].split("."))


def parts() -> list[Part]:
    rows = [
        {**row, "vllm": result["versions"]["vllm"]}
        for result in (load(path.stem) for path in RESULTS.glob("ports_h200_*.json"))
        for row in result["rows"]
    ]
    newest = max(map(release, rows))
    order = list(NAMES)

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return [-number for number in release(row)], order.index(row["model"]), row["backend"]

    lines, newest_right = [], []
    for _, group in itertools.groupby(sorted(rows, key=place), key=place):
        found = list(group)
        fair = [row for row in found if right(row, "upstream")]
        generated = sum(right(row, "generated") for row in found)
        if generated != len(found):
            raise PageError("a generated port was wrong: README.md and docs/measured.md say that none was")
        if release(found[0]) == newest:
            newest_right.append(len(fair))
        lines.append(
            [
                _short(found[0]["vllm"]),
                NAMES[found[0]["model"]],
                found[0]["backend"],
                f"{len(fair)} of {len(found)}",
                f"{generated} of {len(found)}",
                f"{mean(row['generated_ms'] / row['upstream_ms'] for row in fair):.2f}",
            ]
        )
    wrong = [row["upstream_error"] for row in rows if not right(row, "upstream") and row["upstream_error"] is not None]
    largest = max(row["generated_error"] for row in rows)
    head = ["vLLM", "model", "attention", "upstream right", "generated right"]
    each = str(len(rows) // len(lines))
    return [
        Block("docs/measured.md", "ports", table([*head, "generated / upstream time, where upstream is right"], lines)),
        Sentence(
            "docs/measured.md",
            "below {} % of the largest value; the generated ports' largest is {} %, wrong ones are above {} % or not "
            "finite",
            (f"{100 * BOUND:.0f}", f"{100 * largest:.1f}", str(math.floor(100 * min(wrong)))),
        ),
        Sentence(
            "README.md",
            "generated ports were right on {} of {} workloads for every model and backend that was measured; vLLM "
            "{}'s own ones on {} to {} of {}",
            (each, each, f"{newest[0]}.{newest[1]}", str(min(newest_right)), str(max(newest_right)), each),
        ),
    ]


def _short(version: str) -> str:
    return version.removesuffix(".0")
