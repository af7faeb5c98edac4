"""What each mode changes in the installed vLLM, and which manager a model gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import cpu_wheel
import pytest

from scaffold.plugin import Controls, make_manager
from scaffold.runtime.vllm.served import ServedManager

#: vLLM's own manager is made where we make none.
VLLMS = type(None)

INTERN, QWEN2, QWEN2_5 = (
    "InternVLChatModel", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
)  # fmt: skip


@pytest.mark.lab
@pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs the `cpu` extra")
def test_every_mode_changes_what_it_says(tmp_path):
    child = Path(__file__).with_name("modes_child.py")
    done = cpu_wheel.run_python(child, env=cpu_wheel.environment(tmp_path))
    (found,) = cpu_wheel.results_of(done)

    everything = [INTERN, QWEN2, QWEN2_5]
    assert [mode.pop("network") for mode in found.values()] == [[]] * 8
    assert [mode.pop("of commands") for mode in found.values()] == [[]] * 8
    assert found == {
        "all": {"adapters": everything, "ours": everything},
        "off": {"adapters": [], "ours": []},
        "adapters": {"adapters": everything, "ours": []},
        "manager": {"adapters": [], "ours": everything},
        "some": {"adapters": [INTERN, QWEN2], "ours": [INTERN, QWEN2]},
        "wrong": {"adapters": [], "ours": []},
        "left out": {"adapters": [], "ours": []},
        "no GPU": {"adapters": [], "ours": []},
    }
    wrong, no_gpu = [line for line in done.stderr.splitlines() if "vitcg" in line]
    assert "VITCG_MODE is one of all, adapters, manager, not 'everything'" in wrong
    assert "vLLM runs untouched: vitcg-scaffold serves NVIDIA GPUs only" in no_gpu


class InternVLChatModel:
    """No model at all: a manager cannot be set up for it."""


class Other(InternVLChatModel):
    pass


@pytest.mark.parametrize(
    ("only", "model", "expected"),
    [
        ((), Other, ServedManager),
        (("InternVLChatModel",), InternVLChatModel, ServedManager),
        (("test_modes",), InternVLChatModel, ServedManager),  # as `internvl`: the module that holds the class
        # What derives from a chosen model was not chosen.
        (("InternVLChatModel",), Other, VLLMS),
        (("qwen2_vl",), InternVLChatModel, VLLMS),
    ],
)
def test_a_model_that_is_not_chosen_gets_vllms_manager(only, model, expected, caplog):
    chosen = model()
    config = SimpleNamespace(
        additional_config=None,
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=SimpleNamespace(multimodal_config=SimpleNamespace(mm_encoder_tp_mode="weights")),
    )

    controls = Controls(models=frozenset(only))
    manager = make_manager(controls, vllm_config=config, device=None, dtype=None, model=chosen)

    assert isinstance(manager, expected)
    if expected is ServedManager:
        assert manager.model is chosen
        # A manager that cannot be set up is still one that a runner can ask.
        assert manager.fault is not None
        assert manager.supports_modality("image") is False
        assert manager.is_captured() is False
        assert manager.get_num_graphs_to_capture() == 0
        assert manager.execute({}) is None
        manager.capture(graph_pool=None)
        manager.clear()
        assert manager.get_cumulative_stats()["graph_hits"] == 0
        assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"encoder_graphs": {"trase": 1}}, "has no setting 'trase'; did you mean 'trace'"),
        ({"encoder_graphs": 1}, "dict"),
    ],
)
def test_a_setting_that_means_nothing_stops_the_start(given, said):
    config = SimpleNamespace(additional_config=given)

    with pytest.raises(ValueError, match=said):
        make_manager(Controls(), config, None, None, InternVLChatModel())
