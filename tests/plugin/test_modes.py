"""What each mode changes in the installed vLLM, and which manager a model gets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import cpu_wheel
import pytest

from scaffold.runtime.vllm.served import ServedManager, served_manager

INTERN, QWEN2, QWEN2_5 = (
    "InternVLChatModel", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration",
)  # fmt: skip


@pytest.mark.lab
@pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs the `cpu` extra")
def test_every_mode_changes_what_it_says(tmp_path):
    child = Path(__file__).with_name("modes_child.py")
    done = cpu_wheel.run_python(child, env=cpu_wheel.environment(tmp_path))
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-4000:]

    found = json.loads(lines[-1].removeprefix("RESULT "))
    assert [mode.pop("network") for mode in found.values()] == [[]] * 7
    assert found == {
        "all": {"adapters": [INTERN, QWEN2, QWEN2_5], "ours": True},
        "off": {"adapters": [], "ours": False},
        "adapters": {"adapters": [INTERN, QWEN2, QWEN2_5], "ours": False},
        "manager": {"adapters": [], "ours": True},
        "some": {"adapters": [INTERN, QWEN2], "ours": True},
        "wrong": {"adapters": [], "ours": False},
        "left out": {"adapters": [], "ours": False},
    }
    (said,) = [line for line in done.stderr.splitlines() if "vitcg" in line]
    assert "VITCG_MODE is one of all, adapters, manager, not 'everything'" in said


class Original:
    """Stands for vLLM's manager."""

    def __init__(self, vllm_config, device, dtype, model) -> None:
        self.model = model


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
        (("InternVLChatModel",), Other, Original),
        (("qwen2_vl",), InternVLChatModel, Original),
    ],
)
def test_a_model_that_is_not_chosen_gets_vllms_manager(only, model, expected, caplog):
    chosen = model()
    config = SimpleNamespace(
        additional_config=None,
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=SimpleNamespace(multimodal_config=SimpleNamespace(mm_encoder_tp_mode="weights")),
    )

    manager = served_manager(Original, frozenset(only))(vllm_config=config, device=None, dtype=None, model=chosen)

    assert isinstance(manager, expected)
    assert manager.model is chosen
    if expected is ServedManager:
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
        served_manager(Original, frozenset())(config, None, None, InternVLChatModel())
