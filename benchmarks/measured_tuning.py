"""docs/measured/tuning.md: the results of `tuning_gpu.py`, and a profile of one tower."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

from measured import NAMES, RESULTS, Page, by_model, load, low_high, mean, over, picture, sheet, table, text_page

from scaffold.measure.analyse import analyse
from scaffold.measure.pictures import kernel_bars
from scaffold.measure.profiles import Ceilings, ClassTotal, KernelClass, Profile, Recording

#: Workloads of the page's table; a model without these shows its smallest and largest.
SHOWN = (
    "224x224",
    "448x448",
    "1288x728",
    "1932x1092",
    "1988x1988",
    "1 tile",
    "13 tiles",
    "no crop",
    "4 crops",
    "0+3+5 crops",
)


def ratio(row: Mapping[str, Any]) -> float:
    return row["tuned_execute_ms"] / row["untuned_exact_ms"]


def measured_rows() -> dict[str, list[Mapping[str, Any]]]:
    """Workloads by model, without a model whose check took tunings back: its rows show only the remaining tunings."""
    result = load("tuning_h200")
    return {name: rows for name, rows in by_model(result["rows"]).items() if fully_tuned(result, name)}


def means() -> dict[str, float]:
    """Geometric means: `execute()` of the tuned tower over the exact graph of the untuned one."""
    return {name: mean(map(ratio, rows)) for name, rows in measured_rows().items()}


def pages() -> list[Page]:
    result, rows = load("tuning_h200"), measured_rows()
    tuned = [row for found in rows.values() for row in found]
    drafted, compiled = load("drafted_towers_h100")["rows"], load("compile_h200")
    extra = [
        f"{NAMES[name]} {model['extra_mb']:.1f} MiB" for name, model in result["models"].items() if model["extra_mb"]
    ]
    known = {
        "most": ", ".join(f"{NAMES[name]} {value:.2f}" for name, value in means().items()),
        "shown": sheet(COLUMNS, (row for found in rows.values() for row in workloads(found))),
        "errors": low_high((row["max_relative_error"] for row in tuned), 3),
        "rounding": low_high((row["rounding"] for row in tuned), 3),
        "extra": ", ".join(extra) or "none",
        "result": result,
        "worst": max(tuned, key=lambda row: row["tuned_execute_ms"] / row["tuned_exact_ms"]),
        "drafted": sheet(DRAFTED, (row for found in by_model(drafted).values() for row in found)),
        "drafted_shares": low_high(row["tuned_ms"] / row["untuned_ms"] for row in drafted),
        "drafted_errors": low_high(row["error"] / row["rounding"] for row in drafted),
        "compiled": compiled,
        "compiled_shares": low_high(row["tuned_ms"] / row["compiled_ms"] for row in compiled["rows"]),
        "launched_shares": low_high(
            row["dependent_us"] / row["plain_us"] for row in load("pdl_h100")["rows"] if "product" in row["kind"]
        ),
    }
    results = ["tuning_h200", "compile_h200", "pdl_h100", "drafted_towers_h100"]
    return [text_page("tuning", results, globals() | known), picture("tuning_h200", drawn(result))]


DRAFTED = (
    ("model", "{first}"), ("image", "{image}"), ("tokens", "{tokens}"), ("untuned, ms", "{untuned_ms:.2f}"),
    ("tuned, ms", "{tuned_ms:.2f}"), ("tuned / untuned", over("tuned_ms", "untuned_ms")),
    ("largest error", "{error:.3f}"), ("own rounding", "{rounding:.3f}"),
)  # fmt: skip


def fully_tuned(result: Mapping[str, Any], name: str) -> bool:
    return not any("exceeds" in line for line in result["models"][name]["tuned"])


def runs(result: Mapping[str, Any]) -> str:
    """The models of the run, and the rates behind their floors."""
    rounds = {row["model"]: row["rounds"] for row in result["rows"]}
    calls = ", ".join(f"{NAMES[name]} {rounds[name]}" for name in NAMES if name in result["models"])
    rates = result["ceilings"]
    line = [result["date"], calls, f"{rates['tflops']:.0f}", f"{rates['tbytes']:.2f}"]
    return table(("run of", "models, and calls that a median is of", "TFLOP/s", "TB/s"), [line])


def drawn(result: Mapping[str, Any]) -> str:
    """Kernel time by class of each model, untuned and tuned."""
    profiles, ceilings = [], Ceilings(**result["ceilings"])
    for name in NAMES:
        for one in result["models"].get(name, {}).get("profiles", ()):
            tuned = "tuned" if _is_tuned(one) else ""
            recording = Recording(name, tuned, one["tokens"], ceilings, (), (), one["graph_ms"])
            totals = [ClassTotal(KernelClass(kind), ms, count, floor) for kind, ms, count, floor in one["classes"]]
            profiles.append(Profile(recording, tuple(totals), ()))
    return kernel_bars(profiles)


def _is_tuned(profile: Mapping[str, Any]) -> bool:
    return profile["workload"].endswith(", tuned")


def classes(result: Mapping[str, Any]) -> str:
    """Kernel time by class, untuned to tuned, and the floor of the classes that have one."""
    models = [name for name in NAMES if len(result["models"].get(name, {}).get("profiles", ())) == 2]
    cells: dict[str, dict[str, str]] = {kind.value: {} for kind in KernelClass}
    for name in models:
        plain, tuned = sorted(result["models"][name]["profiles"], key=_is_tuned)
        after = {kind: ms for kind, ms, _, _ in tuned["classes"]}
        for kind, ms, _, floor in plain["classes"]:
            least = f" ({floor:.1f})" if floor else ""
            cells[kind][name] = f"{ms:.1f} to {after.get(kind, 0.0):.1f}{least}"
    lines = [[kind, *(found.get(name, "") for name in models)] for kind, found in cells.items() if found]
    return table(("", *(NAMES[name] for name in models)), lines)


def profiled() -> str:
    """The report of `profile --config` on a checkpoint's sizes: its sums, and its largest findings."""
    given = json.loads(gzip.decompress((RESULTS / "profile_qwen2_5_vl_3b_h200.json.gz").read_bytes()))
    plain, tuned = (analyse(Recording.from_json(one)) for one in given)
    said = (
        f"`vitcg-scaffold profile` with the `config.json` of Qwen2.5-VL-3B on an H200, {plain.recording.tokens} "
        f"tokens: {plain.recording.graph_ms:.2f} ms as a graph, {tuned.recording.graph_ms:.2f} ms tuned, floor "
        f"{plain.floor_ms:.2f} ms. The largest of {len(plain.findings)} findings:"
    )
    lines = [[f.what, f"`{f.module}`", f"{f.ms:.2f}", f"{f.gain_ms:.2f}", f.remedy] for f in plain.findings[:5]]
    return f"{said}\n\n{table(('what', 'module', 'ms', 'expected gain, ms', 'remedy'), lines)}"


COLUMNS = (
    ("model", "{first}"), ("input", "{workload}"), ("tokens", "{tokens}"),
    ("untuned exact, ms", "{untuned_exact_ms:.2f}"), ("tuned exact, ms", "{tuned_exact_ms:.2f}"),
    ("tuned `execute()`, ms", "{tuned_execute_ms:.2f}"), ("execute / untuned exact", lambda row: f"{ratio(row):.2f}"),
    ("floor, ms", "{floor_ms:.2f}"),
)  # fmt: skip


def workloads(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The workloads of a model that the page shows."""
    by_size = sorted(rows, key=lambda row: row["tokens"])
    return [row for row in rows if row["workload"] in SHOWN] or [by_size[0], by_size[-1]]


def singles(result: Mapping[str, Any]) -> str:
    """The effect of each tuning alone on the exact graph of one large workload."""
    models = {name: result["models"][name]["single"]["tunings"] for name in NAMES if name in result["models"]}
    names = [name for found in models.values() for name in found]
    order = [line.partition(":")[0] for line in next(iter(result["models"].values()))["tuned"]]
    rows = []
    for tuning in [*order, "all"]:
        if tuning in names:
            alone = [found.get(tuning) for found in models.values()]
            cells = [f"{one['untuned_ms']:.1f} to {one['ms']:.1f}" if one else "" for one in alone]
            rows.append([tuning if tuning == "all" else f"`{tuning}`", *cells])
    return table(["", *(NAMES[name] for name in models)], rows)
