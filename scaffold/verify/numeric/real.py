"""The process that runs a request on real CUDA graphs: the installed vLLM, tiny real classes, poisoned graph memory.

Like `scaffold.verify.numeric.child`, with a GPU in place of the emulation: lines in, events out, one request a process.
The tree that it imports is the installed package with the changed files in it. The release's own manager and ours
capture real graphs; before every call the memory that their graphs share is filled with NaN, and each result is
compared with what eager execution of the pristine class gives on the same GPU. Values are in float16, which rounds
eight times finer than bfloat16, so that smaller errors show.

Roles: `oracle` writes what the pristine class gives, `check` runs the changed one, `both` does both for one class.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaffold.verify.numeric.child import (
    Announcer,
    Events,
    Stages,
    demand_class,
    keep_oracle,
    load_oracle,
    oracle_of,
    read_oracle,
    wait_for_oracle,
)

_ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # an activation of the towers is compiled otherwise, which takes longer than the run
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # the classes of this run, not those that an installed plugin puts in their place
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
#: Every budget is captured at the start and every batch that fits is replayed; eager runs the same tower.
_OUR_SETTINGS = {"encoder_graphs": {"calibration_ms": 0, "trials": 0, "start_steps": None, "tuning": "off"}}
#: Largest difference to eager, relative to its largest value: float16 rounding in another order of addition is below a
#: hundredth of it, and a wrong row is off by the size of the values.
ROUNDING = 0.02


def main() -> int:
    events = Events()
    tree = json.loads(sys.stdin.readline())
    begin = time.monotonic()
    os.environ.update(_ENVIRONMENT)
    if Stages("tree", events).run(lambda stages: _import(tree)):
        return 1
    events.send("progress", text=f"imported the installed vLLM in {time.monotonic() - begin:.1f} s")
    request = json.loads(sys.stdin.readline())
    status = Stages(request["role"], events).run(lambda stages: _serve(request, events, stages))
    events.send("ended", status=status)
    return status


def _import(tree: dict[str, Any]) -> None:
    from scaffold.verify.numeric import cpu_imports

    cpu_imports.keep_bytecode(Path(tree["bytecode_cache"]) if tree["bytecode_cache"] else None)
    sys.path.insert(0, tree["root"])
    sys.meta_path.append(cpu_imports.MissingPackages())
    import torch  # noqa: F401

    import_manager()


def import_manager() -> type:
    """The release's own manager, and with it most of vLLM."""
    from vllm.v1.worker.encoder_cudagraph import EncoderCudaGraphManager

    found: type = EncoderCudaGraphManager
    return found


def _serve(request: dict[str, Any], events: Events, stages: Stages) -> None:
    stages.stage = "build"
    context = start_vllm(None)
    try:
        run_request(Machine(), request, events, stages)
    finally:
        stop_vllm(context)


def start_vllm(backend: str | None) -> Any:
    """One-process distributed state, and the attention backend (None: vLLM's choice). Returns the entered context of
    the configuration."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    context = set_current_vllm_config(VllmConfig())
    context.__enter__()
    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, distributed_init_method=f"tcp://127.0.0.1:{_free_port()}", backend="nccl"
    )
    parallel_state.initialize_model_parallel(1)
    if backend is None:
        return context
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    chosen = AttentionBackendEnum[backend]
    type(current_platform).get_vit_attn_backend = classmethod(lambda cls, *args, **kwargs: chosen)
    return context


def stop_vllm(context: Any) -> None:
    """Undo `start_vllm`."""
    import torch

    context.__exit__(None, None, None)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Machine:
    """The device and how its managers capture. Tests put a CPU here."""

    def __init__(self) -> None:
        import torch

        self.device = torch.device("cuda")
        self.dtype = torch.float16

    def describe(self) -> str:
        """Name and versions, for the report."""
        import torch
        import vllm

        return f"{torch.cuda.get_device_name()}, vLLM {vllm.__version__}, torch {torch.__version__}"

    def runs(self) -> dict[str, Any]:
        """Makers of captured managers, by the name of the manager."""
        from scaffold.verify.numeric.session import ManagerRun

        machine = self

        class Real(ManagerRun):
            """A manager of the release on real graphs."""

            def _watched(self) -> AbstractContextManager[None]:
                return nullcontext()

            def _make(self, bench: Any) -> Any:
                return import_manager()(bench.config, machine.device, machine.dtype, bench.host)

            def _captured(self, bench: Any) -> Any:
                return machine.captured(self._make(bench))

            def _placed(self, inputs: Any) -> dict[str, Any]:
                return machine.placed(self._recipe, inputs)

            def execute(self, inputs: Any) -> list[Any]:
                machine.poison(self.manager)
                return super().execute(inputs)

        class Ours(Real):
            """Our manager in its place. It copies into buffers of its own, so that the witness cannot follow it."""

            def _make(self, bench: Any) -> Any:
                bench.config.additional_config = _OUR_SETTINGS
                return machine.our_manager()(bench.config, machine.device, machine.dtype, bench.host)

            def explain(self, inputs: Any, want: Any) -> str:
                return ""

        return {"vLLM's manager": Real, **({"our manager": Ours} if self.serves() else {})}

    def serves(self) -> bool:
        """Whether our manager speaks the release's protocol."""
        from scaffold.runtime.vllm.dialect import installed_dialect

        try:
            installed_dialect()
        except NotImplementedError:
            return False
        return True

    def our_manager(self) -> Any:
        from scaffold.runtime.vllm import EncoderCudaGraphManager

        return EncoderCudaGraphManager

    def captured(self, manager: Any) -> Any:
        """Let a manager capture as the engine does: on a side stream that collectives know."""
        import torch
        from vllm.distributed.parallel_state import graph_capture

        from scaffold.verify.numeric.session import capture

        with graph_capture(device=self.device):
            capture(manager, torch.cuda.graph_pool_handle())
        torch.cuda.synchronize()
        return manager

    def placed(self, recipe: Any, inputs: Any) -> dict[str, Any]:
        """A copy with everything on the device that the runner moves there, numbers in the device's type."""
        import torch

        def place(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.to(self.device, self.dtype if value.is_floating_point() else value.dtype)
            return [place(element) for element in value] if isinstance(value, list) else value

        from scaffold.verify.numeric.session import copy_inputs

        copied, on_host = copy_inputs(inputs), recipe.on_host(inputs)
        return {key: value if key in on_host else place(value) for key, value in copied.items()}

    def poison(self, manager: Any) -> None:
        """Fill what the manager's graphs share with NaN: memory that a replay must write before it reads it."""
        import torch

        from scaffold.runtime.backend import CudaGraphBackend
        from scaffold.runtime.selfcheck import poison_pool

        core = getattr(manager, "core", None)
        if core is not None:
            poison_pool(core)
            return
        spoilers: dict[Any, CudaGraphBackend] = manager.__dict__.setdefault("_vitcg_spoilers", {})
        for pool in _pools(manager.budget_graphs):
            spoilers.setdefault(pool, CudaGraphBackend(self.device)).spoil(pool)
        torch.cuda.synchronize()


def _pools(graphs: Any) -> set[Any]:
    """Memory pools of a manager's graphs: one before 0.24 for each graph, since then one for all."""
    found: set[Any] = set()
    for value in graphs.values():
        found |= _pools(value) if isinstance(value, dict) else {tuple(value.graph.pool())}
    return found


def run_request(machine: Machine, request: dict[str, Any], events: Events, stages: Stages) -> None:
    """The oracle into the exchange file, or the check and its report."""
    from scaffold.verify.numeric import session
    from scaffold.verify.numeric.recipes.found import requested_recipe

    recipe, role = requested_recipe(request), request["role"]
    host_class = None if role == "oracle" else request["host"]
    stages.stage = "import"
    recipe.load_class(host_class)
    stages.stage = "build"
    if role == "check" and recipe.learns:
        wait_for_oracle(request)
        recipe.recall(load_oracle(request)["facts"])
    host, config = build(machine, recipe, host_class)
    if role != "oracle":
        demand_class(host, request["class_name"])
    if role == "check":
        stages.stage = "weights"
        wait_for_oracle(request)
        data = read_oracle(request, host, stages)
    else:
        stages.stage = "oracle"

        def embed(inputs: Any) -> list[Any]:
            return [tensor.cpu() for tensor in session.embed(host, machine.placed(recipe, inputs))]

        data = oracle_of(request, host, embed)
        if role == "oracle":
            return keep_oracle(request, data)
    events.send("report", data=compare_all(machine, recipe, host, config, data, request, events, stages))
    return None


def build(machine: Machine, recipe: Any, host_class: str | None) -> tuple[Any, Any]:
    """The tiny host in evaluation mode on the device, and its configuration."""
    import torch

    from scaffold.verify.numeric.left import move_as_loaded

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(machine.dtype)
    try:
        with machine.device:
            host, config = recipe.build(host_class)
    finally:
        torch.set_default_dtype(before)
    config.model_config.dtype = machine.dtype
    return move_as_loaded(host, machine.device).eval().requires_grad_(False), config


def compare_all(
    machine: Machine,
    recipe: Any,
    host: Any,
    config: Any,
    data: dict[str, Any],
    request: dict[str, Any],
    events: Events,
    stages: Stages,
) -> dict[str, Any]:
    """The fields of the report, as JSON."""
    from scaffold.verify.numeric import session
    from scaffold.verify.numeric.graphs import Lab
    from scaffold.verify.numeric.reports import NumericReport

    modalities = [modality for modality in request["modalities"] if modality in recipe.modalities]
    oracle = {key: [tensor.to(machine.device) for tensor in tensors] for key, tensors in data["oracle"].items()}
    sessions = session.sessions_of(recipe, request["options"]["edges"])
    lab = Lab([request["root"], request["changed_root"]])
    bench = session.Bench(lab, host, config, recipe, modalities, data["inputs"], oracle, tolerance=ROUNDING)
    runs = machine.runs()
    total = len(runs) * sum(1 for _ in session.wanted_cases(sessions, modalities))
    bench.say = lambda text: events.send("case", text=text, total=total)
    announce = Announcer(bench, events)
    if request["role"] == "check":
        stages.stage = "eager"
        for group, case in session.wanted_cases(sessions, modalities):
            key = session.case_key(group, case)
            got = session.embed(host, machine.placed(recipe, bench.inputs[key]))
            name = f"eager on the GPU: {group.name}: {case.name}"
            check = session.compare(name, case.modality, got, oracle[key], code="VCG651", tolerance=ROUNDING)
            bench.checks.append(replace(check, group="eager on the GPU, changed and pristine"))
        announce.settled(())
    stages.stage = "manager"
    sessions = session.fitted(bench, sessions, request["options"]["counts_units"])
    for name, run in runs.items():
        bench.start, bench.served = run, {}
        for group in sessions:
            before = len(bench.checks)
            session.run_session(bench, group)
            label = f"real graphs, {name}"
            bench.checks[before:] = [
                replace(check, name=f"{label}: {check.name}", group=label) for check in bench.checks[before:]
            ]
            events.send("progress", text=f"{label}: ran {group.name}")
        before = len(bench.checks)
        session.check_raw_pixels(bench, sessions[0], lambda inputs: machine.placed(recipe, inputs))
        if recipe.learns:
            session.check_replayed(bench, modalities)
        bench.checks[before:] = [
            replace(check, name=f"{name}: {check.name}", group=f"{check.group or check.name}, {name}")
            for check in bench.checks[before:]
        ]
        announce.settled(())
    report = NumericReport(
        recipe=request["recipe"],
        release="",
        tail=request["tail"],
        checks=tuple(bench.checks),
        hits=bench.hits,
        misses=bench.misses,
        machine=machine.describe(),
        guessed=tuple(recipe.guessed),
    )
    return report.to_json()


if __name__ == "__main__":
    sys.exit(main())
