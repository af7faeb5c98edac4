"""Show that encoder graphs stay within the memory that vLLM planned: no engine runs out of memory because of ours.

    python benchmarks/memory_gpu.py --out RESULT.json [--images 1000] [--modes ours,unbounded,vllm_graphs]

It needs one GPU, an installed vLLM and this package with its metadata, and nothing from a network. One engine after the
other, with `gpu_memory_utilization` 0.95 and random weights of real sizes:

1. When vLLM takes its snapshot, a block takes all memory beyond what vLLM requests, but for `--margin`, as a neighbour
   on the device would. So vLLM has what it planned with, and hardly more. With images of new sizes vLLM itself takes
   more than it planned: it keeps positions of 1024 sizes, some 200 MiB here, and starts with 160 MiB more than planned.
2. `--images` requests come, each with an image of a new size. After every tenth of them the manager captures whatever
   it wants when idle.
3. Then come the peaks: a text as long as a batch may be, and the largest image, three times.

`unbounded` is our manager without its bound: start-up holds no memory for later, and nothing looks at what is left. It
must run out of memory, else this check shows nothing. `vllm_graphs` is the engine without us. The exit status is 0 if
`vllm_graphs` and `ours` pass the peaks, and 1 otherwise; the result says whether `unbounded` failed. Processes
(`engine_process.py`) import vLLM together and start their engines in turn. The result is saved after each engine.

    python benchmarks/memory_gpu.py --out RESULT.json --start qwen2_5_vl:served,internvl:images --tokens 2048

measures start-up alone: the memory that a capture takes of the device with vLLM's manager, with ours untuned and with
ours tuned. Each has a process of its own, without an engine (`stream_gpu.py --start`): `:served` allows videos beside
the images, as `vllm serve` does, and `:images` allows none. `device_mb` has all: graphs, the room for later, copies of
weights, workspaces. After that our managers capture all that they want when idle. The exit status is 0 if each capture
ran, whatever it took.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import engine_worker
from engine_process import Child, run_child
from gpu_result import again, head, save
from model_directory import MODELS, write_model

#: As `engine_process.MODES`: encoder graphs are on, plugins besides the weights, further environment.
MODES: dict[str, tuple[bool, str, dict[str, str]]] = {
    "ours": (True, ",vitcg", {}),
    "unbounded": (True, ",vitcg", {"VITCG_ENCODER_GRAPHS": '{"plan_bytes": 268435456, "idle_graphs": 400}'}),
    "vllm_graphs": (True, "", {}),
}
UTILIZATION = 0.95
SIDE, LONGEST = 28, 1024
PEAKS = 3
MIB = 1 << 20
#: Managers whose start-up is measured, by the names of `stream_gpu.py`.
WAYS = {"vllm": "vLLM's manager", "off": "ours untuned", "on": "ours tuned"}


class MemoryProbe(engine_worker.Probe):
    """Methods for `collective_rpc`."""

    def capture_idle(self) -> int:
        """Capture whatever the manager wants, as an idle worker would. Returns how many graphs."""
        manager = engine_worker.encoder_manager(self.model_runner)  # type: ignore[attr-defined]
        capture = getattr(manager, "capture_when_idle", None)
        return int(capture()) if capture is not None else 0

    def memory(self) -> str:
        """Device memory in MiB, vLLM's plan, and the number of graphs, as JSON."""
        import torch

        cuda = torch.cuda.is_available()  # a run on a CPU only tries the script
        free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
        stats = torch.cuda.memory_stats() if cuda else {}
        snapshot = getattr(self, "init_snapshot", None)
        plan = {
            "requested": getattr(self, "requested_memory", 0),
            "initial_free": getattr(snapshot, "free_memory", 0),
            "kv_cache": getattr(self, "available_kv_cache_memory_bytes", 0),
            "peak_activation": getattr(self, "peak_activation_memory", 0),
            "graphs_estimated": getattr(self, "cudagraph_memory_estimate", 0),
        }
        now = {
            "total": total,
            "free": free,
            "reserved": stats.get("reserved_bytes.all.current", 0),
            "allocated": stats.get("allocated_bytes.all.current", 0),
            "peak_allocated": stats.get("allocated_bytes.all.peak", 0),
            "neighbour": sum(block.nbytes for block in getattr(sys.modules["__main__"], "_NEIGHBOUR", ())),
        }
        manager = engine_worker.encoder_manager(self.model_runner)  # type: ignore[attr-defined]
        core = getattr(manager, "core", None)
        answer: dict[str, Any] = {
            "plan_mib": {name: round(int(value) / MIB) for name, value in plan.items()},
            "now_mib": {name: round(int(value) / MIB) for name, value in now.items()},
            "allocations_tried_again": stats.get("num_alloc_retries", 0),
        }
        if core is not None:
            report = core.report
            answer["ours"] = {
                "graphs": len(core.graphs),
                "device_mib": round(report.device_bytes / MIB),
                "held_mib": round(getattr(report, "held_bytes", 0) / MIB),
                "left": report.idle,
                "plans": len(core._plans),
            }
        return json.dumps(answer, default=str)


_NEIGHBOUR: list[Any] = []


def become_neighbour(margin: int) -> None:
    """Let vLLM's snapshot see a device on which only `margin` bytes are free beyond what it requests."""
    from vllm.v1.worker import gpu_worker

    original = gpu_worker.request_memory

    def request_memory(snapshot: Any, *arguments: Any, **named: Any) -> Any:
        import torch

        requested = original(snapshot, *arguments, **named)
        more = int(snapshot.free_memory - requested - margin)
        if more > 0 and not _NEIGHBOUR:
            _NEIGHBOUR.append(torch.empty(more, dtype=torch.uint8, device="cuda"))
            snapshot.measure()
            requested = original(snapshot, *arguments, **named)
        return requested

    gpu_worker.request_memory = request_memory


def forget_bound() -> None:
    """Take the bound off our manager: nothing is held at start-up, and nothing looks at the memory that is left."""
    from scaffold.runtime.capture import GraphSet

    def hold_nothing(self: Any, report: Any) -> None:
        self._room, report.kept_bytes = 1 << 60, self.options.plan_bytes

    GraphSet._hold_room = hold_nothing  # type: ignore[method-assign]
    GraphSet._has_room = lambda self: True  # type: ignore[method-assign]


def draw_sizes(number: int) -> list[tuple[int, int]]:
    """As many different widths and heights, in multiples of what the processor rounds to."""
    generator = random.Random(0)
    every = [(w, h) for w in range(2, LONGEST // SIDE + 1) for h in range(2, LONGEST // SIDE + 1)]
    generator.shuffle(every)
    return [(w * SIDE, h * SIDE) for w, h in every[:number]]


# -- in the process of one engine


def run_engine(job: dict[str, Any]) -> dict[str, Any]:
    """Start the engine of a job, send its images, then its peaks. An error ends it; the answer has all until then."""
    import numpy as np
    import torch
    from PIL import Image
    from vllm import LLM, SamplingParams

    begin = time.perf_counter()
    answer: dict[str, Any] = {"passed": False, "stage": "start", "memory": {}}

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:5.1f} s] {job['mode']}: {text}", flush=True)

    try:
        become_neighbour(job["margin"])
        if job["mode"] == "unbounded":
            forget_bound()
        if job["tiny"]:
            engine_worker.inspect_here()
        llm = LLM(
            model=job["directory"],
            load_format="dummy",
            gpu_memory_utilization=UTILIZATION,
            max_model_len=job["tokens"],
            max_num_batched_tokens=job["tokens"],
            max_num_seqs=2,
            # A replay on the CPU is slower than eager.
            **({"dtype": "float32", "additional_config": {"encoder_graphs": {"calibration_ms": 0, "trials": 0}}}
               if job["tiny"] else {}),
            limit_mm_per_prompt={"image": 1, "video": 0},
            enable_prefix_caching=False,
            mm_processor_cache_gb=0,
            worker_extension_cls="memory_gpu.MemoryProbe",
            compilation_config={
                "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2],
                "cudagraph_mm_encoder": True,
            },
        )  # fmt: skip
        if job["tiny"] and job["mode"] != "vllm_graphs":
            llm.collective_rpc("start_encoder_graphs")
        answer["start_s"] = round(time.perf_counter() - begin, 1)
        one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)

        def note(stage: str) -> None:
            answer["stage"] = stage
            found = json.loads(llm.collective_rpc("memory")[0])
            answer["memory"][stage] = found
            ours = found.get("ours", {})
            say(f"{stage}: free {found['now_mib']['free']} MiB, {json.dumps(ours)}")

        def ask(prompt: dict[str, Any]) -> None:
            llm.generate(prompt, one, use_tqdm=False)

        answer["encoder"] = json.loads(llm.collective_rpc("describe_encoder")[0])
        say(json.dumps(answer["encoder"], default=str)[:600])
        note("started")
        say(json.dumps(answer["memory"]["started"]["plan_mib"]))
        noise = np.random.default_rng(0).integers(0, 256, (LONGEST, LONGEST, 3), dtype=np.uint8)
        text = MODELS[job["model"]].prompt(images=1)
        sizes = draw_sizes(job["images"])
        captured = 0
        for number, (width, height) in enumerate(sizes, 1):
            image = Image.fromarray(noise[:height, :width])
            ask({"prompt": text, "multi_modal_data": {"image": [image]}})
            if number % max(len(sizes) // 10, 1) == 0:
                captured += int(llm.collective_rpc("capture_idle")[0])
                answer["images"], answer["captured_when_idle"] = number, captured
                say(f"{number} images, {captured} graphs captured when idle")
        note("after the images")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        generator = random.Random(0)
        tokens = [generator.randrange(100, 300) for _ in range(job["tokens"] - 1)]
        side = job["largest"] * SIDE
        large = Image.fromarray(np.zeros((side, side, 3), dtype=np.uint8))
        for number in range(1, PEAKS + 1):
            answer["stage"] = f"long text {number}"
            ask({"prompt_token_ids": tokens})
            answer["stage"] = f"largest image {number}"
            ask({"prompt": text, "multi_modal_data": {"image": [large]}})
        note("after the peaks")
        answer["passed"] = True
    except Exception as error:
        traceback.print_exc()
        words = str(error)
        answer["error"] = f"{type(error).__name__}: {words[:600]}"
        answer["out_of_memory"] = isinstance(error, torch.OutOfMemoryError) or "out of memory" in words.lower()
        with contextlib.suppress(Exception):
            free, _ = torch.cuda.mem_get_info()
            answer["free_mib_at_the_error"] = round(free / MIB)
            answer["reserved_mib_at_the_error"] = round(torch.cuda.memory_reserved() / MIB)
            answer["allocated_mib_at_the_error"] = round(torch.cuda.memory_allocated() / MIB)
    say("passed" if answer["passed"] else f"failed at {answer['stage']}: {answer.get('error', '')[:300]}")
    return answer


class Run:
    """The requests that the parent can make of the process of one engine."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job

    def run(self) -> dict[str, Any]:
        return run_engine(self._job)


# -- in the process that starts them


class Engine(Child):
    """A process with one engine."""

    script, modes = __file__, MODES

    def run(self, limit: float) -> dict[str, Any]:
        """The answer of `run_engine`; without one, why there is none. An engine that failed has the end of its log."""
        try:
            release = self.receive(limit)
            self.send("run")
            answer = self.receive(limit) | release
        except RuntimeError as error:
            answer = {"passed": False, "error": str(error)}
        self.stop()
        return answer if answer["passed"] else {**answer, "log": self.tail(80)[-6000:]}


def measure_starts(models: list[str], tokens: int, limit: float, out: Path | None) -> int:
    """Measure the memory of each model's start-up with each manager, by the labels of `stream_gpu.py`."""
    total: dict[str, Any] = {"settings": {"tokens": tokens}, "models": {}}
    script, failed = str(Path(__file__).with_name("stream_gpu.py")), 0
    for model in models:
        for way, name in WAYS.items():
            command = [*again(script), "--models", model, "--batched", str(tokens), "--start", way]
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=limit, check=True)
            except subprocess.SubprocessError as error:
                answer: dict[str, Any] = {"error": str(error)}
                failed = 1
            else:
                answer = json.loads(done.stdout.strip().splitlines()[-1])
                total |= head(answer.pop("machine"), answer.pop("vllm"))
            total["models"].setdefault(model, {})[way] = answer
            print(f"{model}, {name}: {json.dumps(answer)}", flush=True)
            save(total, out)
    return failed


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--model", default="qwen2_5_vl")
    options.add_argument("--modes", default=",".join(MODES), help=f"of {', '.join(MODES)}")
    options.add_argument("--scale", choices=("tiny", "real"), default="real", help="tiny: on a CPU")
    options.add_argument("--images", type=int, default=1000, help="of new sizes")
    options.add_argument("--tokens", type=int, default=16384, help="of the longest text, in one batch")
    options.add_argument("--margin", type=int, default=600, help="MiB that are free beyond what vLLM requests")
    options.add_argument("--limit", type=float, default=200, help="seconds for each engine")
    options.add_argument("--machine", default="")
    options.add_argument("--start", default="", metavar="MODELS", help="measure the memory of these at start-up alone")
    arguments = options.parse_args()
    if arguments.start:
        return measure_starts(arguments.start.split(","), arguments.tokens, arguments.limit, arguments.out)
    modes = arguments.modes.split(",")
    if unknown := set(modes) - MODES.keys():
        options.error(f"modes are {', '.join(MODES)}; not {', '.join(sorted(unknown))}")
    total: dict[str, Any] = {"machine": arguments.machine, "engines": {}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        directory = write_model(arguments.model, folder / arguments.model, arguments.scale)
        job = {
            "model": arguments.model, "directory": str(directory), "images": arguments.images,
            "tokens": arguments.tokens, "margin": arguments.margin * MIB, "served": False,
            "tiny": arguments.scale == "tiny",
            "largest": 64 if arguments.scale == "real" else 8,  # squared: the tokens of the processor's largest image
        }  # fmt: skip
        engines = {mode: Engine(mode, 0, job, folder) for mode in modes}
        try:
            for mode, engine in engines.items():
                answer = engine.run(arguments.limit)
                total["engines"][mode] = answer
                total.update(head(arguments.machine, answer.get("vllm", "")))
                total["settings"] = {k: job[k] for k in ("model", "images", "tokens")} | {
                    "margin_mib": arguments.margin, "gpu_memory_utilization": UTILIZATION,
                }  # fmt: skip
                total["stays_within_the_plan"] = all(
                    total["engines"].get(name, {}).get("passed", False) for name in ("vllm_graphs", "ours")
                )
                total["the_check_can_fail"] = bool(total["engines"].get("unbounded", {}).get("out_of_memory", False))
                save(total, arguments.out)
        finally:
            for engine in engines.values():
                engine.stop()
    for mode, answer in total["engines"].items():
        print(f"{mode}: {'passed' if answer['passed'] else 'FAILED ' + answer.get('error', '')[:200]}")
    print(json.dumps({key: total[key] for key in ("stays_within_the_plan", "the_check_can_fail")}))
    return 0 if total["stays_within_the_plan"] else 1


if __name__ == "__main__":
    if sys.argv[1].isdigit():  # the number of a socket, as `engine_process.py` has it
        with Connection(int(sys.argv[1])) as own_channel:
            run_child(own_channel, json.loads(sys.argv[2]), Run)
    else:
        sys.exit(main())
