"""Numbers of `engine_gpu.py` on the pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measured import NAMES, Block, Part, Sentence, exists, load, table

PAGE = "docs/operators.md"
MODES = ("eager", "vllm_graphs", "ours")
#: For readers.
TITLES = {
    "eager": "eager",
    "vllm_graphs": "vLLM's graphs",
    "ours": "ours",
    "ours_untuned": "ours, `tuning` off",
    "our_manager_only": "our manager, vLLM's class",
}
VERDICTS = {"holds": "faster", "within noise": "undecided", "fails": "slower", "one engine of each": ""}
#: Name of the block -> file with its numbers.
FILES = {
    "engine": "engine_h200",
    "engine of vLLM 0.26": "engine_h200_vllm_0_26",
    "engine on two GPUs": "engine_h200_x2",
}
GIB = 1 << 30


def parts() -> list[Part]:
    result = load("engine_h200")
    if "engines" not in result["models"]["qwen2_vl"]:
        return _first(result)
    blocks: list[Part] = []
    for name, file in FILES.items():
        if exists(file):
            blocks += [
                Block(PAGE, name, times(load(file))),
                Block(PAGE, f"answers of the {name}", answers(load(file))),
                Block(PAGE, f"memory of the {name}", memory(load(file))),
            ]
    return [*blocks, Block(PAGE, "stream", stream(result))]


def encoder(model: str, images: str) -> dict[str, float]:
    """Milliseconds of the encoder of a request, by mode."""
    row = next(row for row in load("engine_h200")["rows"] if (row["model"], row["images"]) == (model, images))
    return {mode: row[f"{mode}_encoder_ms"] for mode in MODES}


def times(result: dict[str, Any]) -> str:
    """Two tables for each model: medians, and what ours takes more or less."""
    found = []
    for model, rows in _by_model(result["rows"]):
        kinds = ("encoder_ms", "engine_ms", "ms")
        heads = ("encoder", "without processing images", "request")
        head = ["images", *(f"{what}: {TITLES[mode]}" for what in heads for mode in MODES)]
        medians = [
            [row["images"], *(f"{row[f'{mode}_{kind}']:.1f}" for kind in kinds for mode in MODES)] for row in rows
        ]
        name = f"{NAMES[model]}, sizes of {result['models'][model]['sizes_of']}"
        found += [f"{name}, milliseconds:", table(head, medians)]
        heads = ("encoder", "without processing images", "request")
        head = ["images", *(f"{what} against {TITLES[other]}" for what in heads for other in MODES[:2])]
        lines = [
            [row["images"], *(difference(row[f"ours_against_{other}"][kind]) for kind in kinds for other in MODES[:2])]
            for row in rows
        ]
        found += [
            f"{NAMES[model]}, what ours takes more or less than another, with its 95 % interval:",
            table(head, lines),
        ]
    return "\n\n".join(found)


def difference(found: dict[str, Any]) -> str:
    """-12.31 ms [-12.40, -12.20], -45 %, faster."""
    low, high = found["interval_ms"]
    said = f"{found['median_ms']:+.2f} [{low:+.2f}, {high:+.2f}], {found['relative']:+.0%}"
    verdict = VERDICTS[found["no_slower"]]
    return f"{said}, {verdict}" if verdict else said


def answers(result: dict[str, Any]) -> str:
    head = ["model", "", "answers as eager's", "another token at a tie", "wrong", "largest difference of a logprob"]
    lines = []
    for model, detail in _engines(result):
        for name, engine in detail.items():
            if name in TITLES and name != "eager":
                check = engine["check"]
                lines.append(
                    [
                        NAMES[model], TITLES[name], f"{check['equal']} of {check['answers']}", str(check["ties"]),
                        str(len(check["wrong"])), f"{check['logprob_error']:.3f}",
                    ]
                )  # fmt: skip
    return table(head, lines)


def memory(result: dict[str, Any]) -> str:
    head = ["model", "", "engine is up after s", "device memory, GiB at the start", "at the end", "graphs"]
    lines = []
    for model, detail in _engines(result):
        for mode in MODES:
            engines = [engine for name, engine in detail.items() if _mode(name) == mode]
            if not engines:
                continue
            first, last = ([_bytes(engine[when]) for engine in engines] for when in ("at_start", "at_end"))
            graphs = [rank["capture"]["graphs"] for rank in engines[0]["at_end"] if "capture" in rank]
            own = [rank["stats"].get("num_budgets") for rank in engines[0]["at_end"] if rank["stats"]]
            lines.append(
                [
                    NAMES[model], TITLES[mode], ", ".join(f"{engine['start_s']:.1f}" for engine in engines),
                    ", ".join(first), ", ".join(last), ", ".join(map(str, graphs or own)),
                ]
            )  # fmt: skip
    return table(head, lines)


def stream(result: dict[str, Any]) -> str:
    head = ["model", "", "all requests, s", "median of a request, ms", "95 % below, ms", "answers as eager's"]
    lines = []
    for model, detail in _engines(result):
        for mode in MODES:
            runs = [engine["stream"] for name, engine in detail.items() if _mode(name) == mode and engine["stream"]]
            if not runs:
                continue
            lines.append(
                [
                    NAMES[model], TITLES[mode],
                    *(", ".join(f"{run[key]:.{digits}f}" for run in runs) for key, digits in (
                        ("seconds", 2), ("p50_ms", 0), ("p95_ms", 0), ("requests_as_eager", 0),
                    )),
                ]
            )  # fmt: skip
    return table(head, lines)


def _bytes(ranks: list[dict[str, Any]]) -> str:
    """Of the rank that has most."""
    return f"{max(rank.get('reserved_bytes', 0) for rank in ranks) / GIB:.2f}"


def _mode(name: str) -> str:
    """`ours_2` is the second engine of `ours`."""
    head, _, number = name.rpartition("_")
    return head if number.isdigit() else name


def _by_model(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for model in NAMES:
        found = [row for row in rows if row["model"] == model]
        if found:
            yield model, found


def _engines(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in NAMES:
        if "engines" in result["models"].get(model, ()):
            yield model, result["models"][model]["engines"]


# -- the first result, which had one engine of each mode, one after another


def _first(result: dict[str, Any]) -> list[Part]:
    detail = result["models"]["qwen2_vl"]
    streams = {mode: detail[mode]["stream"][0] for mode in MODES}
    lines = [
        [row["images"], *(f"{row[f'{mode}{kind}_ms']:.1f}" for kind in ("_encoder", "") for mode in MODES)]
        for row in result["rows"]
    ]
    head = ["images", "encoder: eager", "vLLM's graphs", "ours", "request: eager", "vLLM's graphs", "ours"]
    return [
        Block(PAGE, "engine", table(head, lines)),
        Sentence(
            PAGE,
            "Seconds in all: eager {}, vLLM's graphs {}, ours {}; "
            "median (95 %) of a request {} ({}), {} ({}), {} ({}) ms",
            (
                *(f"{streams[mode]['seconds']:.2f}" for mode in MODES),
                *(f"{streams[mode][key]:.0f}" for mode in MODES for key in ("p50_ms", "p95_ms")),
            ),
        ),
        Sentence(
            PAGE,
            "{} KV-cache blocks are left with ours, {} with vLLM's graphs, {} without graphs",
            tuple(str(detail[mode]["at_end"][0]["kv_blocks"]) for mode in ("ours", "vllm_graphs", "eager")),
        ),
    ]
