"""One engine in a process of its own, and the parent's handle on it. `engine_gpu.py` is the parent.

    python benchmarks/engine_process.py CHANNEL JOB

CHANNEL is the number of an inherited socket, JOB is JSON. The engine runs in this very process (its ranks, if there are
several, in further ones), so that no time includes a copy of pixels between processes. With `served` in the job it runs
in a process of its own, as in a server: there vLLM's loop waits for requests, and ours captures meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import engine_worker
from model_directory import MODELS

PICTURES = 3
CHECK_TOKENS = 8
STREAM_TOKENS = 8
CONCURRENT = 8

#: Mode -> (encoder graphs are on, plugins besides the weights, further environment).
MODES: dict[str, tuple[bool, str, dict[str, str]]] = {
    "eager": (False, "", {}),
    "vllm_graphs": (True, "", {}),
    "ours": (True, ",vitcg", {}),
    # The tower as vLLM makes it: only padding differs from eager.
    "ours_untuned": (True, ",vitcg", {"VITCG_ENCODER_GRAPHS": '{"tuning": "off"}'}),
}


def draw_stream(number: int) -> list[list[tuple[int, int]]]:
    """Sizes of each request: one image (80 %), two to four (20 %); the long side log-uniform from 224 to 1536 pixels;
    the sides 1:1, 4:3 or 16:9, upright in one of three."""
    generator = random.Random(0)
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


def picture(seed: int, width: int, height: int) -> Any:
    """Noise over a gradient: no two pictures are alike, nor two parts of one picture."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    slope = np.linspace(0, 200, width, dtype=np.float32)[None, :, None] * generator.random(3, dtype=np.float32)
    noise = generator.integers(0, 56, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(slope.astype(np.uint8) + noise)


def hash_of(*parts: Any) -> int:
    """The same number in every process."""
    return zlib.crc32(repr(parts).encode())


# -- in the process that holds the engine


class Engine:
    """One `vllm.LLM`, and the questions that the parent can ask it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.model = MODELS[job["model"]]
        self.prompts = {
            (name, number): self._prompt([picture(hash_of(name, number, i), width, height) for i in range(count)])
            for name, (count, width, height) in job["workloads"].items()
            for number in range(PICTURES)
        }
        self.llm: Any = None
        self.requests = 0
        self.stream_inputs: list[list[Any]] = []
        self.passes = 0

    def _prompt(self, images: list[Any]) -> dict[str, Any]:
        return {"prompt": self.model.prompt(images=len(images)), "multi_modal_data": {"image": images}}

    def start(self) -> dict[str, Any]:
        from vllm import LLM

        job = self.job
        if job["tiny"]:
            engine_worker.inspect_here()
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
        if job["tiny"] and job["graphs"]:
            self.llm.collective_rpc("start_encoder_graphs")
        return {"start_s": time.perf_counter() - begin, "ranks": self.describe()}

    def settle(self, cores: list[int] | None) -> None:
        """Hide today's objects from the garbage collector, and bind all threads to these cores, which engines share."""
        gc.collect()
        gc.freeze()
        for thread in Path("/proc/self/task").iterdir() if cores else ():
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.sched_setaffinity(int(thread.name), cores or [])

    def describe(self) -> list[dict[str, Any]]:
        return [json.loads(answer) for answer in self.llm.collective_rpc("describe_encoder")]

    def requests_of(self, order: list[str], number: int) -> list[tuple[float, float]]:
        """`request` of each size, in this order, without the collector running."""
        return self._quietly(lambda: [self.request(name, number) for name in order])

    def encoders_of(self, order: list[str], number: int) -> list[float]:
        """`encoder` of each size, in this order, without the collector running."""
        return self._quietly(lambda: [self.encoder(name, number) for name in order])

    def _quietly(self, measure: Any) -> Any:
        gc.collect()
        gc.disable()
        try:
            # After another process used the device and the caches, one request that does not count.
            self.request(next(iter(self.job["workloads"])), 0)
            return measure()
        finally:
            gc.enable()

    def request(self, name: str, number: int) -> tuple[float, float]:
        """Milliseconds of one request: all of it, and without the processing of its images on the processor."""
        parameters = self._parameters(1)
        self.requests += 1
        begin = time.perf_counter()
        # Process the inputs anew for each request: they carry a name, and vLLM keeps the encoder's output by name.
        prompt = self.llm._preprocess_cmpl_one(self.prompts[name, number])
        processed = time.perf_counter()
        self._finish(f"one-{self.requests}", prompt, parameters)
        end = time.perf_counter()
        return (end - begin) * 1e3, (end - processed) * 1e3

    def _parameters(self, tokens: int, **more: Any) -> Any:
        from vllm import SamplingParams

        return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **more)

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
        parameters = self._parameters(CHECK_TOKENS, logprobs=5)
        answers = {}
        for (name, number), prompt in self.prompts.items():
            output = self.llm.generate(prompt, parameters, use_tqdm=False)[0].outputs[0]
            best = [{int(token): value.logprob for token, value in step.items()} for step in output.logprobs]
            answers[f"{name} #{number}"] = {"tokens": [int(t) for t in output.token_ids], "best": best}
        return answers

    def prepare_stream(self, passes: int) -> None:
        """Process all images of the stream, as a server does in other processes."""
        limit = self.job["stream_limit"]
        for _ in range(passes):
            inputs = []
            for n, sizes in enumerate(draw_stream(self.job["requests"])):
                images = [picture(n * 10 + i, min(w, limit), min(h, limit)) for i, (w, h) in enumerate(sizes)]
                inputs.append(self.llm._preprocess_cmpl_one(self._prompt(images)))
            self.stream_inputs.append(inputs)

    def stream(self) -> dict[str, Any]:
        """Run one prepared pass, several requests at a time.

        The answer has the seconds, the milliseconds and tokens of each request, and the encoder manager's first-time
        work.
        """
        parameters = self._parameters(STREAM_TOKENS)
        engine, waiting = self.llm.llm_engine, list(enumerate(self.stream_inputs.pop(0)))[::-1]
        self.passes += 1
        before = self.describe()[0]
        started: dict[str, float] = {}
        ms: dict[int, float] = {}
        tokens: dict[int, list[int]] = {}
        number_of_requests = len(waiting)

        def submit() -> None:
            if waiting:
                number, prompt = waiting.pop()
                name = f"stream{self.passes}-{number}"
                started[name] = time.perf_counter()
                engine.add_request(name, prompt, parameters.clone())

        gc.collect()
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
        order = range(number_of_requests)
        return {
            "seconds": seconds,
            "ms": [ms[n] for n in order],
            "tokens": [tokens[n] for n in order],
            "work": engine_worker.first_time_work(before, self.describe()[0]),
        }


def run_child(channel: Connection, job: dict[str, Any], make: Callable[[dict[str, Any]], Any] = Engine) -> None:
    """Answer the parent, by methods of an engine, until it says "stop" or is gone."""
    import vllm

    engine = make(job)
    channel.send({"vllm": vllm.__version__})
    while True:
        try:
            name, arguments = channel.recv()
        except EOFError:
            return
        if name == "stop":
            return
        try:
            channel.send(getattr(engine, name)(*arguments))
        except Exception as error:
            traceback.print_exc()
            channel.send(error if isinstance(error, (RuntimeError, ValueError)) else RuntimeError(repr(error)))


# -- in the process that measures


class Child:
    """An engine process. Its name is its mode, with a number from the second of that mode on."""

    script, modes = __file__, MODES

    def __init__(self, mode: str, number: int, job: dict[str, Any], folder: Path) -> None:
        graphs, plugins, environment = self.modes[mode]
        if job["tiny"]:
            environment = environment | engine_worker.ON_CPU
            plugins += f",{engine_worker.ATTENTION}" if graphs else ""
        self.mode, self.number = mode, number
        self.name = mode if number == 0 else f"{mode}_{number + 1}"
        self.log = folder / f"{job['model']}-{self.name}.log"
        site = engine_worker.write_site(folder / "site")
        path = [str(site), str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
        env = os.environ | environment | {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "VLLM_PLUGINS": engine_worker.PLUGIN + plugins,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if job["served"] else "0",
            # Threads that wait in a loop for more images to process would slow the thread that launches kernels.
            "OMP_NUM_THREADS": "4",
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }  # fmt: skip
        self.channel, theirs = multiprocessing.Pipe()
        with self.log.open("wb") as log, theirs:
            command = [
                sys.executable,
                self.script,
                str(theirs.fileno()),
                json.dumps({**job, "mode": mode, "graphs": graphs}),
            ]
            self.process = subprocess.Popen(
                command, env=env, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def send(self, name: str, *arguments: Any) -> None:
        """Ask a question. `receive` gives the answer; the parent can ask others meanwhile."""
        try:
            self.channel.send((name, arguments))
        except OSError as error:
            raise RuntimeError(f"{self.name} is gone: {error!r}\n{self.tail()}") from error

    def receive(self, limit: float = 240) -> Any:
        """The answer. Raises RuntimeError with the end of the log when there is none."""
        try:
            if not self.channel.poll(limit):
                raise RuntimeError(f"{self.name} has not answered for {limit} s\n{self.tail()}")
            answer = self.channel.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"{self.name} died: {error!r}\n{self.tail()}") from error
        if isinstance(answer, Exception):
            raise RuntimeError(f"{self.name}: {answer}\n{self.tail()}")
        return answer

    def ask(self, name: str, *arguments: Any) -> Any:
        self.send(name, *arguments)
        return self.receive()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self._lines()[-lines:])

    def warnings(self) -> list[str]:
        """Our own warnings in the log."""
        ours = re.compile("WARNING.*(vitcg|encoder graph)")
        return [line[-300:] for line in self._lines() if ours.search(line)][:8]

    def capturing(self) -> list[dict[str, float]]:
        """Whole seconds and GiB of vLLM's captures (the encoder's and the language model's), from its log."""
        found = re.findall(r"Graph capturing finished in (\d+) secs, took (-?[\d.]+) GiB", "\n".join(self._lines()))
        return [{"seconds": float(seconds), "gib": float(gib)} for seconds, gib in found]

    def _lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def end(self) -> None:
        """Tell it to end, without waiting."""
        if not self.channel.closed:
            with contextlib.suppress(OSError):
                self.channel.send(("stop", ()))

    def stop(self) -> None:
        """Wait until it is gone."""
        self.end()
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()


def ask_all(children: list[Child], name: str, *arguments: Any) -> dict[str, Any]:
    """Ask all of them at once."""
    for child in children:
        child.send(name, *arguments)
    return {child.name: child.receive() for child in children}


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as own_channel:
        run_child(own_channel, json.loads(sys.argv[2]))
