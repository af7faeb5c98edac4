"""Numbers of `engine_gpu.py` on the pages."""

from __future__ import annotations

from typing import Any

from measured import Block, Part, Sentence, load, table

PAGE = "docs/operators.md"
MODES = ("eager", "vllm_graphs", "ours")


def parts() -> list[Part]:
    result = load("engine_h200")
    rows = {row["images"]: row for row in result["rows"]}
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
        Sentence(
            "README.md",
            "the encoder of a 1280x720 image takes {} ms; {} eagerly, {} with vLLM's graphs",
            tuple(f"{rows['1 x 1280x720'][f'{mode}_encoder_ms']:.1f}" for mode in ("ours", "eager", "vllm_graphs")),
        ),
    ]


def _stream(detail: dict[str, Any], mode: str) -> dict[str, Any]:
    return detail[mode]["stream"][0]


def times(rows: list[dict[str, Any]]) -> str:
    lines = [
        [row["images"], *(f"{row[f'{mode}{kind}_ms']:.1f}" for kind in ("_encoder", "") for mode in MODES)]
        for row in rows
    ]
    head = ["images", "encoder: eager", "vLLM's graphs", "ours", "request: eager", "vLLM's graphs", "ours"]
    return table(head, lines)
