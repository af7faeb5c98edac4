"""Looks at an implementation's buffers: the release's manager captures and replays, the tower's forward is left out.

The effect of a wrong buffer differs between kernels, and some of them (FlashInfer's) do not run here. The content of
the buffer is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from scaffold.verify.numeric.diagnosis import CAPTURE, REPLAY, bind, tensors
from scaffold.verify.numeric.graphs import DEVICE, Lab
from scaffold.verify.numeric.recipes.base import Recipe, Session
from scaffold.verify.numeric.session import Bench, ManagerRun

_METADATA = "prepare_encoder_metadata"

#: Buffers as JSON: name -> (shape, values or None).
_Buffers = dict[str, tuple[list[int], list[int] | None]]


def run_probe(
    roots: Sequence[str], host: nn.Module, config: SimpleNamespace, recipe: Recipe, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a `ProbeReport` as JSON. `asked` holds the fields of a `Probe`."""
    lab = Lab(roots)
    lab.place_model(host)
    session = Session("probe", (asked["budget"],), asked["max_items"], asked["max_frames"], ())
    found: dict[str, Any] = {
        **{key: {} for key in ("captured", "replayed", "served", "selected")},
        **dict.fromkeys(("results", "hits", "misses", "tower_calls"), 0),
        "grids": [],
        "replay_of_none": "",
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
        found["served"] = _describe(graph_buffers)
        nothing = host.select_encoder_cudagraph_items(inputs, [])
        found["selected"] = {
            key: len(value) for key, value in nothing.items() if isinstance(value, list | torch.Tensor)
        }
        try:
            limits = run.manager.max_batch_size, run.manager.max_frames_per_batch
            host.prepare_encoder_cudagraph_replay_buffers(nothing, *limits)
        except Exception as error:
            found["replay_of_none"] = f"{type(error).__name__}: {error}"
    return found


@contextmanager
def _observed(
    lab: Lab, host: nn.Module, asked: Mapping[str, Any], found: dict[str, Any]
) -> Iterator[dict[str, torch.Tensor]]:
    """Note what goes through the implementation's own methods; gives the buffers that the graph was captured with."""
    tower: Any = getattr(host, "visual", None)
    graph_buffers: dict[str, torch.Tensor] = {}

    def capture(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inputs = original(*args, **kwargs)
        graph_buffers.update(tensors(inputs))
        with lab.unwatched():
            found["captured"] = _describe(graph_buffers)
        return inputs

    def replay(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        buffers = original(*args, **kwargs)
        with lab.unwatched():
            found["replayed"] = _describe(tensors(buffers))
        return buffers

    def metadata(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not graph_buffers:  # the capture is being prepared
            grid = args[0] if args else next(iter(kwargs.values()))
            found["grids"] = grid.tolist() if isinstance(grid, torch.Tensor) else [list(sizes) for sizes in grid]
        return original(*args, **kwargs)

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(asked["budget"], host.get_encoder_cudagraph_config().out_hidden_size, device=DEVICE)

    def enter(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found["tower_calls"] += 1
        return original(*args, **kwargs)

    wrapped: list[tuple[Any, str, Callable[..., Any]]] = [
        (host, CAPTURE, capture),
        (host, REPLAY, replay),
        (host, "encoder_cudagraph_forward", forward),
    ]
    if tower is not None:
        wrapped += [(tower, "forward", enter), (tower, _METADATA, metadata)]
    backend = asked["backend"]
    if backend is not None:
        if not hasattr(tower, "attn_backend"):
            raise ValueError(f"{type(host).__name__} has no tower `visual` with an attention backend")
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        saved, tower.attn_backend = tower.attn_backend, AttentionBackendEnum[backend]
    for owner, name, wrapper in wrapped:
        setattr(owner, name, bind(wrapper, getattr(owner, name)))
    try:
        yield graph_buffers
    finally:
        for owner, name, _ in wrapped:
            delattr(owner, name)  # the class's own method is behind it
        if backend is not None:
            tower.attn_backend = saved


def _describe(buffers: Mapping[str, torch.Tensor]) -> _Buffers:
    return {
        key: (
            list(tensor.shape),
            None if tensor.dtype.is_floating_point or tensor.ndim > 1 else tensor.reshape(-1).tolist(),
        )
        for key, tensor in buffers.items()
    }
