"""docs/measured/cuts.md: the results of `cut_gpu.py` and `both_gpu.py`."""

from __future__ import annotations

from measured import NAMES, RESULTS, Page, load, low_high, sheet, table, text_page

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
BOTH = (
    ("call", "{call}"), ("eager, ms", "{eager_ms:.1f}"), ("vLLM's managers", "{vllm_ms:.1f}"),
    ("ours", "{ours_ms:.1f}"), ("largest error, ours", lambda row: error(row["ours_error"])),
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
    both = load("both_h200")
    counted = both["models"]["qwen3_omni"]["managers"]["ours"]["parts"]
    best = [min(row["whole_vllm_ms"], row["whole_ours_ms"]) / row["ours_ms"] for row in whole]
    known = {
        "slower": slower, "calls": sheet(COLUMNS, rows), "whole": sheet(WHOLE, whole), "best": low_high(best),
        "wholes": list(dict.fromkeys(NAMES[row["model"]] for row in whole)), "forms": table(FORMS, _forms()),
        "both": sheet(BOTH, both["rows"]), "missed": sum(one["misses"] for one in counted),
    }  # fmt: skip
    return [text_page("cuts", [*results, *FORM_RESULTS, "both_h200"], known)]
