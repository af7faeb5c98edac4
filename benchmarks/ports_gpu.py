"""Measure generated ports against upstream's own implementation on one GPU: same tower, same manager, one run.

    # where the tool is installed: generate the model files of a release
    python benchmarks/ports_gpu.py --generate FOLDER --vllm 0.33.0
    # on the GPU host, with that release of vLLM importable
    python benchmarks/ports_gpu.py --ports FOLDER --out RESULT.json --backend FLASH_ATTN

For each model vLLM's own `EncoderCudaGraphManager` captures two sets of real CUDA graphs: one through the release's
implementation of the protocol and one through the generated one. Both use one tower at real size with random weights.
Each model runs once with video and once for images alone, where a graph has room for few sequences beside those after a
batch. The benchmark compares every workload with the tree's `embed_multimodal` before it times anything. Calls rotate
over all workloads. Errors are the largest difference over the largest value; bfloat16 rounds at 4e-3.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from gpu_result import ByModel, load_file

MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
#: Upstream's Qwen2-VL tower computes no metadata for FLASHINFER.
UNSUPPORTED = {("qwen2_vl", "FLASHINFER")}
#: Items of each workload as `(t, h, w)` in patches; a token is 2 x 2 patches. Videos have t > 1.
IMAGES = {
    "224x224": [(1, 16, 16)],
    "448x448": [(1, 32, 32)],
    "1288x728": [(1, 52, 92)],
    "8 x 336x336": [(1, 24, 24)] * 8,
    "8 x 364x560": [(1, 26, 40)] * 8,  # 2080 tokens: half of the rows of its graph are padding
    "64+256+216+1196 tokens": [(1, 16, 16), (1, 32, 32), (1, 24, 36), (1, 52, 92)],
}
VIDEOS = {
    "video 8 x 224x224": [(8, 16, 16)],
    "video 4 x 448x336": [(4, 32, 24)],
    "2 videos, 14 + 3 frames": [(14, 16, 16), (3, 24, 24)],
}
#: The inputs that a deployment accepts -> videos in a prompt.
ACCEPTED = {"images and videos": 8, "images": 0}
FRAMES_PER_VIDEO = 14  # what Qwen2-VL's processing info says for a context of 8192 tokens


def generate(folder: Path, release: str, models: Iterable[str]) -> None:
    """Write the ported files of a release's models into `folder`."""
    from scaffold.protocol import resolve_target
    from scaffold.workflow import load_port, prepare_port

    tree = resolve_target(release).tree
    folder.mkdir(parents=True, exist_ok=True)
    for name in models:
        port = prepare_port(load_port(name), tree, replace=True)
        model = next(change for change in port.changed if change.path.startswith("vllm/"))
        assert model.after is not None
        (folder / f"{name}.py").write_bytes(model.after)


def load_generated(folder: Path, name: str, class_name: str) -> type:
    """The generated class, as a sibling of the release's own module so that relative imports work."""
    module = f"vllm.model_executor.models.{name}_generated"
    loaded = sys.modules.get(module) or load_file(module, folder / f"{name}.py")
    found: type = getattr(loaded, class_name)
    return found


def measure(name: str, accepted: str, backend: str, ports: Path, rounds: int) -> dict[str, Any]:
    import torch
    from manager_gpu import DEVICE, DTYPE, Subject, capture_measured, error_of, once
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

    subject = Subject(name)
    theirs, config = subject.build()
    config.model_config.multimodal_config.limits["video"] = ACCEPTED[accepted]
    theirs.get_max_frames_per_video = lambda: FRAMES_PER_VIDEO
    ours = copy.copy(theirs)
    ours.__class__ = load_generated(ports, name, type(theirs).__name__)

    kinds = {"upstream": theirs, "generated": ours}

    def inputs_of(items: list[Any], seed: int, video: bool) -> dict[str, Any]:
        inputs = subject.call(items, seed)
        if video:
            inputs = {"pixel_values_videos": inputs["pixel_values"], "video_grid_thw": inputs["image_grid_thw"]}
        return inputs

    calls = {label: inputs_of(items, seed, False) for seed, (label, items) in enumerate(IMAGES.items())}
    if ACCEPTED[accepted]:
        calls |= {label: inputs_of(items, 100 + seed, True) for seed, (label, items) in enumerate(VIDEOS.items())}
    with torch.inference_mode():
        want = {label: [t.clone() for t in theirs.embed_multimodal(**inputs)] for label, inputs in calls.items()}
    managers, captured = {}, {}
    for kind, host in kinds.items():
        managers[kind], captured[kind] = capture_measured(
            lambda host=host: EncoderCudaGraphManager(config, DEVICE, DTYPE, host)
        )
        print(name, backend, accepted, kind, captured[kind], flush=True)
    errors: dict[tuple[str, str], float] = {}
    for kind, manager in managers.items():
        for _ in range(2):  # the second round finds buffers that other sizes have filled
            for label, inputs in calls.items():
                found = error_of(manager.execute(dict(inputs)), want[label])
                errors[label, kind] = max(errors.get((label, kind), 0.0), found)
    samples: dict[tuple[str, str], list[float]] = {}
    with torch.inference_mode():
        for turn in range(rounds + 3):
            for label, inputs in calls.items():
                actions = {kind: (lambda m=manager, i=inputs: m.execute(i)) for kind, manager in managers.items()}
                actions["eager"] = lambda i=inputs: theirs.embed_multimodal(**i)
                for kind, action in actions.items():
                    ms = once(action)
                    if turn >= 3:
                        samples.setdefault((label, kind), []).append(ms)
    rows = []
    for label, inputs in calls.items():
        median = {kind: round(statistics.median(samples[label, kind]), 3) for kind in ("eager", *managers)}
        rows.append(
            {
                "model": name,
                "backend": backend,
                "accepted": accepted,
                "workload": label,
                "tokens": sum(int(s.output_tokens) for s in theirs.get_encoder_cudagraph_item_specs(inputs)),
                **{f"{kind}_ms": value for kind, value in median.items()},
                # None: not finite, or of another shape. JSON has no infinity.
                **{f"{kind}_error": errors[label, kind] if errors[label, kind] < 1e9 else None for kind in managers},
                **{f"{kind}_graphs_mb": round(captured[kind]["device_mb"]) for kind in managers},
                **{f"{kind}_capture_s": round(captured[kind]["seconds"], 2) for kind in managers},
            }
        )
    for manager in managers.values():
        manager.clear()
    return {"rows": rows}


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--generate", type=Path, metavar="FOLDER")
    options.add_argument("--vllm", default="0.33.0", metavar="RELEASE")
    options.add_argument("--ports", type=Path, metavar="FOLDER")
    options.add_argument("--out", type=Path)
    options.add_argument("--backend", default="FLASH_ATTN")
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--accepted", default=",".join(ACCEPTED), help="what deployments accept")
    options.add_argument("--rounds", type=int, default=15)
    arguments = options.parse_args()
    if arguments.generate:
        generate(arguments.generate, arguments.vllm, arguments.models.split(","))
        return 0
    from manager_gpu import load_recipes, start_vllm

    load_recipes()
    context = start_vllm(arguments.backend)
    total = ByModel(arguments.out)
    wanted = [(name, accepted) for name in arguments.models.split(",") for accepted in arguments.accepted.split(",")]
    for name, accepted in wanted:
        if (name, arguments.backend) in UNSUPPORTED:
            continue
        rest = (arguments.backend, arguments.ports, arguments.rounds)
        part = total.add(f"{name} {arguments.backend}, {accepted}", partial(measure, name, accepted, *rest))
        for row in part["rows"] if part is not None else ():
            total.failed += row["generated_error"] is None or not row["generated_error"] < 0.05
            print(
                f"{row['workload']:>26} {row['tokens']:>5} tokens  eager {row['eager_ms']:>8}  "
                f"upstream {row['upstream_ms']:>8} (error {_error(row['upstream_error'])})  "
                f"generated {row['generated_ms']:>8} (error {_error(row['generated_error'])})"
            )
    context.__exit__(None, None, None)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
