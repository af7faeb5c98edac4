"""docs/measured/memory.md and docs/measured/reload.md: the results of `memory_gpu.py` and `reload_gpu.py`."""

from __future__ import annotations

from typing import Any

from measured import NAMES, Page, PageError, load, page, table

MEMORY, START, RELOAD = "memory_h200", "memory_start_h200", "reload_h100"
#: Ways of a start-up -> their names for readers.
WAYS = {"vllm": "vLLM's manager", "off": "ours, tuning off", "on": "ours, tuning on"}
#: Engine -> its name for readers.
ENGINES = {"vllm_graphs": "vLLM's manager", "ours": "ours", "unbounded": "ours, without its bound"}
HEAD = (
    "engine", "outcome", "vLLM's estimate of graphs, MiB", "KV cache, MiB", "graphs at start-up / after the images",
    "free at start-up / after the images / after the peaks, MiB",
)  # fmt: skip
STARTED, IMAGES, PEAKS = "started", "after the images", "after the peaks"


def pages() -> list[Page]:
    return [memory(), reload()]


def memory() -> Page:
    result = load(MEMORY)
    settings, engines = result["settings"], result["engines"]
    if not (engines["vllm_graphs"]["passed"] and engines["ours"]["passed"] and engines["unbounded"]["out_of_memory"]):
        raise PageError("memory.md: ours and vLLM's must pass, and without the bound there must be no memory")
    begin, end = (engines["ours"]["memory"][stage]["ours"] for stage in (STARTED, IMAGES))
    more = end["graphs"] - begin["graphs"]
    one = (end["device_mib"] - begin["device_mib"]) / more
    return page(
        "memory",
        "Does an engine that is full run out of memory because of our graphs?",
        "benchmarks/memory_gpu.py",
        [MEMORY, START],
        "# Memory of a full engine",
        f"""A full engine does not run out of memory because of our graphs. {NAMES[settings["model"]]}
        with a `gpu_memory_utilization` of {settings["gpu_memory_utilization"]} took
        {settings["images"]} images of new sizes, and after them a text of {settings["tokens"]} tokens and the largest
        image, three times each. A neighbour on the device had all that vLLM had not requested, but for
        {settings["margin_mib"]} MiB. Without [its bound](../promises.md#memory) the same manager ran out of memory: the
        check can fail.""",
        table(HEAD, [line(name, engines[name]) for name in ENGINES]),
        f"""The engine batches {settings["tokens"]} tokens, so its graphs are larger than those on [the page of
        operators](../operators.md). Our graphs took {begin["device_mib"]} MiB at start-up, with what they share. The
        {more} graphs that were captured later took {one:.1f} MiB each, from the {begin["held_mib"]} MiB that start-up
        had held for them and for metadata. vLLM's estimate has these MiB, too. [Another page](manager.md#memory) has
        the memory of one more graph for other models.""",
        """Ten times on the way the manager captured what it wanted, as an idle worker would. In all engines the
        estimate has the decoder's graphs, too. Weights are random and of real sizes.""",
        *start(),
    )


def start() -> list[str]:
    """The memory of start-up alone, where an engine batches few tokens."""
    result = load(START)
    rows = []
    for label, ways in result["models"].items():
        name, _, modality = label.partition(":")
        videos = "allowed" if modality == "served" else "-"
        for way, found in ways.items():
            facts = (str(found.get(key, "-")) for key in ("largest", "graphs", "device_mb", "held_mb"))
            rows.append([NAMES[name], videos, WAYS[way], *facts])
    return [
        "## A small batch",
        f"""The captures of start-up take this memory of the device at
        `--max-num-batched-tokens {result["settings"]["tokens"]}`. Ours has graphs up to the largest image. A part of
        the memory is *held* for idle captures and metadata. `vllm serve` allows videos by default.""",
        table(("", "videos", "", "largest graph, tokens", "graphs", "memory, MiB", "held, MiB"), rows),
    ]


def line(name: str, engine: dict[str, Any]) -> list[str]:
    plan = engine["memory"][STARTED]["plan_mib"]
    seen = engine["memory"]
    graphs = [str(seen[stage]["ours"]["graphs"]) for stage in (STARTED, IMAGES) if "ours" in seen[stage]]
    free = [str(seen[stage]["now_mib"]["free"]) if stage in seen else "-" for stage in (STARTED, IMAGES, PEAKS)]
    outcome = "passes" if engine["passed"] else f"out of memory at {engine['stage']}"
    return [
        ENGINES[name], outcome, str(plan["graphs_estimated"]), str(plan["kv_cache"]), " / ".join(graphs) or "-",
        " / ".join(free),
    ]  # fmt: skip


def reload() -> Page:
    result = load(RELOAD)
    reloaded = [row for row in result["rows"] if row["format"] != "none"]
    lost = [row for row in reloaded if row["moved"] or row["on_meta"] or row["other_shapes"]]
    if lost or any(found["wrong"] for found in result["models"].values()):
        raise PageError("reload.md: a reload gave other results, or moved a parameter")
    lines = []
    for name in result["models"]:
        for kind in ("checkpoint", "kernel"):
            rows = [row for row in reloaded if (row["model"], row["format"]) == (name, kind)]
            worst = [max(value for row in rows for value in row[fact].values()) for fact in ("errors", "rounding")]
            seconds = max(row["seconds"] for row in rows)
            lines.append([NAMES[name], kind, str(len(rows)), *(f"{value:.3f}" for value in worst), f"{seconds:.2f}"])
    tunings = [
        f"* {NAMES[name]}: {', '.join(f'{tuning} ({count})' for tuning, count in found['applied'].items())}"
        for name, found in result["models"].items()
    ]
    return page(
        "reload",
        "Do new weights arrive in tuned towers and their graphs?",
        "benchmarks/reload_gpu.py",
        [RELOAD],
        "# Reloaded weights",
        f"""Yes. In each of {len(reloaded)} reloads, by the `reload_weights` of vLLM's runner, all replays gave what an
        untuned tower with the new weights gives. No parameter moved, changed its shape or was left on the meta
        device.""",
        table(
            ["model", "format", "reloads", "largest error", "the tower's own rounding", "longest reload, s"],
            lines,
        ),
        """An error is the largest difference to the untuned tower, as a part of its largest output. The tower's own
        rounding is how much its output changes when every pixel changes by half a step of bfloat16; an error of twice
        as much would count as wrong. These tunings were in place, each with the number of modules:""",
        "\n".join(tunings),
        """Tests run [more ways to change weights](../tuning.md) on the CPU: loaders alone, shards, and weights that a
        sleep of level two has discarded.""",
    )
