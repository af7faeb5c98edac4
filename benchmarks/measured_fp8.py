"""docs/measured/fp8.md: the results of `fp8_gpu.py` and of `fp8_checkpoint_gpu.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from measured import NAMES, Page, by_model, load, low_high, mean, over, sheet, table, text_page

from scaffold.runtime.tuning.fp8 import LEAST_ROWS

COLUMNS = (
    ("model", "{first}"), ("input", "{workload}"), ("tokens", "{tokens}"), ("tuned, ms", "{tuned_ms:.2f}"),
    ("with FP8, ms", "{fp8_ms:.2f}"), ("FP8 / tuned", over("fp8_ms", "tuned_ms")),
    ("largest error, tuned", "{tuned_error:.3f}"), ("with FP8", "{fp8_error:.3f}"),
)  # fmt: skip


def share(row: Mapping[str, Any]) -> float:
    return float(row["fp8_ms"] / row["tuned_ms"])


def runs_fp8(row: Mapping[str, Any]) -> bool:
    """Whether a workload has rows enough: the others' answers are those of the tuned tower."""
    return bool(row["fp8_error"] != row["tuned_error"])


def pages() -> list[Page]:
    result = load("fp8_h200")
    rows = {name: found for name, found in by_model(result["rows"]).items() if name in NAMES}
    served = [row for found in rows.values() for row in found if runs_fp8(row)]
    others = [row for found in rows.values() for row in found if not runs_fp8(row)]
    gains = ", ".join(
        f"{NAMES[name]} {mean(share(r) for r in found if runs_fp8(r)):.2f}" for name, found in rows.items()
    )
    memory = ", ".join(
        f"{NAMES[name]} {result['models'][name]['extra_mb']['fp8'] - result['models'][name]['extra_mb']['tuned']:.0f}"
        for name in rows
    )
    known = {
        "gains": gains, "least_rows": LEAST_ROWS, "memory": memory, "others": len(others),
        "served": sheet(COLUMNS, (row for found in rows.values() for row in by_size(found) if runs_fp8(row))),
        "other_shares": low_high(map(share, others), 3), "growth": layers(result),
        "fp8_errors": low_high((row["fp8_error"] for row in served), 2),
        "tuned_errors": low_high((row["tuned_error"] for row in served), 3),
        **checkpoints(load("fp8_checkpoint_h100")),
    }  # fmt: skip
    return [text_page("fp8", ["fp8_h200", "fp8_checkpoint_h100"], known)]


CHECKPOINT_COLUMNS = (
    ("model", "{first}"), ("input", "{workload}"), ("tokens", "{tokens}"), ("untuned, ms", "{untuned_ms:.2f}"),
    ("tuned without `fp8-inputs`, ms", "{without_ms:.2f}"), ("with it, ms", "{tuned_ms:.2f}"),
    ("with / untuned", over("tuned_ms", "untuned_ms")), ("bfloat16 tuned, ms", "{bf16_ms:.2f}"),
    ("largest error, without", "{without_error:.3f}"), ("with", "{tuned_error:.3f}"),
    ("own rounding", "{rounding:.3f}"),
)  # fmt: skip


def checkpoints(result: Mapping[str, Any]) -> dict[str, Any]:
    """The tables and shares of checkpoints whose vision weights are FP8."""
    rows = by_model(result["rows"])
    shares = {
        (way, other): ", ".join(
            f"{NAMES[name]} {mean(float(row[f'{way}_ms'] / row[f'{other}_ms']) for row in found):.2f}"
            for name, found in rows.items()
        )
        for way, other in (("tuned", "untuned"), ("tuned", "without"), ("tuned", "bf16"), ("without", "bf16"))
    }
    widths = {found["width"]: found for model in result["models"].values() for found in model["conversions"]}
    converted = (
        [str(width), *(f"{found[f'{way}_us']:.1f}" for way in ("engine", "operator", "ours"))]
        for width, found in sorted(widths.items())
    )
    return {
        "checkpoint_shares": shares,
        "checkpoints": sheet(CHECKPOINT_COLUMNS, (row for found in rows.values() for row in by_size(found))),
        "conversions": table(("columns", "vLLM's, default engine", "vLLM's operator", "ours"), converted),
    }


def by_size(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: row["tokens"])


def layers(result: Mapping[str, Any]) -> str:
    """How the difference grows from block to block."""
    lines = []
    for name, label in NAMES.items():
        found = result["models"].get(name, {}).get("layers")
        if found:
            fp8, count = found["fp8"], len(found["fp8"])
            shown = [fp8[1], fp8[count // 4 - 1], fp8[count // 2 - 1], fp8[-1], found["tuned"][-1]]
            lines.append([label, found["workload"], *(f"{value:.3f}" for value in shown)])
    return table(("", "workload", "FP8 after the first block", "a quarter", "half", "all", "tuned after all"), lines)
