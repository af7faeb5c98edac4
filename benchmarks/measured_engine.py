"""Numbers of `engine_gpu.py` on the pages."""

from __future__ import annotations

from typing import Any

from measured import Block, Part, Sentence, load, table

PAGE = "docs/operators.md"
MODES = ("eager", "vllm_graphs", "ours")


def parts() -> list[Part]:
    result = load("engine_h200")
    detail = result["models"]["qwen2_vl"]
    return [
        Block(PAGE, "engine", times(result["rows"])),
        Sentence(
            PAGE,
            "Seconds in all: eager {}, vLLM's graphs {}, ours {}; "
            "median (95 %) of a request {} ({}), {} ({}), {} ({}) ms",
            (
                *(f"{_stream(detail, mode)['seconds']:.2f}" for mode in MODES),
                *(f"{_stream(detail, mode)[key]:.0f}" for mode in MODES for key in ("p50_ms", "p95_ms")),
            ),
        ),
        Sentence(
            PAGE,
            "{} KV-cache blocks are left with ours, {} with vLLM's graphs, {} without graphs",
            tuple(str(detail[mode]["at_end"][0]["kv_blocks"]) for mode in ("ours", "vllm_graphs", "eager")),
        ),
    ]


def encoder(model: str, images: str) -> dict[str, float]:
    """Milliseconds of the encoder of a request, by mode."""
    row = next(row for row in load("engine_h200")["rows"] if (row["model"], row["images"]) == (model, images))
    return {mode: row[f"{mode}_encoder_ms"] for mode in MODES}


def _stream(detail: dict[str, Any], mode: str) -> dict[str, Any]:
    return detail[mode]["stream"][0]


def times(rows: list[dict[str, Any]]) -> str:
    lines = [
        [row["images"], *(f"{row[f'{mode}{kind}_ms']:.1f}" for kind in ("_encoder", "") for mode in MODES)]
        for row in rows
    ]
    head = ["images", "encoder: eager", "vLLM's graphs", "ours", "request: eager", "vLLM's graphs", "ours"]
    return table(head, lines)
