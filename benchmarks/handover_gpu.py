"""Measure what the hand-over of norms across blocks gains alone: tuned towers with it and without it, side by side.

    python benchmarks/handover_gpu.py --out RESULT.json [--models qwen2_5_vl,...]

Three towers have equal random weights at real sizes: an untuned one, one with all default tunings, and one with all but
the hand-over (`fused-residuals` within each block only). Their exact graphs interleave. `gain` is the share of the time
without it that the hand-over saves.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from gpu_result import ByModel
from manager_gpu import DEVICE, DTYPE, error_of, exact_call, start_vllm
from torch import nn
from towers import Subject
from tuning_gpu import settle

from scaffold.measure.exact import Graph
from scaffold.measure.subject import randomise
from scaffold.verify.numeric.child import process_weights

#: Workloads of packed rows, by tokens, and of tiles.
PACKED = {
    "64": [(1, 16, 16)],
    "256": [(1, 32, 32)],
    "576": [(1, 48, 48)],
    "1196": [(1, 52, 92)],
    "2691": [(1, 78, 138)],
    "4784": [(1, 104, 184)],
}
TILES = {"256": [1], "768": [3], "1792": [7], "3328": [13]}
MODELS = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "internvl", "siglip")
ROUNDS = 31


class Siglip:
    """The tower of SigLIP-so400m at 378 pixels: 729 tokens for each image."""

    workloads = {"729": 1, "2916": 4}  # noqa: RUF012

    def build(self) -> nn.Module:
        from transformers import SiglipVisionConfig
        from vllm.model_executor.models.siglip import SiglipVisionModel

        config = SiglipVisionConfig(
            hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=378,
            patch_size=14,
        )  # fmt: skip
        host = nn.Module()
        torch.set_default_dtype(DTYPE)
        try:
            with DEVICE:
                host.vision_tower = SiglipVisionModel(config, None, prefix="vision_tower")
        finally:
            torch.set_default_dtype(torch.float32)
        host.language_model = nn.Module()
        host = host.to(DEVICE).eval().requires_grad_(False)
        randomise(host, DEVICE)
        process_weights(host)
        return host

    def prepare(self, host: nn.Module, images: int) -> tuple[Callable[[], Any], Callable[[], list[torch.Tensor]]]:
        """The replay of an exact graph, and the eager call."""
        generator = torch.Generator(DEVICE).manual_seed(0)
        pixels = torch.randn(images, 3, 378, 378, device=DEVICE, dtype=DTYPE, generator=generator)

        def forward() -> torch.Tensor:
            return host.vision_tower(pixels)

        return Graph(forward).replay, lambda: [forward().clone()]


class Core:
    """A core model."""

    def __init__(self, name: str) -> None:
        self._subject = Subject(name)
        self.workloads: dict[str, Any] = TILES if name == "internvl" else PACKED

    def build(self) -> nn.Module:
        return self._subject.build()[0]

    def prepare(self, host: nn.Module, items: list[Any]) -> tuple[Callable[[], Any], Callable[[], list[torch.Tensor]]]:
        inputs = self._subject.call(items, 0)
        return exact_call(host, inputs, len(items)), lambda: list(host.embed_multimodal(**inputs))


def measure(name: str) -> dict[str, Any]:
    from scaffold.runtime.tuning import tune
    from scaffold.runtime.tuning.norms import FusedResiduals

    subject = Siglip() if name == "siglip" else Core(name)
    hosts = {way: subject.build() for way in ("untuned", "without", "with")}
    following = FusedResiduals._next
    FusedResiduals._next = lambda *_: None
    try:
        outcomes = tune(hosts["without"]).outcomes
    finally:
        FusedResiduals._next = following
    handed = sum(
        following(FusedResiduals(), path, dict(hosts["with"].named_modules())) is not None
        for outcome in outcomes if outcome.name == FusedResiduals.name for path in outcome.applied
    )  # fmt: skip
    applied = {outcome.name: len(outcome.applied) for outcome in tune(hosts["with"]).outcomes if outcome.applied}
    print(name, "tuned:", applied, "blocks that hand over:", handed, flush=True)
    rows = []
    for tokens, items in subject.workloads.items():
        ways = {way: subject.prepare(host, items) for way, host in hosts.items()}
        with torch.inference_mode():
            want = [t.clone() for t in ways["untuned"][1]()]
            errors = {way: error_of(list(ways[way][1]()), want) for way in ("without", "with")}
        times = settle({way: graph for way, (graph, _) in ways.items()}, ROUNDS)
        rows.append(
            {
                "model": name,
                "tokens": int(tokens),
                **{f"{way}_ms": round(ms, 4) for way, ms in times.items()},
                "gain": round(1 - times["with"] / times["without"], 4),
                "errors": errors,
            }
        )
        print(rows[-1], flush=True)
        del ways
        torch.cuda.empty_cache()
    gains = [row["gain"] for row in rows]
    return {"rows": rows, "applied": applied, "hand_over": handed, "mean_gain": round(statistics.mean(gains), 4)}


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--machine", default="")
    arguments = options.parse_args()
    context = start_vllm("FLASH_ATTN")
    total = ByModel(arguments.out, arguments.machine, rounds=ROUNDS)
    for name in arguments.models.split(","):
        total.add(name, partial(measure, name))
    context.__exit__(None, None, None)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
