"""Make the results behind README.md's table again: all parts in order, on one GPU, with what a server has by default.

    python benchmarks/readme_gpu.py FOLDER --card h200 [--parts manager,stream]   # hours, where vLLM 0.33 is installed
    cp FOLDER/*.json benchmarks/results/ && python benchmarks/pages.py

Each part is a script of this folder in a process of its own, which names machine, versions, commit and digest of the
measured code in its result. A part that fails does not stop the others, and sets the exit status; so do results of
different cards or of different code. With `--tiny` the parts run on a CPU, with tiny models (`tiny.py`): whether the
command works, never how fast anything is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Part:
    """A script, its options for the published result and for a tiny one, and keys that each row of a result has.

    `first`: options of a run before it, which writes into {work}. `engine`: its own `--scale tiny` starts engines of
    an installed vLLM.
    """

    name: str
    script: str
    options: tuple[str, ...]
    tiny: tuple[str, ...]
    keys: frozenset[str]
    first: tuple[str, ...] = ()
    engine: bool = False


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


SERVED = "qwen3_vl:images,qwen3_vl:served,qwen2_vl:images,qwen2_vl:served,qwen2_5_vl:images,qwen2_5_vl:served"
STREAM = _keys("model stream tuning pass calls eager_ms vllm_ms ours_ms ours_p99_ms plans_built")
PARTS = (
    Part(
        "ports", "ports_gpu.py", ("--ports", "{work}/ports"),
        ("--ports", "{work}/ports", "--models", "qwen2_vl", "--accepted", "images", "--rounds", "2"),
        _keys("model workload tokens eager_ms upstream_ms generated_ms upstream_error generated_error"),
        first=("--generate", "{work}/ports"),
    ),
    Part(
        "manager", "manager_gpu.py", (), ("--models", "internvl", "--rounds", "2"),
        _keys("model workload tokens eager_ms vllm_ms ours_ms exact_ms ours_error vllm_error"),
    ),
    Part(
        "tuning", "tuning_gpu.py", (), ("--models", "internvl", "--rounds", "2"),
        _keys("model workload untuned_exact_ms tuned_exact_ms tuned_execute_ms floor_ms max_relative_error rounding"),
    ),
    Part(
        "stream", "stream_gpu.py", (),
        ("--models", "internvl", "--share", "0.02", "--passes", "2", "--without-starts"), STREAM,
    ),
    Part(
        "stream_served", "stream_gpu.py", ("--models", SERVED, "--share", "0.2"),
        ("--models", "internvl:served", "--share", "0.02", "--passes", "1", "--without-starts"), STREAM,
    ),
    Part(
        "engine", "engine_gpu.py", ("--machine", "{machine}"),
        ("--models", "qwen2_vl", "--modes", "eager,ours", "--check-only", "", "--engines", "1", "--turns", "1",
         "--encoder-turns", "1", "--requests", "3", "--stream-passes", "1", "--scale", "tiny",
         "--machine", "{machine}"),
        _keys("model images eager_ms eager_encoder_ms ours_ms ours_engine_ms spread ours_against_eager"), engine=True,
    ),
)  # fmt: skip


def commands(part: Part, folder: Path, card: str, tiny: bool) -> list[list[str]]:
    """The runs of a part, one after the other: script and options."""
    runs: list[tuple[str, ...]] = []
    if part.first:  # a tiny run makes only what it measures
        place = part.tiny.index("--models")
        runs.append((*part.first, *(part.tiny[place : place + 2] if tiny else ())))
    runs.append(("--out", str(file_of(part, folder, card)), *(part.tiny if tiny else part.options)))
    results = (read(file_of(other, folder, card)) for other in PARTS if other is not part)
    # Engines run in processes of their own: their script knows no card.
    machine = next((result["machine"] for result in results if result is not None), "unknown")
    return [[part.script, *(option.format(work=folder / "work", machine=machine) for option in run)] for run in runs]


def read(file: Path) -> dict[str, Any] | None:
    """A result; None where there is none, or where its script ended before it measured anything."""
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return result if "code" in result else None


def file_of(part: Part, folder: Path, card: str) -> Path:
    """The result of a part."""
    return folder / f"{part.name}_{card}.json"


def started(part: Part, command: list[str], tiny: bool) -> int:
    """Run a script in a process of its own. Returns its exit status."""
    script, *options = command
    before = [str(FOLDER / "tiny.py"), script] if tiny and not part.engine else [str(FOLDER / script)]
    return subprocess.run([sys.executable, *before, *options], check=False).returncode


def problems_of(parts: list[Part], results: dict[str, Any], statuses: dict[str, int]) -> list[str]:
    """The problems of the results of these parts, by name; a part without one has None."""
    found = []
    for part in parts:
        result = results[part.name]
        if statuses[part.name]:
            found.append(f"{part.name}: {part.script} ended with {statuses[part.name]}")
        if result is None:
            found.append(f"{part.name}: no result")
        elif not result["rows"] or any(not part.keys <= row.keys() for row in result["rows"]):
            found.append(f"{part.name}: rows lack values")
    there = [result for result in results.values() if result is not None]
    for what, values in {
        "cards": {result["machine"] for result in there},
        "states of the code": {result["code"]["digest"] for result in there},
    }.items():
        if len(values) > 1:
            found.append(f"results of different {what}: {', '.join(sorted(values))}")
    return found


def report(parts: list[Part], folder: Path, card: str, statuses: dict[str, int]) -> int:
    """Print each result with machine, commit and digest, and what is wrong. Returns the exit status."""
    results = {}
    for part in parts:
        file = file_of(part, folder, card)
        result = results[part.name] = read(file)
        if result is not None:
            code = result["code"]
            told = f"commit {code['commit'][:8] or 'unknown'}, digest {code['digest']}"
            print(f"{file.name}: {len(result['rows'])} rows, {result['machine']}, {told}")
    problems = problems_of(parts, results, statuses)
    print(*problems, sep="\n", file=sys.stderr)
    return int(bool(problems))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--card", default="gpu", help="ends the names of the results, as pages look for them: h200")
    options.add_argument("--parts", default=",".join(part.name for part in PARTS))
    options.add_argument("--tiny", action="store_true", help="on a CPU, with tiny models")
    arguments = options.parse_args()
    names = arguments.parts.split(",")
    if unknown := set(names) - {part.name for part in PARTS}:
        options.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = [part for part in PARTS if part.name in names]
    folder: Path = arguments.folder.resolve()
    (folder / "work").mkdir(parents=True, exist_ok=True)
    statuses = {}
    for part in parts:
        file_of(part, folder, arguments.card).unlink(missing_ok=True)
        # The first run that fails is the last one.
        runs = commands(part, folder, arguments.card, arguments.tiny)
        statuses[part.name] = next((status for run in runs if (status := started(part, run, arguments.tiny))), 0)
    return report(parts, folder, arguments.card, statuses)


if __name__ == "__main__":
    sys.exit(main())
