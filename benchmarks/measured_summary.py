"""The table of README.md and of the start page: one line of each kind of result."""

from __future__ import annotations

import measured_engine
import measured_manager
import measured_ports
import measured_stream
import measured_tuning
from measured import Block, Part, load, low_high, table

IMAGE = "1 x 1280x720"


def parts() -> list[Part]:
    right, each = measured_ports.newest_right()
    ours, theirs = (measured_manager.over_exact(kind) for kind in ("ours", "vllm"))
    image = IMAGE.removeprefix("1 x ")
    engine = next(row for row in load("engine_h200")["rows"] if (row["model"], row["images"]) == ("qwen2_vl", IMAGE))
    release = ".".join(load("manager_h200")["versions"]["vllm"].split(".")[:2])
    rows = [
        [f"workloads with correct embeddings, of {each}", str(each), _range(right, 0), str(each)],
        ["time of a call, relative to a graph of exactly its size", "", _range(theirs), _range(ours)],
        ["the same with tower tuning, which is the default", "", "", _range(measured_tuning.means().values())],
        ["new sizes after an idle moment, relative to vLLM's time", "", "1", measured_stream.in_words("on")],
        ["the same without tower tuning", "", "1", measured_stream.in_words("off")],
        [f"encoder in the engine, one {image} image, Qwen2-VL 2B, ms", *_times(engine, "encoder_ms")],
        ["the whole request with that image, ms", *_times(engine, "ms")],
    ]
    summary = table(["", "eager", f"vLLM {release}'s graphs", "ours"], rows)
    return [Block(page, "summary", summary) for page in ("README.md", "docs/index.md")]


def _times(row, kind: str) -> list[str]:
    return [f"{row[f'{mode}_{kind}']:.1f}" for mode in measured_engine.MODES]


def _range(values, digits: int = 2) -> str:
    low, high = low_high(values, digits)
    return low if low == high else f"{low} to {high}"
