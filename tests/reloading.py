"""What tests of reloaded weights share: the loaders of a release's layers, and a tower that a tuning widens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def load_parts(host: Any, weights: Iterable[tuple[str, Any]]) -> None:
    """Every weight by the loader that its parameter has now, in parts where a checkpoint has parts."""
    from vllm.model_executor.model_loader.reload import layerwise

    for name, value in weights:
        layer, leaf = host.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        parameter = getattr(layer, leaf)
        loader = layerwise._get_weight_loader(parameter)
        kind = type(layer).__name__
        if kind == "MergedColumnParallelLinear":
            for shard, part in enumerate(value.chunk(len(layer.output_sizes))):
                loader(parameter, part, shard)
        elif kind == "QKVParallelLinear":
            heads, others = layer.num_heads * layer.head_size, layer.num_kv_heads * layer.head_size
            for shard, part in zip("qkv", value.split([heads, others, others]), strict=True):
                loader(parameter, part, shard)
        elif kind in ("ParallelLMHead", "VocabParallelEmbedding"):  # a checkpoint has no rows of padding
            loader(parameter, value[: layer.org_vocab_size])
        else:
            loader(parameter, value)


@contextmanager
def kept_buffers(host: Any) -> Iterator[None]:
    """Older releases write anything into buffers that no checkpoint has, with the plugin and without.

    They drop one that a model makes with its first image, and the model makes it again (Kimi-K2.5 of 0.23).
    """
    import torch
    from vllm.model_executor.model_loader.reload import layerwise

    buffers = {name: value.clone() for name, value in host.named_buffers()}
    yield
    if not hasattr(layerwise.get_layerwise_info(host), "kernel_non_persistent_buffers"):
        with torch.inference_mode():  # in which such a buffer was made
            for name, value in host.named_buffers():
                value.copy_(buffers[name])


#: An inner size of MLPs that is no multiple of 8, as Qwen2.5-VL's 3420 is not.
INNER = 44


def shrink(vision: Any, inner: int = INNER) -> None:
    """Let a tower's MLPs have this inner size. A tuning widens `INNER`."""
    if hasattr(vision, "mlp_ratio"):
        object.__setattr__(vision, "mlp_ratio", inner / vision.embed_dim)  # the configuration takes whole numbers only
    elif isinstance(vision, dict):
        vision["intermediate_size"] = inner
    else:
        vision.intermediate_size = inner
