"""Measure the whole engine: eager encoder, vLLM's encoder graphs, and ours, side by side in one run.

    python benchmarks/engine_gpu.py --out RESULT.json [--models qwen2_vl,qwen2_5_vl] [--tensor-parallel 2]

Needs an installed vLLM and this package (the plugin is found by its metadata), and nothing from a network: model
directories are made on the spot (`model_directory.py`), weights are random but carry an image to the logits
(`engine_worker.py`). For every model one engine of each mode is started, one after another, and all stay up; then each
request goes to the engines in turn, a different one first each time, so that no mode is measured in another minute than
the others. Nothing else runs meanwhile.

* Requests: one at a time, one output token: close to the time to the first token, with and without the processing of
  the images, which is done on the processor and is the same for all. The engine runs in the asking process, so that no
  copy between processes is in the times. Beside it, in other requests, the encoder alone, as the runner calls it,
  between two waits for the device.
* Correctness first and last: eight tokens for three different pictures of every size; a token may differ from eager
  only where eager's own two best are within `TIE` of each other: padding changes the order of additions in bfloat16.
* A mixed stream: `REQUESTS` requests, `CONCURRENT` at a time, sizes from `draw_stream`.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import engine_worker
from model_directory import MODELS, REAL, write_model

#: Name in the result -> number of images, width, height.
WORKLOADS: dict[str, tuple[int, int, int]] = {
    "1 x 224x224": (1, 224, 224),
    "4 x 336x336": (4, 336, 336),
    "1 x 448x448": (1, 448, 448),
    "8 x 336x336": (8, 336, 336),
    "1 x 1280x720": (1, 1280, 720),
    "1 x 1920x1080": (1, 1920, 1080),
}
TINY_WORKLOADS = {"1 x 56x56": (1, 56, 56), "2 x 84x56": (2, 84, 56)}
#: Mode -> (encoder graphs are on, plugins besides the weights, further environment).
MODES: dict[str, tuple[bool, str, dict[str, str]]] = {
    "eager": (False, "", {}),
    "vllm_graphs": (True, "", {}),
    "ours": (True, ",vitcg", {}),
    # Controls: how far two engines of one mode are apart.
    "eager_again": (False, "", {}),
    "vllm_graphs_again": (True, "", {}),
    "our_manager_only": (True, ",vitcg", {"VITCG_MODE": "manager"}),
}
#: Columns of a row: a request; without the processing of its images; the encoder alone.
KINDS = ("ms", "engine_ms", "encoder_ms")
PICTURES = 3
CHECK_TOKENS = 8
STREAM_TOKENS = 8
REQUESTS, CONCURRENT = 200, 8
#: Two logprobs of one engine that are closer than this may change places when rows are added in another order.
TIE = 0.1
WARM_UP = 8
KEY = b"engine"


def draw_stream(number: int, seed: int = 0) -> list[list[tuple[int, int]]]:
    """Sizes of each request: one image (80 %), two to four (20 %); the long side log-uniform from 224 to 1536 pixels;
    the sides 1:1, 4:3 or 16:9, upright in one of three."""
    generator = random.Random(seed)
    requests = []
    for _ in range(number):
        count = 1 if generator.random() < 0.8 else generator.randint(2, 4)
        sizes = []
        for _ in range(count):
            long = 224 * (1536 / 224) ** generator.random()
            short = long / generator.choice((1.0, 4 / 3, 16 / 9))
            size = (round(long), round(short))
            sizes.append(size if generator.random() < 2 / 3 else size[::-1])
        requests.append(sizes)
    return requests


# -- the process that holds one engine


def picture(seed: int, width: int, height: int) -> Any:
    """Noise over a gradient: no two are alike, and neither are two parts of one."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    slope = np.linspace(0, 200, width, dtype=np.float32)[None, :, None] * generator.random(3, dtype=np.float32)
    noise = generator.integers(0, 56, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(slope.astype(np.uint8) + noise)


class Engine:
    """One `vllm.LLM` and what the parent can ask of it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.model = MODELS[job["model"]]
        self.prompts = {
            (name, number): self._prompt([picture(hash_of(name, number, i), width, height) for i in range(count)])
            for name, (count, width, height) in job["workloads"].items()
            for number in range(PICTURES)
        }
        limits = job["stream_limit"]
        self.stream_prompts = [
            self._prompt([picture(n * 10 + i, min(w, limits), min(h, limits)) for i, (w, h) in enumerate(sizes)])
            for n, sizes in enumerate(draw_stream(job["requests"]))
        ]
        self.llm: Any = None
        self.requests = 0

    def _prompt(self, images: list[Any]) -> dict[str, Any]:
        return {"prompt": self.model.prompt(images=len(images)), "multi_modal_data": {"image": images}}

    def start(self) -> dict[str, Any]:
        from vllm import LLM

        job = self.job
        begin = time.perf_counter()
        self.llm = LLM(
            model=job["directory"],
            load_format="dummy",
            max_num_seqs=CONCURRENT,
            enable_prefix_caching=False,
            mm_processor_cache_gb=0,
            worker_extension_cls=engine_worker.PROBE,
            compilation_config={
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                **({"cudagraph_mm_encoder": True} if job["graphs"] else {}),
            },
            **job["options"],
        )
        return {"start_s": time.perf_counter() - begin, "ranks": self.describe()}

    def describe(self) -> list[dict[str, Any]]:
        return [json.loads(answer) for answer in self.llm.collective_rpc("describe_encoder")]

    def request(self, name: str, number: int) -> tuple[float, float]:
        """Milliseconds of one request: all of it, and without the processing of its images on the processor."""
        from vllm import SamplingParams

        parameters = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        self.requests += 1
        begin = time.perf_counter()
        # Anew for each request: processed inputs carry a name, and the encoder's output is kept by name.
        prompt = self.llm._preprocess_cmpl_one(self.prompts[name, number])
        processed = time.perf_counter()
        self._finish(f"one-{self.requests}", prompt, parameters)
        end = time.perf_counter()
        return (end - begin) * 1e3, (end - processed) * 1e3

    def _finish(self, name: str, prompt: Any, parameters: Any) -> None:
        engine = self.llm.llm_engine
        engine.add_request(name, prompt, parameters)
        while engine.has_unfinished_requests():
            engine.step()

    def encoder(self, name: str, number: int) -> float:
        """Milliseconds of the encoder alone, as the runner calls it, between two waits for the device."""
        self.llm.collective_rpc("time_encoder", args=(True,))
        self.request(name, number)
        return max(float(ms) for ms in self.llm.collective_rpc("time_encoder", args=(False,)))

    def check(self) -> dict[str, Any]:
        """Tokens of every picture, and the logprobs of the five best at each step."""
        from vllm import SamplingParams

        parameters = SamplingParams(
            temperature=0, max_tokens=CHECK_TOKENS, logprobs=5, ignore_eos=True, detokenize=False
        )
        answers = {}
        for (name, number), prompt in self.prompts.items():
            output = self.llm.generate(prompt, parameters, use_tqdm=False)[0].outputs[0]
            best = [{int(token): value.logprob for token, value in step.items()} for step in output.logprobs]
            answers[f"{name} #{number}"] = {"tokens": [int(t) for t in output.token_ids], "best": best}
        return answers

    def stream(self, run: int) -> dict[str, Any]:
        """All requests of the stream, so many at a time: seconds, and milliseconds and tokens of each."""
        from vllm import SamplingParams

        parameters = SamplingParams(temperature=0, max_tokens=STREAM_TOKENS, ignore_eos=True, detokenize=False)
        engine, waiting = self.llm.llm_engine, list(enumerate(self.stream_prompts))[::-1]
        started: dict[str, float] = {}
        ms: dict[int, float] = {}
        tokens: dict[int, list[int]] = {}

        def submit() -> None:
            if waiting:
                number, prompt = waiting.pop()
                name = f"{run}-{number}"
                started[name] = time.perf_counter()
                engine.add_request(name, prompt, parameters.clone())

        begin = time.perf_counter()
        for _ in range(CONCURRENT):
            submit()
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    number = int(output.request_id.split("-")[1])
                    ms[number] = (time.perf_counter() - started[output.request_id]) * 1e3
                    tokens[number] = [int(t) for t in output.outputs[0].token_ids]
                    submit()
        seconds = time.perf_counter() - begin
        order = range(len(self.stream_prompts))
        return {"seconds": seconds, "ms": [ms[n] for n in order], "tokens": [tokens[n] for n in order]}


def hash_of(*parts: Any) -> int:
    """The same number in every process."""
    import zlib

    return zlib.crc32(repr(parts).encode())


def run_child(address: str, job: dict[str, Any]) -> None:
    with Client(address, family="AF_UNIX", authkey=KEY) as channel:
        import vllm

        engine = Engine(job)
        channel.send({"vllm": vllm.__version__})
        while True:
            name, arguments = channel.recv()
            if name == "stop":
                return
            try:
                channel.send(getattr(engine, name)(*arguments))
            except Exception as error:
                traceback.print_exc()
                channel.send(error if isinstance(error, (RuntimeError, ValueError)) else RuntimeError(repr(error)))


# -- the process that measures


class Child:
    """An engine process."""

    def __init__(self, mode: str, job: dict[str, Any], folder: Path) -> None:
        graphs, plugins, environment = MODES[mode]
        self.mode = mode
        self.log = folder / f"{job['model']}-{mode}.log"
        address = str(folder / f"{job['model']}-{mode}.sock")
        site = engine_worker.write_site(folder / "site")
        path = [str(site), str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
        env = os.environ | environment | {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "VLLM_PLUGINS": engine_worker.PLUGIN + plugins,
            # The engine in the process that asks: no copy of the pixels between processes in the times.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Threads that wait in a loop for more images to process would slow the thread that launches kernels.
            "OMP_NUM_THREADS": "4",
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }  # fmt: skip
        with Listener(address, family="AF_UNIX", authkey=KEY) as listener, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--child", address, json.dumps({**job, "graphs": graphs})],
                env=env, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            self.channel: Connection = listener.accept()

    def ask(self, name: str, *arguments: Any, limit: float = 240) -> Any:
        """The answer to one question. Raises RuntimeError with the end of the log when there is none."""
        try:
            self.channel.send((name, arguments))
            if not self.channel.poll(limit):
                raise RuntimeError(f"{name} took more than {limit} s")
            answer = self.channel.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the engine of mode {self.mode} died: {error!r}\n{self.tail()}") from error
        if isinstance(answer, Exception):
            raise RuntimeError(f"{self.mode}: {answer}\n{self.tail()}")
        return answer

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def warnings(self) -> list[str]:
        """What we ourselves warned of."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line[-300:] for line in lines if "WARNING" in line and ("vitcg" in line or "encoder graph" in line)][:8]

    def stop(self) -> None:
        try:
            self.channel.send(("stop", ()))
            self.process.wait(20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


def compare(eager: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """How far the answers of another engine are from eager's. `wrong`: a difference that is no tie."""
    wrong, ties, error = [], 0, 0.0
    for name, want in eager.items():
        got = other[name]
        for step, (a, b) in enumerate(zip(want["tokens"], got["tokens"], strict=True)):
            here, there = want["best"][step], got["best"][step]
            error = max([error, *(abs(here[t] - there[t]) for t in here.keys() & there.keys())])
            if a != b:
                gap = here[a] - here.get(b, float("-inf"))
                ties += gap <= TIE
                if not gap <= TIE:
                    wrong.append(f"{name}, token {step}: {b} instead of {a}, {gap:.3f} less likely")
                break
    return {"answers": len(eager), "ties": ties, "wrong": wrong, "logprob_error": error}


def distinct(answers: dict[str, Any]) -> int:
    """Workloads whose pictures all gave different answers: whether tokens depend on the image at all."""
    by_workload: dict[str, set[tuple[int, ...]]] = {}
    for name, answer in answers.items():
        by_workload.setdefault(name.rpartition(" #")[0], set()).add(tuple(answer["tokens"]))
    return sum(len(found) == PICTURES for found in by_workload.values())


def picture_effect(answers: dict[str, Any]) -> float | None:
    """How far another picture of the same size moves the logprobs of the first step: the median of what pairs share.

    What `logprob_error` must be compared with.
    """
    by_workload: dict[str, list[dict[int, float]]] = {}
    for name, answer in answers.items():
        by_workload.setdefault(name.rpartition(" #")[0], []).append(answer["best"][0])
    found = [
        abs(one[token] - other[token])
        for pictures in by_workload.values()
        for one, other in itertools.combinations(pictures, 2)
        for token in one.keys() & other.keys()
    ]
    return statistics.median(found) if found else None


def idle_cores(seconds: float = 1.0) -> float:
    """Processor cores in use on this machine, measured over so long."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return fields[3] + fields[4], sum(fields[:8])

    idle, total = ticks()
    time.sleep(seconds)
    idle_after, total_after = ticks()
    share = 1 - (idle_after - idle) / max(total_after - total, 1)
    return share * (os.cpu_count() or 1)


def quantile(values: list[float], share: float) -> float:
    """A value of the sample, without interpolation."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def measure(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One model: an engine of each mode, correctness, requests, the stream."""
    tiny = arguments.scale == "tiny"
    workloads = TINY_WORKLOADS if tiny else WORKLOADS
    modes = arguments.modes.split(",")
    options: dict[str, Any] = {"max_model_len": 2048, "dtype": "float32"} if tiny else {
        "max_model_len": 8192, "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": round(arguments.memory / len(modes), 3),
    }  # fmt: skip
    options["limit_mm_per_prompt"] = {"image": 8} | ({} if arguments.video else {"video": 0})
    if arguments.tensor_parallel > 1:
        options |= {"tensor_parallel_size": arguments.tensor_parallel, "mm_encoder_tp_mode": "data"}
    job = {
        "model": name, "directory": str(write_model(name, folder / name, arguments.scale)), "workloads": workloads,
        "options": options, "requests": arguments.requests, "stream_limit": 112 if tiny else 4096,
    }  # fmt: skip
    children: dict[str, Child] = {}
    try:
        # All import at once, but start one after another: vLLM sizes its cache by the memory that it finds free.
        for mode in modes:
            children[mode] = Child(mode, job, folder)
        release = {children[mode].channel.recv()["vllm"] for mode in modes}.pop()
        starts = {}
        for mode in modes:
            starts[mode] = children[mode].ask("start")
            first = starts[mode]["ranks"][0]
            if mode.startswith("our") and not (
                arguments.scale == "tiny" or str(first["manager"]).startswith("scaffold.")
            ):
                raise RuntimeError(f"our plugin is not in use: {first}")
            print(f"{name} {mode}: up in {starts[mode]['start_s']:.1f} s", json.dumps(first)[:1500], flush=True)
        return {"vllm": release, **_measure_started(name, release, workloads, children, starts, arguments)}
    except Exception:
        for child in children.values():
            print(f"--- {child.log.name}\n{child.tail(30)}", flush=True)
        raise
    finally:
        for child in children.values():
            child.stop()


def _measure_started(
    name: str, release: str, workloads: dict[str, Any], children: dict[str, Child], starts: dict[str, Any],
    arguments: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    modes = list(children)
    print(f"{name}: {idle_cores():.1f} cores busy while all engines wait", flush=True)
    answers = {mode: child.ask("check") for mode, child in children.items()}
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for turn in range(WARM_UP + arguments.repeats):
        for size in workloads:
            for mode in modes[turn % len(modes) :] + modes[: turn % len(modes)]:
                both = children[mode].ask("request", size, turn % PICTURES)
                if turn >= WARM_UP:
                    samples.setdefault((size, mode), []).append(both)
    inside: dict[tuple[str, str], list[float]] = {}
    for turn in range(arguments.encoder_repeats):
        for size in workloads:
            for mode in modes[turn % len(modes) :] + modes[: turn % len(modes)]:
                inside.setdefault((size, mode), []).append(children[mode].ask("encoder", size, turn % PICTURES))
    streams: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for run in range(arguments.stream_runs):
        for mode in modes[:: -1 if run % 2 else 1]:
            streams[mode].append(children[mode].ask("stream", run))
    again = {mode: child.ask("check") for mode, child in children.items()}
    ends = {mode: child.ask("describe") for mode, child in children.items()}

    rows = []
    for size in workloads:
        row: dict[str, Any] = {"model": name, "vllm": release, "images": size}
        for mode in modes:
            for position, kind in enumerate(("ms", "engine_ms")):
                values = [both[position] for both in samples[size, mode]]
                row[f"{mode}_{kind}"] = round(statistics.median(values), 2)
                row[f"{mode}_{kind}_quartiles"] = [round(quantile(values, q), 2) for q in (0.25, 0.75)]
            row[f"{mode}_encoder_ms"] = round(statistics.median(inside[size, mode]), 2)
        rows.append(row)
    detail: dict[str, Any] = {"sizes_of": REAL.get(name, "tiny"), "distinct_workloads": distinct(answers["eager"])}
    detail["picture_effect"] = picture_effect(answers["eager"])
    for mode in modes:
        reference = streams["eager"][-1]["tokens"]
        detail[mode] = {
            "start_s": round(starts[mode]["start_s"], 1),
            "at_start": starts[mode]["ranks"],
            "at_end": ends[mode],
            "check": compare(answers["eager"], answers[mode]),
            "check_after_all": compare(answers["eager"], again[mode]),
            "stream": [
                {
                    "seconds": round(s["seconds"], 3),
                    "p50_ms": round(quantile(s["ms"], 0.5), 1),
                    "p95_ms": round(quantile(s["ms"], 0.95), 1),
                    "max_ms": round(max(s["ms"]), 1),
                }
                for s in streams[mode]
            ],
            # Other requests share a batch in each run, so that even eager differs from itself.
            "stream_requests_as_eager": [
                sum(a == b for a, b in zip(s["tokens"], reference, strict=True)) for s in streams[mode]
            ],
            "warnings": children[mode].warnings(),
        }
    return {"rows": rows, "detail": detail}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--models", default="qwen2_vl,qwen2_5_vl")
    options.add_argument("--modes", default="eager,vllm_graphs,ours", help=f"of {', '.join(MODES)}; eager is needed")
    options.add_argument("--scale", choices=("tiny", "real"), default="real")
    options.add_argument("--tensor-parallel", type=int, default=1)
    options.add_argument("--repeats", type=int, default=20)
    options.add_argument("--encoder-repeats", type=int, default=7)
    options.add_argument("--stream-runs", type=int, default=2)
    options.add_argument("--requests", type=int, default=REQUESTS)
    options.add_argument("--memory", type=float, default=0.84, help="share of the device's memory for all engines")
    options.add_argument("--video", action="store_true", help="leave videos allowed, as by default in vLLM")
    options.add_argument("--machine", default="")
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.child:
        run_child(arguments.child[0], json.loads(arguments.child[1]))
        return 0
    total: dict[str, Any] = {"machine": arguments.machine, "versions": {}, "date": "", "settings": {}, "rows": []}
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.models.split(","):
            begin = time.perf_counter()
            try:
                result = measure(name, arguments, Path(scratch))
            except Exception as error:
                traceback.print_exc()
                total.setdefault("models", {})[name] = {"error": str(error)[-2000:]}
                failed += 1
            else:
                total["rows"] += result["rows"]
                total.setdefault("models", {})[name] = result["detail"]
                total["versions"] = versions(result["vllm"])
                for mode in arguments.modes.split(","):
                    failed += mode.startswith("our") and bool(result["detail"][mode]["check"]["wrong"])
                    failed += mode.startswith("our") and bool(result["detail"][mode]["check_after_all"]["wrong"])
                report(name, result, arguments.modes.split(","))
            total["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            total["settings"] = {
                key: getattr(arguments, key)
                for key in ("tensor_parallel", "repeats", "requests", "memory", "video", "scale")
            }
            if arguments.out:
                arguments.out.write_text(json.dumps(total, indent=1) + "\n", encoding="utf-8")
            print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return 1 if failed else 0


def versions(release: str) -> dict[str, str]:
    """Of what was measured."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"vllm": release, "python": sys.version.split()[0]}
    for package in ("torch", "transformers", "vitcg-scaffold"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def report(name: str, result: dict[str, Any], modes: list[str]) -> None:
    """The table, for a reader of the log."""
    for row in result["rows"]:
        times = [f"{mode} " + " ".join(f"{row[f'{mode}_{k}']:7.2f}" for k in KINDS) for mode in modes]
        print(f"{name} {row['images']:>16}  {'   '.join(times)}")
    for mode in modes:
        part = result["detail"][mode]
        print(
            f"{name} {mode}: start {part['start_s']} s, check {part['check']}, after all {part['check_after_all']}, "
            f"stream {part['stream']} as eager {part['stream_requests_as_eager']}, "
            f"kv blocks {[rank['kv_blocks'] for rank in part['at_end']]}, warnings {part['warnings']}"
        )
        print(json.dumps(part["at_end"][0])[:2500])
    effect = result["detail"]["picture_effect"]
    print(
        f"{name}: answers differ in {result['detail']['distinct_workloads']} workloads, logprobs by {effect}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
