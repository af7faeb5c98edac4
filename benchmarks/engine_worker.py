"""Runs inside the engine's processes for a measurement or a test: weights that mean something, and a report.

`write_site` makes a folder for `PYTHONPATH` whose metadata let vLLM find `fill_dummy_weights` as a plugin in every
process. `Probe` is for `worker_extension_cls`; its methods answer through `collective_rpc`, as JSON.
"""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from typing import Any

PLUGIN = "vitcg_dummy_weights"
#: The plugin for engines on a CPU, whose own attention reads lengths on the host and cannot be replayed.
ATTENTION = "vitcg_flash_attention"
PROBE = "engine_worker.Probe"
#: The environment of an engine on a CPU. To compile the sampler's logprobs would take longer than all else there.
ON_CPU = {"VITCG_CPU": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def write_site(directory: Path) -> Path:
    """A folder that announces the plugins of this module, which must be importable in every process of vLLM."""
    metadata = directory / "vitcg_dummy_weights-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: vitcg-dummy-weights\nVersion: 0\n")
    entries = {PLUGIN: "engine_worker:fill_dummy_weights", ATTENTION: "engine_worker:emulate_flash_attention"}
    lines = ["[vllm.general_plugins]", *(f"{name} = {function}" for name, function in entries.items()), ""]
    metadata.joinpath("entry_points.txt").write_text("\n".join(lines))
    return directory


def emulate_flash_attention() -> None:
    """Vision attention on FlashAttention's code path, with a kernel in Python."""
    from scaffold.verify.numeric.cpu_imports import patch_vllm

    patch_vllm()


def inspect_here() -> None:
    """Let vLLM look at a model's class in this process: a further one would import vLLM again."""
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()


def fill_dummy_weights() -> None:
    """Let `load_format="dummy"` give weights that carry an image to the logits.

    vLLM fills everything, norms included, with values below 0.001. Every activation is then about zero, and tokens do
    not depend on the image. Here matrices are normal with variance 1 / fan-in, norms and scales are 1, biases small.
    Values depend on a parameter's name and shape alone, so that every engine and every rank gets the same.
    """
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    original = DummyModelLoader.load_weights
    if getattr(original, "is_filled", False):  # plugins may be loaded more than once
        return

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        original(self, model, model_config)
        fill(model)

    load_weights.is_filled = True  # type: ignore[attr-defined]
    DummyModelLoader.load_weights = load_weights


def fill(model: Any) -> None:
    """Overwrite every parameter in place."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(name.encode()))
            if not parameter.is_floating_point() or parameter.is_meta:
                continue
            if parameter.ndim >= 2:
                fan_in = parameter.numel() / parameter.shape[0]
                parameter.normal_(0.0, fan_in**-0.5, generator=generator)
            elif "bias" in name:
                parameter.normal_(0.0, 0.02, generator=generator)
            else:
                parameter.fill_(1.0)


def encoder_manager(runner: Any) -> Any:
    """The encoder-graph manager of a V1 or V2 model runner, or None."""
    manager = getattr(runner, "encoder_cudagraph_manager", None)
    if manager is not None:
        return manager
    encoder = getattr(getattr(runner, "model_state", None), "encoder_runner", None)
    return getattr(encoder, "cudagraph_manager", None)


def class_path(value: Any) -> str | None:
    """Module and class of an object."""
    return None if value is None else f"{type(value).__module__}:{type(value).__qualname__}"


def describe_runner(runner: Any) -> dict[str, Any]:
    """The classes in use, the captured graphs, the counters, and memory in bytes."""
    import torch

    manager = encoder_manager(runner)
    answer: dict[str, Any] = {
        "runner": class_path(runner),
        "model": class_path(runner.get_model()),
        "manager": class_path(manager),
        "captured": manager is not None and is_captured(manager),
        "kv_blocks": int(runner.kv_cache_config.num_blocks),
        "stats": {},
    }
    if manager is not None:
        stats = manager.get_cumulative_stats()
        answer["stats"] = {name: stats[name] for name in stats if name != "token_budgets"}
        report = getattr(getattr(manager, "core", None), "report", None)
        if report is not None:
            tuned = getattr(manager, "tuned", None)
            outcomes = getattr(tuned, "outcomes", ())
            answer["tuned_modules"] = {outcome.name: len(outcome.applied) for outcome in outcomes}
            answer["tuned"] = "_vitcg_tuned" in vars(runner.get_model())
            answer["tuning_errors"] = {outcome.name: outcome.error for outcome in outcomes if outcome.error is not None}
            answer["tuning_rounding"] = getattr(tuned, "rounding", None)
            answer["capture"] = {
                "graphs": len(report.captured), "seconds": report.seconds, "bytes": report.device_bytes,
                "failed": {str(key): why for key, why in report.failed.items()},
                "dropped": {str(key): why for key, why in report.dropped.items()},
            }  # fmt: skip
    if torch.cuda.is_available():
        answer["reserved_bytes"] = torch.cuda.memory_reserved()
        answer["allocated_bytes"] = torch.cuda.memory_allocated()
    return answer


def first_time_work(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """The work between two answers of `describe_runner`: captured graphs, planned sizes, replayed and eager items."""

    def count(answer: dict[str, Any]) -> dict[str, int]:
        stats = answer["stats"]
        return {
            "graphs": answer.get("capture", {}).get("graphs", 0),
            "plans": stats.get("detail", {}).get("plans_built", 0),
            "replayed": stats.get("graph_hits", 0),
            "eager": stats.get("graph_misses", 0),
        }

    first, last = count(before), count(after)
    return {name: last[name] - first[name] for name in last}


def is_captured(manager: Any) -> bool:
    """Whether a manager has graphs. vLLM's own tells only from 0.28 on."""
    ask = getattr(manager, "is_captured", None)
    return bool(ask() if ask is not None else manager.budget_graphs)


class Probe:
    """Methods for `collective_rpc`. Names must not collide with vLLM's worker."""

    def describe_encoder(self) -> str:
        """`describe_runner` of this rank, as JSON."""
        return json.dumps(describe_runner(self.model_runner), default=str)  # type: ignore[attr-defined]

    def start_encoder_graphs(self) -> None:
        """Make and capture the encoder's graphs, as a GPU worker does after loading. No CPU worker does."""
        runner = self.model_runner  # type: ignore[attr-defined]
        runner._maybe_init_encoder_cudagraph_manager()
        if runner.encoder_cudagraph_manager is not None:
            runner.encoder_cudagraph_manager.capture(graph_pool=None)

    def time_encoder(self, on: bool) -> float:
        """Begin to add up the encoder's time, or stop and give its milliseconds. Waits for the device at both ends."""
        import torch

        runner = self.model_runner  # type: ignore[attr-defined]
        encoder = getattr(getattr(runner, "model_state", None), "encoder_runner", None)
        owner, name = (runner, "_execute_mm_encoder") if encoder is None else (encoder, "execute_mm_encoder")
        if not on:
            spent: list[float] = vars(owner).pop("spent_ms")
            vars(owner).pop(name)
            if not spent:
                raise RuntimeError("the encoder did not run: its output was kept from another request")
            return sum(spent)
        original, spent = getattr(owner, name), []
        wait = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)

        def timed(*args: Any, **kwargs: Any) -> Any:
            wait()
            begin = time.perf_counter()
            result = original(*args, **kwargs)
            wait()
            if len(result):  # V1 calls it in every step
                spent.append((time.perf_counter() - begin) * 1e3)
            return result

        owner.spent_ms = spent
        setattr(owner, name, timed)
        return 0.0
