"""docs/measured/cuts.md: the results of `cut_gpu.py`."""

from __future__ import annotations

from measured import NAMES, RESULTS, Page, load, page, table

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


def pages() -> list[Page]:
    results = sorted(path.stem for path in RESULTS.glob("cut_*.json"))
    rows = [row for name in results for row in load(name)["rows"]]
    lines = []
    for row in rows:
        times = [f"{row[f'{way}_ms']:.1f}" for way in ("eager", "vllm", "ours", "limit")]
        errors = ["not finite" if row[key] is None else f"{row[key]:.4f}" for key in ("ours_error", "alone_error")]
        lines.append([NAMES[row["model"]], row["call"], *times, *errors])
    slower = sorted({NAMES[row["model"]] for row in rows if row["ours_ms"] > max(row["eager_ms"], row["limit_ms"])})
    return [
        page(
            "cuts",
            "What does a graph of the encoder alone bring?",
            "benchmarks/cut_gpu.py",
            results,
            "# Encoders that are cut out",
            "A cut pays where launches take the time. It brings nothing where a call has many tiles.",
            f"Some calls are slower with ours than eager: {', '.join(slower)}." if slower else "",
            table(HEAD, lines),
            """* Phi-3-V pads every image to many tiles. So its calls are large from the first image on, and no graph
            has exactly their size.
* For Mistral 3 a call is recorded before each replay, in the model's own code. That recording is the distance to the
            limit.
* Errors are rounding. Eager differs as much when each image comes alone, because matrix products of other sizes
            run other kernels.""",
            "## How it was measured",
            """The vision classes have real sizes, random weights in bfloat16 and FLASH_ATTN. LLaVA-NeXT and
            Mistral 3 are shipped. `init --yes` drafted the other descriptors. Both managers have their default
            budgets, and ours runs without tuning. *limit* is a graph of exactly the call's size followed by the
            model's own assembly: no manager can beat it. An error is the largest difference from eager, relative
            to the largest value.""",
        )
    ]
