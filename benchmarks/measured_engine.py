"""docs/measured/engine.md: the results of `engine_gpu.py` and `engine_commands.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from engine_statistics import LEVEL, TURNS
from measured import NAMES, Page, PageError, by_model, load, low_high, table, text_page

MODES = ("eager", "vllm_graphs", "ours")
#: Names of the models for readers.
TITLES = {
    "eager": "eager",
    "vllm_graphs": "vLLM's graphs",
    "ours": "ours",
    "ours_untuned": "ours, `tuning` off",
}
VERDICTS = {"holds": "faster", "within noise": "undecided", "fails": "slower", "one engine of each": ""}
GIB = 1 << 30
#: Results of the commands of the guides.
COMMANDS = ("engine_commands_h200", "engine_commands_h200_x2", "engine_commands_h100_measuring")
#: Sizes that graphs are made for: launching takes longer than computing.
SMALL = ("1 x 224x224", "4 x 336x336", "1 x 448x448")


def pages() -> list[Page]:
    parts = ("", "_small", "_x2", "_vllm_0_26", "_stream", "_layouts", "_x2_layouts", "_no_video", "_video")
    main, small, pair, old, served, layouts, layouts_pair, *videos = (load(f"engine_h200{part}") for part in parts)
    known = {"main": main, "small": small, "pair": pair, "old": old, "served": served, "layouts": layouts}
    known |= {"layouts_pair": layouts_pair, "videos": videos}
    return [text_page("engine", [*(f"engine_h200{part}" for part in parts), *COMMANDS], globals() | known)]


def tail(result: dict[str, Any]) -> str:
    """The slowest requests of each pass: the 95th percentile of ours as a share of that of the other modes."""
    shares: dict[str, list[float]] = {"eager": [], "vllm_graphs": []}
    for model in result["models"].values():
        streams = {_mode(name): engine["stream"] for name, engine in model["engines"].items() if engine.get("stream")}
        for other, found in shares.items():
            found += [
                ours["p95_ms"] / theirs["p95_ms"] for ours, theirs in zip(streams["ours"], streams[other], strict=True)
            ]
    words = [
        f"{min(found):.2f} to {max(found):.2f} of that {of}"
        for of, found in zip(("of eager", "with vLLM's graphs"), shares.values(), strict=True)
    ]
    return f"The 95th percentile of a request with ours is {words[0]} in every pass, and {words[1]}."


def gain(result: dict[str, Any]) -> str:
    """The time that ours saves: against eager for small images, against vLLM's graphs for a larger one."""
    small = [-row["ours_against_eager"]["engine_ms"]["relative"] for row in result["rows"] if row["images"] in SMALL]
    large = [
        -row["ours_against_vllm_graphs"]["engine_ms"]["relative"]
        for row in result["rows"]
        if row["images"] == "1 x 1280x720"
    ]
    if any(row[f"ours_against_{mode}"][kind]["no_slower"] == "fails" for row in result["rows"] for mode in MODES[:2]
           for kind in ("encoder_ms", "engine_ms", "ms")):  # fmt: skip
        raise PageError("docs/measured/engine.md says that ours is slower nowhere, and it is")
    low, high = low_high((100 * relative for relative in small), 0)
    return f"""With ours the engine takes {low} to {high} % less time than eager for the three smallest sizes, and
    at least {100 * min(large):.0f} % less than with vLLM's graphs for 1280x720."""


def commands() -> str:
    """The commands of the guides that ran on a GPU."""
    rows = [(name, one) for name in COMMANDS for one in load(name)["commands"]]
    return table(
        ["command", "outcome", "GPUs"],
        [[f"`{one['command']}`", one["outcome"], "2" if "x2" in name else "1"] for name, one in rows],
    )


def verdicts(result: dict[str, Any]) -> str:
    """The number of sizes with each verdict on ours: against eager, and against vLLM's graphs."""
    kinds = {"encoder_ms": "encoder", "engine_ms": "engine", "ms": "request"}
    head = ["model", "ours against", *(f"{what}: faster, undecided, slower" for what in kinds.values())]
    lines = []
    for model, rows in by_model(result["rows"]).items():
        for other in _modes(rows)[:-1]:
            counts = [Counter(row[f"ours_against_{other}"][kind]["no_slower"] for row in rows) for kind in kinds]
            words = (
                ", ".join(str(count[verdict]) for verdict in ("holds", "within noise", "fails")) for count in counts
            )
            lines.append([NAMES[model], TITLES[other], *words])
    return table(head, lines)


def times(result: dict[str, Any]) -> str:
    """Machine and date, and two tables for each model: medians, and the differences of ours."""
    found = [f"vLLM {result['versions']['vllm']}, {result['machine']}, {result['date']}."]
    for model, rows in by_model(result["rows"]).items():
        heads = {"encoder_ms": "encoder", "engine_ms": "engine", "ms": "request"}
        kinds = [kind for kind in heads if f"ours_{kind}" in rows[0]]
        modes = _modes(rows)
        head = ["images", *(f"{heads[kind]}: {TITLES[mode]}" for kind in kinds for mode in modes)]
        lines = [[row["images"], *(f"{row[f'{mode}_{kind}']:.1f}" for kind in kinds for mode in modes)] for row in rows]
        found += [f"{_title(result, model)}, milliseconds:", table(head, lines)]
        kinds = [kind for kind in kinds if kind != "ms"]
        head = ["images", *(f"{heads[kind]}: ours against {TITLES[other]}" for kind in kinds for other in modes[:-1])]
        lines = [
            [row["images"], *(difference(row[f"ours_against_{other}"][kind]) for kind in kinds for other in modes[:-1])]
            for row in rows
        ]
        found += [
            f"{_title(result, model)}, milliseconds that ours takes more, with the {100 * LEVEL:.0f} % interval:",
            table(head, lines),
        ]
    return "\n\n".join(found)


def difference(found: dict[str, Any]) -> str:
    """Such as `-12.3 [-12.4, -12.2], -45 %, faster`. If only the interval decides: the pairs of engines that agree."""
    low, high = found["interval_ms"]
    said = f"{found['median_ms']:+.1f} [{low:+.1f}, {high:+.1f}], {100 * found['relative']:+.0f} %"
    verdict = VERDICTS[found["no_slower"]]
    if found["no_slower"] == "within noise" and found["turns"] >= TURNS and (low > 0 or high < 0):
        pairs = found["engine_pairs_ms"]
        verdict += f" ({sum((pair > 0) == (low > 0) for pair in pairs)} of {len(pairs)} pairs)"
    return f"{said}, {verdict}" if verdict else said


def _title(result: dict[str, Any], model: str) -> str:
    """The model's sizes, the number of turns, and the number of engines of each mode."""
    detail = result["models"][model]
    turns = f"{detail['turns']['engine_ms']} turns"
    if "encoder_ms" in detail["turns"]:
        turns += f", {detail['turns']['encoder_ms']} of the encoder"
    modes = Counter(map(_mode, detail["engines"]))
    engines = ", ".join(f"{modes[mode]} {TITLES[mode]}" for mode in MODES if modes[mode])
    return f"{detail['sizes_of']} ({turns}; engines: {engines})"


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
        "p95_ms": ("95th percentile, ms", 0),
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
            for number, runs in enumerate(zip(*engines, strict=True), 1):
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


def widest(without: dict[str, Any], allowed: dict[str, Any]) -> str:
    """How much more time the encoder takes with ours where videos are allowed, at most."""
    row, more = max(_more(without, allowed), key=lambda one: one[1] / one[0]["ours_encoder_ms"])
    share = max(more / row["ours_encoder_ms"], 0.0)
    name = NAMES[row["model"]]
    return f"""With ours, the encoder takes at most {share:.1%} more time for it ({name}, {row["images"]})."""


def both(without: dict[str, Any], allowed: dict[str, Any]) -> str:
    """The encoder of a request without videos and with them allowed, for vLLM's graphs and ours."""
    seen = {(row["model"], row["images"]): row for row in allowed["rows"]}
    heads = ["model", "images", "vLLM's graphs, no video", "videos allowed", "ours, no video", "videos allowed"]
    lines = [
        [
            NAMES[row["model"]],
            row["images"],
            *(
                f"{one[f'{mode}_encoder_ms']:.1f}"
                for mode in ("vllm_graphs", "ours")
                for one in (row, seen[row["model"], row["images"]])
            ),
        ]
        for row in without["rows"]
    ]
    return f"Milliseconds of the encoder:\n\n{table(heads, lines)}"


def _more(without: dict[str, Any], allowed: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each size, and the milliseconds that its encoder takes more with ours where videos are allowed."""
    seen = {(row["model"], row["images"]): row for row in allowed["rows"]}
    for row in without["rows"]:
        yield row, seen[row["model"], row["images"]]["ours_encoder_ms"] - row["ours_encoder_ms"]


def against_eager(result: dict[str, Any]) -> str:
    """The whole stream with ours as a share of eager's, and the sizes where an engine of ours is slower."""
    words = []
    for model, detail in _engines(result):
        ours, eager = (sum(run["seconds"] for run in detail[mode]["stream"]) for mode in ("ours", "eager"))
        words.append(f"{NAMES[model]} {ours / eager:.2f}")
    slower = [
        f"{NAMES[row['model']]}, {row['images']}"
        for row in result["rows"]
        if row["ours_against_eager"]["engine_ms"]["no_slower"] == "fails"
    ]
    return f"""The mixed stream takes with ours, of eager's time: {", ".join(words)}. The engine is slower with ours at:
    {"; ".join(slower) or "no size"}."""


def _modes(rows: list[dict[str, Any]]) -> list[str]:
    """The modes that were measured; ours is the last."""
    return [mode for mode in MODES if f"{mode}_engine_ms" in rows[0]]


def _graphs(rank: dict[str, Any]) -> str:
    """The number of graphs; nothing for an eager engine."""
    return str(rank["capture"]["graphs"] if "capture" in rank else rank["stats"].get("num_budgets", ""))


def _bytes(ranks: list[dict[str, Any]]) -> str:
    """The largest rank's memory, in GiB."""
    return f"{max(rank.get('reserved_bytes', 0) for rank in ranks) / GIB:.2f}"


def _mode(name: str) -> str:
    """`ours_2` is the second engine of `ours`."""
    head, _, number = name.rpartition("_")
    return head if number.isdigit() else name


def _engines(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in NAMES:
        if "engines" in result["models"].get(model, ()):
            yield model, result["models"][model]["engines"]
