"""Several ranks of the drop-in through vLLM's own distributed layer, with real classes, on the CPU (gloo).

    python tests/runtime/run_data_parallel.py TREE RECIPE[@GENERATION] RANKS data|weights [BROKEN]

Every rank builds the same tower (of the tree's port, or of an adapter, with a generation), runs the same calls through
the manager that the plugin gives vLLM, with that `mm_encoder_tp_mode`, and compares with the model's own code.
Prints one JSON object from each rank. The rank BROKEN has no memory for graphs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ranks
from release_process import are_close, prepare_release, recorded


def main() -> int:
    prepare_release(Path(sys.argv[1]))
    from scaffold.verify.numeric.cpu_imports import patch_vllm

    patch_vllm()
    recipe_of(sys.argv[2]).load_class()  # imported once, not by each rank
    return ranks.run(lambda: worker(sys.argv[2], int(sys.argv[3]), sys.argv[4]), int(sys.argv[3]), seconds=240)


def recipe_of(name: str):  # type: ignore[no-untyped-def]
    return import_module(f"scaffold.verify.numeric.recipes.{name.partition('@')[0]}").RECIPE


def worker(name: str, size: int, mode: str) -> int:
    os.environ["VITCG_ENCODER_GRAPHS"] = '{"calibration_ms": 0, "trials": 0, "steps": 4}'
    import torch

    from scaffold.verify.numeric.attention import set_tail
    from scaffold.verify.numeric.cpu_imports import PYTHON_OPERATORS

    set_tail("fa3")
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    from scaffold.runtime.recording import RecordingBackend
    from scaffold.runtime.vllm.served import ServedManager
    from scaffold.verify.numeric.host import ENCODER_MODE
    from scaffold.verify.numeric.recipes.base import configure, process_weights, randomise
    from scaffold.workflow import load_port

    class NoMemory(RecordingBackend):
        """Every capture fails at its end. Collectives of a capture wait for the other ranks here, and not on a GPU."""

        def capture(self, forward, pool):  # type: ignore[no-untyped-def]
            super().capture(forward, pool)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    kind = NoMemory if [str(ranks.rank())] == sys.argv[5:] else RecordingBackend

    rank = ranks.rank()
    current = VllmConfig(device_config=DeviceConfig(device="cpu"))
    with set_current_vllm_config(current), torch.inference_mode():
        ranks.join(size)
        ENCODER_MODE.set(mode)
        model, _, generation = name.partition("@")
        recipe = recipe_of(name)
        adapter = f"vitcg_adapters.{generation}.{model}:{load_port(model).architecture}" if generation else None
        host, config = recipe.build(adapter)
        host.eval().requires_grad_(False)
        randomise(host, 0)
        process_weights(host)
        current.model_config = config.model_config
        config.parallel_config.tensor_parallel_size = size
        session = recipe.sessions()[0]
        configure(config, session, recipe.modalities)
        manager = recorded(ServedManager, lambda: kind(bodies=PYTHON_OPERATORS))(
            config, torch.device("cpu"), torch.float32, host
        )
        assert manager.use_dp is (mode == "data" and size > 1)
        manager.capture((0, 0))
        wrong, calls, served = [], 0, 0
        cases = [case for case in session.cases if case.modality in recipe.modalities]
        for number, case in enumerate((*cases, *cases)):
            inputs = recipe.make_inputs(case.modality, case.items, torch.Generator().manual_seed(number))
            got = manager.execute(dict(inputs))
            served += got is not None
            got = host.embed_multimodal(**inputs) if got is None else got  # as vLLM's runner does
            items = len(case.items)
            results = list(host.embed_multimodal(**inputs))  # on every rank, with its collectives
            assert len(got) == len(results) == items
            calls += 1
            for index in range(items):
                if not are_close(got[index], results[index]):
                    wrong.append(f"{case.name} {case.modality}: item {index}")
        stats = manager.stats
        seen = manager._exchange(rank)
        report = {
            "rank": rank,
            "ranks": seen,
            "calls": calls,
            "served": served,
            "hits": stats.hits,
            "misses": stats.misses,
            "wrong": wrong,
        }
        ranks.say(report)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
