"""A server's processes as `vllm serve` starts them, on the CPU: an engine with graphs, and API servers with `/metrics`.

    python metrics_child.py FOLDER one|several

It prints what each API server answers after the engine's images.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path


def counters(folder: str, connection: Connection) -> None:
    """A worker's process without a model: only its counters."""
    from vllm.plugins import load_general_plugins

    from scaffold.runtime import GraphKey, Stats
    from scaffold.runtime.vllm import metrics

    load_general_plugins()
    stats = Stats()
    stats.hit(GraphKey("default", 8), 2, 6)
    metrics.write(stats, False, {"model_name": f"{folder}/qwen2_vl", "engine": "0", "rank": "0"})
    connection.send({"hits": stats.hits})


def engine(folder: str, connection: Connection) -> None:
    """A worker's process with a model: two images, and what becomes of its counters 10 seconds later."""
    from faults_child import Engine
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()
    from scaffold.verify.numeric.cpu_imports import patch_vllm

    patch_vllm()
    made = Engine(Path(folder))
    manager = made.start_graphs()
    made.ask()
    made.ask()
    manager.save()
    connection.send({"hits": manager.graph_hits})


def api_server(connection: Connection) -> None:
    """The process of one API server: vLLM's own route."""
    connection.send(answer())


def answer() -> str:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from vllm.entrypoints.serve.instrumentator.metrics import attach_router
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    app = FastAPI()
    attach_router(app)
    return TestClient(app).get("/metrics").text


def started(target: object, *arguments: object) -> object:
    """What a process of its own sends. Each would import vLLM anew; a fork of one process that has done it does not."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vllm", "vllm.entrypoints.serve.instrumentator.metrics"])
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*arguments, there))
    process.start()
    while not here.poll(1):
        if not process.is_alive():
            raise SystemExit(f"the process ended with {process.exitcode}")
    found = here.recv()
    process.join(60)
    return found


def main() -> None:
    folder, servers = sys.argv[1:]
    if servers == "several":
        from vllm.v1.metrics.prometheus import setup_multiprocess_prometheus

        setup_multiprocess_prometheus()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    before = answer() if servers == "one" else ""
    manager = started(counters if servers == "one" else engine, folder)
    said = [answer()] if servers == "one" else [started(api_server) for _ in range(2)]
    print("RESULT " + json.dumps({"manager": manager, "before": before, "said": said}))


if __name__ == "__main__":
    main()
