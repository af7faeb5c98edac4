"""Numbers of `tuning_gpu.py` on the pages."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from measured import NAMES, RESULTS, ROOT, Block, File, Part, Sentence, by_model, load, low_high, mean, table

sys.path.insert(0, str(ROOT))

from scaffold.measure.analyse import analyse
from scaffold.measure.model import Ceilings, ClassTotal, KernelClass, Profile, Recording
from scaffold.measure.report import to_svg

PAGE = "docs/tuning.md"

#: Workloads of the page's table; a model without these shows its smallest and largest.
SHOWN = ("224x224", "1288x728", "1932x1092", "1 tile", "13 tiles", "no crop", "4 crops", "0+3+5 crops")


def ratio(row: Mapping[str, Any]) -> float:
    return row["tuned_execute_ms"] / row["untuned_exact_ms"]


def measured_rows() -> dict[str, list[Mapping[str, Any]]]:
    """Workloads by model, without a model whose check took tunings back: its rows show the rest alone, and say so."""
    result = load("tuning_h200")
    return {name: rows for name, rows in by_model(result["rows"]).items() if fully_tuned(result, name)}


def means() -> dict[str, float]:
    """Geometric means: `execute()` of the tuned tower over the exact graph of the untuned one."""
    return {name: mean(map(ratio, rows)) for name, rows in measured_rows().items()}


def parts() -> list[Part]:
    result, rows = load("tuning_h200"), measured_rows()
    most = tuple(f"{value:.2f}" for value in means().values())
    tuned = [row for found in rows.values() for row in found]
    return [
        File("docs/tuning_h200.svg", picture(result)),
        Block(PAGE, "runs", runs(result)),
        Block(PAGE, "tuned", table(HEAD, workloads(rows))),
        Block(PAGE, "classes", classes(result)),
        Block(PAGE, "profiled", profiled()),
        Block(PAGE, "single", singles(result)),
        Sentence(
            PAGE,
            "geometric means of `execute()` over the untuned exact graph are "
            f"{', '.join(['{}'] * (len(most) - 1))} and {{}}",
            most,
        ),
        Sentence(
            PAGE,
            "The largest difference to the untuned eager answer is {} to {} of the largest value; the untuned tower's "
            "own rounding is {} to {} at the same workloads",
            (
                *low_high((row["max_relative_error"] for row in tuned), 3),
                *low_high((row["rounding"] for row in tuned), 3),
            ),
        ),
        Sentence(
            "docs/measured.md",
            f"what each tuning did: [tuning.md](tuning.md)): {', '.join(f'{NAMES[name]} {{}}' for name in rows)}.",
            most,
        ),
    ]


def fully_tuned(result: Mapping[str, Any], name: str) -> bool:
    return not any("exceeds" in line for line in result["models"][name]["tuned"])


def runs(result: Mapping[str, Any]) -> str:
    """Which models were measured in which run, and the rates that their floors are made of."""
    groups: dict[tuple[str, float, float], list[str]] = {}
    for name in NAMES:
        if name in result["models"]:
            run = {**result, **result["models"][name].get("run", {})}
            key = (run["date"], run["ceilings"]["tflops"], run["ceilings"]["tbytes"])
            groups.setdefault(key, []).append(name)
    rounds = {row["model"]: row.get("rounds", EARLIER_ROUNDS) for row in result["rows"]}
    lines = []
    for (date, tflops, tbytes), names in groups.items():
        calls = ", ".join(f"{NAMES[name]} {rounds[name]}" for name in names)
        lines.append([date, calls, f"{tflops:.0f}", f"{tbytes:.2f}"])
    return table(("run of", "models, and calls that a median is of", "TFLOP/s", "TB/s"), lines)


#: Calls of each median before the rows said it.
EARLIER_ROUNDS = 15


def picture(result: Mapping[str, Any]) -> str:
    """Kernel time by class of each model, untuned and tuned."""
    profiles = []
    for name in NAMES:
        found = result["models"].get(name)
        for one in (found or {}).get("profiles", ()):
            run = {**result, **found.get("run", {})}
            ceilings = Ceilings(**run["ceilings"])
            tuned = "tuned" if _is_tuned(one) else ""
            recording = Recording(name, tuned, one["tokens"], ceilings, (), (), one["graph_ms"])
            totals = [ClassTotal(KernelClass(kind), ms, count, floor) for kind, ms, count, floor in one["classes"]]
            profiles.append(Profile(recording, tuple(totals), ()))
    return to_svg(profiles)


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
    """What `profile --config` said about a checkpoint's sizes: its sums, and its largest findings."""
    given = json.loads(gzip.decompress((RESULTS / "profile_qwen2_5_vl_3b_h200.json.gz").read_bytes()))
    plain, tuned = (analyse(Recording.from_json(one)) for one in given)
    said = (
        f"With the `config.json` of Qwen2.5-VL-3B on an H200, {plain.recording.tokens} tokens: "
        f"{plain.recording.graph_ms:.2f} ms as a graph, {tuned.recording.graph_ms:.2f} ms tuned, floor "
        f"{plain.floor_ms:.2f} ms. The largest of {len(plain.findings)} findings:"
    )
    lines = [[f.what, f"`{f.module}`", f"{f.ms:.2f}", f"{f.gain_ms:.2f}", f.remedy] for f in plain.findings[:5]]
    return f"{said}\n\n{table(('what', 'module', 'ms', 'expected gain, ms', 'remedy'), lines)}"


HEAD = ("model", "input", "tokens", "untuned exact, ms", "tuned exact, ms", "tuned `execute()`, ms",
        "execute / untuned exact", "floor, ms")  # fmt: skip


def workloads(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    lines = []
    for name, found in rows.items():
        by_size = sorted(found, key=lambda row: row["tokens"])
        shown = [row for row in found if row["workload"] in SHOWN] or [by_size[0], by_size[-1]]
        for place, row in enumerate(shown):
            times = (row[f"{kind}_ms"] for kind in ("untuned_exact", "tuned_exact", "tuned_execute"))
            lines.append(
                [
                    "" if place else NAMES[name],
                    row["workload"],
                    str(row["tokens"]),
                    *(f"{time:.2f}" for time in times),
                    f"{ratio(row):.2f}",
                    f"{row['floor_ms']:.2f}",
                ]
            )
    return lines


def singles(result: Mapping[str, Any]) -> str:
    """What each tuning alone did to the exact graph of one large workload."""
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
