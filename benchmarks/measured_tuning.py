"""docs/measured/tuning.md: the results of `tuning_gpu.py`, and a profile of one tower."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from measured import NAMES, RESULTS, ROOT, Page, by_model, load, low_high, mean, over, page, picture, sheet, table

sys.path.insert(0, str(ROOT))

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
    most = ", ".join(f"{NAMES[name]} {value:.2f}" for name, value in means().items())
    tuned = [row for found in rows.values() for row in found]
    errors = low_high((row["max_relative_error"] for row in tuned), 3)
    rounding = low_high((row["rounding"] for row in tuned), 3)
    extra = [
        f"{NAMES[name]} {model['extra_mb']:.1f} MiB" for name, model in result["models"].items() if model["extra_mb"]
    ]
    text = page(
        "tuning",
        "What does each tower tuning gain?",
        "benchmarks/tuning_gpu.py",
        ["tuning_h200", "compile_h200", "pdl_h100", "drafted_towers_h100"],
        "# Tuned towers",
        "![kernel time by class, untuned and tuned](tuning_h200.svg)",
        f"""`execute()` of the tuned tower takes this share of the exact graph of the untuned one, the geometric
        mean over the workloads: {most}.""",
        """An exact graph is captured for exactly that input. `execute()` is the manager's whole call with padding
        and host work. The *floor* is the time that matrix products and attention need at the rates that the same
        run reached.""",
        sheet(COLUMNS, (row for found in rows.values() for row in workloads(found))),
        f"""The largest difference from the untuned eager answer is {" to ".join(errors)} of the largest value. The
        untuned tower's own rounding is {" to ".join(rounding)} at the same workloads. Extra memory:
        {", ".join(extra) or "none"}.""",
        """Two things went after these runs. A block's last sum and the next block's first norm were one kernel,
        which gained little ([why](../decisions/tunings.md)). `pad-mlp` padded 4304 to 4352, too, and both matrices
        of an MLP.""",
        "## Kernel time by class",
        """Milliseconds untuned to tuned, with the floor in brackets, for one large input of each model.""",
        classes(result),
        """* **Qwen2.5-VL**: each norm was eight to eleven kernels, and no fast kernel loads the inner size of its
        down-projections. Both are gone.
* **Qwen2-VL, Step3-VL**: quick GELU was three kernels, and residual sums stood beside the norms. Each is one kernel
        now, at the rate of a copy. Step3-VL's downsampler also transposed its weights in each call of each path; the
        manager keeps them in that layout.
* **Qwen3-VL**: GELU moved into the epilogue of the product before it, and queries and keys are no longer copied to be
        rotated.
* **InternVL**: layer scales and sums stood beside the norms.
* **All**: attention runs in [tiles that fill the chip](attention.md). That gains most where an input
        has few rows.""",
        "## Each tuning alone",
        "Milliseconds of the exact graph of the same inputs.",
        singles(result),
        *drafted(load("drafted_towers_h100")),
        "## What is left",
        f"""* Matrix products run near the rate of a large one. Attention stays above its floor for many rows: no
        [kernel](attention.md) of this chip has tiles for heads of 72 or 112 lanes.
* The fused kernels read and write at the rate of a copy.
* InternVL's GELU (erf) has no epilogue. It waits for memory, not for arithmetic.
* {largest_gap(rows)}
* {compiled()}
* {dependent_launch()}""",
        "## A profile",
        profiled(),
        "The recording is `benchmarks/results/profile_qwen2_5_vl_3b_h200.json.gz`.",
        "## How it was measured",
        """Two towers with equal random weights at real sizes ran side by side with FLASH_ATTN in bfloat16. Only
        one was tuned. Calls interleave.""",
        runs(result),
    )
    return [text, picture("tuning_h200", drawn(result))]


DRAFTED = (
    ("model", "{first}"), ("image", "{image}"), ("tokens", "{tokens}"), ("untuned, ms", "{untuned_ms:.2f}"),
    ("tuned, ms", "{tuned_ms:.2f}"), ("tuned / untuned", over("tuned_ms", "untuned_ms")),
    ("largest error", "{error:.3f}"), ("own rounding", "{rounding:.3f}"),
)  # fmt: skip


def drafted(result: Mapping[str, Any]) -> list[str]:
    """The section on towers of models that were drafted."""
    rows = [row for found in by_model(result["rows"]).values() for row in found]
    shares = low_high((row["tuned_ms"] / row["untuned_ms"] for row in result["rows"]), 2)
    errors = low_high((row["error"] / row["rounding"] for row in result["rows"]), 2)
    return [
        "## Towers of other models",
        f"""No tuning was written for these models. The exact graph of the tuned tower takes {" to ".join(shares)} of
        the untuned one's time. Drafts of `init --yes` are measured as they are (`benchmarks/drafted_towers_gpu.py`), at
        the defaults of the configuration's class, which may be other sizes than a checkpoint's. FlashAttention 4, and
        so `fitted-attention`, was not installed.""",
        sheet(DRAFTED, rows),
        f"The largest error is {' to '.join(errors)} of the tower's own rounding.",
    ]


def largest_gap(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The workload on which padding and host work cost most."""
    row = max(
        (row for found in rows.values() for row in found),
        key=lambda row: row["tuned_execute_ms"] / row["tuned_exact_ms"],
    )
    over, budgets = row["tuned_execute_ms"] / row["tuned_exact_ms"], " and ".join(row["budgets"])
    return f"""`execute()` is furthest from the exact graph of the tuned tower for {NAMES[row["model"]]} at
    {row["tokens"]} tokens: {over:.2f} of it, on a graph for {budgets.replace("default/", "")} tokens."""


def compiled() -> str:
    """`torch.compile` of whole blocks beside the tunings: rejected."""
    result = load("compile_h200")
    shares = low_high((row["tuned_ms"] / row["compiled_ms"] for row in result["rows"]), 2)
    return f"""`torch.compile` of whole blocks (`{result["mode"]}`) gains less: the tuned towers of
    {listed([NAMES[name] for name in result["models"]])} take {" to ".join(shares)} of the compiled ones' time."""


def dependent_launch() -> str:
    """Programmatic dependent launch of norms: rejected."""
    rows = [row for row in load("pdl_h100")["rows"] if "product" in row["kind"]]
    shares = low_high((row["dependent_us"] / row["plain_us"] for row in rows), 2)
    return f"""Programmatic dependent launch of norms in front of products, as towers have them, takes
    {" to ".join(shares)} of the time without it."""


def listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def fully_tuned(result: Mapping[str, Any], name: str) -> bool:
    return not any("exceeds" in line for line in result["models"][name]["tuned"])


def runs(result: Mapping[str, Any]) -> str:
    """The models of each run, and the rates behind their floors."""
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


#: Calls of each median in older rows, which do not tell it.
EARLIER_ROUNDS = 15


def drawn(result: Mapping[str, Any]) -> str:
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
