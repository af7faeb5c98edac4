"""A profile's analysis, on what torch's profiler wrote on an H200: two blocks of Qwen2.5-VL at 96 tokens."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("libcst")  # the proof stage around the package

from scaffold.measure.analyse import analyse, classify, product_size
from scaffold.measure.profiles import AttentionCall, Ceilings, KernelClass, KernelRecord, Recording, pattern_of
from scaffold.measure.report import to_markdown
from scaffold.measure.trace import read_trace

TRACE = Path(__file__).parent / "data" / "qwen2_5_vl_2_blocks_h200.json.gz"
#: Round numbers: 1 ms is 1e12 operations or 4e9 bytes.
CEILINGS = Ceilings(1000.0, 4.0)


@pytest.fixture(scope="module")
def events():
    return json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]


@pytest.fixture(scope="module")
def recording(events):
    calls = tuple(AttentionCall(f"visual.blocks.{i}.attn.attn", (64,) * 6, 16, 80) for i in (0, 1))
    return Recording("qwen2_5_vl", "336x224", 96, CEILINGS, read_trace(events), calls, 0.5, {"vllm": "0.33.0"})


def test_every_kernel_finds_its_operator_and_module(events, recording):
    kernels = [e for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert len(recording.kernels) == len(kernels)
    assert all(k.us > 0 for k in recording.kernels)
    without = [k.name for k in recording.kernels if not k.module]
    assert without == []
    places = {pattern_of(k.module) for k in recording.kernels}
    assert {"visual.blocks.*.norm1", "visual.blocks.*.mlp.down_proj", "visual.blocks.*.attn.attn", "visual.merger.ln_q",
            "visual.blocks.*.mlp.act_fn", "visual.blocks.*.attn.apply_rotary_emb"} <= places  # fmt: skip


def test_kernels_fall_into_their_classes(recording):
    found = {}
    for kernel in recording.kernels:
        found.setdefault(classify(kernel), []).append(kernel)
    # qkv, proj, gate_up and down of two blocks, the patch embedding, two of the merger
    assert len(found[KernelClass.PRODUCT]) == 2 * 4 + 3
    assert {k.module_class for k in found[KernelClass.NORM]} == {"RMSNorm"}
    assert len([k for k in found[KernelClass.ATTENTION] if "Flash" in k.name]) == 2
    assert len([k for k in found[KernelClass.ROTARY] if k.name == "rotary_kernel"]) == 2
    assert sum(map(len, found.values())) == len(recording.kernels)


def test_sizes_of_products_are_read_from_the_arguments(recording):
    sizes = {product_size(k)[1:] for k in recording.kernels if classify(k) is KernelClass.PRODUCT}
    assert sizes == {(3840, 1280), (1280, 1280), (6840, 1280), (1280, 3420), (1280, 1176), (5120, 5120), (3584, 5120)}


def test_totals_are_the_kernels_and_the_floor_is_operations_over_the_rate(recording):
    profile = analyse(recording)
    assert profile.kernel_ms == pytest.approx(sum(k.us for k in recording.kernels) / 1e3)
    products = next(t for t in profile.totals if t.kind is KernelClass.PRODUCT)
    rows = 16 * 24
    blocks = 2 * (1280 * 3840 + 1280 * 1280 + 1280 * 6840 + 3420 * 1280)
    operations = 2 * (rows * (blocks + 1176 * 1280) + rows // 4 * (5120 * 5120 + 5120 * 3584))
    # Small products are bound by the bytes of their weights, so the floor lies above the operations alone.
    assert products.floor_ms > operations / (CEILINGS.tflops * 1e9)
    quick = analyse(replace(recording, ceilings=Ceilings(1000.0, 1e9)))
    exact = next(t for t in quick.totals if t.kind is KernelClass.PRODUCT).floor_ms
    assert exact == pytest.approx(operations / (CEILINGS.tflops * 1e9))
    attention = next(t for t in profile.totals if t.kind is KernelClass.ATTENTION)
    assert attention.floor_ms == pytest.approx(2 * 4 * 16 * 80 * 2 * 384 / (CEILINGS.tbytes * 1e9))
    assert profile.floor_ms == pytest.approx(products.floor_ms + attention.floor_ms)


def test_findings_name_the_cause_and_its_module(recording):
    found = {(f.what, f.module): f for f in analyse(recording).findings}
    down = found["misaligned product", "visual.blocks.*.mlp.down_proj"]
    assert "inner size 3420 is not a multiple of 8" in down.detail
    assert "pad-mlp" in down.remedy
    assert 0 < down.gain_ms < down.ms
    norm = found["unfused norm", "visual.blocks.*.norm1"]
    assert norm.detail == "8 kernels a call"
    assert 0 < norm.gain_ms < norm.ms
    assert found["copy", "visual.blocks.*.attn"].remedy == "strided views in place (`inplace-rotary`)"
    assert ("short sequences", "visual.blocks.*.attn.attn") in found
    gains = [f.gain_ms for f in analyse(recording).findings]
    assert gains == sorted(gains, reverse=True)
    assert not any("gate_up" in module for what, module in found if what == "misaligned product")


def test_long_sequences_are_no_finding(recording):
    long = tuple(replace(call, lengths=(384,)) for call in recording.attention)
    assert not [f for f in analyse(replace(recording, attention=long)).findings if f.what == "short sequences"]


@pytest.mark.parametrize(
    ("name", "op", "module_class", "kind"),
    [
        ("nvjet_tst_128x256", "aten::addmm", "", KernelClass.PRODUCT),
        ("void at::native::vectorized_elementwise_kernel<4, bfloat16tofloat32_copy_kernel", "aten::copy_", "", "cast"),
        ("void at::native::elementwise_kernel<direct_copy_kernel_cuda", "aten::copy_", "", "copy"),
        ("void at::native::elementwise_kernel<direct_copy_kernel_cuda", "aten::copy_", "RMSNorm", "norm"),
        ("vectorized_layer_norm_kernel", "aten::native_layer_norm", "", "norm"),
        ("triton_poi_fused_mul_silu_0", "", "SiluAndMul", "activation"),
        ("void at::native::vectorized_elementwise_kernel<CUDAFunctor_add", "aten::add", "", "element-wise"),
        ("Memset (Device)", "aten::addmm", "RowParallelLinear", "copy"),
        ("norm_kernel", "", "Qwen2VisionAttention", "norm"),
        ("window_attention_kernel", "", "", "attention"),
        ("sm90_xmma_fprop_implicit_gemm_bf16", "aten::cudnn_convolution", "", "matrix product"),
        ("something_new", "", "", "other"),
    ],
)
def test_classes_by_name(name, op, module_class, kind):
    assert classify(KernelRecord(name, 1.0, op, module_class=module_class)).value == KernelClass(kind).value


def test_a_convolution_has_the_size_of_its_product():
    shapes = ((2, 8, 4, 4), (16, 8, 2, 2))
    record = KernelRecord("implicit", 1.0, "aten::cudnn_convolution", shapes)
    assert product_size(record) == (2 * 8 * 16 // 32, 16, 32)
    assert product_size(KernelRecord("k", 1.0, "aten::bmm", ((3, 4, 5), (3, 5, 6)))) == (12, 6, 5)
    assert product_size(KernelRecord("k", 1.0, "aten::linear", ((7, 5), (6, 5), (6,)))) == (7, 6, 5)
    assert product_size(KernelRecord("k", 1.0, "aten::add", ((7, 5),))) is None


def test_the_report_has_every_class_and_finding(recording):
    profile = analyse(recording)
    text = to_markdown([profile])
    for total in profile.totals:
        assert f"| {total.kind.value} | {total.ms:.2f} |" in text
    assert "`visual.blocks.*.mlp.down_proj`" in text
    assert "1000 TFLOP/s" in text
    assert f"floor {profile.floor_ms:.2f} ms" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    columns = {line.count("|") for line in lines}
    assert columns == {6, 7}


def test_a_recording_survives_json(recording):
    assert Recording.from_json(json.loads(json.dumps(recording.to_json()))) == recording


def test_a_trace_without_kernels_is_refused(events):
    with pytest.raises(ValueError, match="without a GPU"):
        read_trace([e for e in events if e["cat"] == "cpu_op"])


def test_events_without_a_length_are_left_out(events):
    assert read_trace([*events, {"ph": "M", "name": "process_name"}, {"cat": "cpu_op", "ts": 1}]) == read_trace(events)


def test_an_empty_profile_is_reported():
    kernels = (KernelRecord("nvjet", 10.0, "aten::mm", ((128, 128), (128, 128)), module="a", call=0),)
    profile = analyse(Recording("x", "", 1, CEILINGS, kernels))
    assert profile.findings == ()
    assert "Nothing to gain was found." in to_markdown([profile])


def test_fused_norms_of_a_block_are_not_an_unfused_norm():
    kernels = [KernelRecord("norm_kernel", 10.0, module="visual", module_class="Tower", call=0) for _ in range(8)]
    profile = analyse(Recording("x", "", 1, CEILINGS, tuple(kernels)))
    assert [t.kind for t in profile.totals] == [KernelClass.NORM]
    assert profile.findings == ()


@pytest.mark.parametrize(
    ("op", "module_class", "remedy"),
    [
        ("aten::addmm", "RowParallelLinear", "none: workspace"),
        ("aten::fill_", "MMEncoderAttention", "none while padded rows"),
        ("aten::cat", "Qwen2VisionAttention", "inplace-rotary"),
        ("aten::conv2d/aten::copy_", "Conv2dLayer", "channels-last"),
        ("aten::index", "Tower", "avoid it"),
    ],
)
def test_remedies_of_copies(op, module_class, remedy):
    kernels = (KernelRecord("copy", 100.0, op, module="a.0.b", module_class=module_class, call=0),)
    (found,) = analyse(Recording("x", "", 1, CEILINGS, kernels)).findings
    assert remedy in found.remedy
    assert found.module == "a.*.b"
