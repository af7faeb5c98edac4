"""Measure a model that sees and hears on one GPU, as the plugin serves it: both encoders in one engine.

    # where the tool is installed: draft both encoders, and write adapters of both
    python benchmarks/both_gpu.py --generate FOLDER --vllm 0.33.0
    # on the GPU host, with that release of vLLM importable
    python benchmarks/both_gpu.py --adapters FOLDER --out RESULT.json

The model is Qwen3-Omni's thinker at the sizes of 30B-A3B without its language model, with random weights in bfloat16.
`eager` is the `embed_multimodal` of the release's own class. `vllm` are two managers of vLLM's own, as the plugin makes
them with VITCG_MODE=adapters, and `ours` two of ours, without tuning. Images, videos and sounds take turns. Every
result is compared with eager first, twice in both orders; a wrong one of ours fails the run. A time is a whole call
between two waits for the device, the median over all turns but the first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import cut_gpu
from cut_gpu import Subject
from gpu_result import ByModel

MODULE, CLASS = "qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration"
#: The first adapters of 0.33.
GENERATION = "v0_30"
#: The tower of images of Qwen3-Omni 30B-A3B.
VISION = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24], "image_size": 768, "apply_vit_abs_pos_embed": True,
}  # fmt: skip
#: The items of each call: grids `(frames / 2, height, width)` in patches of images or videos, or seconds of sounds.
CALLS: dict[str, dict[str, Any]] = {
    "image": {
        "1 image 640x480": [(1, 30, 40)],
        "1 image 1280x736": [(1, 46, 80)],
        "3 images": [(1, 30, 40), (1, 20, 28), (1, 46, 62)],
    },
    "video": {"1 video, 8 frames 384x576": [(4, 24, 36)]},
    "audio": {"1 sound, 5 s": [5], "1 sound, 30 s": [30], "4 sounds, 33 s": [10, 4, 12, 7]},
}
#: The names of the inputs of what has grids.
GRIDDED = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


def thinker() -> Any:
    """The sizes of Qwen3-Omni 30B-A3B."""
    # The context of an engine's run, which the towers do not ask for.
    module: Any = import_module("vllm.model_executor.models.qwen2_5_omni_thinker")
    module.set_forward_context = lambda *_: nullcontext()
    config = cut_gpu._qwen3_omni()
    config.thinker_config.vision_config.update(VISION)
    return config


SUBJECT = Subject(CLASS, MODULE, thinker, {}, dict, cut_gpu._qwen3_texts, modalities=tuple(CALLS))


def generate(folder: Path, release: str) -> None:
    """Draft the encoder of images and that of sounds, and write adapters of both into `folder`."""
    tool = [sys.executable, "-m", "scaffold.cli"]
    folder.mkdir(parents=True, exist_ok=True)
    drafts = {folder / "seen.yaml": (), folder / "sound.yaml": ("--audio",)}
    for draft, options in drafts.items():
        given = (*options, "--vllm", release, "--yes", "--force", "-o", str(draft))
        subprocess.run([*tool, "init", f"{MODULE}:{CLASS}", *given], check=True)
    subprocess.run([*tool, "new", *map(str, drafts), "--into", str(folder)], check=True)


def inputs_of(modality: str, items: Sequence[Any], noise: Callable[..., Any]) -> dict[str, Any]:
    """The inputs that vLLM's processor makes of these items."""
    import torch

    if modality == "audio":
        return cut_gpu._sounds(items, noise)
    pixels, sizes = GRIDDED[modality]
    grids = torch.tensor(items)
    columns = 3 * VISION["temporal_patch_size"] * VISION["patch_size"] ** 2
    return {pixels: noise(int(grids.prod(-1).sum()), columns), sizes: grids}


def served(manager: Any) -> list[dict[str, Any]]:
    """The report of each of two managers: its modalities, graphs, limits and counters."""
    return [
        {
            "modalities": list(part.config.modalities), "hits": part.graph_hits, "misses": part.graph_misses,
            "budgets": part.token_budgets, "items": part.max_batch_size,
        }
        for part in (manager.seen, manager.heard)
    ]  # fmt: skip


def measure(rounds: int) -> dict[str, Any]:
    """The rows of all calls, and what each manager served."""
    import torch
    from manager_gpu import DEVICE, DTYPE, capture_measured, error_of, in_turns

    from scaffold import plugin

    host, config = cut_gpu.build_host(SUBJECT)
    config.model_config.multimodal_config.limits.update(dict.fromkeys(CALLS, 8))
    config.additional_config = {"encoder_graphs": {"tuning": "off"}}
    generator = torch.Generator(DEVICE).manual_seed(1)

    def noise(*shape: int) -> Any:
        return torch.randn(shape, device=DEVICE, dtype=DTYPE, generator=generator)

    # The model as it is served, with the weights of the one that stays eager.
    model = object.__new__(type(host))
    vars(model).update(vars(host))
    plugin.adapt_model(model, GENERATION, plugin.read_controls({}))

    def make(mode: str) -> Any:
        return plugin.make_manager(plugin.read_controls({"VITCG_MODE": mode}), config, DEVICE, DTYPE, model)

    calls = {(modality, label): inputs_of(modality, items, noise)
             for modality, several in CALLS.items() for label, items in several.items()}  # fmt: skip
    with torch.inference_mode():
        want = {call: [t.clone() for t in host.embed_multimodal(**inputs)] for call, inputs in calls.items()}
    managers, report = {}, {}
    for way, mode in (("vllm", "adapters"), ("ours", "all")):
        managers[way], report[way] = capture_measured(partial(make, mode))
    errors = {(call, way): 0.0 for call in calls for way in managers}
    actions: dict[Any, Callable[[], Any]] = {}
    for way, manager in managers.items():
        for order in (list(calls), list(calls)[::-1]):
            for call in order:
                errors[call, way] = max(errors[call, way], error_of(manager.execute(dict(calls[call])), want[call]))
    for call, inputs in calls.items():
        actions[call, "eager"] = partial(host.embed_multimodal, **inputs)
        for way, manager in managers.items():
            actions[call, way] = lambda manager=manager, inputs=inputs: manager.execute(dict(inputs))

    def after_turn(turn: int) -> None:
        if turn < cut_gpu.IDLE_TURNS:  # a worker does this while nothing waits
            for part in (managers["ours"].seen, managers["ours"].heard):
                part.capture_when_idle()

    times = in_turns(actions, rounds, cut_gpu.WARM_TURNS, after_turn)
    rows = [
        {"model": "qwen3_omni", "modality": modality, "call": label}
        | {f"{way}_ms": round(times[(modality, label), way], 3) for way in ("eager", *managers)}
        | {f"{way}_error": errors[(modality, label), way] for way in managers}
        for modality, label in calls
    ]
    for way, manager in managers.items():
        report[way]["parts"] = served(manager)
        manager.clear()
    print(*rows, report, sep="\n", flush=True)
    return {"rows": rows, "managers": report}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--generate", type=Path, metavar="FOLDER")
    options.add_argument("--vllm", default="0.33.0", metavar="RELEASE")
    options.add_argument("--adapters", type=Path, metavar="FOLDER")
    options.add_argument("--out", type=Path)
    options.add_argument("--rounds", type=int, default=cut_gpu.TURNS)
    arguments = options.parse_args()
    if arguments.generate:
        generate(arguments.generate, arguments.vllm)
        return 0
    if arguments.adapters is None:
        options.error("give --generate FOLDER, or --adapters FOLDER of an earlier --generate")
    sys.path.insert(0, str(arguments.adapters))
    from manager_gpu import load_recipes

    from scaffold.verify.numeric.cpu_imports import MissingPackages
    from scaffold.verify.numeric.real import start_vllm

    load_recipes()
    sys.meta_path.append(MissingPackages())
    context = start_vllm("FLASH_ATTN")
    result = ByModel(arguments.out)
    part = result.add("qwen3_omni", partial(measure, arguments.rounds))
    wrong = sum(not row["ours_error"] <= 0.05 for row in part["rows"]) if part else 0
    context.__exit__(None, None, None)
    return 1 if wrong or result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
