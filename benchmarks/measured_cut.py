"""docs/measured/cuts.md: the results of `cut_gpu.py`."""

from __future__ import annotations

from measured import NAMES, RESULTS, Page, load, page, sheet, table

COLUMNS = (
    ("model", "{name}"), ("call", "{call}"), ("eager, ms", "{eager_ms:.1f}"), ("vLLM's manager", "{vllm_ms:.1f}"),
    ("ours", "{ours_ms:.1f}"), ("limit", "{limit_ms:.1f}"), ("replayed", lambda row: "yes" if row["replays"] else "no"),
    ("largest error, ours", lambda row: error(row["ours_error"])),
    ("eager, each item alone", lambda row: error(row["alone_error"])),
)  # fmt: skip
WHOLE = (
    ("model", "{name}"), ("call", "{call}"), ("cut, vLLM's manager, ms", "{vllm_ms:.1f}"),
    ("whole", "{whole_vllm_ms:.1f}"), ("cut, our manager, ms", "{ours_ms:.1f}"), ("whole", "{whole_ours_ms:.1f}"),
)  # fmt: skip
FORMS = (
    "model", "call", "explicit, ms", "re-entrant", "eager, beside explicit", "largest error, explicit", "re-entrant",
)  # fmt: skip


def error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


FORM_RESULTS = ("form_h100_explicit", "form_h100_reentrant")


def _forms() -> list[list[str]]:
    """A line for each call, with the time of each process."""
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    for name in FORM_RESULTS:
        for row in load(name)["rows"]:
            found = times.setdefault((row["model"], row["call"]), {})
            for key in ("vllm_ms", "eager_ms", "vllm_error"):
                found.setdefault(f"{name} {key}", []).append(row[key])
    explicit, reentrant = FORM_RESULTS
    return [
        [NAMES[model], call]
        + [" / ".join(f"{one:.1f}" for one in found[key]) for key in (f"{explicit} vllm_ms", f"{reentrant} vllm_ms")]
        + [" / ".join(f"{one:.1f}" for one in found[f"{explicit} eager_ms"])]
        + [f"{max(found[f'{name} vllm_error']):.4f}" for name in FORM_RESULTS]
        for (model, call), found in times.items()
    ]


def pages() -> list[Page]:
    results = sorted(path.stem for path in RESULTS.glob("cut_*.json"))
    rows = [row for name in results for row in load(name)["rows"]]
    slower = [
        f"{NAMES[row['model']]}, {row['call']}, by {row['ours_ms'] / row['eager_ms'] - 1:.1%}"
        for row in rows
        if row["ours_ms"] > row["eager_ms"]
    ]
    whole = [row for row in rows if "whole_vllm_ms" in row]
    names = " and ".join(dict.fromkeys(NAMES[row["model"]] for row in whole))
    best = [min(row["whole_vllm_ms"], row["whole_ours_ms"]) / row["ours_ms"] for row in whole]
    return [
        page(
            "cuts",
            "What does a graph of the encoder alone bring?",
            "benchmarks/cut_gpu.py",
            [*results, *FORM_RESULTS],
            "# Encoders that are cut out",
            "A cut pays where launches take the time. It brings nothing where a call has many tiles.",
            f"Slower with ours than eager: {'; '.join(slower)}."
            if slower
            else "No call is slower with ours than eager.",
            sheet(COLUMNS, rows),
            """* *replayed*: ours replays a graph. Elsewhere it runs eager: for calls of several batches, and
            where a trial of both ways said so.
* Phi-3-V pads every image to 17 tiles. So its calls are large from the first image on.
* Moondream 3, DeepSeek-V4 and both DeepSeek-OCR encode one image after the other. A graph holds the units of all
            images. So eager is the same when each image comes alone, and a graph of several images runs other kernels.
* Kimi-VL interpolates its positions for each image. Our manager keeps them, also where it runs eager; the limit and
            vLLM's manager compute them anew.
* The launches of Mistral 3's patch embedding, in front of the graph, are the distance to the limit.
* Qwen2-Audio (Whisper's large tower) computes 30 seconds for each sound, however short. So its GPU has work for
            two thirds of an eager call already. Qwen3-ASR computes as many frames as there are.
* Errors are rounding. Eager differs as much when each image comes alone, because matrix products of other sizes
            run other kernels.""",
            "## Cut or whole",
            f"""Upstream's ports of {names} capture the whole tower. The table has them beside our cuts, with the same
            weights. A call takes the faster of the two managers with upstream's port {min(best):.2f} to {max(best):.2f}
            times as long as our manager with the cut.""",
            sheet(WHOLE, whole),
            "## Explicit or re-entrant",
            """The two forms of a port in vLLM's own manager, on one machine, each in two processes. The host of that
            machine was slow, and eager calls depend on it most. An explicit port has the projector in the graph.""",
            table(FORMS, _forms()),
            "## How it was measured",
            """The vision classes have real sizes, random weights in bfloat16 and FLASH_ATTN. Those of DeepSeek-V4 are
            what vLLM's configuration of DeepSeek-V4.1 has by default, with 24 layers, which is our guess. `init --yes`
            drafted the descriptors of BLIP-2, Moondream 3 and the models of sound; the others are shipped. Both
            managers have their default budgets, and ours runs without tuning. *limit* is a graph of exactly the call's
            size followed by the model's own assembly: no manager can beat it. An error is the largest difference
            from eager, relative to the largest value.""",
        )
    ]
