"""Run the code around a graph once: for generated ports that capture the encoder alone.

Such a port goes through the model's own code with another function in the encoder's place. vLLM's protocol does so
twice: once to record the encoder's input, and after the replay once more to assemble the result. Our manager replays
the graph inside, so it goes through that code once. On an H100 the second time took 0.5 to 3 ms of each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from scaffold.runtime.adapter import Around, Inputs, OtherCall, Replay


def around(model: Any, buffer_keys: Sequence[str]) -> Around | None:
    """How to run a model's own code around its encoder; None for a port that does not do so."""
    if hasattr(type(model), "_record_encoder_units"):
        return partial(_around_units, model, tuple(buffer_keys))
    if hasattr(type(model), "_record_encoder_call"):
        return partial(_around_rows, model)
    if hasattr(type(model), "_record_encoder_path"):
        return partial(_around_paths, model)
    return None


def encodes_apart(model: Any) -> bool | None:
    """Whether the model's code calls its encoder for each item; None where the port does not say."""
    if not hasattr(type(model), "_record_encoder_call"):
        return None
    return bool(getattr(model, "_encoder_cudagraph_per_item", False))


def warm_up(model: Any) -> None:
    """Run a model of the layout `rows` on two images of zeros, its code around the encoder included.

    No graph holds that code, and the tunings that it meets have run nowhere yet: Triton made a kernel of a norm in the
    first request of LFM2-VL, 50 ms on an H100.
    """
    if not hasattr(type(model), "_record_encoder_call") or model._encoder_cudagraph_call is None:
        return
    weight = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    merge = model._encoder_cudagraph_merge
    inputs = model._make_encoder_inputs([(merge, 2 * merge), (2 * merge, 3 * merge)], like=weight)
    model._embed_encoder_inputs(inputs, model._captured_encoder)


def _around_units(
    model: Any, buffer_keys: tuple[str, ...], inputs: Inputs, replay: Replay
) -> Sequence[torch.Tensor] | None:
    """Layout `cut`: the encoder takes units of one shape, and gives features of one shape for each."""
    features = model._encoder_cudagraph_features

    def encode(*units: torch.Tensor) -> torch.Tensor | None:
        rows = len(units[0]) * features[:-1].numel()
        output = replay("default", dict(zip(buffer_keys, units, strict=True)), rows, rows)
        return None if output is None else output.view(-1, *features)

    return model._embed_encoder_units(inputs, encode)  # type: ignore[no-any-return]


def _around_paths(model: Any, inputs: Inputs, replay: Replay) -> Sequence[torch.Tensor] | None:
    """Units of several shapes, each on a path of its own, whose budgets count tokens: images, frames or crops."""

    def encode(path: str, *units: torch.Tensor) -> torch.Tensor:
        features, count = model._encoder_cudagraph_features[path], len(units[0])
        values = dict(zip(model._encoder_cudagraph_units[path], units, strict=True))
        rows, tokens = count * features[:-1].numel(), count * model._encoder_cudagraph_tokens[path]
        output = replay(path, values, rows, tokens)
        if output is None:  # this path runs eagerly
            return model._encode_units(values)
        return output.view(-1, *features)

    return model._embed_encoder_units(inputs, encode)  # type: ignore[no-any-return]


def _around_rows(model: Any, inputs: Inputs, replay: Replay) -> Sequence[torch.Tensor] | None:
    """Layout `rows`: the encoder takes and gives the rows of a batch, or of an item, with whatever else a call has."""
    has_offsets = getattr(model, "_has_encoder_offsets", None)
    if has_offsets is not None and not has_offsets(inputs):
        return None  # since 0.27 the items of such a batch have no tokens on the path
    rows = model._get_encoder_cudagraph_rows(inputs)
    tokens = [item.output_tokens for item in model.get_encoder_cudagraph_item_specs(inputs)]
    per_item = getattr(model, "_encoder_cudagraph_per_item", False)
    calls = 0

    def encode(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if calls and not per_item:
            raise OtherCall
        mine = slice(calls, calls + 1) if per_item else slice(None)
        calls += 1
        values = model._read_encoder_call(*tree_flatten((args, kwargs)), rows[mine])
        output = None if values is None else replay("default", values, sum(rows[mine]), sum(tokens[mine]))
        if output is None:
            raise OtherCall
        structure, kinds = model._encoder_cudagraph_call[1]
        leaves = [output.movedim(0, axis) if kind == "rows" else sample for (kind, axis), sample in kinds]
        return tree_unflatten(leaves, structure)

    embeddings = model._embed_encoder_inputs(inputs, encode)
    return embeddings if calls else None
