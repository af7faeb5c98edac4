"""Tunings on vLLM's own quantised and LoRA layers, with the kernels of the installed wheel: right, or left alone."""

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import cpu_wheel  # noqa: E402
from test_tunings import EXPECTED, FIVE  # noqa: E402

#: Why weights are not touched, and which class holds them.
KINDS = {
    "plain": ("its weight is not a matrix of floating-point numbers", "UnquantizedLinearMethod float32"),
    "int8": ("its weights are quantised (CompressedTensorsLinearMethod)", "CompressedTensorsW8A8Int8 float32"),
    "fp8": ("its weights are quantised (CompressedTensorsLinearMethod)", "CompressedTensorsW8A8Fp8 float8_e4m3fn"),
    "fp8-rows": ("its weights are quantised (CompressedTensorsLinearMethod)", "CompressedTensorsW8A8Fp8 float8_e4m3fn"),
    "int4": ("its weights are quantised (CompressedTensorsLinearMethod)", "CompressedTensorsWNA16 int32"),
    "lora": ("LoRA wraps it", "RowParallelLinearWithLoRA"),
}
#: Tunings that read weights of linear layers.
OF_WEIGHTS = ("pad-mlp", "gelu-epilogue")

#: Any processor claims AMX, so that a kernel that depends on it fails everywhere.
WITH_AMX = f"""\
import sys
import torch
torch.cpu._is_amx_tile_supported = lambda: True
sys.path.insert(0, {str(HERE)!r})
import run_layers
sys.exit(run_layers.main())
"""

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(not cpu_wheel.is_installed(), reason="needs an installed vLLM (the `cpu` extra)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    env = cpu_wheel.environment(
        tmp_path_factory.mktemp("wheel"), VLLM_PLUGINS="", VLLM_LOGGING_LEVEL="ERROR", TORCHDYNAMO_DISABLE="1"
    )
    done = cpu_wheel.run_python(WITH_AMX, *FIVE, env=env, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


#: Step3-VL gives its tower no quantisation, whatever the checkpoint says.
CASES = [(kind, model) for kind in KINDS for model in FIVE if kind in ("plain", "lora") or model != "step3_vl"]


@pytest.fixture(params=CASES, ids="-".join)
def case(request, report):
    kind, model = request.param
    if kind not in report:
        pytest.skip(f"the wheel has no kernel for {kind} on this processor")
    return kind, model, report[kind][model]


def test_the_tuned_tower_computes_what_the_untuned_one_computes(case):
    kind, _, found = case
    least = 1e-6 if kind in ("plain", "int8", "lora") else 0.0
    assert found["error"] <= max(least, 1.5 * found["rounding"])
    assert found["spread"] > 0.1


def test_weights_are_left_alone_with_a_reason(case):
    kind, model, found = case
    reason, layer = KINDS[kind]
    assert layer in found["layers"]
    assert found["weights_kept"]
    assert found["restored"]
    for name in OF_WEIGHTS:
        assert name not in found["applied"]
        if name in EXPECTED[model]:
            assert found["refused"][name] == [reason]


def test_what_reads_no_weights_is_tuned(case):
    kind, model, found = case
    rest = {name: count for name, count in EXPECTED[model].items() if name not in OF_WEIGHTS}
    if "fp8-inputs" in found["applied"]:
        assert kind in ("fp8", "fp8-rows")
        rest["fp8-inputs"] = found["applied"]["fp8-inputs"]
    assert found["applied"] == rest


def test_one_kernel_converts_the_inputs_of_fp8_layers(case):
    kind, model, found = case
    before, after = found["conversions"]
    if kind == "fp8-rows":
        blocks = EXPECTED[model]["fused-residuals"]
        assert before >= 4 * blocks
        assert after == 0
        assert found["applied"]["fp8-inputs"] == before + blocks
    elif kind != "fp8":
        assert before == 0
        assert "fp8-inputs" not in found["applied"]
        assert "fp8-inputs" not in found["refused"]


@pytest.mark.parametrize("model", FIVE)
def test_the_adapters_were_active(report, model):
    assert report["lora"][model]["adapter_matters"] > 0.05
