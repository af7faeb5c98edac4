"""Serve tiny models with the installed vLLM in this process and write what came out.

    python engine_child.py FOLDER RESULT.json JOB

JOB is JSON: `models`; `ranks` of tensor parallelism, with images spread over them; `graphs`: start the encoder-graph
manager, as the GPU worker does after loading. Graphs need `engine_worker.ATTENTION` among the plugins.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import engine_worker  # noqa: E402
import numpy as np  # noqa: E402
from model_directory import MODELS, Model, write_model  # noqa: E402

BUDGETS = [16, 64, 128]
#: Step3-VL has 169 tokens an image; its own first path needs budgets from there.
STEP3_BUDGETS = [192, 384]
#: What each model is told about tower tuning: the first four say it in every way but "off".
TUNING: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"tuning": {"fused-norms": False}, "tuning_check": True},
    "internvl": {"tuning": "list"},
    "mistral3": {"tuning": ["fused-norms", "unsplit-attention"]},
    "llava_next": {},
    "qwen2_vl": {"tuning": ["fused-norms", "inplace-rotary"]},
    "qwen3_vl": {"tuning": {"fused-norms": False}, "tuning_check": True},
    "step3_vl": {"tuning": "off"},
}
VIDEO_FPS = 2.0
#: Engines on random weights that keep nothing from one request to the next.
PLAIN: dict[str, Any] = {
    "load_format": "dummy", "dtype": "float32", "enable_prefix_caching": False, "mm_processor_cache_gb": 0,
    "worker_extension_cls": engine_worker.PROBE,
}  # fmt: skip


def picture(seed: int, width: int, height: int) -> Any:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def clip(seed: int, frames: int, width: int, height: int) -> Any:
    pixels = np.random.default_rng(seed).integers(0, 255, (frames, height, width, 3), dtype=np.uint8)
    facts = {
        "fps": VIDEO_FPS, "duration": frames / VIDEO_FPS, "total_num_frames": frames,
        "frames_indices": list(range(frames)), "video_backend": "opencv", "do_sample_frames": False,
    }  # fmt: skip
    return pixels, facts


def calls(model: Model) -> dict[str, Any]:
    """Prompts by name. Large and small alternate, so that a replay finds the larger call's values in its buffers."""
    # Twice as wide as high: Step3-VL cuts tiles out of it.
    small, large = (56, 84), (168, 84)
    found = {
        "large": {"image": picture(1, *large)},
        "small": {"image": picture(2, *small)},
        "small, other pixels": {"image": picture(3, *small)},
        "two": {"image": [picture(4, *small), picture(5, *large)]},
        "large again": {"image": picture(1, *large)},
    }
    if model.video is not None:
        found["video"] = {"video": [clip(6, 4, 84, 56)]}
        found["video, other pixels"] = {"video": [clip(7, 4, 84, 56)]}
        found["both"] = {"image": picture(8, *small), "video": [clip(9, 2, 56, 56)]}
    return {name: {"prompt": _prompt(model, data), "multi_modal_data": data} for name, data in found.items()}


def _prompt(model: Model, data: dict[str, Any]) -> str:
    images = data.get("image", [])
    count = len(images) if isinstance(images, list) else 1
    return model.prompt(images=count, videos=len(data.get("video", [])))


def logprobs_of(output: Any) -> list[float]:
    """Those of the tokens that were chosen."""
    found = output.outputs[0]
    return [step[token].logprob for step, token in zip(found.logprobs, found.token_ids, strict=True)]


def serve(name: str, folder: Path, graphs: bool, ranks: int) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    begin = time.perf_counter()
    model = MODELS[name]
    llm = LLM(
        model=str(write_model(name, folder / name)),
        max_model_len=2048,
        max_num_seqs=4,
        max_num_batched_tokens=2048,
        trust_remote_code=model.remote_code,
        compilation_config={
            "mode": 0,
            "cudagraph_mm_encoder": True,
            "encoder_cudagraph_token_budgets": STEP3_BUDGETS if name == "step3_vl" else BUDGETS,
            "encoder_cudagraph_max_vision_items_per_batch": 4,
            "encoder_cudagraph_max_frames_per_batch": 8,
        },
        # A replay on the CPU is slower than eager, and would be left out.
        additional_config={"encoder_graphs": {"calibration_ms": 0, "trials": 0, **TUNING.get(name, {})}},
        **PLAIN,
        **({"tensor_parallel_size": ranks, "mm_encoder_tp_mode": "data"} if ranks > 1 else {}),
    )
    if graphs:
        llm.collective_rpc("start_encoder_graphs")
    ready = time.perf_counter()
    parameters = SamplingParams(temperature=0, max_tokens=4, logprobs=0, ignore_eos=True)
    answers = {}
    for call, prompt in calls(model).items():
        (output,) = llm.generate(prompt, parameters, use_tqdm=False)
        answers[call] = {"tokens": list(output.outputs[0].token_ids), "logprobs": logprobs_of(output)}
    # All at once: the runner batches the encoder inputs of several requests.
    together = llm.generate(list(calls(model).values()), parameters, use_tqdm=False)
    result = {
        "answers": answers,
        "together": [list(output.outputs[0].token_ids) for output in together],
        "ranks": [json.loads(answer) for answer in llm.collective_rpc("describe_encoder")],
        "seconds": [ready - begin, time.perf_counter() - ready],
    }
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    return result


def main() -> None:
    folder, target, job = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    engine_worker.inspect_here()  # the server test has a further process
    results = {name: serve(name, folder, job["graphs"], job["ranks"]) for name in job["models"]}
    target.write_text(json.dumps(results, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
