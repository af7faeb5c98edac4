"""Measure encoder graphs on traffic that they have not seen: streams of calls of all sizes, on one GPU, in one run.

    python benchmarks/stream_gpu.py --out RESULT.json [--models qwen2_5_vl,...] [--backend FLASH_ATTN]

It needs a vLLM (0.33) whose towers run on this GPU, and nothing from a network: the real vision classes get random
weights at real sizes. Eager, vLLM's manager and ours without tuning share one tower; ours with tuning has one of its
own. A pass runs each call of a stream once, in random order, and the ways of each call in random order. The sum of a
pass adds up the whole `execute()` of each call, between two waits for the device. Nothing waits between the start and
the first pass (not with `--cold`), and between passes. Our manager captures its idle graphs then. Their number and time
are in the result (`idle`), and part of no call.

Towers that keep tables of earlier sizes (`functools.lru_cache`) forget them before each way of a call in the first
pass: otherwise the way that comes first would make them for the others.

The benchmark compares every result of the first pass with the model's own eager embedding. A wrong one of ours fails
the run.

Streams (a fixed seed; a token is 2 x 2 patches):

* `mixed`: 1 to 3 images of 32 to 1550 tokens, areas log-uniform, sides 1:2 to 2:1;
* `photos`: 1 or 2 photographs and screenshots at common resolutions;
* `documents`: 1 or 2 pages, A4 and letter, scanned at 72, 100 and 150 dots per inch;
* `videos`: one clip of 4 to 32 frames at common small resolutions (Qwen2.5-VL, with videos switched on);
* `tiles`: 1 to 3 images cut into 1 to 13 tiles (InternVL), or with 0 to 6 crops (Step3-VL);
* `grids`: 1 to 3 images of 100 to 6000 patches, areas log-uniform (Mistral 3, Kimi-VL, DeepSeek-V4);
* `images`: 1 to 12 images of one size (LLaVA-1.5, PaliGemma);
* `parts`: 1 to 3 images, each in tiles, slices or crops (the other models).

`upstream` among the `--ways` is the release's own port of a model that has one, in vLLM's manager, with the same
weights in a host of its own.

`MODEL:served` allows videos beside the images, as `vllm serve` does, and `MODEL:images` allows none; both have as many
items in a graph as vLLM's default. `--ways` takes `vllm`, `on`, `off` and single tunings. `--batched` bounds the tokens
that the scheduler batches; the processor makes images of up to 16384 tokens. The models beyond the five core ones need
their ports: `cut_gpu.py --generate FOLDER`, then `--ports FOLDER`.

Start-up times come from processes of their own. There an eager run of a large input comes first as in vLLM's profiling,
and the garbage collector is frozen as in vLLM's capture. Memory comes from the process of the streams.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import _lru_cache_wrapper, partial
from pathlib import Path
from typing import Any

import cut_gpu
import torch
from gpu_result import ByModel, again
from manager_gpu import DEVICE, DTYPE, Subject, capture_measured, error_of, once, start_vllm

from scaffold.measure.subject import CONTEXT
from scaffold.verify.numeric.cpu_imports import MissingPackages

MODELS = "qwen3_vl,qwen2_vl,qwen2_5_vl,qwen2_5_vl:video,internvl,step3_vl"
WAYS = ("vllm", "on", "off")
#: Ways of vLLM's manager: with our port, and with the release's own.
THEIRS = ("vllm", "upstream")
FRAMES = 64
#: Frames of a batch where a user sets nothing: 14 of each of 64 items, in Qwen2-VL's family.
SERVED_FRAMES = 64 * 14
#: Tokens of the largest image that Qwen2.5-VL's processor makes.
LARGEST_IMAGE = 16384
SEED = 5

RESOLUTIONS = [
    (640, 480), (800, 600), (1024, 768), (1280, 720), (1280, 960), (1366, 768), (1080, 1080), (512, 512), (768, 1024),
    (1200, 630), (1170, 1560), (1920, 1080), (400, 300), (1440, 900), (720, 1280),
]  # fmt: skip
PAGES = [(8.27, 11.69), (8.5, 11.0)]
CLIPS = [(224, 224), (336, 252), (448, 252), (480, 360), (640, 360)]


def grid_of(width: float, height: float, patch: int, frames: int = 1) -> tuple[int, int, int]:
    """The grid of an image in patches, rounded to whole tokens as the processors do."""
    return frames, max(2, 2 * round(height / patch / 2)), max(2, 2 * round(width / patch / 2))


def streams_of(label: str, patch: int, share: float) -> dict[str, list[list[Any]]]:
    """The items of every call of every stream that a model can have; `share` of all calls."""
    chance = random.Random(SEED)

    def some(count: int, make: Callable[[], list[Any]]) -> list[list[Any]]:
        return [make() for _ in range(max(3, round(count * share)))]

    def any_image() -> tuple[int, int, int]:
        tokens = math.exp(chance.uniform(math.log(32), math.log(1550)))
        sides = math.exp(chance.uniform(-math.log(2), math.log(2)))
        side = 2 * patch * math.sqrt(tokens)
        return grid_of(side * math.sqrt(sides), side / math.sqrt(sides), patch)

    def any_page() -> tuple[int, int, int]:
        (width, height), dots = chance.choice(PAGES), chance.choice((72, 100, 150))
        return grid_of(width * dots, height * dots, patch)

    if label in ("internvl", "step3_vl"):
        low, high, count = (1, 13, 150) if label == "internvl" else (0, 6, 40)
        return {"tiles": some(count, lambda: [chance.randint(low, high) for _ in range(chance.randint(1, 3))])}
    if label.endswith(":video"):
        return {"videos": some(60, lambda: [grid_of(*chance.choice(CLIPS), patch, chance.randint(2, 16))])}
    return {
        "mixed": some(250, lambda: [any_image() for _ in range(chance.randint(1, 3))]),
        "photos": some(60, lambda: [grid_of(*chance.choice(RESOLUTIONS), patch) for _ in range(chance.randint(1, 2))]),
        "documents": some(40, lambda: [any_page() for _ in range(chance.randint(1, 2))]),
    }


class Traffic(Subject):
    """A core model, its videos (`:video`), or its images with defaults: videos allowed (`:served`) or not (`:images`).

    Its calls share one block of random pixels.
    """

    def __init__(self, label: str, batched: int) -> None:
        name, _, self.modality = label.partition(":")
        super().__init__(name)
        self.batched = batched
        self.has_defaults = self.modality in ("served", "images")

    def build_for(self, tower: str) -> tuple[Any, Any]:
        """The host and its configuration: with defaults (`served`, `images`) our ways have our adapter."""
        from scaffold.runtime.vllm import manager as binding

        adapter = f"vitcg_adapters.v0_30.{self.name}:{self.recipe.host_class}"
        host, config = self.build(adapter if self.has_defaults and tower != "vllm" else None)
        config.scheduler_config.max_num_batched_tokens = self.batched
        assert callable(binding.largest_item)  # under another name, no graph would be above the batch
        binding.largest_item = lambda *_: LARGEST_IMAGE
        compilation, limits = config.compilation_config, config.model_config.multimodal_config.limits
        if self.modality == "video":
            limits["video"] = 2
            compilation.encoder_cudagraph_max_frames_per_batch = FRAMES
        elif self.has_defaults:
            compilation.encoder_cudagraph_max_vision_items_per_batch = 0
            limits["video"] = 2 if self.modality == "served" else 0
            compilation.encoder_cudagraph_max_frames_per_batch = SERVED_FRAMES if self.modality == "served" else None
        return host, config

    def streams(self, share: float) -> dict[str, list[list[Any]]]:
        patch = getattr(self.real_config().vision_config, "patch_size", 14)
        return streams_of(f"{self.name}:{self.modality}" if self.modality == "video" else self.name, patch, share)

    def items_of(self, tokens: int) -> list[Any]:
        """The items of one call with about `tokens` output tokens: one image, or a number of tiles or crops."""
        if self.name == "internvl":
            vision = self.real_config().vision_config
            return [max(1, round(4 * tokens / (vision.image_size // vision.patch_size) ** 2))]
        if self.name == "step3_vl":
            return [max(0, round((tokens - 169) / 81))]  # 169 tokens of the image and 81 of each crop
        height = max(2, math.isqrt(tokens))
        return [(1, 2 * height, 2 * max(1, round(tokens / height)))]

    def call(self, items: list[Any], seed: int) -> dict[str, Any]:
        if self.name in ("internvl", "step3_vl"):
            return super().call(items, seed)
        vision = self.real_config().vision_config
        rows = sum(math.prod(item) for item in items)
        columns = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        if not hasattr(self, "_noise"):
            generator = torch.Generator(DEVICE).manual_seed(0)
            self._noise = torch.randn(8 * CONTEXT, columns, device=DEVICE, dtype=DTYPE, generator=generator)
        begin = seed * 97 % (len(self._noise) - rows)
        pixels, grids = self._noise[begin : begin + rows].clone(), torch.tensor(items)
        if self.modality != "video":
            return {"pixel_values": pixels, "image_grid_thw": grids}
        seconds = torch.ones(len(items))
        return {"pixel_values_videos": pixels, "video_grid_thw": grids, "second_per_grid_ts": seconds}


class CutTraffic:
    """Another model of `cut_gpu.py`, with its port of a tree. No two calls of a grid are alike."""

    def __init__(self, name: str, ports: Path) -> None:
        self.name, self.ports = name, ports
        self.subject = cut_gpu.SUBJECTS[name]

    def build_for(self, tower: str) -> tuple[Any, Any]:
        host, config = cut_gpu.build(self.name, None if tower == "upstream" else self.ports)
        config.model_config.max_model_len = config.scheduler_config.max_num_batched_tokens = CONTEXT
        return host, config

    def call(self, items: Any, seed: int) -> dict[str, Any]:
        generator = torch.Generator(DEVICE).manual_seed(seed)
        return self.subject.inputs(
            items, lambda *shape: torch.randn(shape, device=DEVICE, dtype=DTYPE, generator=generator)
        )

    def items_of(self, tokens: int) -> Any:
        """One of the calls of `cut_gpu.py`: the largest, or the smallest."""
        return list(self.subject.calls.values())[-1 if tokens > 64 else 0]

    def streams(self, share: float) -> dict[str, list[Any]]:
        chance = random.Random(SEED)

        def grid() -> tuple[int, int]:
            side = math.sqrt(math.exp(chance.uniform(math.log(100), math.log(6000))))
            ratio = math.exp(chance.uniform(-math.log(2), math.log(2)) / 2)
            return max(2, 2 * round(side * ratio / 2)), max(2, 2 * round(side / ratio / 2))

        def part() -> Any:
            """One image of a model that cuts it into parts, as `cut_gpu.py` describes its items."""
            if self.subject.calls is cut_gpu.SIZES:
                return chance.choice([(336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)])
            if self.name == "idefics3":
                return chance.choice([1, *(1 + a * b for a in range(1, 5) for b in range(1, 5) if a * b > 1)])
            if self.name == "deepseek_ocr":
                return chance.choice([(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2)])
            if self.subject.calls is cut_gpu.TILINGS:
                return chance.choice([(a, b) for a in range(1, 5) for b in range(1, 5) if a * b <= 9])
            number = chance.randint(0, 6)
            if self.name == "lfm2_vl":
                thumbnail = (chance.randint(9, 15) * 2, chance.randint(9, 15) * 2)
                return [*[(32, 32)] * (number if number > 1 else 0), thumbnail]
            whole = (chance.randint(24, 32), chance.randint(24, 32))
            return [whole, *[(chance.randint(28, 32), chance.randint(28, 32))] * number]

        if self.subject.calls is cut_gpu.COUNTS:
            return {"images": [chance.randint(1, 12) for _ in range(max(3, round(200 * share)))]}
        make, stream = (grid, "grids") if self.subject.calls is cut_gpu.GRIDS else (part, "parts")
        calls = [[make() for _ in range(chance.randint(1, 3))] for _ in range(max(3, round(200 * share)))]
        return {stream: calls}


def traffic_of(label: str, ports: Path | None, batched: int) -> Traffic | CutTraffic:
    """The calls of a model by its label."""
    if label in cut_gpu.SUBJECTS:
        if ports is None:
            raise SystemExit(f"{label} needs --ports: make them with cut_gpu.py --generate FOLDER --models {label}")
        return CutTraffic(label, ports)
    return Traffic(label, batched)


def towers_of(subject: Traffic | CutTraffic, ways: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """The host and configuration of each way: one for each tuning. vLLM's is the untuned one where it is the same."""
    alone = isinstance(subject, Traffic) and subject.has_defaults
    tunings = {way: "off" if way == "vllm" and not alone else way for way in ways}
    # Ported modules take the place of the release's, so its own port comes first.
    built = {tuning: subject.build_for(tuning) for tuning in sorted(set(tunings.values()), key="upstream".__ne__)}
    return {way: built[tuning] for way, tuning in tunings.items()}


def maker(way: str, towers: Mapping[str, Any]) -> Callable[[], Any]:
    """The function that makes the manager of a way, on its tower."""

    def make() -> Any:
        from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager as Theirs

        from scaffold.runtime.vllm import EncoderCudaGraphManager as Ours

        host, config = towers[way]
        tuning = {"vllm": "off", "upstream": "off", "off": "off", "on": "on"}.get(way, [way])
        config.additional_config = {"encoder_graphs": {"tuning": tuning}}
        return (Theirs if way in THEIRS else Ours)(config, DEVICE, DTYPE, host)

    return make


def warm(subject: Traffic | CutTraffic, host: Any) -> None:
    """An eager run of a large input and of a small one, as vLLM profiles them before any capture."""
    with torch.inference_mode():
        for tokens in (CONTEXT // 2, 64):
            host.embed_multimodal(**subject.call(subject.items_of(tokens), 0))
    torch.cuda.synchronize()


def start(way: str, subject: Traffic | CutTraffic) -> dict[str, Any]:
    """Seconds and mebibytes of the capture of a way in this process, tunings included, and of our idle captures."""
    towers = towers_of(subject, [way])
    warm(subject, towers[way][0])
    gc.collect()
    gc.freeze()
    manager, measured = capture_measured(maker(way, towers))
    theirs = manager.budget_graphs.values() if way in THEIRS else ()
    graphs = sum(len(graphs) for graphs in theirs) if theirs else len(manager.core.report.captured)
    budgets = manager.path_token_budgets.values()
    found = {
        "seconds": round(measured["seconds"], 3), "graphs": graphs, "device_mb": round(measured["device_mb"]),
        "largest": max(budget for ladder in budgets for budget in ladder),
    }  # fmt: skip
    if not theirs:
        report = manager.core.report
        graphs_mb = report.device_bytes / 2**20
        found |= {
            "graphs_mb": round(graphs_mb), "held_mb": round(report.held_bytes / 2**20),
            "kept_mb": round(report.kept_bytes / 2**20), "buffers_mb": round(report.arena_bytes / 2**20),
            "idle_graphs": manager.capture_when_idle(), "idle_mb": round(report.device_bytes / 2**20 - graphs_mb),
        }  # fmt: skip
    return found


def starts(name: str, backend: str, ways: list[str], more: list[str]) -> dict[str, Any]:
    """The start-up of every way, each in a process of its own, one after the other."""
    command = [*again(__file__), "--models", name, "--backend", backend, *more]
    found = {}
    for way in ways:
        done = subprocess.run([*command, "--start", way], stdout=subprocess.PIPE, text=True, timeout=240, check=True)
        found[way] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def percentile(samples: list[float], share: float) -> float:
    """The smallest sample that this share of all does not exceed."""
    return sorted(samples)[min(len(samples) - 1, math.ceil(share * len(samples)) - 1)]


def tables_of(hosts: Iterable[torch.nn.Module]) -> list[Any]:
    """The functions with a cache in the modules of the hosts' parts: they keep results for sizes that came before."""
    modules = {type(part).__module__ for host in hosts for part in host.modules()}
    held = (value for name in modules for value in vars(sys.modules[name]).values())
    return list({id(one): one for one in held if isinstance(one, _lru_cache_wrapper)}.values())


def when_idle(managers: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Let our managers capture their idle graphs. Returns how many graphs, and how long it took."""
    done = []
    for way, manager in managers.items():
        if way not in THEIRS and hasattr(manager, "capture_when_idle"):
            begin = time.perf_counter()
            graphs = manager.capture_when_idle()
            torch.cuda.synchronize()
            done.append({"tuning": way, **after, "graphs": graphs, "seconds": round(time.perf_counter() - begin, 3)})
    return done


def measure(
    name: str,
    subject: Traffic | CutTraffic,
    passes: int,
    share: float,
    ways: list[str],
    cold: bool,
    streams: list[str],
) -> dict[str, Any]:
    """All streams of one model."""
    towers = towers_of(subject, ways)
    for host in {id(host): host for host, _ in towers.values()}.values():
        warm(subject, host)
    eager_host, _ = towers.get("off") or next(iter(towers.values()))
    gc.collect()
    gc.freeze()
    managers, captures = {}, {}
    for way in sorted(ways):  # vLLM's comes last and finds every kernel loaded
        managers[way], captures[way] = capture_measured(maker(way, towers))
        if way not in THEIRS:
            report = managers[way].core.report
            captures[way] |= {"graphs_mb": report.device_bytes >> 20, "held_mb": report.held_bytes >> 20}
        print(name, way, {key: round(value, 2) for key, value in captures[way].items()}, flush=True)
    rows: list[dict[str, Any]] = []
    idle = [] if cold else when_idle(managers, {"stream": None, "after_pass": 0})
    errors: dict[str, dict[str, float]] = {way: {} for way in ways}
    chance = random.Random(SEED)
    tables = tables_of([host for host, _ in towers.values()])
    for stream, items in subject.streams(share).items():
        if streams and stream not in streams:
            continue
        calls = [subject.call(one, seed) for seed, one in enumerate(items)]
        for number in range(1, passes + 1):
            spent: dict[str, list[float]] = {way: [] for way in ("eager", *ways)}
            before = {way: managers[way].stats.as_dict() for way in ways if way not in THEIRS}
            order = chance.sample(range(len(calls)), len(calls))
            with torch.inference_mode():
                for position in order:
                    inputs, results = calls[position], {}
                    turn = [*ways, "eager"]  # in each pass: without it the GPU would be hotter in the later ones
                    chance.shuffle(turn)
                    for way in turn:
                        run = eager_host.embed_multimodal if way == "eager" else managers[way].execute

                        def action(
                            run: Any = run, way: str = way, inputs: Any = inputs, results: Any = results
                        ) -> None:
                            results[way] = run(**inputs) if way == "eager" else run(inputs)

                        for table in tables if number == 1 else ():
                            table.cache_clear()
                        spent[way].append(once(action))
                    if number == 1:
                        for way in ways:
                            error = error_of(results[way], results["eager"])
                            errors[way][stream] = max(errors[way].get(stream, 0.0), error)
            for way in ways:
                if way not in THEIRS:
                    rows.append(row_of(name, stream, way, number, spent, before[way], managers[way]))
                    print(rows[-1], flush=True)
            idle += when_idle(managers, {"stream": stream, "after_pass": number})
    core = isinstance(subject, Traffic)
    plans = {way: plan_ms(subject, managers[way]) for way in ways if way not in THEIRS and core}
    wrong = {way: found for way, found in errors.items() if way not in THEIRS and not max(found.values()) < 0.05}
    result = {
        "rows": rows, "idle": idle, "errors": errors, "wrong": wrong, "plan_ms": plans,
        "own_mb": {
            way: {name: captured[name] for name in ("graphs_mb", "held_mb")}
            for way, captured in captures.items() if way not in THEIRS
        },
        "memory_mb": {way: round(captured["device_mb"]) for way, captured in captures.items()},
        "warm_start_s": {way: round(captured["seconds"], 3) for way, captured in captures.items()},
        "graphs": {way: len(m.core.report.captured) for way, m in managers.items() if way not in THEIRS},
        "end_memory_mb": {
            way: round(m.core.report.device_bytes / 2**20) for way, m in managers.items() if way not in THEIRS
        },
        "crossover": {
            way: {path: [c.launch_ms, c.extra_ms] for path, c in m.core.crossover.items()}
            for way, m in managers.items() if way not in THEIRS
        },
    }  # fmt: skip
    for manager in managers.values():
        manager.clear()
    return result


def row_of(
    name: str, stream: str, way: str, number: int, spent: dict[str, list[float]], before: Any, manager: Any
) -> dict[str, Any]:
    """One pass of one stream: sums and the slowest calls, and what our manager did in it."""
    now = manager.stats.as_dict()
    row: dict[str, Any] = {"model": name, "stream": stream, "tuning": way, "pass": number, "calls": len(spent[way])}
    for kind, of in (("eager", "eager"), *zip(THEIRS, THEIRS, strict=True), ("ours", way)):
        samples = spent.get(of, [])
        if of == "upstream" and not samples:
            continue
        row[f"{kind}_ms"] = round(sum(samples), 1) if samples else None
        row[f"{kind}_p50_ms"] = round(statistics.median(samples), 2) if samples else None
        row[f"{kind}_p95_ms"] = round(percentile(samples, 0.95), 2) if samples else None
        row[f"{kind}_p99_ms"] = round(percentile(samples, 0.99), 2) if samples else None
    row["plans_built"] = now["plans_built"] - before["plans_built"]
    row["items_eager"] = now["misses"] - before["misses"]
    return row


def plan_ms(subject: Traffic, manager: Any) -> dict[str, float]:
    """Host time of the plan of eight items of new sizes, in milliseconds: median and largest of 20.

    `model` is the share of the model's own metadata in the median plan.
    """
    chance, adapter = random.Random(1), manager.core.adapter
    taken: list[float] = []
    of_model: list[float] = []
    values_of = adapter.replay_values

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        values = values_of(*arguments)
        of_model[-1] += (time.perf_counter() - begin) * 1e3
        return values

    adapter.replay_values = timed
    with torch.inference_mode():
        for seed in range(20):
            if subject.name in ("internvl", "step3_vl"):
                items: list[Any] = [chance.randint(1, 2) for _ in range(8)]
            else:
                items = [(1, 2 * chance.randint(4, 16), 2 * chance.randint(4, 16)) for _ in range(8)]
            inputs = subject.call(items, seed)
            of_model.append(0.0)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            signature = adapter.signature(inputs)
            manager.core._build_plan(inputs, signature)
            taken.append((time.perf_counter() - begin) * 1e3)
            torch.cuda.synchronize()
    del adapter.replay_values
    middle = sorted(range(len(taken)), key=lambda number: taken[number])[len(taken) // 2]
    return {"median": round(statistics.median(taken), 3), "largest": round(max(taken), 3),
            "model": round(of_model[middle], 3)}  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path)
    options.add_argument("--models", default=MODELS)
    options.add_argument("--backend", default="FLASH_ATTN")
    options.add_argument("--passes", type=int, default=3)
    options.add_argument("--share", type=float, default=1.0, help="share of the calls of each stream")
    options.add_argument("--streams", default="", help="of those of each model; all unless given")
    options.add_argument("--ways", default=",".join(WAYS))
    options.add_argument("--start", choices=WAYS, help="only the start-up of this way")
    options.add_argument("--without-starts", action="store_true")
    options.add_argument("--cold", action="store_true", help="no idle moment between the start and the first pass")
    options.add_argument("--batched", type=int, default=CONTEXT, help="tokens that the scheduler batches")
    options.add_argument("--ports", type=Path, metavar="FOLDER", help="modules that cut_gpu.py --generate wrote")
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    ways = arguments.ways.split(",")
    sys.meta_path.append(MissingPackages())
    context = start_vllm(arguments.backend)
    if arguments.start:
        subject = traffic_of(arguments.models, arguments.ports, arguments.batched)
        found = start(arguments.start, subject)
        import vllm

        print(json.dumps({**found, "vllm": vllm.__version__, "machine": torch.cuda.get_device_name()}), flush=True)
        return 0
    total = ByModel(arguments.out, arguments.machine)

    def with_starts(name: str) -> dict[str, Any]:
        more = ["--batched", str(arguments.batched)] + (["--ports", str(arguments.ports)] if arguments.ports else [])
        started = {} if arguments.without_starts else starts(name, arguments.backend, ways, more)
        print(name, "start", started, flush=True)
        streams = [stream for stream in arguments.streams.split(",") if stream]
        subject = traffic_of(name, arguments.ports, arguments.batched)
        result = measure(name, subject, arguments.passes, arguments.share, ways, arguments.cold, streams)
        for row in result["rows"]:
            pair = (("vllm", "vllm"), ("ours", row["tuning"]))
            row["start_s"] = {kind: started[way]["seconds"] for kind, way in pair if way in started}
            row["memory_mb"] = {kind: result["memory_mb"][way] for kind, way in pair if way in result["memory_mb"]}
        return {**result, "starts": started}

    for name in arguments.models.split(","):
        result = total.add(name, partial(with_starts, name))
        if result is not None:
            total.failed += bool(result["wrong"])
            print(name, {key: value for key, value in result.items() if key != "rows"}, flush=True)
    context.__exit__(None, None, None)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
