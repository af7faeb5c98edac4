"""The process in which a release's classes run: one JSON request on stdin, JSON events on stdout, a line each.

Roles: `oracle` builds the pristine host, and writes weights, inputs and embeddings to the exchange file; `check` builds
the changed host, waits until the exchange file is announced on stdin, and runs the manager; `both` does all in one.
Whatever vLLM prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any


class _Events:
    """The line protocol, on a private copy of stdout."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"event": event, **fields}) + "\n")
        self._stream.flush()


def main() -> int:
    events = _Events()
    request = json.loads(sys.stdin.readline())
    stage = "import"
    try:
        root = Path(request["root"])
        cache = Path(request["bytecode_cache"]) if request["bytecode_cache"] else None
        started = time.monotonic()

        from scaffold.verify.numeric import cpu_imports

        cpu_imports.prepare(root, cache)
        import torch

        from scaffold.verify.numeric import attention

        cpu_imports.patch_vllm(attention.flash_attn_varlen_func)
        attention.set_tail(request["tail"])
        from scaffold.verify.numeric import session
        from scaffold.verify.numeric.graphs import Lab
        from scaffold.verify.numeric.model import NumericReport
        from scaffold.verify.numeric.recipes.base import load_recipe, randomise

        recipe = load_recipe(request["recipe"])
        recipe.load_class()
        events.send("progress", text=f"{request['role']}: imported in {time.monotonic() - started:.1f} s")

        stage = "build"
        with tempfile.TemporaryDirectory(prefix="vitcg-numeric-") as scratch:
            host = _build(recipe, Path(scratch), torch)
        options, modalities, seed = request["options"], request["modalities"], request["options"]["seed"]
        exchange = Path(request["exchange"])
        if request["role"] != "check":
            stage = "oracle"
            randomise(host, seed)
            inputs = session.make_inputs(recipe, modalities, seed)
            weights = {name: value.clone() for name, value in host.state_dict().items()}
            _process_weights(host)
            oracle = {key: session.embed(host, value) for key, value in inputs.items()}
            _reject_degenerate(oracle, torch)
            if request["role"] == "oracle":
                torch.save({"weights": weights, "inputs": inputs, "oracle": oracle}, exchange)
                events.send("done")
                return 0
        else:
            events.send("built")
            if sys.stdin.readline().strip() != "go":
                return 1
            stage = "weights"
            data = torch.load(exchange, weights_only=True)
            inputs, oracle = data["inputs"], data["oracle"]
            host.load_state_dict(data["weights"], strict=True)
            _process_weights(host)

        bench = session.Bench(Lab(str(root)), host, recipe, modalities, inputs, oracle)
        if request["role"] == "check" and options["eager_identity"]:
            stage = "eager"
            for group, case in session.wanted_cases(recipe, modalities):
                key = session.case_key(group, case)
                got = session.embed(host, inputs[key])
                name = f"eager unchanged: {group.name}: {case.name}"
                bench.checks.append(
                    session.compare(name, case.modality, got, oracle[key], code="VCG651", tolerance=0.0)
                )
        stage = "manager"
        if not hasattr(host, "get_encoder_cudagraph_config"):
            raise NotImplementedError(f"{type(host).__name__} has no encoder CUDA graph methods in this tree")
        for tensor in (*host.parameters(), *host.buffers()):
            bench.lab.place(tensor)
        for group in recipe.sessions():
            session.run_session(bench, group)
            events.send("progress", text=f"ran {group.name}")
        negative = attention.Counters.negative_lengths
        stage = "options"
        for option, check in (
            ("image_embeds", session.check_image_embeds),
            ("min_budget_above_max", session.check_min_budget_above_max),
            ("data_parallel_switch", session.check_data_parallel_switch),
        ):
            if options[option]:
                check(bench)
        report = NumericReport(
            recipe=request["recipe"],
            release="",
            tail=request["tail"],
            checks=tuple(bench.checks),
            hazards=bench.lab.hazards(),
            hits=bench.hits,
            misses=bench.misses,
            negative_lengths=negative,
        )
        events.send("report", data=report.to_json())
    except BaseException as error:
        lines = traceback.format_exception(error)
        events.send("error", stage=stage, kind=type(error).__name__, message=str(error)[-2000:], traceback=lines[-12:])
        return 1
    return 0


def _build(recipe: Any, scratch: Path, torch: Any) -> Any:
    """The host in evaluation mode, in float32, built inside the configuration and process group that layers ask for."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    from scaffold.verify.numeric.cpu_imports import start_distributed

    torch.manual_seed(0)
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    with set_current_vllm_config(config):
        start_distributed(scratch)
        host = recipe.build()
    return host.eval().requires_grad_(False)


def _process_weights(host: Any) -> None:
    """What the loader does after weights are there; it also picks the CPU's matrix product."""
    for module in host.modules():
        method = getattr(module, "quant_method", None)
        if method is not None and hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading(module)


def _reject_degenerate(oracle: dict[str, Any], torch: Any) -> None:
    """An oracle that is not finite, or equal for different items, could not tell right from wrong."""
    for key, embeddings in oracle.items():
        for tensor in embeddings:
            if not bool(torch.isfinite(tensor).all()) or float(tensor.std()) < 1e-3:
                raise ValueError(f"the oracle of {key!r} is degenerate")
        for left, right in pairwise(embeddings):
            rows = min(len(left), len(right))
            if float((left[:rows] - right[:rows]).abs().max()) < 1e-2:
                raise ValueError(f"neighbouring items of {key!r} have equal embeddings")


if __name__ == "__main__":
    sys.exit(main())
