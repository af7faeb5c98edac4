"""docs/measured/attention.md: the results of `attention_gpu.py`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from measured import Page, load, table, text_page

from scaffold.runtime.tuning import flash4

FLASH3 = "FlashAttention 3"


def chosen(row: Mapping[str, Any], processors: int) -> str:
    """The kernel that `fitted-attention` takes for a row."""
    lengths = row["sequences"]
    kernel = flash4.choose(row["head_size"], row["heads"], len(lengths), sum(lengths), max(lengths), processors)
    return FLASH3 if kernel is None else f"{kernel.rows}x{kernel.columns}"


def share(row: Mapping[str, Any], processors: int) -> float:
    """Time of the chosen kernel, relative to FlashAttention 3 as vLLM calls it."""
    return float(row["us"][chosen(row, processors)] / row["us"][FLASH3])


def best(row: Mapping[str, Any]) -> float:
    """Time of the fastest kernel that the tuning may choose."""
    return float(min(us for name, us in row["us"].items() if name == FLASH3 or "x" in name))


def pages() -> list[Page]:
    result = load("attention_h200")
    processors = result["processors"]
    shares = [share(row, processors) for row in result["rows"]]
    losses = [row["us"][chosen(row, processors)] / best(row) for row in result["rows"]]
    parts = [part for size in flash4.KERNELS for part in (f"## Heads of {size} lanes", of(result, size))]
    known = {"shares": shares, "losses": losses, "mean": statistics.geometric_mean, "parts": parts}
    return [text_page("attention", ["attention_h200"], {**known, "heads": result["rows"][0]["heads"]})]


def of(result: Mapping[str, Any], size: int) -> str:
    """The table of one head size."""
    rows = [row for row in result["rows"] if row["head_size"] == size]
    names = list(dict.fromkeys(name for row in rows for name in row["us"]))
    lines = []
    for row in sorted(rows, key=lambda row: (row["tiles"], sum(row["sequences"]))):
        taken = chosen(row, result["processors"])
        cells = (f"{row['us'][name]:.1f}" if name in row["us"] else "" for name in names)
        marked = (f"**{cell}**" if name == taken else cell for name, cell in zip(names, cells, strict=True))
        lines.append([described(row), *marked])
    return table(["rows", *names], lines)


def described(row: Mapping[str, Any]) -> str:
    lengths = row["sequences"]
    if len(set(lengths)) > 1:
        return " + ".join(map(str, lengths))
    several = f"{len(lengths)} x {lengths[0]}" if len(lengths) > 1 else str(lengths[0])
    return f"{several}, tiles" if row["tiles"] else several
