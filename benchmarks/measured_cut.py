"""What `cut_gpu.py` measured, on the page."""

from __future__ import annotations

from measured import NAMES, RESULTS, Block, Part, load, table

PAGE = "docs/measured.md"
HEAD = [
    "model",
    "call",
    "eager, ms",
    "vLLM's manager",
    "ours",
    "limit",
    "largest error, ours",
    "eager, each item alone",
]


def parts() -> list[Part]:
    rows = [row for path in sorted(RESULTS.glob("cut_*.json")) for row in load(path.stem)["rows"]]
    lines = []
    for row in rows:
        times = [f"{row[f'{way}_ms']:.1f}" for way in ("eager", "vllm", "ours", "limit")]
        errors = ["not finite" if row[key] is None else f"{row[key]:.4f}" for key in ("ours_error", "alone_error")]
        lines.append([NAMES[row["model"]], row["call"], *times, *errors])
    return [Block(PAGE, "cut", table(HEAD, lines))]
