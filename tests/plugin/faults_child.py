"""Serve a tiny Qwen2-VL with the installed vLLM and the plugin while something is broken, and print what came out.

    python faults_child.py FOLDER

First, in a fork, the adapter's module cannot be imported, and attention is the CPU's own, which no graph can replay.
Then everything works, and one fault after the other is planted in a new manager of the same runner.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import engine_worker  # noqa: E402
import numpy as np  # noqa: E402
from model_directory import MODELS, write_model  # noqa: E402

MODEL = "qwen2_vl"


class Warnings(logging.Handler):
    """Every warning that a reader of vLLM's log would see from us."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def take(self) -> list[str]:
        said, self.said = self.said, []
        return said


class Engine:
    """vLLM in this process, and how to ask it."""

    def __init__(self, folder: Path) -> None:
        from PIL import Image
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            model=str(write_model(MODEL, folder / MODEL)),
            load_format="dummy",
            dtype="float32",
            max_model_len=256,
            max_num_seqs=2,
            max_num_batched_tokens=256,
            limit_mm_per_prompt={"video": 0},
            compilation_config={
                "mode": 0,
                "cudagraph_mm_encoder": True,
            },
            enable_prefix_caching=False,
            mm_processor_cache_gb=0,
        )
        engine_worker.fill(self.runner.get_model())
        self.parameters = SamplingParams(temperature=0, max_tokens=4, logprobs=0, ignore_eos=True)
        pixels = np.random.default_rng(1).integers(0, 255, (84, 56, 3), dtype=np.uint8)
        self.prompt = {"prompt": MODELS[MODEL].prompt(images=1), "multi_modal_data": {"image": Image.fromarray(pixels)}}

    @property
    def runner(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def ask(self) -> tuple[list[int], list[float]]:
        output = self.llm.generate(self.prompt, self.parameters, use_tqdm=False)[0].outputs[0]
        chosen = [step[token].logprob for step, token in zip(output.logprobs, output.token_ids, strict=True)]
        return list(output.token_ids), chosen

    def start_graphs(self) -> Any:
        """As the GPU worker does after loading a model. Returns the manager."""
        self.runner.encoder_cudagraph_manager = None
        self.runner._maybe_init_encoder_cudagraph_manager()
        manager = self.runner.encoder_cudagraph_manager
        manager.capture(graph_pool=None)
        return manager

    def profile_graphs(self) -> int:
        """As the V1 runner does before it has its manager, with one for the time being. Returns how many are left."""
        manager = self.runner._create_encoder_cudagraph_manager()
        manager.capture(graph_pool=None)
        manager.clear()
        left = weakref.ref(manager)
        del manager
        gc.collect()
        return int(left() is not None)


def adapter_faults(folder: Path, warnings: Warnings) -> dict[str, Any]:
    from torch import nn
    from vllm.model_executor.models.qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

    from scaffold.plugin import Controls, adapt_model
    from scaffold.runtime.vllm.manager import largest_item

    model = "vitcg_adapters.v0_30.qwen2_5_vl"
    found: dict[str, Any] = {}
    module = __import__(model, fromlist=["x"])
    sound = module.Qwen2_5_VLForConditionalGeneration

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    for name, body in {
        "construction": {"__init__": fail},
        "forward": {"forward": fail},
        "mapper": {"hf_to_vllm_mapper": None},
    }.items():
        module.Qwen2_5_VLForConditionalGeneration = type("Qwen2_5_VLForConditionalGeneration", (sound,), body)
        module.Qwen2_5_VLForConditionalGeneration.__module__ = model
        made = object.__new__(Qwen2_5_VLForConditionalGeneration)
        nn.Module.__init__(made)
        adapt_model(made, "v0_30", Controls())
        found[name] = {"module": type(made).__module__, "warnings": warnings.take()}
    sys.modules["vitcg_adapters.v0_30.qwen2_vl"] = None  # type: ignore[assignment]
    engine = Engine(folder)
    found["configured"] = warnings.take()
    before = engine.ask()
    manager = engine.start_graphs()
    found["import"] = {
        "module": type(engine.runner.get_model()).__module__,
        "manager": type(manager).__module__,
        "same": engine.ask() == before,
        "captured": manager.get_cumulative_stats()["num_budgets"],
        "largest": largest_item(manager.vllm_config),
        "misses": manager.graph_misses,
        "warnings": warnings.take(),
    }
    return found


@contextlib.contextmanager
def planted(target: Any, name: str, error: Exception, times: int = sys.maxsize) -> Iterator[None]:
    """Let `target.name` raise at its first `times` calls."""
    original, numbers, had = getattr(target, name), itertools.count(), name in vars(target)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) < times:
            raise error
        return original(*args, **kwargs)

    setattr(target, name, fail)
    try:
        yield
    finally:
        setattr(target, name, original) if had else delattr(target, name)


def manager_faults(folder: Path, warnings: Warnings) -> dict[str, Any]:
    from scaffold.verify.numeric.cpu_imports import patch_vllm

    patch_vllm()
    import torch

    from scaffold.runtime.recording import RecordingBackend
    from scaffold.runtime.tuning import kernels

    engine = Engine(folder)
    eager = engine.ask()
    model = engine.runner.get_model()
    tower = [module for name, module in model.named_modules() if name.startswith("visual")]
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    bad = RuntimeError("planted")
    start: dict[str, Callable[[], Any]] = {
        "nothing": contextlib.nullcontext,
        "configuration": lambda: planted(model, "get_encoder_cudagraph_config", bad),
        "budget range": lambda: planted(model, "get_encoder_cudagraph_budget_range", bad),
        "capture inputs": lambda: planted(model, "prepare_encoder_cudagraph_capture_inputs", bad),
        "captured forward": lambda: planted(model, "encoder_cudagraph_forward", bad),
        "no memory for graphs": lambda: planted(RecordingBackend, "capture", full),
        "a kernel": lambda: planted(kernels, "add_norm", bad),
        "no memory for the pool": lambda: planted(RecordingBackend, "new_pool", full),
    }
    run: dict[str, Callable[[], Any]] = {
        "one batch": lambda: planted(model, "get_encoder_cudagraph_item_specs", bad, times=1),
        "every batch": lambda: planted(model, "get_encoder_cudagraph_item_specs", bad),
        "a kernel while running": lambda: _both(
            planted(model, "get_encoder_cudagraph_item_specs", bad, times=1), planted(kernels, "add_norm", bad)
        ),
    }
    found: dict[str, Any] = {}
    warnings.take()
    for name, plant in start.items():
        with plant():
            manager = engine.start_graphs()
            answers = [engine.ask() for _ in range(2)]
        found[name] = _outcome(manager, answers, eager, warnings, tower)
        manager.keep_files()  # it had images, but the last one's files are looked at
    found["module"] = type(model).__module__
    run["nothing while running"] = contextlib.nullcontext
    for name, plant in run.items():
        found["profiling managers alive"] = engine.profile_graphs()
        manager = engine.start_graphs()
        with plant():
            answers = [engine.ask() for _ in range(5)]
        found[name] = _outcome(manager, answers, eager, warnings, tower)
        if name != next(reversed(run)):
            manager.keep_files()
    return found


@contextlib.contextmanager
def _both(one: Any, other: Any) -> Iterator[None]:
    with one, other:
        yield


def _outcome(manager: Any, answers: list[Any], eager: Any, warnings: Warnings, tower: list[Any]) -> dict[str, Any]:
    close = all(
        tokens == eager[0] and np.allclose(logprobs, eager[1], atol=1e-4, rtol=0) for tokens, logprobs in answers
    )
    return {
        "same": close,
        "hits": manager.graph_hits,
        "tuned": sum("forward" in vars(module) for module in tower),
        "misses": manager.graph_misses,
        "fault": manager.fault,
        "planned": manager.get_num_graphs_to_capture(),
        "captured": manager.get_cumulative_stats()["num_budgets"],
        "warnings": warnings.take(),
    }


def main() -> None:
    warnings = Warnings()
    logging.getLogger("scaffold").addHandler(warnings)
    folder = Path(sys.argv[1])
    from vllm import LLM  # noqa: F401 - both halves share it

    engine_worker.inspect_here()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        found = manager_faults(folder, warnings)
    else:
        os.environ["VITCG_ENCODER_GRAPHS"] = "{}"
        found = adapter_faults(folder / "adapter", warnings)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
