"""Serve images with LoRA adapters on the vision tower, each request alone and all in one batch.

    python lora_child.py FOLDER RESULT.json JOB

First as vLLM does it, then with the encoder-graph manager. JOB is JSON: `guarded`: false takes the refusal of LoRA
away, to show what it is for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import engine_worker
from engine_child import BUDGETS, PLAIN, logprobs_of, picture
from model_directory import MODELS, write_model

NAME = "qwen2_vl"
RANK = 4
#: Width and height of each request's image, and its adapter: small and large in turn. Each has one: for a request with
#: none, the CPU kernels of vLLM take the last adapter if another request of its batch has one.
REQUESTS = [((168, 84), 1), ((56, 84), 2), ((84, 84), 2), ((56, 56), 1), ((168, 84), 2), ((56, 84), 1)]


def write_adapter(folder: Path, seed: int, config: dict[str, Any]) -> Path:
    """A LoRA of the tower's fused projections that changes them a good deal."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    vision = config["vision_config"]
    width = vision["embed_dim"]
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(vision["depth"]):
        name = f"base_model.model.visual.blocks.{layer}.attn.qkv"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, width, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(3 * width, RANK, generator=generator) / RANK
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["qkv"], "bias": "none",
                "task_type": "CAUSAL_LM"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def serve(folder: Path) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    directory = write_model(NAME, folder / NAME)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    adapters = {n: LoRARequest(f"a{n}", n, str(write_adapter(folder / f"adapter{n}", n, config))) for n in (1, 2)}
    llm = LLM(
        model=str(directory),
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        enable_lora=True,
        max_loras=2,
        max_lora_rank=8,
        enable_tower_connector_lora=True,
        compilation_config={
            "mode": 0,
            "cudagraph_mm_encoder": True,
            "encoder_cudagraph_token_budgets": BUDGETS,
            "encoder_cudagraph_max_vision_items_per_batch": 4,
        },
        additional_config={"encoder_graphs": {"calibration_ms": 0, "trials": 0}},
        limit_mm_per_prompt={"image": 1, "video": 0},
        **PLAIN,
    )
    parameters = SamplingParams(temperature=0, max_tokens=2, logprobs=0, ignore_eos=True)
    prompts = [
        {"prompt": MODELS[NAME].prompt(images=1), "multi_modal_data": {"image": picture(seed, *size)}}
        for seed, (size, _) in enumerate(REQUESTS)
    ]
    wanted = [adapters[adapter] for _, adapter in REQUESTS]

    def answers() -> dict[str, list[list[float]]]:
        each = zip(prompts, wanted, strict=True)
        alone = [llm.generate(one, parameters, use_tqdm=False, lora_request=adapter)[0] for one, adapter in each]
        together = llm.generate(prompts, parameters, use_tqdm=False, lora_request=wanted)
        # Last: a capture then sees a tower without any adapter, as on a GPU.
        without = llm.generate(prompts, parameters, use_tqdm=False)
        found = {"alone": alone, "together": together, "without": without}
        return {way: [*map(logprobs_of, outputs)] for way, outputs in found.items()}

    eager = answers()
    llm.collective_rpc("start_encoder_graphs")
    served = answers()
    (encoder,) = [json.loads(found) for found in llm.collective_rpc("describe_encoder")]
    llm.llm_engine.engine_core.shutdown()
    return {"eager": eager, "served": served, "encoder": encoder}


def main() -> None:
    folder, target, job = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    engine_worker.inspect_here()
    if not job["guarded"]:
        from scaffold.runtime.vllm import manager

        manager.refusal_of = lambda *_: None
    target.write_text(json.dumps(serve(folder), default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
