"""Host time of a call with the forms of a port: vLLM's own manager on the CPU, where a replay does nothing.

    python benchmarks/host_cpu.py [--release 0.33.0] [--rounds 7]

Each form of a model's port (upstream's, explicit, re-entrant) has a process of its own with the release's real classes,
tiny. The processes take turns, so that whatever else a machine does hits all of them. A round keeps the median of 60
calls of `execute`, and the smallest of all rounds counts. A row is a call that every form replays as a whole. Copies to
a GPU, and waits for one, are not in these times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_result import head

if TYPE_CHECKING:
    from scaffold.protocol import SourceTree

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "host_cpu.json"
MODELS = ("llava", "llava_next", "paligemma")
CALLS = 60


def serve(root: str, model: str, explicit: bool) -> None:
    """The process of one form: measure all calls for each line of stdin."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from scaffold.verify.numeric import attention, child, session

    child._import_shared({"root": root, "bytecode_cache": ""})
    import torch

    from scaffold.verify.numeric.graphs import Lab
    from scaffold.verify.numeric.recipes.base import process_weights, randomise
    from scaffold.verify.numeric.recipes.found import requested_recipe

    torch.set_num_threads(1)
    attention.set_tail("fa3")
    request = {"recipe": model, "automatic": None, "class_name": ""}
    host, config = child._build(request, child.Stages("both", types.SimpleNamespace(send=lambda *_, **__: None)))  # type: ignore[arg-type]
    randomise(host)
    process_weights(host)
    recipe = requested_recipe(request)
    sessions = session.sessions_of(recipe, False)
    inputs = session.make_inputs(recipe, sessions, recipe.modalities)
    bench = session.Bench(Lab([root]), host, config, recipe, recipe.modalities, inputs, {})
    bench.lab.place_model(host)
    calls = []
    replays = 0

    def replay() -> None:
        nonlocal replays
        replays += 1

    # The last session has room for all items of its calls in one graph.
    [group] = session.fitted(bench, sessions, explicit)[-1:]
    manager = bench.manager_run(group).manager
    for graphs in manager.budget_graphs.values():
        for graph in graphs.values():
            graph.graph = types.SimpleNamespace(replay=replay)
    for case in group.cases:
        given = session.copy_inputs(inputs[session.case_key(group, case)])
        calls.append((case.name, given))
    for _ in sys.stdin:
        measured = {}
        for name, given in calls:
            times, hits, replays = [], manager.graph_hits, 0
            with torch.inference_mode():
                for _ in range(CALLS):
                    begin = time.perf_counter()
                    manager.execute(dict(given))
                    times.append(time.perf_counter() - begin)
            measured[name] = [statistics.median(times) * 1000, manager.graph_hits - hits, replays]
        out.write(json.dumps(measured) + "\n")
        out.flush()


def forms(model: str, tree: SourceTree, scratch: Path) -> dict[str, Path]:
    """A tree for each form of a model's port."""
    from scaffold.descriptor import CutPort
    from scaffold.protocol import find_model
    from scaffold.tower.source import Program
    from scaffold.verify.numeric.overlay import build_overlay
    from scaffold.workflow import load_port, prepare_port

    port = load_port(model)
    assert isinstance(port, CutPort)
    found = {}
    program = Program(tree)
    owner = program.owner(find_model(tree, port.module, port.class_name).path, port.class_name)
    if program.method(owner, "get_encoder_cudagraph_config") is not None:
        found["upstream"] = tree.root
    for name, one in (("explicit", port), ("re-entrant", port.replace(explicit=None))):
        changes = prepare_port(one, tree, replace=True).changed
        found[name] = scratch / f"{model}-{name}"
        overlay = {change.path: change.after for change in changes if change.after and change.path.startswith("vllm/")}
        build_overlay(tree.root, overlay, found[name])
    return found


def measure(model: str, trees: dict[str, Path], rounds: int) -> list[dict[str, Any]]:
    """A row for each call that all forms replay as a whole, in equally many graphs."""
    command = [sys.executable, __file__, "--serve", model]
    started = {
        name: subprocess.Popen(
            [*command, "--root", str(root), *["--explicit"] * (name == "explicit")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, root in trees.items()
    }
    taken: dict[str, dict[str, list[list[float]]]] = {}
    try:
        for _ in range(rounds + 1):
            for name, process in started.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                for call, found in json.loads(process.stdout.readline()).items():
                    taken.setdefault(call, {}).setdefault(name, []).append(found)
    finally:
        for process in started.values():
            process.terminate()
    rows = []
    for call, by_form in taken.items():
        first = next(iter(by_form.values()))[0]
        if all(found[0][1:] == first[1:] and found[0][1] for found in by_form.values()):
            times = {name: round(min(one[0] for one in found[1:]), 4) for name, found in by_form.items()}
            rows.append({"model": model, "call": call, "ms": times})
    return rows


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--release", default="0.33.0")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--print", action="store_true", help="write no file")
    options.add_argument("--serve", help=argparse.SUPPRESS)
    options.add_argument("--root", help=argparse.SUPPRESS)
    options.add_argument("--explicit", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.serve:
        serve(chosen.root, chosen.serve, chosen.explicit)
        return 0
    from scaffold.protocol import resolve_target

    tree = resolve_target(chosen.release).tree
    rows = []
    for model in chosen.models.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            rows += measure(model, forms(model, tree, Path(scratch)), chosen.rounds)
    for row in rows:
        print(row["model"], row["call"], *(f"{name} {value:.3f}" for name, value in row["ms"].items()), sep=", ")
    if not chosen.print:
        document = {**head(f"{os.cpu_count()} cores", chosen.release), "rows": rows}
        RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
