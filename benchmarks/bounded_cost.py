"""Times commands on hostile trees of growing size: CPU seconds, and the exponent by which they grow.

    python benchmarks/bounded_cost.py [--vllm PATH|RELEASE] [--before FOLDER] [--limit SECONDS] [--write]

Each input is written into a copy of 0.22.0, and one command is run on it as its user would. `--before` is a checkout of
an older state of this repository, which is measured beside it. A run ends after `--limit` CPU seconds; then only the
limit is known, and `ended` is false. The CPU seconds of the same command without the input are subtracted. An
input that is refused (exit 4, with a file and a line) costs what its refusal costs. JSON goes to
benchmarks/results/bounded_cost.json with --write, and to stdout without.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULT = REPOSITORY / "benchmarks/results/bounded_cost.json"
RELEASE = "0.22.0"
MODELS = "vllm/model_executor/models/"
COPIED = (
    "vllm",
    "pyproject.toml",
    "PKG-INFO",
    "tests/models/multimodal/generation",
    "docs/design",
    "examples/offline_inference",
    "examples/generate",
)
NEW = ("new", "internvl", "--check")
CUT = ("new", "phi3v", "--check")
TOWER = ("tower", "hostile:H")
IMPORT = "from .internvl import InternVLChatModel\n"
MODEL = IMPORT + "class H(InternVLChatModel):\n    q = "
FORWARD = "from torch import nn\nclass H(nn.Module):\n    def __init__(self):\n        self.w = nn.Linear(1, 1)\n"
FORWARD += "    def forward(self, x, grid_thw):\n        "


@dataclass(frozen=True)
class Input:
    """A kind of file, its sizes, and the command that reads it."""

    name: str
    make: Callable[[int], str]
    sizes: tuple[int, ...]
    command: tuple[str, ...] = NEW
    file: str = "hostile.py"


def choices(depth: int) -> str:
    return "x" if depth == 0 else f"({choices(depth - 1)} if grid_thw[0] else {choices(depth - 1)})"


def internvl() -> str:
    from scaffold.protocol import resolve_target

    return resolve_target(RELEASE).tree.read(MODELS + "internvl.py")


def blank_lines(number: int) -> str:
    """The model's file with blank lines around a class that ends it: both sides of what a port changes have them."""
    lines = "\n" * number
    return f"{lines}{internvl()}{lines}class Last:\n    pass\n"


def classes(number: int, base: Callable[[int], str]) -> str:
    return IMPORT + "".join(f"class C{n}({base(n)}):\n    pass\n" for n in range(number))


def overriding(number: int, base: Callable[[int], str]) -> str:
    """Subclasses of a class on the way to an encoder, each with its own method there, made in attributes alone."""
    text = "from .phi3v import Phi3HDImageEmbedding\n"
    text += "".join(f"class C{n}({base(n)}):\n    def forward(self, x):\n        return x\n" for n in range(number))
    made = "".join(f"        self.a{n} = C{n}()\n" for n in range(number))
    return f"{text}class Other:\n    def __init__(self):\n{made}"


INPUTS = (
    Input("direct subclasses", lambda n: classes(n, lambda _: "InternVLChatModel"), (100, 1000)),
    Input(
        "a chain of subclasses",
        lambda n: classes(n, lambda at: f"C{at - 1}" if at else "InternVLChatModel"),
        (100, 1000),
    ),
    Input(
        "overriding subclasses of a class on the way",
        lambda n: overriding(n, lambda _: "Phi3HDImageEmbedding"),
        (100, 1000),
        CUT,
    ),
    Input(
        "a chain of them",
        lambda n: overriding(n, lambda at: f"C{at - 1}" if at else "Phi3HDImageEmbedding"),
        (100, 1000),
        CUT,
    ),
    Input("blank lines in the model's file", blank_lines, (2000, 4000, 8000), file="internvl.py"),
    Input("nested choices", lambda n: FORWARD + f"return self.w(x + {choices(n)})\n", (8, 10), TOWER),
    Input(
        "a list of choices",
        lambda n: FORWARD + "return self.w(x), [" + "x if grid_thw[0] else x, " * n + "]\n",
        (100, 1000),
        TOWER,
    ),
    Input("attributes", lambda n: MODEL + "x" + ".a" * n + "\n", (5000, 50_000)),
    Input("a sum", lambda n: MODEL + "1" + "+1" * n + "\n", (20_000, 200_000)),
    Input("signs", lambda n: MODEL + "-" * n + "1\n", (100_000, 1_000_000)),
    Input("lambdas", lambda n: MODEL + "lambda:" * n + "1\n", (20_000, 200_000)),
    Input("elifs", lambda n: "if InternVLChatModel:\n pass\n" + "elif a:\n pass\n" * n, (20_000, 200_000)),
)


def seconds(repository: Path, command: tuple[str, ...], tree: Path, limit: float) -> tuple[float, int | None]:
    """CPU seconds of one whole process and its exit code, None when it did not end in time."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["prlimit", f"--cpu={limit:.0f}", sys.executable, "-m", "scaffold.cli", *command, "--vllm", str(tree)],
        cwd=repository,
        env={**environment, "PYTHONPATH": str(repository)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    code = done.returncode if done.returncode >= 0 else None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code


def measure(repository: Path, tree: Path, limit: float) -> list[dict[str, Any]]:
    """One record for each input, with one run for each of its sizes."""
    records = []
    file = tree / MODELS / Input.file
    file.write_text("")
    seconds(repository, NEW, tree, limit)  # compiles the tool, reads the tree
    file.write_text(FORWARD + "return self.w(x)\n")
    without = {command: seconds(repository, command, tree, limit)[0] for command in (NEW, CUT, TOWER)}
    for item in INPUTS:
        idle = without[item.command]
        runs = []
        for size in item.sizes:
            text = item.make(size)
            written = tree / MODELS / item.file
            before = written.read_text()
            written.write_text(text)
            spent, code = seconds(repository, item.command, tree, limit)
            written.write_text(before)
            more = round(max(spent - idle, 0.0), 2)
            runs.append({"size": size, "bytes": len(text), "seconds": more, "exit": code, "ended": code is not None})
            print(f"{item.name:24} {len(text):>9} bytes {more:8.2f} s exit {code}", file=sys.stderr)
            if code is None:
                break
        records.append({"input": item.name, "command": " ".join(item.command), "without_s": round(idle, 2),
                        "runs": runs, "exponent": exponent(runs)})  # fmt: skip
    file.unlink()
    return records


def exponent(runs: list[dict[str, Any]]) -> float | None:
    """The slope of log(seconds) over log(bytes) between the first and the last run that ended in a measurable time."""
    known = [run for run in runs if run["ended"] and run["seconds"] >= 0.05]
    if len(known) < 2:
        return None
    first, last = known[0], known[-1]
    return round(math.log(last["seconds"] / first["seconds"]) / math.log(last["bytes"] / first["bytes"]), 2)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--vllm", default=RELEASE)
    options.add_argument("--before", type=Path)
    options.add_argument("--limit", type=float, default=60.0)
    options.add_argument("--write", action="store_true")
    arguments = options.parse_args()
    sys.path.insert(0, str(REPOSITORY))
    from scaffold.protocol import resolve_target

    source = resolve_target(arguments.vllm).tree.root
    with tempfile.TemporaryDirectory(prefix="vitcg-bounded-") as folder:
        for place in COPIED:
            if (source / place).is_dir():
                shutil.copytree(
                    source / place, Path(folder, place), ignore=shutil.ignore_patterns("*.so", "*.cu", "__pycache__")
                )
            elif (source / place).exists():
                Path(folder, place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / place, Path(folder, place))
        states = {"now": REPOSITORY, **({"before": arguments.before.resolve()} if arguments.before else {})}
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores; CPU seconds of the process",
            "python": platform.python_version(),
            "release": RELEASE,
            "limit_cpu_s": arguments.limit,
            **{name: measure(repository, Path(folder), arguments.limit) for name, repository in states.items()},
        }
    text = json.dumps(result, indent=1) + "\n"
    if arguments.write:
        RESULT.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
