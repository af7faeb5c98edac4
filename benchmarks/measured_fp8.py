"""docs/measured/fp8.md: the results of `fp8_gpu.py`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from measured import NAMES, ROOT, Page, by_model, load, low_high, mean, page, table

sys.path.insert(0, str(ROOT))

from scaffold.runtime.tuning.fp8 import LEAST_ROWS

HEAD = ("model", "input", "tokens", "tuned, ms", "with FP8, ms", "FP8 / tuned", "largest error, tuned", "with FP8")


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
    text = page(
        "fp8",
        "What does FP8 in the tower gain, and what does it change?",
        "benchmarks/fp8_gpu.py",
        ["fp8_h200"],
        "# Towers in FP8",
        f"""With [`fp8-linears`](../tuning.md#fp8) the exact graph of a tuned tower takes this share of its time, the
        geometric mean over the inputs of {LEAST_ROWS} rows and more: {gains}.""",
        table(HEAD, workloads(rows)),
        f"""The other {len(others)} inputs have fewer rows and run as without FP8, in
        {" to ".join(low_high((share(row) for row in others), 3))} of the time. The FP8 form of the weights takes memory
        beside them, in MiB: {memory}.""",
        "## What it changes",
        f"""The largest difference from the untuned tower's eager answer is
        {" to ".join(low_high((row["fp8_error"] for row in served), 2))} of the largest value;
        {" to ".join(low_high((row["tuned_error"] for row in served), 3))} without FP8. The table shows how the
        difference grows: its length after a block, relative to the length of the untuned tower's. The weights are
        random, so that these numbers say nothing about the accuracy of a model's answers. Measure that on your own
        task.""",
        table(
            ("", "workload", "FP8 after the first block", "a quarter", "half", "all", "tuned after all"), layers(result)
        ),
        "## How it was measured",
        """Three towers with equal random weights at real sizes ran side by side with FLASH_ATTN in bfloat16. Calls of
        the exact graphs of two of them interleave.""",
    )
    return [text]


def workloads(rows: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for name, found in rows.items():
        served = sorted((row for row in found if runs_fp8(row)), key=lambda row: row["tokens"])
        for place, row in enumerate(served):
            lines.append(
                [NAMES[name] if place == 0 else "", row["workload"], str(row["tokens"]), f"{row['tuned_ms']:.2f}",
                 f"{row['fp8_ms']:.2f}", f"{share(row):.2f}", f"{row['tuned_error']:.3f}", f"{row['fp8_error']:.3f}"]
            )  # fmt: skip
    return lines


def layers(result: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for name, label in NAMES.items():
        found = result["models"].get(name, {}).get("layers")
        if found:
            fp8, count = found["fp8"], len(found["fp8"])
            shown = [fp8[1], fp8[count // 4 - 1], fp8[count // 2 - 1], fp8[-1], found["tuned"][-1]]
            lines.append([label, found["workload"], *(f"{value:.3f}" for value in shown)])
    return lines
