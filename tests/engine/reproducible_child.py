"""Serve the same images in an order of its own, and write the bits of every batch that the encoder got.

    python reproducible_child.py FOLDER RESULT.json SEED

On a GPU, a product of another shape may take another kernel, which rounds in another way. The CPU's do not, so here a
graph adds what depends on its number of rows.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import engine_worker
import torch
from engine_child import PLAIN, logprobs_of, picture
from model_directory import MODELS, write_model

NAME = "qwen2_vl"
#: Width and height of each image: 4 to 60 tokens.
IMAGES = [(56, 56), (84, 56), (112, 84), (168, 140), (224, 112), (56, 280), (280, 168), (140, 140)]
ROUNDS = 3


def digest(values: Any) -> str:
    """Of tensors, in their order, with their shapes."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def round_by_shape() -> None:
    from scaffold.runtime.vllm.model import VllmAdapter

    original = VllmAdapter.forward

    def forward(self: Any, values: dict[str, Any], path: str) -> torch.Tensor:
        output = original(self, values, path)
        return output + 1e-6 * output.shape[0]

    VllmAdapter.forward = forward


def serve(folder: Path, seed: int) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    round_by_shape()
    llm = LLM(
        model=str(write_model(NAME, folder / NAME)),
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        compilation_config={"mode": 0, "cudagraph_mm_encoder": True},
        limit_mm_per_prompt={"image": 1, "video": 0},
        **PLAIN,
    )
    llm.collective_rpc("start_encoder_graphs")
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    manager = runner.encoder_cudagraph_manager
    batches: dict[str, list[str]] = {}
    execute = manager.execute

    def noted(inputs: dict[str, Any]) -> Any:
        outputs = execute(inputs)
        batches.setdefault(digest(inputs[name] for name in sorted(inputs)), []).append(digest(outputs))
        return outputs

    manager.execute = noted
    parameters = SamplingParams(temperature=0, max_tokens=2, logprobs=0, ignore_eos=True)
    prompts = [
        {"prompt": MODELS[NAME].prompt(images=1), "multi_modal_data": {"image": picture(number, *size)}}
        for number, size in enumerate(IMAGES)
    ]
    answers: dict[int, list[Any]] = {}
    order = [number for number in range(len(IMAGES)) for _ in range(ROUNDS)]
    random.Random(seed).shuffle(order)
    for number in order:
        (output,) = llm.generate(prompts[number], parameters, use_tqdm=False)
        answers.setdefault(number, []).append([list(output.outputs[0].token_ids), logprobs_of(output)])
        manager.capture_when_idle()
    alone = len(batches)
    for _ in range(2):  # several images in a batch
        llm.generate([prompts[number] for number in order], parameters, use_tqdm=False)
    stats = manager.get_cumulative_stats()
    return {
        "alone": alone,
        "batches": batches,
        "answers": [answers[number] for number in range(len(IMAGES))],
        "graphs": stats["num_budgets"],
        "hits": stats["graph_hits"],
        "misses": stats["graph_misses"],
    }


def main() -> None:
    folder, target, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    engine_worker.inspect_here()
    target.write_text(json.dumps(serve(folder, seed)), encoding="utf-8")


if __name__ == "__main__":
    main()
