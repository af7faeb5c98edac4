"""Several processes of one script that form a tensor-parallel group of vLLM's (gloo), each a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile


def rank() -> int | None:
    """Of this process; None in the one that starts them."""
    return int(os.environ["VITCG_RANK"]) if "VITCG_RANK" in os.environ else None


def run(script: str, ranks: int, seconds: float) -> int:
    """Run a script with this process's arguments once a rank. Returns 0 when all of them do, in this time."""
    with tempfile.TemporaryDirectory() as scratch:
        processes = [
            subprocess.Popen(
                [sys.executable, script, *sys.argv[1:]],
                env={**os.environ, "VITCG_RANK": str(each), "VITCG_STORE": scratch, "GLOO_SOCKET_IFNAME": "lo"},
            )
            for each in range(ranks)
        ]
        codes = []
        for process in processes:
            try:
                codes.append(process.wait(seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(-1)
    return 0 if codes == [0] * ranks else 1


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
