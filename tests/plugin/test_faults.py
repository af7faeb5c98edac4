"""What is broken does not stop the server: it serves eagerly, gives the same tokens, and says why, once.

One child process, with the installed vLLM, its own runner and a tiny Qwen2-VL.
"""

from __future__ import annotations

import json
from typing import Any

import cpu_wheel
import pytest

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs the `cpu` extra"),
]


@pytest.fixture
def adapters(faults) -> dict[str, Any]:
    return faults.adapters


@pytest.fixture
def managers(faults) -> dict[str, Any]:
    return faults.managers


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("construction", "it replaces '__init__'"),
        ("forward", "it replaces 'forward'"),
        ("mapper", "it replaces 'hf_to_vllm_mapper'"),
    ],
)
def test_an_adapter_that_is_more_than_the_protocol_is_not_used(adapters, fault, said):
    assert adapters[fault]["module"] == "vllm.model_executor.models.qwen2_5_vl"
    (warning,) = adapters[fault]["warnings"]
    assert "so vLLM's own class serves" in warning
    assert said in warning


def test_an_adapter_that_cannot_be_imported_leaves_vllms_class_serving(adapters):
    found = adapters["import"]
    assert found["module"] == "vllm.model_executor.models.qwen2_vl"
    assert "qwen2_vl halted" in found["warnings"][0]
    assert "so vLLM's own class serves" in found["warnings"][0]


def test_a_configuration_without_graphs_is_warned_of_when_it_is_made(adapters):
    """vLLM itself sets `cudagraph_mode` on the CPU; the test then calls what a runner calls."""
    (warning,) = adapters["configured"]
    assert warning.startswith("cudagraph_mode is NONE: ")


def test_attention_that_reads_lengths_on_the_host_runs_eager(adapters):
    found = adapters["import"]
    assert found["manager"] == "scaffold.runtime.vllm.served"
    assert (found["same"], found["captured"], found["misses"]) == (True, 0, 1)
    assert [w for w in found["warnings"] if "TORCH_SDPA" in w and "every image runs eager" in w] == found["warnings"][
        1:
    ]


def test_vllm_tells_the_largest_image_of_a_processor(adapters):
    """The manager asks, for its largest budget. This processor makes images of 64 tokens."""
    assert adapters["import"]["largest"] == 64


def test_without_a_fault_the_adapter_is_replayed(managers):
    assert managers["module"] == "vitcg_adapters.v0_30.qwen2_vl"
    found = managers["nothing"]
    assert (found["same"], found["hits"], found["misses"], found["warnings"]) == (True, 2, 0, [])
    assert found["captured"] == found["planned"] > 0
    assert found["tuned"] > 0


@pytest.mark.parametrize(
    ("fault", "gives_up", "said"),
    [
        ("configuration", True, "they cannot be set up: RuntimeError: planted"),
        ("budget range", True, "they cannot be set up: RuntimeError: planted"),
        ("capture inputs", False, "cannot be captured, and their sizes run eager"),
        ("captured forward", False, "cannot be captured, and their sizes run eager"),
        ("no memory for graphs", False, "OutOfMemoryError: CUDA out of memory"),
        ("no memory for the pool", True, "they cannot be captured: OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_a_start_without_graphs_serves_eagerly_and_warns_once(managers, fault, gives_up, said):
    found = managers[fault]
    assert found["same"]
    assert (found["hits"], found["captured"]) == (0, 0)
    (warning,) = found["warnings"]
    assert said in warning
    assert (found["fault"] is not None) == gives_up
    assert found["tuned"] == 0  # the model is as vLLM made it
    assert found["misses"] == (0 if gives_up else 2)  # the runner's own eager path, or the manager's


def test_a_kernel_that_cannot_run_at_the_start_costs_its_tuning(managers):
    found = managers["a kernel"]
    assert found["same"]
    assert (found["hits"], found["misses"], found["fault"]) == (2, 0, None)
    (warning,) = found["warnings"]
    assert "the tuning fused-residuals was taken back: RuntimeError: planted" in warning
    assert 0 < found["tuned"] < managers["nothing"]["tuned"]


def test_a_kernel_that_fails_while_running_costs_the_graphs_and_all_tunings(managers):
    found = managers["a kernel while running"]
    assert found["same"]
    assert (found["hits"], found["tuned"]) == (0, 0)
    assert found["fault"] == "the tuned tower fails: RuntimeError: planted"
    assert len(found["warnings"]) == 1


def test_a_fault_in_one_batch_costs_that_batch_its_graph(managers):
    found = managers["one batch"]
    assert found["same"]
    assert found["fault"] is None
    assert found["hits"] == 4  # of five batches
    (warning,) = found["warnings"]
    assert "which runs eager" in warning


def test_a_manager_that_profiles_writes_no_files_and_goes(managers, faults):
    assert managers["profiling managers alive"] == 0
    stats = json.loads((faults.folder / "stats.json").read_text())
    assert stats["graph_hits"] == managers["nothing while running"]["hits"] == 5
    assert json.loads((faults.folder / "sizes.json").read_text())["paths"]


def test_faults_in_a_row_end_the_graphs(managers):
    found = managers["every batch"]
    assert found["same"]
    assert found["hits"] == 0
    assert found["fault"] == "3 batches in a row failed: RuntimeError: planted"
    assert len(found["warnings"]) == 1
