"""Put runs of `tuning_gpu.py` into one file; a model's rows are those of the last run that measured it whole.

    python benchmarks/tuning_merge.py RUN.json ANOTHER.json ... results/tuning_h200.json

What a run says of itself (date, rates, versions) is that of the first one. A model of another run carries its own under
`run`, since its floors are at the rates of that run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

#: What differs from run to run.
OF_RUN = ("machine", "versions", "date", "backend", "ceilings")


def merge(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a model that no run measured whole, and for runs of different machines or versions."""
    first = runs[0]
    models: dict[str, Any] = {}
    rows: dict[str, list[Any]] = {}
    for run in runs:
        for key in ("machine", "versions", "backend"):
            if run[key] != first[key]:
                raise ValueError(f"the runs are of different {key}: {first[key]} and {run[key]}")
        for name, found in run["models"].items():
            measured = [row for row in run["rows"] if row["model"] == name]
            if "error" in found or not measured:
                continue
            models[name] = found if run is first else {**found, "run": {key: run[key] for key in OF_RUN}}
            rows[name] = measured
    missing = {name for run in runs for name in run["models"]} - set(models)
    if missing:
        raise ValueError(f"no run measured {', '.join(sorted(missing))} whole")
    return {
        **first,
        "sweep": next((run["sweep"] for run in runs if run.get("sweep")), None),
        "kernels": {name: max(run["kernels"].get(name, 0.0) for run in runs) for name in first["kernels"]},
        "models": models,
        "rows": [row for name in models for row in rows[name]],
        "notes": [note for run in runs for note in run.get("notes", [])],
    }


if __name__ == "__main__":
    *sources, target = map(Path, sys.argv[1:])
    merged = merge([json.loads(source.read_text(encoding="utf-8")) for source in sources])
    target.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
