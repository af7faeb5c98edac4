"""Prove the shipped ports on real CUDA graphs: `vitcg-scaffold verify --device cuda` for each descriptor at once.

    python benchmarks/graphs_gpu.py --out RESULT.json [--models qwen2_vl,internvl] [--machine "one H200"]

It needs a GPU, an installed vLLM and this package. It times nothing, so the models share the device. A row is one model
on the installed release: the comparisons of its proof on emulated graphs and on real ones of vLLM's manager and of
ours, or the reason of a refusal. It exits with 1 unless it proved or refused every model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_result import head, save

from scaffold.descriptor import shipped_names
from scaffold.diagnostics import Exit

#: Exit codes of a refusal: the port is not wrong.
REFUSED = {Exit.DESCRIPTOR, Exit.TARGET}


def prove(model: str, seconds: float) -> dict[str, Any]:
    """One row."""
    command = [sys.executable, "-m", "scaffold.cli", "verify", model, "--vllm", "installed", "--device", "cuda"]
    begin = time.perf_counter()
    try:
        done = subprocess.run([*command, "--json"], check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"model": model, "outcome": "failed", "reason": f"not done in {seconds:.0f} s"}
    row: dict[str, Any] = {"model": model, "seconds": round(time.perf_counter() - begin, 1), "exit": done.returncode}
    if done.returncode and not done.stdout.strip():
        refused = done.returncode in REFUSED and "VCG470" not in done.stderr  # that is no GPU, or not this vLLM's
        outcome = "refused" if refused else "failed"
        return {**row, "outcome": outcome, "reason": done.stderr.strip()[-1500:]}
    emulated, real = [], []
    for report in json.loads(done.stdout):
        (real if report["machine"] else emulated).append(report)
    right = done.returncode == 0 and len(real) == 1
    problems = [problem["message"] for report in (*emulated, *real) for problem in report["problems"]]
    return {
        **row,
        "outcome": "proven" if right else "failed",
        **({} if right else {"reason": "; ".join(problems)[:1500] or done.stderr.strip()[-1500:]}),
        "emulated": summary(emulated),
        "real": summary(real),
        "device": real[0]["machine"] if real else "",
    }


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over reports. Each group of comparisons has their number and the largest error, as a share."""
    checks = [check for report in reports for check in report["checks"]]
    groups: dict[str, dict[str, Any]] = {}
    for check in checks:
        group = groups.setdefault(
            f"{check['modality']} {check['group']}".strip(), {"compared": 0, "largest_error": 0.0}
        )
        group["compared"] += 1
        group["largest_error"] = max(group["largest_error"], check["max_rel"] or 0.0)
    return {
        "checks": len(checks),
        "passed": sum(check["passed"] for check in checks),
        "replayed": sum(report["hits"] for report in reports),
        "eager": sum(report["misses"] for report in reports),
        "hazards": sum(len(report["hazards"]) for report in reports),
        "groups": groups,
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--models", help="of the shipped descriptors; all unless given")
    options.add_argument("--seconds", type=float, default=240, help="for each model, at most")
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    import vllm

    models = arguments.models.split(",") if arguments.models else shipped_names()
    with ThreadPoolExecutor(len(models)) as pool:
        rows = list(pool.map(lambda model: prove(model, arguments.seconds), models))
    save({**head(arguments.machine, vllm.__version__), "rows": rows}, arguments.out)
    for row in rows:
        print(
            row["model"],
            row["outcome"],
            row.get("real", {}).get("checks", ""),
            row.get("reason", "")[-300:],
            flush=True,
        )
    return int(any(row["outcome"] == "failed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
