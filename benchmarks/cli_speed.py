"""Times the command line as its user meets it: whole processes, cold interpreter, warm disk cache.

    python benchmarks/cli_speed.py [--vllm PATH|RELEASE] [--runs N]

The run keeps bytecode in a folder of its own, whatever the environment says: with PYTHONDONTWRITEBYTECODE each command
would compile the tool anew, which takes a third of a second. The commands and a bare `python -c pass` take turns, so
that a busy moment of the machine hits all of them. Exit 1 if a median misses its limit, 2 if a command fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
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


def table(all_cases: tuple[Case, ...], times: dict[str, list[float]]) -> str:
    """A line for each command; its ratio is to a bare `python`."""
    bare = statistics.median(times[BARE])
    lines = [f"{'command':22}{'median':>10}{'min':>10}{'max':>10}{'ratio':>8}{'limit':>10}"]
    for case in all_cases:
        found = times[case.name]
        median = statistics.median(found)
        limit = "" if case.limit_ms is None else f"{case.limit_ms:.0f} ms"
        shown = "".join(f"{ms:>7.1f} ms" for ms in (median, min(found), max(found)))
        verdict = "  MISSED" if misses(case, times) else ""
        lines.append(f"{case.name:22}{shown}{median / bare:>8.2f}{limit:>10}{verdict}")
    return "\n".join(lines)


def misses(case: Case, times: dict[str, list[float]]) -> bool:
    """Whether a command takes longer than the project allows."""
    return case.limit_ms is not None and statistics.median(times[case.name]) >= case.limit_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vllm", default="0.22.0", metavar="PATH|RELEASE", help="tree for `new` [0.22.0]")
    parser.add_argument("--runs", type=int, default=9, help="timed runs of each command [9]")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    # The commands run in the repository; a relative path means one from the user's working directory.
    tree = str(Path(options.vllm).resolve()) if Path(options.vllm).is_dir() else options.vllm

    chosen = cases(tree)
    times = measure(chosen, options.runs)
    print(table(chosen, times))
    return int(any(misses(case, times) for case in chosen))


if __name__ == "__main__":
    raise SystemExit(main())
