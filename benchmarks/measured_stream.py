"""docs/measured/streams.md: the results of `stream_gpu.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measured import NAMES, Page, load, low_high, over, sheet, table, text_page, wrapped

#: Bounds of a first pass over vLLM's: its sum, and its slowest calls.
SUM, SLOWEST = 0.90, 1.00
#: A pass is slower if it takes more time than the previous one by this share.
SLOWER = 0.01

#: Results: without an idle moment before the first pass; with a start-up that compiles one kernel less; and with all.
COLD, BEFORE, AFTER = "stream_h200_cold", "stream_h100_before", "stream_h100"
#: Images where videos are allowed, beside images alone.
SERVED = "stream_h200_served"
#: Explicit ports in vLLM's manager, beside upstream's own of the same model where the release has one.
EXPLICIT = ("stream_h200_explicit", "stream_h200_explicit_kimi_vl", "stream_h200_explicit_loops")
#: Explicit ports that lost to eager code: `init` drafts adapters of these models.
LOST = ("stream_h200_explicit_nemotron",)
#: Models of the layouts cut, rows and crops: a later result takes the place of an earlier one's rows of its models.
LAYOUTS = (
    "stream_h200_layouts",
    "stream_h200_grids",
    "stream_h200_deepseek",
    "stream_h200_deepseek_v4",
    *EXPLICIT,
    *LOST,
)
#: With videos allowed, images may take more time by this share.
MORE = 0.03


def rows(tuning: str, *results: str) -> list[dict[str, Any]]:
    """Every pass of every stream, with the last of these results that has its model, and that result's `machine`."""
    newest: dict[str, list[dict[str, Any]]] = {}
    for result in map(load, results or ("stream_h200",)):
        by_model: dict[str, list[dict[str, Any]]] = {}
        for row in result["rows"]:
            by_model.setdefault(row["model"], []).append({**row, "machine": result["machine"]})
        newest |= by_model
    return [row for found in newest.values() for row in found if row["tuning"] == tuning]


def first_over_vllm(tuning: str) -> list[float]:
    """Sums of the first passes over vLLM's."""
    return [row["ours_ms"] / row["vllm_ms"] for row in rows(tuning) if row["pass"] == 1]


def pages() -> list[Page]:
    return [text_page("streams", ["stream_h200", SERVED, *LAYOUTS, COLD, BEFORE, AFTER], globals())]


def first_pass(name: str, tuning: str) -> dict[str, Any]:
    """The first pass of Qwen3-VL's `mixed` stream in a result."""
    wanted = ("qwen3_vl", "mixed", tuning, 1)
    keys = ("model", "stream", "tuning", "pass")
    return next(row for row in load(name)["rows"] if tuple(row[key] for key in keys) == wanted)


def sizes() -> list[int]:
    """Calls of each stream."""
    return [row["calls"] for row in rows("on")]


def streams() -> str:
    """One line per stream: sums of a pass in ms, and the slowest calls of the first pass."""
    columns = (
        ("", "{name}"), ("stream", "{stream}"), ("tuning", "{tuning}"), ("eager", "{eager_ms:.0f}"),
        ("vLLM", "{vllm_ms:.0f}"), ("ours: first pass", "{ours_ms:.0f}"), ("second", "{passes[1][ours_ms]:.0f}"),
        ("third", "{passes[2][ours_ms]:.0f}"), ("p99 of the first: vLLM", "{vllm_p99_ms:.1f}"),
        ("ours", "{ours_p99_ms:.1f}"),
    )  # fmt: skip
    return sheet(columns, first_passes())


def first_passes(*results: str) -> list[dict[str, Any]]:
    """The first pass of each stream, with all `passes`, in the order of the models, with and without tuning."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for tuning in ("on", "off"):
        for row in rows(tuning, *results):
            found.setdefault((row["model"], row["stream"], tuning), []).append(row)
    order = [*NAMES]
    return sorted(
        ({**passes[0], "passes": passes} for passes in found.values()), key=lambda row: order.index(row["model"])
    )


def layouts() -> str:
    """One line per model and tuning, as shares of eager's and vLLM's sums."""
    columns = (
        ("", "{name}"), ("GPU", gpu), ("tuning", "{tuning}"), ("of eager", over("ours_ms", "eager_ms")),
        ("of vLLM: first pass", over("ours_ms", "vllm_ms")),
        *((name, lambda row, place=place: over("ours_ms", "vllm_ms")(row["passes"][place]))
          for place, name in ((1, "second"), (2, "third"))),
        ("p99 of the first, of vLLM's", over("ours_p99_ms", "vllm_p99_ms")),
    )  # fmt: skip
    return sheet(columns, first_passes(*LAYOUTS))


def explicit_of() -> str:
    """The ratios of the ports themselves: all in vLLM's manager."""
    first = [row for row in first_passes(*EXPLICIT) if row["tuning"] == "off"]
    beside = ", ".join(
        f"{row['vllm_ms'] / row['upstream_ms']:.2f} ({NAMES[row['model']]})" for row in first if "upstream_ms" in row
    )
    low, high = low_high(row["vllm_ms"] / row["eager_ms"] for row in first)
    lost = {NAMES[row["model"]]: f"{row['vllm_ms'] / row['eager_ms']:.2f}" for row in first_passes(*LOST)}
    others = ", ".join(f"{name} ({ratio})" for name, ratio in lost.items())
    return f"""In vLLM's own manager, on a first pass of new sizes, an explicit port of ours takes this share of the
    time of upstream's: {beside}. It takes {low} to {high} of eager. More than eager took that of {others}: `init`
    drafts an adapter there. The last columns are our manager with the same ports. Milliseconds of a pass."""


def explicit() -> str:
    """One line per model: sums of the first pass."""
    first = first_passes(*EXPLICIT)
    tuned = {row["model"]: row for row in first if row["tuning"] == "on"}
    columns = (
        ("", "{name}"), ("calls", "{calls}"), ("eager", "{eager_ms:.0f}"),
        ("upstream's port, vLLM's manager", lambda row: f"{row['upstream_ms']:.0f}" if "upstream_ms" in row else ""),
        ("ours, vLLM's manager", "{vllm_ms:.0f}"), ("our manager, tuning off", "{ours_ms:.0f}"),
        ("tuning on", lambda row: f"{tuned[row['model']]['ours_ms']:.0f}"),
    )  # fmt: skip
    return sheet(columns, (row for row in first if row["tuning"] == "off"))


def gpu(row: dict[str, Any]) -> str:
    """Such as `H100`."""
    return str(row["machine"]).removeprefix("one ").removeprefix("NVIDIA ").split(" ")[0].rstrip(",")


def served_pairs() -> Iterator[tuple[str, str, str, dict[str, Any], dict[str, Any]]]:
    """Model, stream and tuning, and the second passes without and with videos allowed."""
    for tuning in ("on", "off"):
        second = {(*row["model"].split(":"), row["stream"]): row for row in rows(tuning, SERVED) if row["pass"] == 2}
        for (model, allowed, stream), row in second.items():
            if allowed == "images":
                yield NAMES[model], stream, tuning, row, second[model, "served", stream]


def served() -> str:
    """One line per stream: sums of the second pass, without and with videos allowed."""
    return table(
        ["", "stream", "tuning", "vLLM, no videos", "videos allowed", "ours, no videos", "videos allowed", "of vLLM's"],
        [
            [
                name, stream, tuning, f"{alone['vllm_ms']:.0f}", f"{both['vllm_ms']:.0f}",
                f"{alone['ours_ms']:.0f}", f"{both['ours_ms']:.0f}", f"{both['ours_ms'] / both['vllm_ms']:.2f}",
            ]
            for name, stream, tuning, alone, both in served_pairs()
        ],
    )  # fmt: skip


def served_slower() -> Iterator[str]:
    """Streams whose images take more time where videos are allowed."""
    for name, stream, tuning, alone, both in served_pairs():
        if (more := both["ours_ms"] / alone["ours_ms"]) > 1 + MORE:
            yield f"{name}, {stream}, tuning {tuning}: {more:.3f} of the time without videos."


def not_reached(*results: str) -> Iterator[str]:
    """First passes that miss their bound, and later passes that are slower than the one before."""
    for tuning in ("on", "off"):
        before: dict[str, Any] = {}
        for row in rows(tuning, *results):
            name = f"{NAMES[row['model']]}, {row['stream']}, tuning {tuning}"
            total, slowest = row["ours_ms"] / row["vllm_ms"], row["ours_p99_ms"] / row["vllm_p99_ms"]
            if row["pass"] == 1:
                if total > SUM or slowest > SLOWEST:
                    yield f"{name}: the first pass takes {total:.2f} of vLLM's, its slowest calls {slowest:.2f}."
            elif row["ours_ms"] > (1 + SLOWER) * before["ours_ms"]:
                more = row["ours_ms"] / before["ours_ms"]
                vllm = row["vllm_ms"] / before["vllm_ms"]
                yield f"{name}: pass {row['pass']} takes {more:.3f} of the pass before it (vLLM's {vllm:.3f})."
            before = row


def starts() -> str:
    """Seconds and mebibytes of the start."""
    models = load("stream_h200")["models"]
    ways = ("vllm", "off", "on")
    return table(
        ["", *(f"{what}: {way}" for what in ("start, s", "MiB") for way in ("vLLM", "ours, tuning off", "ours"))],
        [
            [
                NAMES[name],
                *(f"{models[name]['warm_start_s'][way]:.2f}" for way in ways),
                *(f"{models[name]['memory_mb'][way]}" for way in ways),
            ]
            for name in NAMES
            if name in models
        ],
    )


def memory_for_operators() -> Iterator[str]:
    """MiB of graphs for each model: with videos allowed where that was measured, or with images alone."""
    served, alone = load(SERVED)["models"], load("stream_h200")["models"]
    models = {name.removesuffix(":served"): one for name, one in served.items() if name.endswith(":served")}
    found = models | {name: one for name, one in alone.items() if name.partition(":")[0] not in models}
    begin = [one["own_mb"]["on"]["graphs_mb"] for one in found.values()]
    most = [one["memory_mb"]["on"] for one in found.values()]
    yield wrapped(f"""Our graphs take {min(begin)} to {max(begin)} MiB of GPU memory at start-up, and {min(most)} to
    {max(most)} MiB at most:""")
    heads = ("GPU memory, MiB", "vLLM's own graphs", "ours at start-up", "held for later", "ours at most")
    yield table(
        heads,
        [
            [NAMES[name], *(str(mb) for mb in (one["memory_mb"]["vllm"], *one["own_mb"]["on"].values(),
                                               one["memory_mb"]["on"]))]
            for name, one in sorted(found.items(), key=lambda item: list(NAMES).index(item[0]))
        ],
    )  # fmt: skip
    larger = load("memory_h200")["settings"]["tokens"]
    videos = ", ".join(NAMES[name] for name in NAMES if name in models)
    yield wrapped(f"""On an H200, the encoder alone: {videos} with videos allowed, as `vllm serve` does by default, the
    others with images alone. *At most* has the tuned copies of weights, and [what start-up holds for
    later](promises.md#memory). Graphs [for {larger} tokens](measured/memory.md) are larger. Other models were not
    measured with these defaults.""")


def plans() -> str:
    models = load("stream_h200")["models"].items()
    found = {NAMES[name]: model["plan_ms"]["off"] for name, model in models}
    values = [f"{name} {ms['median']:.2f} ({ms['model']:.2f})" for name, ms in found.items()]
    return f"""The first call of a size makes a plan on the host. Milliseconds for eight items of new sizes, the
    median, and in brackets the metadata that the release's own code makes of it: {", ".join(values)}. Eager makes the
    same metadata before its first kernel."""


def in_words(tuning: str) -> str:
    """The range over models and streams, as a share of vLLM's time."""
    low, high = low_high(first_over_vllm(tuning))
    return f"{low} to {high}"
