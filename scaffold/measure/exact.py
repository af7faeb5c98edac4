"""CUDA graphs of exactly one call's size: no padding, the practical limit of any replay. Needs CUDA and vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scaffold.runtime.adapter import OtherCall
from scaffold.runtime.vllm.around import around
from scaffold.runtime.vllm.dialect import ManagerDialect, installed_dialect


def captured_forwards(host: Any, inputs: dict[str, Any], items: int) -> dict[str, Callable[[], torch.Tensor]]:
    """The forward of each path that has work, as a manager captures it, on the metadata of exactly these inputs."""
    dialect = installed_dialect()
    return {path: _forward(host, inputs, items, path, dialect) for path in _paths_with_work(host, inputs, dialect)}


def _forward(
    host: Any, inputs: dict[str, Any], items: int, path: str, dialect: ManagerDialect
) -> Callable[[], torch.Tensor]:
    frames = sum(t for t, _, _ in inputs["video_grid_thw"].tolist()) if "video_grid_thw" in inputs else 0
    arguments: list[Any] = [inputs, items, frames]
    keywords = {"path": path} if dialect.path_argument else {}
    replay = host.prepare_encoder_cudagraph_replay_buffers(*arguments, **keywords)
    values = dict(replay.values)
    return lambda: host.encoder_cudagraph_forward(dict(values), **keywords)


def _paths_with_work(host: Any, inputs: dict[str, Any], dialect: ManagerDialect) -> Sequence[str]:
    """The paths on which an item of these inputs has tokens."""
    config = host.get_encoder_cudagraph_config()
    if dialect.named_paths and set(config.paths) != {"default"}:
        specs = host.get_encoder_cudagraph_item_specs(inputs)
        return [path for path in config.paths if any(spec.path_output_tokens.get(path) for spec in specs)]
    if dialect.dual_path and config.enable_dual_path_graph:
        specs = host.get_encoder_cudagraph_item_specs(inputs)
        return [path for path in ("global", "local") if any(getattr(spec, f"{path}_output_tokens") for spec in specs)]
    return ("default",)


def exact_call(host: Any, inputs: dict[str, Any], items: int) -> Callable[[], Any] | None:
    """Replays graphs of exactly these inputs; None where the model's own code serves them, or graphs have further axes.

    A port around whose encoder the model's own code runs needs that code in each call. It runs once, as in our manager.
    """
    config = host.get_encoder_cudagraph_config()
    if getattr(config, "capture_axes", ()):
        return None
    run = around(host, getattr(config, "buffer_keys", ()))
    if run is not None:
        replays = _Replays(host)
        try:
            with torch.inference_mode():
                served = run(inputs, replays)
        except OtherCall:
            return None
        return None if served is None else lambda: run(inputs, replays)
    graphs = [Graph(forward) for forward in captured_forwards(host, inputs, items).values()]

    def replay() -> None:
        for graph in graphs:
            graph.replay()

    return replay


class Graph:
    """A graph of one forward. The forward's inputs and its output live as long as the graph: free memory goes back to
    the device when a manager captures on demand.
    """

    def __init__(self, forward: Callable[[], Any]) -> None:
        with torch.inference_mode():
            for _ in range(2):
                forward()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self.output = forward()
        self._forward = forward

    def replay(self) -> None:
        self._graph.replay()


class _Replays:
    """Graphs of what the model's own code hands its encoder, captured when it comes for the first time."""

    def __init__(self, host: Any) -> None:
        self._host = host
        self._graphs: dict[Any, tuple[dict[str, torch.Tensor], Graph]] = {}

    def __call__(self, path: str, values: Mapping[str, torch.Tensor | None], rows: int, tokens: int) -> torch.Tensor:
        given = {name: value for name, value in values.items() if value is not None}
        key = path, tuple((name, value.shape) for name, value in given.items())
        if key not in self._graphs:
            own = {name: value.clone() for name, value in given.items()}
            keywords = {"path": path} if installed_dialect().path_argument else {}
            graph = Graph(lambda: self._host.encoder_cudagraph_forward(dict(own), **keywords))
            self._graphs[key] = own, graph
        own, graph = self._graphs[key]
        for name, value in given.items():
            own[name].copy_(value, non_blocking=True)
        graph.replay()
        return graph.output.clone()
