"""Measure the whole engine: eager encoder, vLLM's encoder graphs, and ours, side by side in one run.

    python benchmarks/engine_gpu.py --out RESULT.json [--models qwen2_vl,qwen2_5_vl] [--tensor-parallel 2]

It needs an installed vLLM and this package with its metadata, which announce the plugin, and nothing from a network:
`model_directory.py` makes model directories on the spot, and `engine_worker.py` makes random weights that carry an
image to the logits. For every model, `--engines` engines of each mode start at once, with KV caches of one size, and
stay up. Nothing else runs meanwhile.

* Requests: in each turn every engine, in random order, gets one request of each size, in a random order that all share.
  Requests come one at a time and want one output token, so their time is close to the time to the first token. `ms` is
  the whole request. `engine_ms` leaves out the processing of its images, which runs on the processor and is the same
  for all. Other turns measure `encoder_ms`, the encoder alone as the runner calls it, between two waits for the device.
  Python's garbage collector does not run meanwhile, and all engines keep to the same processor cores.
* Differences: they are those within turns; `engine_statistics.py` decides when one counts.
* Correctness first and last: eight tokens for three different pictures of every size. A token may differ from eager
  only where eager's own two best are within `TIE` of each other: another kernel changes the rounding in bfloat16.
  Engines of `--check-only` do nothing else.
* A mixed stream: `--requests` requests, `CONCURRENT` at a time, sizes from `draw_stream`, images processed beforehand.
  The first engine of each mode runs `--stream-passes` passes; in the first one sizes are new. With `--served` engines
  have processes of their own, as in a server, and are idle between the passes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_process import CONCURRENT, MODES, PICTURES, Child, ask_all
from engine_statistics import compare, quantile, spread
from gpu_result import head, save
from model_directory import REAL, write_model

#: Name in the result -> number of images, width, height. The first is the smallest.
WORKLOADS: dict[str, tuple[int, int, int]] = {
    "1 x 224x224": (1, 224, 224),
    "4 x 336x336": (4, 336, 336),
    "1 x 448x448": (1, 448, 448),
    "8 x 336x336": (8, 336, 336),
    "1 x 1280x720": (1, 1280, 720),
    "1 x 1920x1080": (1, 1920, 1080),
}
#: Workloads by the scale of the models.
WORKLOADS_OF = {"real": WORKLOADS, "tiny": {"1 x 56x56": (1, 56, 56), "2 x 84x56": (2, 84, 56)}}
#: The whole request; the request without the processing of its images; the encoder alone.
KINDS = ("ms", "engine_ms", "encoder_ms")
#: The modes to compare `ours` with.
AGAINST = ("eager", "vllm_graphs")
#: Two logprobs of one engine that are closer than this may change places when rows are added in another order.
TIE = 0.1
#: Turns that do not count: ours captures graphs on demand, and its trials of a size take nine uses.
WARM_UP = 9
KV_CACHE_BYTES = 3 << 30
#: Tokens of the longest prompt. LLaVA-NeXT makes up to 2880 of an image, and a request has four.
CONTEXT = {"llava_next": 16384}

Samples = dict[str, dict[str, list[tuple[float, ...]]]]


def check_answers(eager: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The differences of another engine's answers to eager's. `wrong`: a difference that is no tie."""
    wrong, ties, equal, error = [], 0, 0, 0.0
    for name, want in eager.items():
        got = other[name]
        equal += want["tokens"] == got["tokens"]
        for step, (a, b) in enumerate(zip(want["tokens"], got["tokens"], strict=True)):
            here, there = want["best"][step], got["best"][step]
            if not all(map(math.isfinite, there.values())):
                wrong.append(f"{name}, token {step}: its logprobs are not finite")
                break
            error = max([error, *(abs(here[t] - there[t]) for t in here.keys() & there.keys())])
            if a != b:
                gap = here[a] - here.get(b, float("-inf"))
                ties += gap <= TIE
                if not gap <= TIE:
                    wrong.append(f"{name}, token {step}: {b} instead of {a}, {gap:.3f} less likely")
                break
    return {"answers": len(eager), "equal": equal, "ties": ties, "wrong": wrong, "logprob_error": error}


def shared_cores(ranks: int) -> list[int] | None:
    """Cores for every engine, or None where there are few, or where engines have processes of their own."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[2:10] if len(cores) >= 12 and ranks == 1 else None


class Session:
    """The engines of one model, from the start to the numbers."""

    def __init__(self, name: str, arguments: argparse.Namespace, folder: Path) -> None:
        self.name, self.arguments = name, arguments
        tiny = arguments.scale == "tiny"
        self.workloads = {size: WORKLOADS_OF[arguments.scale][size] for size in arguments.sizes}
        self.modes = arguments.modes.split(",")
        self.random = random.Random(arguments.seed)
        self.began = time.perf_counter()
        options: dict[str, Any] = {
            "max_model_len": 512, "max_num_batched_tokens": 512, "dtype": "float32",
            # A replay on the CPU is slower than eager, and would be left out.
            "additional_config": {"encoder_graphs": {"calibration_ms": 0, "trials": 0}},
        } if tiny else {
            "max_model_len": CONTEXT.get(name, 8192), "max_num_batched_tokens": 8192,
            # Fix the size of the cache: the engines start at once, so free memory says nothing. vLLM only compares the
            # share with the free memory.
            "kv_cache_memory_bytes": KV_CACHE_BYTES, "gpu_memory_utilization": 0.05,
        }  # fmt: skip
        options["limit_mm_per_prompt"] = {"image": 8} | ({} if arguments.video else {"video": 0})
        if arguments.tensor_parallel > 1:
            options |= {"tensor_parallel_size": arguments.tensor_parallel, "mm_encoder_tp_mode": "data"}
            # vLLM's own all-reduce asks first, in a process of its own, whether the devices reach each other.
            options |= {"disable_custom_all_reduce": True}
        job = {
            "model": name, "directory": str(write_model(name, folder / name, arguments.scale)), "options": options,
            "workloads": self.workloads, "requests": arguments.requests, "stream_limit": 112 if tiny else 4096,
            "served": arguments.served, "tiny": tiny,
        }  # fmt: skip
        once = arguments.once.split(",")
        self.children = [
            Child(mode, number, job, folder)
            for number in range(arguments.engines)
            for mode in self.modes
            if number == 0 or mode not in once
        ]
        self.checked_only = [Child(mode, 0, job, folder) for mode in filter(None, arguments.check_only.split(","))]
        self.failed: dict[str, str] = {}
        self.release = ""
        self.starts: dict[str, Any] = {}
        self.samples: dict[str, Samples] = {}
        self.engines: dict[str, dict[str, Any]] = {}

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.began:5.0f} s] {self.name}: {text}", flush=True)

    def of_mode(self, mode: str) -> list[Child]:
        return [child for child in self.children if child.mode == mode]

    # -- start

    def start(self) -> None:
        """Start all engines as soon as they have imported vLLM. `wait` waits for them."""
        for child in [*self.children, *self.checked_only]:
            child.send("start")

    def wait(self) -> None:
        """Wait until all are up. A mode needs its first engine; if another one fails, it has fewer."""
        for child in [*self.children, *self.checked_only]:
            try:
                self.release = child.receive()["vllm"]
                self.starts[child.name] = child.receive()
                self._must_be_meant(child)
            except RuntimeError as error:
                if child is next(iter(self.of_mode(child.mode)), None):
                    raise
                self.say(f"{child.name} is left out: {error}")
                self.failed[child.name] = str(error)[-1500:]
                child.stop()
            else:
                first = self.starts[child.name]["ranks"][0]
                self.say(f"{child.name} is up in {self.starts[child.name]['start_s']:.1f} s {json.dumps(first)[:900]}")
        self.children = [child for child in self.children if child.name not in self.failed]
        self.checked_only = [child for child in self.checked_only if child.name not in self.failed]

    def _must_be_meant(self, child: Child) -> None:
        """A mode must be what its name says."""
        for rank in self.starts[child.name]["ranks"]:
            manager, model = str(rank["manager"]), rank["model"]
            if child.mode.startswith("our"):
                right = manager.startswith("scaffold.") and rank["captured"] and model.startswith("vitcg_adapters.")
            elif child.mode == "vllm_graphs":
                right = manager.startswith("vllm.") and rank["captured"] and model.startswith("vllm.")
            else:
                right = rank["manager"] is None and model.startswith("vllm.")
            if not right:
                raise RuntimeError(f"{child.name} is not what it should be: {json.dumps(rank)[:1500]}\n{child.tail()}")

    # -- measure

    def measure(self, save: Callable[[], None]) -> None:
        """Measure each part in turn. After each, `save` can take the numbers so far from `result`."""
        arguments = self.arguments
        answers = ask_all([*self.children, *self.checked_only], "check")
        eager = answers["eager"]
        for name, found in answers.items():
            self.engines[name] = {"check": check_answers(eager, found)}
            self.say(f"{name}: {self.engines[name]}")
        save()
        for child in self.checked_only:
            child.end()
        if arguments.requests:
            ask_all(self._first(), "prepare_stream", arguments.stream_passes)
            self.say("the stream is prepared")
        ask_all(self.children, "settle", None if arguments.served else shared_cores(arguments.tensor_parallel))
        if arguments.turns:
            requests = self._turns("requests_of", arguments.turns, arguments.seconds)
            self.samples |= {"ms": _column(requests, 0), "engine_ms": _column(requests, 1)}
            save()
            self.samples["encoder_ms"] = self._turns("encoders_of", arguments.encoder_turns, arguments.encoder_seconds)
        self._add("at_end", ask_all(self.children, "describe"))
        save()
        if arguments.requests:
            self._add("stream", self._streams())
            self._add("at_end", ask_all(self.children, "describe"))
            save()
        again = ask_all(self.children, "check")
        self._add("check_after_all", {name: check_answers(eager, found) for name, found in again.items()})
        save()
        self.say("measured")

    def _add(self, key: str, found: dict[str, Any]) -> None:
        for name, value in found.items():
            self.engines[name][key] = value

    def result(self) -> dict[str, Any]:
        """Rows and details of the measurements so far."""
        turns = {kind: len(next(iter(found["eager"].values()))) for kind, found in self.samples.items()}
        detail: dict[str, Any] = {
            "sizes_of": REAL.get(self.name, "tiny"),
            "settings": settings(self.arguments),
            "turns": turns,
            "engines_left_out": self.failed,
            "engines": {
                child.name: {**self._about(child), **self.engines[child.name]}
                for child in [*self.children, *self.checked_only]
            },
            "samples": {kind: _written(found) for kind, found in self.samples.items()},
        }
        return {"rows": [self._row(size) for size in self.workloads] if self.samples else [], "detail": detail}

    def _about(self, child: Child) -> dict[str, Any]:
        start = self.starts[child.name]
        return {
            "start_s": round(start["start_s"], 1),
            "capturing": child.capturing(),
            "at_start": start["ranks"],
            "warnings": child.warnings(),
        }

    def _turns(self, question: str, turns: int, seconds: float) -> Samples:
        """Engine -> size -> a sample of each turn that counts; fewer turns when time runs out."""
        found: Samples = {child.name: {size: [] for size in self.workloads} for child in self.children}
        warm_up = 1 if self.samples else WARM_UP
        begin = time.perf_counter()
        for turn in range(warm_up + turns):
            if turn == warm_up:
                begin = time.perf_counter()
            elif turn > warm_up + 2 and time.perf_counter() - begin > seconds:
                break
            order = self.random.sample(list(self.workloads), len(self.workloads))
            # Only ours learns from so many requests; the others change no more after two.
            children = [child for child in self.children if turn >= warm_up - 2 or child.mode.startswith("our")]
            for child in self.random.sample(children, len(children)):
                answers = child.ask(question, order, turn % PICTURES)
                if turn >= warm_up:
                    for size, answer in zip(order, answers, strict=True):
                        found[child.name][size].append(answer if isinstance(answer, tuple) else (answer,))
        count = len(next(iter(found["eager"].values())))
        self.say(f"{count} turns of {question} in {time.perf_counter() - begin:.1f} s")
        return found

    def _first(self) -> list[Child]:
        """The first engine of each mode."""
        return [child for child in self.children if child.number == 0]

    def _streams(self) -> dict[str, Any]:
        """Engine -> the figures of each pass of the stream. Sizes are new in the first pass and known in later ones."""
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(self.arguments.stream_passes):
            children = self._first()
            answers = {child.name: child.ask("stream") for child in self.random.sample(children, len(children))}
            reference = answers["eager"]["tokens"]
            for name, answer in answers.items():
                found.setdefault(name, []).append(
                    {
                        "seconds": round(answer["seconds"], 3),
                        "p50_ms": round(quantile(answer["ms"], 0.5), 1),
                        "p95_ms": round(quantile(answer["ms"], 0.95), 1),
                        "max_ms": round(max(answer["ms"]), 1),
                        # Which requests share a batch differs, so that even two eager engines differ.
                        "requests_as_eager": sum(a == b for a, b in zip(answer["tokens"], reference, strict=True)),
                        "work": answer["work"],
                    }
                )
        return found

    def _row(self, size: str) -> dict[str, Any]:
        kinds = [kind for kind in KINDS if kind in self.samples]
        row: dict[str, Any] = {"model": self.name, "vllm": self.release, "images": size}
        if self.arguments.tensor_parallel > 1:
            row["gpus"] = self.arguments.tensor_parallel
        by_mode: dict[tuple[str, str], list[list[float]]] = {
            (mode, kind): [[v for (v,) in self.samples[kind][child.name][size]] for child in self.of_mode(mode)]
            for mode in self.modes
            for kind in kinds
        }
        for (mode, kind), engines in by_mode.items():
            row[f"{mode}_{kind}"] = round(statistics.median(itertools.chain(*engines)), 3)
        row["spread"] = {kind: {mode: round(spread(by_mode[mode, kind]), 3) for mode in self.modes} for kind in kinds}
        for other in (mode for mode in AGAINST if mode in self.modes and "ours" in self.modes):
            row[f"ours_against_{other}"] = {
                kind: compare(by_mode["ours", kind], by_mode[other, kind]).as_dict() for kind in kinds
            }
        return row

    def stop(self) -> None:
        for child in [*self.children, *self.checked_only]:
            child.end()
        for child in [*self.children, *self.checked_only]:
            child.stop()

    def tails(self) -> str:
        return "\n".join(f"--- {child.log.name}\n{child.tail(30)}" for child in self.children)


def _column(samples: Samples, position: int) -> Samples:
    return {
        name: {size: [(turn[position],) for turn in turns] for size, turns in sizes.items()}
        for name, sizes in samples.items()
    }


def _written(samples: Samples) -> dict[str, dict[str, str]]:
    """One line for the samples of an engine and size."""
    return {
        name: {size: " ".join(f"{value:.3f}" for (value,) in turns) for size, turns in sizes.items()}
        for name, sizes in samples.items()
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--models", default="qwen2_vl,qwen2_5_vl")
    options.add_argument("--modes", default="eager,vllm_graphs,ours", help=f"of {', '.join(MODES)}; eager is needed")
    options.add_argument("--engines", type=int, default=2, help="of each mode")
    options.add_argument("--once", default="", help="modes with one engine whatever --engines says")
    options.add_argument("--check-only", default="ours_untuned", help="modes whose tokens are compared, nothing else")
    options.add_argument("--scale", choices=("tiny", "real"), default="real")
    options.add_argument(
        "--sizes", type=lambda text: text.split(","), help=f"of {', '.join(WORKLOADS)}; all unless given"
    )
    options.add_argument("--tensor-parallel", type=int, default=1)
    options.add_argument("--turns", type=int, default=40, help="that count, at most; 0: the stream alone")
    options.add_argument("--seconds", type=float, default=80, help="for these turns, at most")
    options.add_argument("--encoder-turns", type=int, default=12)
    options.add_argument("--encoder-seconds", type=float, default=25)
    options.add_argument("--requests", type=int, default=200, help="of the stream; 0: none")
    options.add_argument("--stream-passes", type=int, default=2, help="by the first engine of each mode")
    options.add_argument("--served", action="store_true", help="run each engine in a process of its own")
    options.add_argument("--video", action="store_true", help="leave videos allowed, as by default in vLLM")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    unknown = {*arguments.modes.split(","), *filter(None, arguments.check_only.split(","))} - MODES.keys()
    if unknown or "eager" not in arguments.modes.split(","):
        options.error(f"modes are {', '.join(MODES)}, eager among them; not {', '.join(sorted(unknown))}")
    sizes = WORKLOADS_OF[arguments.scale]
    arguments.sizes = arguments.sizes or list(sizes)
    if unknown := set(arguments.sizes) - sizes.keys():
        options.error(f"sizes are {', '.join(sizes)}; not {', '.join(sorted(unknown))}")
    total: dict[str, Any] = {
        "machine": arguments.machine,
        "versions": {},
        "date": "",
        "rows": [],
        "models": {},
    }
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        # All engines import vLLM at once, which mostly waits for the disk. Then they wait for their turn.
        for session in [Session(name, arguments, Path(scratch)) for name in arguments.models.split(",")]:
            if not (attempt(session, session.start, total) and attempt(session, session.wait, total)):
                failed += 1
                continue
            save = functools.partial(put, session, total, arguments.out)
            failed += not attempt(session, functools.partial(session.measure, save), total)
            failed += wrong_answers(session)
            session.stop()
            if session.samples:
                report(session)
    put(None, total, arguments.out)
    return 1 if failed else 0


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the run, for the result."""
    names = (
        "engines", "once", "check_only", "tensor_parallel", "turns", "encoder_turns", "requests", "stream_passes",
        "served", "video", "scale", "seed",
    )  # fmt: skip
    asked = {name: getattr(arguments, name) for name in names}
    return {**asked, "concurrent": CONCURRENT, "warm_up": WARM_UP, "kv_cache_bytes": KV_CACHE_BYTES}


def put(session: Session | None, total: dict[str, Any], file: Path | None) -> None:
    """Put the measurements of a session so far into the result, and the result into its file."""
    if session is not None:
        result = session.result()
        total["rows"] = [row for row in total["rows"] if row["model"] != session.name] + result["rows"]
        total["models"][session.name] = result["detail"]
        total.update(head(session.arguments.machine, session.release))
    save(total, file)


def wrong_answers(session: Session) -> int:
    """How many of our engines gave an answer that is neither eager's nor a tie."""
    checks = [
        found[key]
        for name, found in session.engines.items()
        for key in ("check", "check_after_all")
        if name.startswith("our") and key in found
    ]
    return sum(bool(check["wrong"]) for check in checks)


def attempt(session: Session, step: Callable[[], None], total: dict[str, Any]) -> bool:
    """Whether this step of a session went well. If not, its engines stop, and the result has the reason."""
    try:
        step()
    except Exception as error:
        traceback.print_exc()
        print(session.tails()[-12000:], flush=True)
        total["models"].setdefault(session.name, {})["error"] = str(error)[-2000:]
        session.stop()
        return False
    return True


def report(session: Session) -> None:
    """The tables, for a reader of the log."""
    result = session.result()
    for kind in session.samples:
        for row in result["rows"]:
            line = [f"{mode} {row[f'{mode}_{kind}']:7.2f} ±{row['spread'][kind][mode]:.2f}" for mode in session.modes]
            for other in AGAINST:
                found = row.get(f"ours_against_{other}", {}).get(kind)
                if found:
                    ends = " ".join(f"{end:+.2f}" for end in found["interval_ms"])
                    line.append(f"| {other} {found['median_ms']:+.2f} [{ends}] {found['no_slower']}")
            print(f"{session.name} {kind:>10} {row['images']:>14}  {'  '.join(line)}")
    for name, part in result["detail"]["engines"].items():
        print(f"{session.name} {name}: {json.dumps({k: v for k, v in part.items() if not k.startswith('at_')})[:1500]}")
        print(json.dumps(part.get("at_end", part["at_start"])[0])[:2000])
    session.say("done")


if __name__ == "__main__":
    sys.exit(main())
