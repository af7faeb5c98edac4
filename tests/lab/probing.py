"""Looks at an implementation's buffers: the release's manager captures and replays, the tower's forward is left out.

The effect of a wrong buffer differs between kernels, and some of them do not run here. The content of the buffer is the
same for all. `probe_buffers` asks; the rest runs in the process that it starts, `python probing.py`, and in a fork of
it for each implementation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from scaffold.verify.numeric import NumericRequest
from scaffold.verify.numeric.overlay import build_overlay, changed_modules
from scaffold.verify.numeric.runner import _bytecode_cache


@dataclass(frozen=True)
class Probe:
    """A look at an implementation's buffers: one manager with one budget, whose graph leaves the tower out.

    `budget` is in output tokens; `max_items` and `max_frames` are the manager's limits (None: the model's own default,
    0: no video). `items` are served once after the capture, sizes in the recipe's terms. `backend` is a name of vLLM's
    `AttentionBackendEnum`, given to the tower: buffers differ by backend, and no kernel runs.
    """

    budget: int
    max_items: int
    max_frames: int | None = None
    modality: str = "image"
    items: tuple[Any, ...] = ()
    backend: str | None = None


class Buffer(NamedTuple):
    """A tensor that a graph reads. `values` only of integer tensors of at most one dimension."""

    shape: Sequence[int]
    values: Sequence[int] | None


@dataclass(frozen=True)
class ProbeReport:
    """The findings of a `Probe`.

    `captured` are the buffers as the implementation made them, `replayed` what it returned for the last replay, and
    `served` the captured buffers after the release's manager put the replay there. `grids` were handed to the tower's
    metadata method for the capture. `results` counts what `execute` returned, `tower_calls` how often it entered the
    tower. `selected` holds the length of each input after a selection of no items. `error` is what the capture or
    `execute` raised, with its stage in front.
    """

    captured: Mapping[str, Buffer]
    replayed: Mapping[str, Buffer]
    served: Mapping[str, Buffer]
    grids: Sequence[Sequence[int]]
    results: int
    hits: int
    misses: int
    tower_calls: int
    selected: Mapping[str, int]
    error: str


def probe_buffers(requests: Iterable[tuple[NumericRequest, Sequence[Probe]]]) -> list[list[ProbeReport]]:
    """The reports of each request, in order; all are of one tree, which is imported once. Of a request only `tree`,
    `overlay` and `recipe` matter. An exception of an implementation is part of its report."""
    with tempfile.TemporaryDirectory(prefix="vitcg-probe-") as scratch:
        pristine, jobs = Path(scratch, "pristine"), []
        for number, (request, probes) in enumerate(requests):
            if not jobs:
                build_overlay(request.tree, {}, pristine)
            changed = Path(scratch, str(number)) if request.overlay else pristine
            if request.overlay:
                build_overlay(request.tree, request.overlay, changed)
            modules = changed_modules(request.overlay)
            jobs.append({"root": str(changed), "changed": modules, "recipe": request.recipe,
                         "probes": [asdict(probe) for probe in probes]})  # fmt: skip
        asked = {"root": str(pristine), "bytecode_cache": _bytecode_cache(), "jobs": jobs}
        done = subprocess.run(
            [sys.executable, __file__], input=json.dumps(asked), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr[-5000:]
    return [list(map(_report, json.loads(line))) for line in done.stdout.splitlines()]


def _report(data: dict[str, Any]) -> ProbeReport:
    seen = {key: {name: Buffer(*found) for name, found in data[key].items()} for key in _SEEN}
    return ProbeReport(**(data | seen))


_SEEN = ("captured", "replayed", "served")


# -- in the process that runs the tree


def main() -> None:
    run_jobs(lambda asked, job: _serve(asked["root"], job))


def run_jobs(serve: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Write what `serve` gives for each job of standard input, as a line, from a fork that imported the tree before."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from scaffold.verify.numeric import attention, child

    asked = json.loads(sys.stdin.read())
    child._import_shared(asked)
    attention.set_tail("fa2")
    for job in asked["jobs"]:
        fork = os.fork()
        if fork == 0:
            out.write(json.dumps(serve(asked, job)) + "\n")
            out.flush()
            os._exit(0)
        assert os.waitpid(fork, 0)[1] == 0, job["recipe"]


def _serve(pristine: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    from scaffold.verify.numeric import child, cpu_imports
    from scaffold.verify.numeric.recipes.base import process_weights, randomise
    from scaffold.verify.numeric.recipes.found import requested_recipe

    assert not any(name in sys.modules for name in job["changed"]), "the import that all share has a changed module"
    if job["changed"]:
        cpu_imports.switch_tree(Path(pristine), Path(job["root"]))
    request = {"recipe": job["recipe"], "automatic": None}
    silent: Any = types.SimpleNamespace(send=lambda *_, **__: None)
    host, config = child._build(request, child.Stages("both", silent))
    randomise(host)
    process_weights(host)
    roots = [pristine, job["root"]]
    return [_look(roots, host, config, requested_recipe(request), asked) for asked in job["probes"]]


def _look(roots: Sequence[str], host: Any, config: Any, recipe: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ProbeReport`. `asked` holds the fields of a `Probe`."""
    import torch

    from scaffold.verify.numeric.graphs import Lab
    from scaffold.verify.numeric.recipes.base import Session
    from scaffold.verify.numeric.session import Bench, ManagerRun

    lab = Lab(roots)
    lab.place_model(host)
    session = Session("probe", (asked["budget"],), asked["max_items"], asked["max_frames"], ())
    found: dict[str, Any] = {
        **{key: {} for key in (*_SEEN, "selected")},
        **dict.fromkeys(("results", "hits", "misses", "tower_calls"), 0),
        "grids": [],
        "error": "",
    }
    with _observed(lab, host, asked, found) as graph_buffers:
        # Made now: what the host has when its bench is made stays when a manager is made (`Bench.forget_managers`).
        bench = Bench(lab, host, config, recipe, recipe.modalities, {}, {})
        inputs = recipe.make_inputs(asked["modality"], asked["items"], torch.Generator().manual_seed(0))
        stage = "capture"
        try:
            run = ManagerRun(bench, session, max(4096, asked["budget"]))
            found["tower_calls"], stage = 0, "execute"
            found["results"] = len(run.execute(inputs))
            found["hits"], found["misses"] = run.counters
        except Exception as error:
            found["error"] = f"{stage}: {type(error).__name__}: {error}"
            return found
        found["served"] = _described(graph_buffers)
        if getattr(host, "supports_encoder_tp_data", False):  # else no rank is without items
            nothing = host.select_encoder_cudagraph_items(inputs, [])
            found["selected"] = {
                key: len(value) for key, value in nothing.items() if isinstance(value, list | torch.Tensor)
            }
    return found


@contextmanager
def _observed(lab: Any, host: Any, asked: Mapping[str, Any], found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Note what goes through the implementation's own methods; gives the buffers that the graph was captured with."""
    import torch

    from scaffold.verify.numeric.diagnosis import CAPTURE, REPLAY, tensors, wrapped
    from scaffold.verify.numeric.graphs import DEVICE

    tower: Any = getattr(host, "visual", None)
    graph_buffers: dict[str, Any] = {}

    def capture(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inputs = original(*args, **kwargs)
        graph_buffers.update(tensors(inputs))
        with lab.unwatched():
            found["captured"] = _described(graph_buffers)
        return inputs

    def replay(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        buffers = original(*args, **kwargs)
        with lab.unwatched():
            found["replayed"] = _described(tensors(buffers))
        return buffers

    def metadata(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not graph_buffers:  # the capture is being prepared
            grid = args[0] if args else next(iter(kwargs.values()))
            found["grids"] = grid.tolist() if isinstance(grid, torch.Tensor) else [list(sizes) for sizes in grid]
        return original(*args, **kwargs)

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return torch.zeros(asked["budget"], host.get_encoder_cudagraph_config().out_hidden_size, device=DEVICE)

    def enter(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found["tower_calls"] += 1
        return original(*args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(wrapped(host, **{CAPTURE: capture, REPLAY: replay, "encoder_cudagraph_forward": forward}))
        if tower is not None:
            stack.enter_context(wrapped(tower, forward=enter, prepare_encoder_metadata=metadata))
        if asked["backend"] is not None:
            from vllm.v1.attention.backends.registry import AttentionBackendEnum

            backend = AttentionBackendEnum[asked["backend"]]
            stack.enter_context(mock.patch.object(tower, "attn_backend", backend))
        yield graph_buffers


def _described(buffers: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: (
            list(tensor.shape),
            None if tensor.dtype.is_floating_point or tensor.ndim > 1 else tensor.reshape(-1).tolist(),
        )
        for key, tensor in buffers.items()
    }


if __name__ == "__main__":
    main()
