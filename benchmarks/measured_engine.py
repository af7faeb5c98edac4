"""Numbers of `engine_gpu.py` on the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from engine_statistics import TURNS
from measured import NAMES, Block, Part, Sentence, load, low_high, table

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
GIB = 1 << 30
#: The issue of graphs: where launching takes longer than computing.
SMALL = ("1 x 224x224", "4 x 336x336", "1 x 448x448")


def parts() -> list[Part]:
    result = load("engine_h200")
    small = [row["ours_against_eager"]["engine_ms"]["relative"] for row in result["rows"] if row["images"] in SMALL]
    large = [
        -100 * row["ours_against_vllm_graphs"]["engine_ms"]["relative"]
        for row in result["rows"]
        if row["images"] == "1 x 1280x720"
    ]
    shown = {
        ("engine", "engine_h200"): (times, answers, memory, verdicts, stream),
        ("engine of vLLM 0.26", "engine_h200_vllm_0_26"): (times, answers, memory, verdicts, stream),
        ("engine on two GPUs", "engine_h200_x2"): (times, answers, memory),
        ("engine at small sizes", "engine_h200_small"): (times, answers),
    }
    blocks = [
        Block(PAGE, f"{kind.__name__} of the {name}", kind(load(file)))
        for (name, file), kinds in shown.items()
        for kind in kinds
    ]
    return [
        *blocks,
        Sentence(
            PAGE,
            "the engine takes {} to {} % less than eager for the three smallest, and at least {} % less than "
            "with vLLM's graphs for 1280x720",
            (*low_high((-100 * relative for relative in small), 0), f"{min(large):.0f}"),
        ),
    ]


def verdicts(result: dict[str, Any]) -> str:
    """Of how many sizes ours is known to be faster, or slower, and than what."""
    kinds = {"encoder_ms": "encoder", "engine_ms": "engine", "ms": "request"}
    head = ["model", "ours against", *(f"{what}: faster, undecided, slower" for what in kinds.values())]
    lines = []
    for model, rows in _by_model(result["rows"]):
        for other in MODES[:2]:
            counts = [Counter(row[f"ours_against_{other}"][kind]["no_slower"] for row in rows) for kind in kinds]
            words = (
                ", ".join(str(count[verdict]) for verdict in ("holds", "within noise", "fails")) for count in counts
            )
            lines.append([NAMES[model], TITLES[other], *words])
    return table(head, lines)


def times(result: dict[str, Any]) -> str:
    """Where and when; and two tables for each model: medians, and what ours takes more or less."""
    found = [f"vLLM {result['versions']['vllm']}, {result['machine']}, {result['date']}."]
    for model, rows in _by_model(result["rows"]):
        heads = {"encoder_ms": "encoder", "engine_ms": "engine", "ms": "request"}
        kinds = [kind for kind in heads if f"ours_{kind}" in rows[0]]
        head = ["images", *(f"{heads[kind]}: {TITLES[mode]}" for kind in kinds for mode in MODES)]
        lines = [[row["images"], *(f"{row[f'{mode}_{kind}']:.1f}" for kind in kinds for mode in MODES)] for row in rows]
        found += [f"{_title(result, model)}, milliseconds:", table(head, lines)]
        kinds = [kind for kind in kinds if kind != "ms"]
        head = ["images", *(f"{heads[kind]}: ours against {TITLES[other]}" for kind in kinds for other in MODES[:2])]
        lines = [
            [row["images"], *(difference(row[f"ours_against_{other}"][kind]) for kind in kinds for other in MODES[:2])]
            for row in rows
        ]
        found += [
            f"{_title(result, model)}, milliseconds that ours takes more, with the 95 % interval:",
            table(head, lines),
        ]
    return "\n\n".join(found)


def difference(found: dict[str, Any]) -> str:
    """-12.3 [-12.4, -12.2], -45 %, faster. Where the interval decides and pairs of engines do not, how many do."""
    low, high = found["interval_ms"]
    said = f"{found['median_ms']:+.1f} [{low:+.1f}, {high:+.1f}], {100 * found['relative']:+.0f} %"
    verdict = VERDICTS[found["no_slower"]]
    if found["no_slower"] == "within noise" and found["turns"] >= TURNS and (low > 0 or high < 0):
        pairs = found["engine_pairs_ms"]
        verdict += f" ({sum((pair > 0) == (low > 0) for pair in pairs)} of {len(pairs)} pairs)"
    return f"{said}, {verdict}" if verdict else said


def _title(result: dict[str, Any], model: str) -> str:
    """Its sizes, how many turns were measured, and by how many engines of each mode."""
    detail = result["models"][model]
    turns = f"{detail['turns']['engine_ms']} turns"
    if "encoder_ms" in detail["turns"]:
        turns += f", {detail['turns']['encoder_ms']} of the encoder"
    modes = Counter(map(_mode, detail["engines"]))
    return f"{detail['sizes_of']} ({turns}; engines: {', '.join(f'{modes[mode]} {TITLES[mode]}' for mode in MODES)})"


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
            last = [engine.get("at_end", engine["at_start"]) for engine in engines]
            graphs = [_graphs(ranks[0]) for ranks in last]
            lines.append(
                [
                    NAMES[model], TITLES[mode], ", ".join(f"{engine['start_s']:.1f}" for engine in engines),
                    ", ".join(_bytes(engine["at_start"]) for engine in engines), ", ".join(map(_bytes, last)),
                    ", ".join(filter(None, graphs)),
                ]
            )  # fmt: skip
    return table(head, lines)


def stream(result: dict[str, Any]) -> str:
    columns = {
        "seconds": ("all requests, s", 2),
        "p50_ms": ("median of a request, ms", 0),
        "p95_ms": ("95 % below, ms", 0),
    }
    work = {"graphs": "graphs captured", "plans": "plans made", "eager": "items run eager"}
    head = [
        "model",
        "",
        "pass",
        "requests",
        *(title for title, _ in columns.values()),
        "answers as eager's",
        *work.values(),
    ]
    lines = []
    for model, detail in _engines(result):
        for mode in MODES:
            engines = [
                engine["stream"] for name, engine in detail.items() if _mode(name) == mode and engine.get("stream")
            ]
            # A first result had one pass, and no list.
            passes = zip(*(found if isinstance(found, list) else [found] for found in engines), strict=True)
            for number, runs in enumerate(passes, 1):
                done = [run["work"] for run in runs if mode == "ours" and "work" in run]
                lines.append(
                    [
                        NAMES[model], TITLES[mode], str(number), str(result["models"][model]["settings"]["requests"]),
                        *(", ".join(f"{run[key]:.{digits}f}" for run in runs) for key, (_, digits) in columns.items()),
                        ", ".join(str(run["requests_as_eager"]) for run in runs),
                        *(", ".join(str(each[key]) for each in done) for key in work),
                    ]
                )  # fmt: skip
    return table(head, lines)


def _graphs(rank: dict[str, Any]) -> str:
    """How many there are; nothing for an eager engine."""
    return str(rank["capture"]["graphs"] if "capture" in rank else rank["stats"].get("num_budgets", ""))


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
