"""Numbers of `stream_gpu.py` on the pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measured import NAMES, Block, Part, by_model, load, low_high, table

#: What is wanted of a first pass over vLLM's: its sum, and its slowest calls.
SUM, SLOWEST = 0.90, 1.00


def rows(tuning: str) -> list[dict[str, Any]]:
    """Every pass of every stream."""
    return [row for row in load("stream_h200")["rows"] if row["tuning"] == tuning]


def first_over_vllm(tuning: str) -> list[float]:
    """Sums of the first passes over vLLM's."""
    return [row["ours_ms"] / row["vllm_ms"] for row in rows(tuning) if row["pass"] == 1]


def parts() -> list[Part]:
    return [
        Block("docs/runtime.md", "streams", streams()),
        Block(
            "docs/runtime.md", "streams not reached", "\n".join(not_reached()) or "Every stream reaches these bounds."
        ),
        Block("docs/runtime.md", "starts", starts()),
        Block("docs/runtime.md", "plans", plans()),
    ]


def streams() -> str:
    """A line a stream: sums of a pass in ms, and the slowest calls of the first one."""
    head = [
        "",
        "stream",
        "tuning",
        "eager",
        "vLLM",
        "ours: first pass",
        "second",
        "third",
        "p99 of the first: vLLM",
        "ours",
    ]
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for tuning in ("on", "off"):
        for model, passes in by_model(rows(tuning)).items():
            for row in passes:
                found.setdefault((model, row["stream"], tuning), []).append(row)
    order = [*NAMES]
    return table(
        head,
        [
            [
                NAMES[model], stream, tuning, f"{passes[0]['eager_ms']:.0f}", f"{passes[0]['vllm_ms']:.0f}",
                *(f"{row['ours_ms']:.0f}" for row in passes),
                f"{passes[0]['vllm_p99_ms']:.1f}", f"{passes[0]['ours_p99_ms']:.1f}",
            ]
            for (model, stream, tuning), passes in sorted(found.items(), key=lambda item: order.index(item[0][0]))
        ],
    )  # fmt: skip


def not_reached() -> Iterator[str]:
    """First passes that miss what is wanted, and later passes that are slower than the one before."""
    for tuning in ("on", "off"):
        before: dict[str, Any] = {}
        for row in rows(tuning):
            name = f"{NAMES[row['model']]}, {row['stream']}, tuning {tuning}"
            total, slowest = row["ours_ms"] / row["vllm_ms"], row["ours_p99_ms"] / row["vllm_p99_ms"]
            if row["pass"] == 1:
                if total > SUM or slowest > SLOWEST:
                    yield f"* {name}: the first pass takes {total:.2f} of vLLM's, its slowest calls {slowest:.2f}."
            elif row["ours_ms"] > 1.01 * before["ours_ms"]:
                more = row["ours_ms"] / before["ours_ms"]
                vllm = row["vllm_ms"] / before["vllm_ms"]
                yield f"* {name}: pass {row['pass']} takes {more:.3f} of the pass before it (vLLM's {vllm:.3f})."
            before = row


def starts() -> str:
    """Seconds and mebibytes of the start."""
    models = load("stream_h200")["models"]
    ways = ("vllm", "off", "on")
    return table(
        ["", *(f"{what}: {way}" for what in ("start, s", "MiB") for way in ("vLLM", "ours, tuning off", "ours"))],
        [
            [
                NAMES[name],
                *(f"{models[name]['warm_start_s'][way]:.2f}" for way in ways),
                *(f"{models[name]['memory_mb'][way]}" for way in ways),
            ]
            for name in NAMES
            if name in models
        ],
    )


def plans() -> str:
    models = load("stream_h200")["models"]
    values = [f"{NAMES[name]} {found['plan_ms']['off']['median']:.2f}" for name, found in models.items()]
    return f"Host time of the plan of eight items of new sizes, median of 20, in ms: {', '.join(values)}."


def in_words(tuning: str) -> str:
    """The range over models and streams, as a share of vLLM's time."""
    low, high = low_high(first_over_vllm(tuning))
    return f"{low} to {high}"
