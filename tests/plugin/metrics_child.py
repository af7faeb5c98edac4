"""A server's processes as `vllm serve` starts them: a worker that counts images, and API servers with `/metrics`.

    python metrics_child.py SERVERS

It prints what each API server answers after the images.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from multiprocessing.connection import Connection


def worker(connection: Connection) -> None:
    """A worker's process without a model: only its counters."""
    from vllm.plugins import load_general_plugins

    from scaffold.runtime import GraphKey, Stats
    from scaffold.runtime.vllm import metrics

    load_general_plugins()
    stats = Stats()
    stats.hit(GraphKey("default", 8), 2, 6)
    metrics.write(stats, False, {"model_name": "m", "engine": "0", "rank": "0"})
    connection.send("")


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


def started(target: object, method: str) -> object:
    """What a process of its own sends. API servers must import Prometheus where its folder is set, so not in a fork of
    this process. Each would import vLLM anew; a fork of one process that has done it does not."""
    context = multiprocessing.get_context(method)
    context.set_forkserver_preload(["vllm", "vllm.entrypoints.serve.instrumentator.metrics"])
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there,))
    process.start()
    while not here.poll(1):
        if not process.is_alive():
            raise SystemExit(f"the process ended with {process.exitcode}")
    found = here.recv()
    process.join(60)
    return found


def main() -> None:
    servers = int(sys.argv[1])
    if servers > 1:
        from vllm.v1.metrics.prometheus import setup_multiprocess_prometheus

        setup_multiprocess_prometheus()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    before = answer() if servers == 1 else ""
    started(worker, "fork")
    said = [answer()] if servers == 1 else [started(api_server, "forkserver") for _ in range(servers)]
    print("RESULT " + json.dumps({"before": before, "said": said}))


if __name__ == "__main__":
    main()
