"""Several processes of one script that form a tensor-parallel group of vLLM's (gloo), each a rank."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable


def rank() -> int:
    """Of this process."""
    return int(os.environ["VITCG_RANK"])


def run(worker: Callable[[], int], ranks: int, seconds: float) -> int:
    """Run `worker` in a fork for each rank. Returns 0 when all of them do, in this time."""
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=_run, args=(worker, each, scratch)) for each in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
            process.kill()
            process.join()
    return 0 if all(process.exitcode == 0 for process in processes) else 1


def _run(worker: Callable[[], int], rank: int, scratch: str) -> None:
    os.environ.update({"VITCG_RANK": str(rank), "VITCG_STORE": scratch, "GLOO_SOCKET_IFNAME": "lo"})
    sys.exit(worker())


def join(ranks: int) -> None:
    """Make the group, in a rank, inside vLLM's configuration context."""
    from vllm.distributed import parallel_state

    parallel_state.init_distributed_environment(
        world_size=ranks, rank=rank(), local_rank=rank(), backend="gloo",
        distributed_init_method=f"file://{os.environ['VITCG_STORE']}/store",
    )  # fmt: skip
    parallel_state.initialize_model_parallel(ranks)


def say(report: dict[str, object]) -> None:
    """One line, in one write: the ranks share a pipe, and short writes do not mix."""
    os.write(1, f"{json.dumps(report)}\n".encode())
