"""Which tunings run: the setting's forms, and what is refused."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaffold.runtime.tuning import DEFAULT, NAMES, TUNINGS, read_choice
from scaffold.runtime.vllm.settings import read_settings


@pytest.mark.parametrize(
    ("given", "names", "dry"),
    [
        (None, DEFAULT, False),
        (True, DEFAULT, False),
        ("on", DEFAULT, False),
        ("off", (), False),
        (False, (), False),
        ("list", DEFAULT, True),
        (["pad-mlp"], ("pad-mlp",), False),
        (["fused-norms", "pad-mlp"], ("pad-mlp", "fused-norms"), False),  # in the order of application
        ({"pad-mlp": False}, tuple(n for n in DEFAULT if n != "pad-mlp"), False),
        ({"pad-mlp": True}, DEFAULT, False),
        ({"fp8-linears": True}, NAMES, False),  # it changes more than roundings: only by name
    ],
)
def test_forms_of_the_setting(given, names, dry):
    choice = read_choice(given)
    assert (choice.names, choice.dry) == (names, dry)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["pad-mpl"], "did you mean 'pad-mlp'"),
        ({"x": True}, "no tuning 'x'"),
        ("pad-mlp", "list of names"),
        (3, "not 3"),
    ],
)
def test_what_means_nothing_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        read_choice(given)
    with pytest.raises(ValueError, match=r'additional_config\["encoder_graphs"\]: .*' + message):
        read_settings(SimpleNamespace(additional_config={"encoder_graphs": {"tuning": given}}))


@pytest.mark.parametrize(
    ("given", "anywhere"),
    [(None, False), ("on", True), (True, True), (["pad-mlp"], True), ({"pad-mlp": False}, False), ("list", False)],
)
def test_only_who_asks_for_tunings_gets_them_on_other_gpus(given, anywhere):
    assert read_choice(given).anywhere is anywhere


def test_settings_carry_the_choice():
    config = SimpleNamespace(additional_config={"encoder_graphs": {"tuning": "off", "tuning_check": False}})
    settings = read_settings(config)
    assert (settings.tuning, settings.tuning_check) == ("off", False)
    default = read_settings(SimpleNamespace(additional_config=None))
    assert (default.tuning, default.tuning_check) == (None, True)


def test_every_tuning_is_described():
    assert tuple(t.name for t in TUNINGS) == NAMES
    for tuning in TUNINGS:
        assert tuning.level in ("exact", "rounding") or (tuning.level == "fp8" and tuning.name not in DEFAULT)
        assert tuning.summary
        assert tuning.measured


def test_gains_are_those_of_the_results_file():
    results = Path(__file__).parents[2] / "benchmarks/results"
    models = json.loads((results / "tuning_h200.json").read_text(encoding="utf-8"))["models"]
    fp8 = json.loads((results / "fp8_h200.json").read_text(encoding="utf-8"))
    in_fp8 = {
        name: {"untuned_ms": row["tuned_ms"], "ms": row["fp8_ms"]}
        for name, model in fp8["models"].items() for row in fp8["rows"]
        if (row["model"], row["workload"]) == (name, model["layers"]["workload"])
    }  # fmt: skip
    checkpoint = json.loads((results / "fp8_checkpoint_h100.json").read_text(encoding="utf-8"))
    inputs = {
        row["model"]: {"untuned_ms": row["without_ms"], "ms": row["tuned_ms"]}
        for row in checkpoint["rows"] if row["workload"] == fp8["models"][row["model"]]["layers"]["workload"]
    }  # fmt: skip
    for tuning in TUNINGS:
        said = re.findall(r"([A-Z][\w.]+-?VL) ([\d.]+) to ([\d.]+) ms", tuning.measured)
        assert len(said) == tuning.measured.count(" ms") > 0, tuning.measured
        for model, before, after in said:
            name = model.lower().replace("-vl", "_vl").replace(".", "_")
            beside = {"fp8-linears": in_fp8, "fp8-inputs": inputs}.get(tuning.name)
            alone = models[name]["single"]["tunings"][tuning.name] if beside is None else beside[name]
            assert (before, after) == (f"{alone['untuned_ms']:.1f}", f"{alone['ms']:.1f}"), (tuning.name, model)
