"""Times the command line as its user meets it: whole processes, cold interpreter, warm disk cache.

    python benchmarks/cli_speed.py [--vllm PATH|RELEASE] [--runs N] [--write]

The run keeps bytecode in a folder of its own, whatever the environment says: with PYTHONDONTWRITEBYTECODE each command
would compile the tool anew, which takes a third of a second. The commands and a bare `python -c pass` take turns, so
that a busy moment of the machine hits all of them. The table goes to stderr, JSON to stdout, and with --write to
benchmarks/results/cli_speed.json. Exit 1 if a median misses its limit, 2 if a command fails.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RESULT = REPOSITORY / "benchmarks/results/cli_speed.json"
BARE = "python -c pass"


@dataclass(frozen=True)
class Case:
    """One command line; `limit_ms` is the longest median that the project allows, None for the yardstick."""

    name: str
    arguments: tuple[str, ...]
    limit_ms: float | None


def cases(tree: str) -> tuple[Case, ...]:
    tool = ("-m", "scaffold.cli")
    return (
        Case(BARE, ("-c", "pass"), None),
        Case("--help", (*tool, "--help"), 150),
        Case("validate internvl", (*tool, "validate", "internvl"), 200),
        Case("new internvl --diff", (*tool, "new", "internvl", "--vllm", tree, "--diff"), 1500),
        Case("new --all --check", (*tool, "new", "--all", "--check"), 2500),
    )


def run_once(case: Case, bytecode: str) -> float:
    """Milliseconds of one whole process. The time of a failing command means nothing."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *case.arguments],
        cwd=REPOSITORY,
        env={**kept, "PYTHONPATH": str(REPOSITORY), "PYTHONPYCACHEPREFIX": bytecode},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    elapsed = (time.perf_counter() - start) * 1000
    if done.returncode != 0:
        sys.stderr.buffer.write(done.stdout + done.stderr)
        print(f"`{case.name}` failed with exit code {done.returncode}", file=sys.stderr)
        raise SystemExit(2)
    return elapsed


def measure(all_cases: tuple[Case, ...], runs: int) -> dict[str, list[float]]:
    """Times of each case, in milliseconds. The first round fills caches (bytecode, release) and does not count."""
    times: dict[str, list[float]] = {case.name: [] for case in all_cases}
    with tempfile.TemporaryDirectory(prefix="vitcg-bytecode-") as bytecode:
        for turn in range(runs + 1):
            for case in all_cases:
                elapsed = run_once(case, bytecode)
                if turn:
                    times[case.name].append(elapsed)
    return times


def summarise(all_cases: tuple[Case, ...], times: dict[str, list[float]]) -> list[dict[str, object]]:
    bare = statistics.median(times[BARE])
    rows: list[dict[str, object]] = []
    for case in all_cases:
        median = statistics.median(times[case.name])
        rows.append(
            {
                "command": case.name,
                "median_ms": round(median, 1),
                "min_ms": round(min(times[case.name]), 1),
                "max_ms": round(max(times[case.name]), 1),
                "ratio_to_bare_python": round(median / bare, 2),
                "limit_ms": case.limit_ms,
                "within_limit": case.limit_ms is None or median < case.limit_ms,
            }
        )
    return rows


def table(rows: list[dict[str, object]]) -> str:
    lines = [f"{'command':22}{'median':>10}{'min':>10}{'max':>10}{'ratio':>8}{'limit':>10}"]
    for row in rows:
        limit = "" if row["limit_ms"] is None else f"{row['limit_ms']:.0f} ms"
        times = "".join(f"{row[key]:>7.1f} ms" for key in ("median_ms", "min_ms", "max_ms"))
        verdict = "" if row["within_limit"] else "  MISSED"
        lines.append(f"{row['command']:22}{times}{row['ratio_to_bare_python']:>8.2f}{limit:>10}{verdict}")
    return "\n".join(lines)


def machine() -> dict[str, object]:
    """The facts about the machine that a reader needs to judge the numbers, and no names."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vllm", default="0.22.0", metavar="PATH|RELEASE", help="tree for `new` [0.22.0]")
    parser.add_argument("--runs", type=int, default=9, help="timed runs of each command [9]")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.relative_to(REPOSITORY)}")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    # The commands run in the repository; a relative path means one from the user's working directory.
    tree = str(Path(options.vllm).resolve()) if Path(options.vllm).is_dir() else options.vllm

    chosen = cases(tree)
    rows = summarise(chosen, measure(chosen, options.runs))
    result = {"runs": options.runs, "machine": machine(), "commands": rows}
    print(table(rows), file=sys.stderr)
    print(json.dumps(result, indent=2))
    if options.write:
        dated = {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), **result}
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        RESULT.write_text(json.dumps(dated, indent=2) + "\n")
    return 0 if all(row["within_limit"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
