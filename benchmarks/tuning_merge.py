"""Put runs of `tuning_gpu.py` into one file.

    python benchmarks/tuning_merge.py RUN.json[:MODEL,...] ANOTHER.json[:MODEL,...] ... results/tuning_h200.json

A model comes from the first run that measured it whole. Names after a file restrict the models from it. Date and rates
of the result are those of the first run. A model of another run has its own under `run`, since its floors are at the
rates of that run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

#: The keys that differ from run to run, and those that must not.
OF_RUN, SHARED = ("date", "ceilings"), ("machine", "versions", "backend")


def merge(runs: Sequence[tuple[dict[str, Any], Collection[str]]]) -> dict[str, Any]:
    """Merge runs, each with the models to take from it; none means all. Raises ValueError for runs that do not fit."""
    first = runs[0][0]
    models: dict[str, Any] = {}
    rows: dict[str, list[Any]] = {}
    for run, wanted in runs:
        for key in SHARED:
            if run[key] != first[key]:
                raise ValueError(f"the runs are of different {key}: {first[key]} and {run[key]}")
        for name in wanted or run["models"]:
            found = run["models"][name]
            measured = [row for row in run["rows"] if row["model"] == name]
            if name in models or "error" in found or not measured:
                continue
            models[name] = found if run is first else {**found, "run": {key: run[key] for key in OF_RUN}}
            rows[name] = measured
    return {
        **first,
        "sweep": next((run["sweep"] for run, _ in runs if run.get("sweep")), None),
        "kernels": {name: max(run["kernels"].get(name, 0.0) for run, _ in runs) for name in first["kernels"]},
        "models": models,
        "rows": [row for name in models for row in rows[name]],
    }


def read(given: str) -> tuple[dict[str, Any], list[str]]:
    """`FILE` or `FILE:MODEL,MODEL`."""
    file, _, names = given.partition(":")
    return json.loads(Path(file).read_text(encoding="utf-8")), [name for name in names.split(",") if name]


if __name__ == "__main__":
    *sources, target = sys.argv[1:]
    Path(target).write_text(json.dumps(merge([read(source) for source in sources]), indent=1) + "\n", encoding="utf-8")
