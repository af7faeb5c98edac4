"""docs/measured/fp8.md: the results of `fp8_gpu.py` and of `fp8_checkpoint_gpu.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from measured import NAMES, ROOT, Page, by_model, load, low_high, mean, over, page, sheet, table

sys.path.insert(0, str(ROOT))

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
    text = page(
        "fp8",
        "What does FP8 in the tower gain, and what does it change?",
        "benchmarks/fp8_gpu.py",
        ["fp8_h200", "fp8_checkpoint_h100"],
        "# Towers in FP8",
        f"""With [`fp8-linears`](../tuning.md#fp8) the exact graph of a tuned tower takes this share of its time, the
        geometric mean over the inputs of {LEAST_ROWS} rows and more: {gains}.""",
        sheet(COLUMNS, (row for found in rows.values() for row in by_size(found) if runs_fp8(row))),
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
        *checkpoints(load("fp8_checkpoint_h100")),
        "## How it was measured",
        """Three towers with equal random weights at real sizes ran side by side with FLASH_ATTN in bfloat16. Calls of
        the exact graphs of two of them interleave. `benchmarks/fp8_checkpoint_gpu.py` measured the checkpoints: four
        towers of each model, whose exact graphs interleave.""",
    )
    return [text]


CHECKPOINT_COLUMNS = (
    ("model", "{first}"), ("input", "{workload}"), ("tokens", "{tokens}"), ("untuned, ms", "{untuned_ms:.2f}"),
    ("tuned without `fp8-inputs`, ms", "{without_ms:.2f}"), ("with it, ms", "{tuned_ms:.2f}"),
    ("with / untuned", over("tuned_ms", "untuned_ms")), ("bfloat16 tuned, ms", "{bf16_ms:.2f}"),
    ("largest error, without", "{without_error:.3f}"), ("with", "{tuned_error:.3f}"),
    ("own rounding", "{rounding:.3f}"),
)  # fmt: skip


def checkpoints(result: Mapping[str, Any]) -> list[str]:
    """The section on checkpoints whose vision weights are FP8."""
    rows = by_model(result["rows"])
    shares = {
        (way, other): ", ".join(
            f"{NAMES[name]} {mean(float(row[f'{way}_ms'] / row[f'{other}_ms']) for row in found):.2f}"
            for name, found in rows.items()
        )
        for way, other in (("tuned", "untuned"), ("tuned", "without"), ("tuned", "bf16"), ("without", "bf16"))
    }
    widths = {found["width"]: found for model in result["models"].values() for found in model["conversions"]}
    return [
        "## Checkpoints in FP8",
        f"""A checkpoint may bring FP8 weights for its tower. vLLM then converts the inputs of each layer row by row.
        [`fp8-inputs`](../tuning.md#checkpoints-in-fp8), on by default, does that in one kernel. The exact graph of the
        tuned tower takes this share of the untuned one's time, the geometric mean over the inputs:
        {shares["tuned", "untuned"]}. It takes this share of the time with all other tunings:
        {shares["tuned", "without"]}.""",
        f"""The tuned tower with the same weights in bfloat16 is another measure. The one in FP8 takes this share of its
        time: {shares["tuned", "bf16"]}. Without `fp8-inputs` it is {shares["without", "bf16"]}.""",
        sheet(CHECKPOINT_COLUMNS, (row for found in rows.values() for row in by_size(found))),
        """Errors are relative to the largest value of the untuned FP8 tower's answer. Its own rounding is how far that
        answer moves when every pixel moves by at most half a step of bfloat16. It is that large because a value that
        moves by a rounding may take the next step of FP8, which is a sixteenth. Step3-VL is not in the table, since it
        gives its tower no quantisation. FlashAttention 4, and so `fitted-attention`, was not installed.""",
        """One conversion takes this many microseconds. In a default engine vLLM compiles it for any number of rows; the
        operator runs where custom operators are on.""",
        table(
            ("columns", "vLLM's, default engine", "vLLM's operator", "ours"),
            [
                [str(width), *(f"{found[f'{way}_us']:.1f}" for way in ("engine", "operator", "ours"))]
                for width, found in sorted(widths.items())
            ],
        ),
    ]


def by_size(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: row["tokens"])


def layers(result: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for name, label in NAMES.items():
        found = result["models"].get(name, {}).get("layers")
        if found:
            fp8, count = found["fp8"], len(found["fp8"])
            shown = [fp8[1], fp8[count // 4 - 1], fp8[count // 2 - 1], fp8[-1], found["tuned"][-1]]
            lines.append([label, found["workload"], *(f"{value:.3f}" for value in shown)])
    return lines
