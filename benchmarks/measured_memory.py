"""docs/measured/memory.md and docs/measured/reload.md: the results of `memory_gpu.py` and `reload_gpu.py`."""

from __future__ import annotations

from typing import Any

from measured import NAMES, Page, PageError, load, table, text_page

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
    known = {
        "settings": settings, "begin": begin, "more": more, "one": one, "tokens": load(START)["settings"]["tokens"],
        "engines": table(HEAD, [line(name, engines[name]) for name in ENGINES]), "starts": starts(),
    }  # fmt: skip
    return text_page("memory", [MEMORY, START], known)


def starts() -> str:
    """The memory of start-up alone, where an engine batches few tokens."""
    rows = []
    for label, ways in load(START)["models"].items():
        name, _, modality = label.partition(":")
        videos = "allowed" if modality == "served" else "-"
        for way, found in ways.items():
            facts = (str(found.get(key, "-")) for key in ("largest", "graphs", "device_mb", "held_mb"))
            rows.append([NAMES[name], videos, WAYS[way], *facts])
    return table(("", "videos", "", "largest graph, tokens", "graphs", "memory, MiB", "held, MiB"), rows)


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
        f"{NAMES[name]}: {', '.join(f'{tuning} ({count})' for tuning, count in found['applied'].items())}"
        for name, found in result["models"].items()
    ]
    head = ["model", "format", "reloads", "largest error", "the tower's own rounding", "longest reload, s"]
    return text_page("reload", [RELOAD], {"reloads": len(reloaded), "errors": table(head, lines), "tunings": tunings})
