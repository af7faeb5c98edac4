"""The process in which a release's classes run: JSON lines on stdin, JSON events on stdout.

The first line names the tree; what every check of that tree shares is imported once, which takes most of the time.
Each further line is a request, served in a fork, so that no request sees what another one imported or patched.

Roles: `both` checks a tree against itself. `pair` forks once more: the fork computes the oracle from the pristine tree
while the request goes on with the changed one. `oracle` and `check` are the halves of `pair` for a change to a module
that the shared import needs; they run in processes of their own and meet at the exchange file. `record` compares
nothing: it writes down the calls of a model. Whatever vLLM prints goes to stderr.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any


class Events:
    """The line protocol, on a private copy of stdout."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def send(self, event: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"event": event, **fields}) + "\n")
        self._stream.flush()


class Stages:
    """Runs the steps of one role and turns an exception into an event that names the step."""

    def __init__(self, role: str, events: Events) -> None:
        self._role = role
        self._events = events
        self.stage = "import"

    def tell(self, event: str, **fields: Any) -> None:
        """Send an event of this role."""
        self._events.send(event, **fields)

    def run(self, steps: Callable[[Stages], None]) -> int:
        try:
            steps(self)
        except BaseException as error:
            lines = traceback.format_exception(error)
            self._events.send(
                "error",
                role=self._role,
                stage=self.stage,
                kind=type(error).__name__,
                message=str(error)[-2000:],
                help=getattr(error, "help", ""),
                traceback=lines[-40:],
            )
            return 1
        return 0


def main() -> int:
    events = Events()
    tree = json.loads(sys.stdin.readline())
    started = time.monotonic()
    if Stages("tree", events).run(lambda stages: _import_shared(tree)):
        return 1
    events.send("progress", text=f"imported vLLM in {time.monotonic() - started:.1f} s")
    for line in sys.stdin:
        fork = os.fork()
        if fork == 0:
            request = json.loads(line)
            os._exit(Stages(request["role"], events).run(lambda stages: _serve(request, events, stages)))  # noqa: B023
        events.send("ended", status=os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
    return 0


def _serve(request: dict[str, Any], events: Events, stages: Stages) -> None:
    from scaffold.verify.numeric import attention

    attention.set_tail(request["tail"])
    role = request["role"]
    if role == "both":
        built = _build(request, stages)
        _check(request, _make_oracle(request, built[0], stages), built, events, stages)
    elif role == "oracle":
        _write_oracle(request, stages)
    elif role == "record":
        _record(request, events, stages)
    elif role == "check":

        def wait() -> bool:
            wait_for_oracle(request)
            return True

        _check_changed(request, wait, events, stages)
    elif any(name in sys.modules for name in request["changed_modules"]):
        events.send("shared")
    else:
        _serve_pair(request, events, stages)


def wait_for_oracle(request: dict[str, Any]) -> None:
    """Returns when the other process has written the oracle. The parent ends this process when the oracle fails."""
    while not Path(request["exchange"]).exists():
        time.sleep(0.05)


def _record(request: dict[str, Any], events: Events, stages: Stages) -> None:
    """Record the tree's own model on three batches of each modality, of two to six items of different sizes."""
    import torch

    from scaffold.verify.numeric import session
    from scaffold.verify.numeric.graphs import Lab
    from scaffold.verify.numeric.recipes.base import process_weights, randomise
    from scaffold.verify.numeric.recipes.found import requested_recipe
    from scaffold.watch import Recording
    from scaffold.watch.recorder import Recorder, entries

    host, _ = _build(request, stages)
    demand_class(host, request["class_name"])
    stages.stage = "record"
    randomise(host)
    process_weights(host)
    recipe = requested_recipe(request)
    for line in recipe.basis:
        stages.tell("basis", text=line)
    lab = Lab([request["root"]])
    lab.place_model(host)
    recorder = Recorder(host, Path(request["root"]), lab.on_device, lab.switched_off)
    lab.on_left = recorder.left
    batches, missing = [], dict(recipe.missing)
    for modality in recipe.modalities:
        sizes = recipe.sizes(modality)
        low, middle, top = sizes[0], sizes[len(sizes) // 2], sizes[-1]
        for items in ((low, middle), (top, low, sizes[len(sizes) // 3]), (low, low, *sizes[1:4], middle)):
            stages.tell("progress", text=f"records {len(items)} {modality}s")
            try:
                inputs = recipe.make_inputs(modality, items, torch.Generator().manual_seed(len(items)))
                fields = recipe.fields(inputs)
                placed = session.place_inputs(lab, recipe, inputs)
                with lab.watch():
                    batches.append(recorder.record(modality, items, placed, fields))
            except Exception as error:
                missing[modality] = f"{type(error).__name__}: {str(error)[:300]}"
                break
    recording = Recording(
        module=type(host).__module__,
        class_name=type(host).__name__,
        configuration=json.loads(json.dumps(recipe.hf_config, default=lambda one: entries(one) or str(one))),
        basis=tuple(recipe.basis),
        guessed=tuple(recipe.guessed),
        numbers=recorder.numbers(),
        placeholders=recorder.placeholders(),
        repeated=recorder.repeated(),
        batches=tuple(batch for batch in batches if batch.modality not in missing),
        missing=missing,
    )
    events.send("recorded", data=recording.to_json())


def _serve_pair(request: dict[str, Any], events: Events, stages: Stages) -> None:
    fork = os.fork()
    if fork == 0:
        os._exit(Stages("oracle", events).run(lambda inner: _write_oracle(request, inner)))

    def wait() -> bool:
        nonlocal fork
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        fork = 0
        if status < 0:
            raise ChildProcessError(f"the oracle's process was ended by signal {-status}")
        return status == 0

    try:
        from scaffold.verify.numeric.cpu_imports import switch_tree

        switch_tree(Path(request["root"]), Path(request["changed_root"]))
        try:
            _check_changed(request, wait, events, stages)
        except Exception:
            # Where the release itself does not run, both models fail; the pristine one's error is the one to report.
            if fork == 0 or wait():
                raise
    finally:
        if fork:
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)


def _check_changed(request: dict[str, Any], wait: Callable[[], bool], events: Events, stages: Stages) -> None:
    """Check the changed tree against the oracle that another process writes; `wait` returns whether it is there."""
    from scaffold.verify.numeric.recipes.found import requested_recipe

    recipe = requested_recipe(request)
    if recipe.learns:
        # How the model is built is known when the other process has found it out.
        if not wait():
            return
        recipe.recall(load_oracle(request)["facts"])
    built = _build(request, stages, request["host"])
    stages.stage = "weights"
    if recipe.learns or wait():
        _check(request, read_oracle(request, built[0], stages), built, events, stages)


def _import_shared(tree: dict[str, Any]) -> None:
    """Everything that the lab needs of the tree except what a port may change: the model's modules and the manager's.

    The manager imports most of vLLM. It goes again, so that a fork imports its own tree's.
    """
    from scaffold.verify.numeric import cpu_imports

    cache = Path(tree["bytecode_cache"]) if tree["bytecode_cache"] else None
    cpu_imports.prepare(Path(tree["root"]), cache)
    cpu_imports.patch_vllm()
    importlib.import_module("vllm.v1.worker.encoder_cudagraph")
    del sys.modules["vllm.v1.worker.encoder_cudagraph"]
    del sys.modules["vllm.v1.worker"].encoder_cudagraph


def _build(request: dict[str, Any], stages: Stages, host_class: str | None = None) -> tuple[Any, Any]:
    """The host in evaluation mode, in float32, and its configuration.

    It is built inside the configuration context and process group that parallel layers ask for.
    """
    import torch
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    from scaffold.verify.numeric.cpu_imports import start_distributed
    from scaffold.verify.numeric.recipes.found import requested_recipe

    recipe = requested_recipe(request)
    stages.stage = "import"
    recipe.load_class(host_class)
    stages.stage = "build"
    recipe.tell = lambda text: stages.tell("progress", text=text)
    torch.manual_seed(0)
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    with tempfile.TemporaryDirectory(prefix="vitcg-numeric-") as scratch, set_current_vllm_config(config):
        start_distributed(Path(scratch))
        host, config = recipe.build(host_class)
    return host.eval().requires_grad_(False), config


def _build_data_parallel(request: dict[str, Any]) -> tuple[Any, Any]:
    """The host again, of a server that spreads items over ranks. Its process group is there already."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

    from scaffold.verify.numeric.host import ENCODER_MODE
    from scaffold.verify.numeric.recipes.base import process_weights, randomise
    from scaffold.verify.numeric.recipes.found import requested_recipe

    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    mode = ENCODER_MODE.set("data")
    try:
        with set_current_vllm_config(config):
            host, config = requested_recipe(request).build(request["host"] if request["role"] != "both" else None)
    finally:
        ENCODER_MODE.reset(mode)
    randomise(host)
    process_weights(host)
    return host.eval().requires_grad_(False), config


def _make_oracle(request: dict[str, Any], host: Any, stages: Stages) -> dict[str, Any]:
    """`oracle_of` a model as it was made, and what its recipe says of it."""
    from scaffold.verify.numeric import session
    from scaffold.verify.numeric.recipes.found import requested_recipe

    stages.stage = "oracle"
    for line in requested_recipe(request).basis:
        stages.tell("basis", text=line)
    return oracle_of(request, host, lambda inputs: session.embed(host, inputs))


def oracle_of(request: dict[str, Any], host: Any, embed: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Random weights for a model, inputs of every case, and what `embed` makes of them: all on the host."""
    from scaffold.verify.numeric import session
    from scaffold.verify.numeric.recipes.base import process_weights, randomise
    from scaffold.verify.numeric.recipes.found import requested_recipe

    randomise(host)
    weights = {name: value.cpu().clone() for name, value in host.state_dict().items()}
    process_weights(host)
    recipe = requested_recipe(request)
    sessions = session.sessions_of(recipe, request["options"]["edges"], request["options"]["short"])
    inputs = session.make_inputs(recipe, sessions, request["modalities"])
    oracle = {key: embed(value) for key, value in inputs.items()}
    reject_degenerate(oracle)
    return {"weights": weights, "inputs": inputs, "oracle": oracle, "facts": recipe.facts()}


def _write_oracle(request: dict[str, Any], stages: Stages) -> None:
    host, _ = _build(request, stages)
    keep_oracle(request, _make_oracle(request, host, stages))


def keep_oracle(request: dict[str, Any], data: dict[str, Any]) -> None:
    """Write the exchange file, whole or not at all."""
    import torch

    torch.serialization.set_crc32_options(False)  # sums of what stays on this machine: 3 s for Step3-VL's pixels
    unfinished = Path(request["exchange"] + ".part")
    torch.save(data, unfinished)
    unfinished.replace(request["exchange"])


def load_oracle(request: dict[str, Any]) -> dict[str, Any]:
    """The content of the exchange file."""
    import torch

    data: dict[str, Any] = torch.load(request["exchange"], weights_only=True, mmap=True)
    return data


def read_oracle(request: dict[str, Any], host: Any, stages: Stages) -> dict[str, Any]:
    """The same, where the model gets its weights."""
    from scaffold.verify.numeric.recipes.base import process_weights

    stages.stage = "weights"
    data = load_oracle(request)
    host.load_state_dict(data["weights"], strict=True)
    process_weights(host)
    return data


def _check(
    request: dict[str, Any], data: dict[str, Any], built: tuple[Any, Any], events: Events, stages: Stages
) -> None:
    """Run the manager and send the report."""
    from vllm.model_executor.models.interfaces import supports_encoder_cudagraph

    from scaffold.verify.numeric import attention, session
    from scaffold.verify.numeric.graphs import Lab
    from scaffold.verify.numeric.recipes.found import requested_recipe
    from scaffold.verify.numeric.reports import NumericReport

    recipe, options = requested_recipe(request), request["options"]
    host, config = built
    lab = Lab([request["root"], request["changed_root"]])
    modalities = [modality for modality in request["modalities"] if modality in recipe.modalities]
    bench = session.Bench(lab, host, config, recipe, modalities, data["inputs"], data["oracle"])
    bench.counts_units, bench.single = options["counts_units"], options["single"]
    bench.in_tree, bench.refused_embeds = options["in_tree"], options["refused_embeds"].get(recipe.host_class, {})
    sessions = session.sessions_of(recipe, options["edges"], options["short"])
    total = sum(1 for _ in session.wanted_cases(sessions, modalities))
    bench.say = lambda text: events.send("case", text=text, total=total)
    announce = Announcer(bench, events)
    if request["role"] != "both":
        stages.stage = "eager"
        session.check_eager_identity(bench, sessions)
        announce.settled(sessions)
    stages.stage = "protocol"
    demand_class(host, request["class_name"])
    if not supports_encoder_cudagraph(host):  # vLLM's own question; the methods' names are the tree's business
        raise NotImplementedError(f"{type(host).__name__} has no encoder CUDA graph methods")
    stages.stage = "manager"
    lab.place_model(host)
    gc.freeze()  # what was imported is no garbage, and takes a second to look through
    sessions = session.fitted(bench, sessions, options["counts_units"])
    for number, group in enumerate(sessions, 1):
        session.run_session(bench, group)
        announce.settled(sessions[number:])
        events.send("progress", text=f"ran {group.name}")
    session.check_raw_pixels(bench, sessions[0])
    announce.settled(())
    if recipe.learns:
        wanted = modalities if options["inherited"] else request["modalities"]
        session.check_replayed(bench, wanted)
    negative_lengths, sequences = attention.Counters.negative_lengths, attention.Counters.sequences
    stages.stage = "options"
    for option, check in (
        ("image_embeds", session.check_image_embeds),
        ("min_budget_above_max", session.check_min_budget_above_max),
        ("long_context", session.check_long_context),
        ("frames_above_capacity", session.check_frames_above_capacity),
        ("data_parallel_switch", session.check_data_parallel_switch),
    ):
        if options[option]:
            check(bench)
            announce.settled(())
        elif not options["short"] and (option, request["role"]) == ("long_context", "both"):
            bench.not_run.append("a long context: not tried on an implementation as it is")
    session.check_shared_layers(bench, lambda: _build_data_parallel(request), options["whole_layers"])
    report = NumericReport(
        recipe=request["recipe"],
        release="",
        tail=request["tail"],
        checks=tuple(bench.checks),
        hazards=lab.hazards(),
        hits=bench.hits,
        misses=bench.misses,
        negative_lengths=negative_lengths,
        sequences=sequences,
        guessed=tuple(recipe.guessed),
        not_run=tuple(bench.not_run),
    )
    events.send("report", data=report.to_json())


def demand_class(host: Any, name: str) -> None:
    """Raise NoRecipe unless a model is of the class that has the port: another one would prove nothing about it."""
    from scaffold.verify.numeric.automatic.refusal import NoRecipe

    if name and name not in {cls.__name__ for cls in type(host).__mro__}:
        raise NoRecipe(
            f"the recipe builds {type(host).__name__}, and the port is in {name}",
            "give a recipe that builds that class, as --recipe FILE.py, or `--recipe automatic`",
        )


class Announcer:
    """Sends each property of a bench once, when no session to come can change it."""

    def __init__(self, bench: Any, events: Events) -> None:
        self._bench = bench
        self._events = events
        self._sent: set[tuple[str, str]] = set()

    def settled(self, to_come: Sequence[Any]) -> None:
        """Send what is settled; `to_come` are the sessions that have not been run."""
        from scaffold.verify.numeric.reports import properties_of

        open_ = {(case.modality, case.group or case.name) for session in to_come for case in session.cases}
        for found in properties_of(self._bench.checks):
            key = found.modality, found.name
            if key not in self._sent and key not in open_:
                self._sent.add(key)
                self._events.send("property", data=asdict(found))


def reject_degenerate(oracle: dict[str, Any]) -> None:
    """An oracle that is not finite, or equal for different items, could not tell right from wrong."""
    for key, embeddings in oracle.items():
        for tensor in embeddings:
            if not bool(tensor.isfinite().all()) or float(tensor.std()) < 1e-3:
                raise ValueError(f"the oracle of {key!r} is degenerate")
        for left, right in pairwise(embeddings):
            rows = min(len(left), len(right))
            if float((left[:rows] - right[:rows]).abs().max()) < 1e-2:
                raise ValueError(f"neighbouring items of {key!r} have equal embeddings")


if __name__ == "__main__":
    sys.exit(main())
