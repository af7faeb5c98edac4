"""Measure what tuning a tower, and its check, add to the start of a server, on one GPU.

    python benchmarks/tuning_start_gpu.py --out RESULT.json [--models qwen2_5_vl,...]

Each row is a process of its own with an empty cache of Triton: as at the very first start (`cold`), and again in the
same process (`warm`: kernels are compiled, as at later starts, whose caches are on disk). `off` tunes nothing,
`unchecked` tunes without the check, `checked` is the default.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

MODELS = ("qwen2_5_vl", "qwen3_vl", "internvl")
WAYS = {
    "off": {"tuning": "off"},
    "unchecked": {"tuning_check": False},
    "checked": {},
}
LIMIT_S = 90


def measure(name: str, way: str) -> dict[str, Any]:
    """One process: the seconds of two captures, and what of them is tuning."""
    from manager_gpu import DEVICE, DTYPE, capture_measured, start_vllm
    from towers import Subject

    context = start_vllm("FLASH_ATTN")
    from scaffold.runtime.vllm import EncoderCudaGraphManager

    subject = Subject(name)
    host, config = subject.build()
    config.additional_config = {"encoder_graphs": WAYS[way]}
    row: dict[str, Any] = {"model": name, "way": way}
    for start in ("cold", "warm"):
        manager, captured = capture_measured(lambda: EncoderCudaGraphManager(config, DEVICE, DTYPE, host))
        tuned = manager.tuned
        assert tuned is not None
        row[start] = {
            "capture_s": round(captured["seconds"], 2),
            "tuning_s": round(tuned.seconds, 2),
            "check_s": round(tuned.check_seconds, 2),
            "graphs": len(manager.core.graphs),
            "tunings": [outcome.name for outcome in tuned.outcomes if outcome.applied],
            "errors": sorted({outcome.error for outcome in tuned.outcomes if outcome.error is not None}),
            "rounding": tuned.rounding,
        }
        tuned.undo()
        manager.clear()
    context.__exit__(None, None, None)
    return row


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--machine", default="")
    options.add_argument("--child", nargs=2, metavar=("MODEL", "WAY"))
    arguments = options.parse_args()
    if arguments.child:
        print(json.dumps(measure(*arguments.child)), flush=True)
        return 0
    import torch
    import vllm
    from gpu_result import head, save

    total = {**head(arguments.machine or torch.cuda.get_device_name(), vllm.__version__), "rows": []}
    failed = 0
    for name in arguments.models.split(","):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as cache:
                done = subprocess.run(
                    [sys.executable, __file__, "--child", name, way],
                    env={**os.environ, "TRITON_CACHE_DIR": cache}, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S,
                    check=False,
                )  # fmt: skip
            if done.returncode:
                failed += 1
                print(name, way, "failed:", done.stdout[-2000:], flush=True)
                continue
            total["rows"].append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(total["rows"][-1], flush=True)
            save(total, arguments.out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
