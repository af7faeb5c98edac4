"""What has no graphs from the start: every image runs eager, in the order of the batch, and the reason is counted."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from scaffold.runtime.vllm import EncoderCudaGraphManager
from scaffold.runtime.vllm.refusal import refusal_of


class Tower(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.inner = nn.Identity()
        for name, value in attributes.items():
            setattr(self.inner, name, value)


def config(lora=None, mode="weights", ranks=1):
    multimodal = SimpleNamespace(mm_encoder_tp_mode=mode)
    return SimpleNamespace(
        lora_config=lora,
        model_config=SimpleNamespace(multimodal_config=multimodal),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


class ColumnParallelLinear(nn.Module):
    """As vLLM's: a rank's part of the weights, or all of them where a model says so."""

    def __init__(self, tp_size):
        super().__init__()
        self.tp_size = tp_size


class QKVParallelLinear(ColumnParallelLinear):
    pass


class ReplicatedLinear(nn.Module):
    tp_size = 2


class Split(nn.Module):
    """A tower, and a language model that ranks always share."""

    def __init__(self, layer):
        super().__init__()
        self.visual = nn.ModuleDict({"fc1": layer})
        self.language_model = nn.ModuleDict({"fc1": ColumnParallelLinear(2)})
        self.score = nn.ModuleDict({"dense": ColumnParallelLinear(2)})


@pytest.mark.parametrize(
    ("given", "model", "reason", "words"),
    [
        (config(), Tower(), None, ""),
        (config(SimpleNamespace(enable_tower_connector_lora=False)), Tower(), None, ""),
        (config(SimpleNamespace(enable_tower_connector_lora=True)), Tower(), "lora", "enable_tower_connector_lora"),
        (config(), Tower(attn_backend="TORCH_SDPA"), "attention-backend", "TORCH_SDPA reads sequence lengths"),
        (config(mode="data", ranks=2), Split(QKVParallelLinear(2)), "shared-layer", "share the layer visual.fc1"),
        (config(mode="data", ranks=2), Split(ColumnParallelLinear(1)), None, ""),
        (config(mode="data", ranks=2), Split(ReplicatedLinear()), None, ""),
        (config(mode="data", ranks=1), Split(ColumnParallelLinear(2)), None, ""),
        (config(mode="weights", ranks=2), Split(ColumnParallelLinear(2)), None, ""),
        (config(), Tower(_fp8_dynamic_scale=False), None, ""),
        (config(), Tower(_fp8_dynamic_scale=True), "fp8-dynamic-scale", "mm_encoder_fp8_scale_path"),
    ],
)
def test_what_is_refused(given, model, reason, words):
    found = refusal_of(given, model, ["image"])
    assert (found.reason if found else None) == reason
    assert words in (found.why if found else "")


def test_a_refused_batch_runs_as_it_came_and_nothing_is_captured_or_tuned(caplog):
    class Model:
        def __init__(self):
            self.batches = []

        def embed_multimodal(self, **inputs):
            self.batches.append(inputs)
            return [torch.full((2, 3), float(n)) for n in inputs["numbers"]]

    manager = EncoderCudaGraphManager.__new__(EncoderCudaGraphManager)
    manager.model = Model()
    manager.config = SimpleNamespace(modalities=["image"])
    manager.vllm_config = config(SimpleNamespace(enable_tower_connector_lora=True))
    core = SimpleNamespace(stats=None, pool=None, backend=SimpleNamespace(new_pool=object), graphs={})
    from scaffold.runtime import Stats

    core.stats = Stats()
    manager._core = core
    manager.capture()
    assert manager.is_captured()
    assert manager.tuned is None
    outputs = manager.execute({"numbers": [3, 1, 2]})
    assert [float(output[0, 0]) for output in outputs] == [3, 1, 2]
    assert manager.model.batches == [
        {"numbers": [3, 1, 2]}
    ]  # whole, and in order: the mapping of adapters is made for it
    assert (core.stats.hits, dict(core.stats.reasons)) == (0, {"lora": 3})
    assert "every image runs eager: LoRA is enabled for the vision tower" in caplog.text


def test_no_memory_of_a_run_is_left_when_the_capture_ends():
    """vLLM's profile reads the free memory right after it, and would keep torch's cache from the KV cache."""
    done = []
    manager = EncoderCudaGraphManager.__new__(EncoderCudaGraphManager)
    manager.model, manager.config = SimpleNamespace(), SimpleNamespace(modalities=["image"])
    manager.tuned, manager.budget_graphs, manager.token_budgets = object(), {}, []
    manager._core = SimpleNamespace(
        pool=object(), graphs={}, capture=lambda pool: done.append("capture"),
        adapter=SimpleNamespace(warm_up=lambda alone: done.append("run")),
        backend=SimpleNamespace(trim=lambda: done.append("trim")),
    )  # fmt: skip
    manager.capture()
    assert done == ["capture", "run", "trim"]
