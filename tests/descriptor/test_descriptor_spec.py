"""What is derived from descriptors: defaults of kinds, bounds of sequences, paths, and the numbers of real models."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from descriptor_documents import AXES, PACKED, PATHS, TILES

from scaffold.descriptor import AdapterSpec, build_spec, load_descriptor, load_descriptor_text
from scaffold.descriptor.expressions import Expression


def spec_of(text: str, old: str = "", new: str = "") -> AdapterSpec:
    assert old in text
    return build_spec(load_descriptor_text(text.replace(old, new, 1) if old else text, "model.yaml"))


def value(spec: AdapterSpec, expression: Expression, **values: object) -> object:
    """The value of an expression, with `let` names and helpers resolved."""
    for name, let in spec.lets_for(expression):
        if name not in values:
            values[name] = let.evaluate(values)
    helpers = {
        helper.name: lambda *args, helper=helper: helper.value.evaluate(
            {**values, **dict(zip(helper.args, args, strict=True))}
        )
        for helper in spec.helpers
    }
    return expression.evaluate(values, helpers)


def test_tiles() -> None:
    spec = spec_of(TILES)
    assert (spec.name, spec.module, spec.class_name, spec.tower) == (
        "model", "vllm.model_executor.models.tiled", "TiledModel", "vision_model",
    )  # fmt: skip
    assert [(modality.name, modality.inputs) for modality in spec.modalities] == [
        ("image", ("pixel_values_flat", "image_num_patches", "image_embeds")),
        ("video", ("pixel_values_flat_video", "video_num_patches")),
    ]
    assert spec.has_video
    assert [(buffer.name, buffer.kind, buffer.source) for buffer in spec.buffers] == [
        ("pixel_values_flat", "rows", "pixels")
    ]
    assert (spec.eager, spec.metadata, spec.split, spec.paths) == (spec.forward, None, None, ())
    assert spec.data_parallel_switches == ("self.vision_model.use_data_parallel",)
    [test] = spec.tests
    assert (test.modalities, test.template_name, test.num_video_frames, test.skip) == (
        ("image", "video"), "tiled_chat_template", 8, False,
    )  # fmt: skip
    assert (spec.docs_models, spec.examples) == (("Tiled",), ("tiled_chat",))


@pytest.mark.parametrize(
    ("name", "kind", "pad", "residency", "capture", "source", "sections"),
    [
        ("pixel_values", "rows", "zero", "device", "grid", "pixels", False),
        ("rotary_cos", "rows", "zero", "device", "grid", "metadata", False),
        ("window_index", "permutation", "zero", "device", "grid", "metadata", False),
        ("cu_seqlens", "cumulative", "repeat_last", "device", "grid", "metadata", True),
        ("cu_window", "cumulative", "repeat_last", "device", "grid", "metadata", True),
        ("max_seqlen", "host_bound", "scalar", "host", "bound", "metadata", False),
        ("sequence_lengths", "lengths", "zero", "device", "grid", "metadata", False),
    ],
)
def test_the_kind_completes_a_buffer(
    name: str, kind: str, pad: str, residency: str, capture: str, source: str, sections: bool
) -> None:
    buffer = spec_of(PACKED).buffer(name)
    assert (buffer.kind, buffer.pad.rule, buffer.residency, buffer.capture) == (kind, pad, residency, capture)
    assert (buffer.source, buffer.flashinfer_sections) == (source, sections)


def test_order_of_buffers() -> None:
    assert [buffer.name for buffer in spec_of(PACKED).buffers] == [
        "pixel_values", "rotary_cos", "window_index", "cu_seqlens", "cu_window", "max_seqlen", "sequence_lengths",
    ]  # fmt: skip


def test_a_buffer_of_attention_can_be_refined() -> None:
    spec = spec_of(
        PACKED,
        "  rotary_cos: {kind: rows}",
        "  cu_seqlens: {kind: cumulative, pad: rows_total}\n  max_seqlen: {kind: host_bound, capture: b * 16}",
    )
    assert spec.buffer("cu_seqlens").pad.rule == "rows_total"
    bound = spec.buffer("max_seqlen").capture_value
    assert bound is not None
    assert bound.python() == "b * 16"
    assert [buffer.name for buffer in spec.buffers].count("cu_seqlens") == 1


def test_sections_need_flashinfer() -> None:
    spec = spec_of(PACKED, "[FLASH_ATTN, FLASHINFER]", "[FLASH_ATTN]")
    assert not spec.buffer("cu_seqlens").flashinfer_sections


def test_bounds_of_sequences() -> None:
    spec = spec_of(PACKED)
    full, window = spec.attention.sequences
    assert (full.count.python(), full.longest.python()) == ("max(B, min(F, b))", "b * m ** 2")
    bound = spec.buffer("max_seqlen").capture_value
    assert bound == full.longest
    assert value(spec, window.count, b=64, B=2, F=9, m=2, window=8) == 2 + 8
    item = spec_of(PACKED, "unit: frame", "unit: item").attention.sequences[0]
    assert item.count.python() == "B"


def test_merge_is_derived_or_given() -> None:
    merge = spec_of(PACKED).item.merge
    assert merge is not None
    assert [side.python() for side in merge] == ["m", "m"]
    given = spec_of(PACKED, "tokens: t * (h // m) * (w // m)", "tokens: t * h * w // (2 * m), merge: [2, m]").item.merge
    assert given is not None
    assert [side.python() for side in given] == ["2", "m"]
    sequences = spec_of(
        PACKED, "tokens: t * (h // m) * (w // m)", "tokens: t * h * w // (2 * m), merge: [2, m]"
    ).attention.sequences
    assert sequences[0].longest.python() == "b * 2 * m"


def test_packed_calls_and_split() -> None:
    spec = spec_of(PACKED)
    assert spec.forward.call is not None
    assert spec.eager.call is not None
    assert spec.eager.call.python({"pixels": "x", "sizes": "grid"}) == "self.visual(x, grid)"
    assert spec.split is not None
    assert (spec.split.entry, spec.split.data, spec.split.metadata) == ("forward", "x", ("grid_thw",))
    assert spec.gate is not None
    assert spec.gate.python() == "not self.pruning"
    assert (spec.budget.frames_info, spec.budget.frames) == ("get_num_frames", None)
    assert [requirement.message for requirement in spec.requires] == ["images are switched off"]


def test_paths() -> None:
    spec = spec_of(PATHS)
    whole, local = spec.paths
    assert (whole.one_per_item, local.one_per_item) == (True, False)
    assert (whole.capture.python(), local.capture.python()) == ("min(B, b // unit(728))", "b // unit(504)")
    assert spec.item.tokens.python({"unit": "self._unit"}) == "self._unit(728) + n * self._unit(504)"
    assert spec.item.rows.python() == "1 + n"
    assert spec.budget.min.python() == "unit(728)"
    assert [part.path for part in spec.assemble] == ["local", "global"]
    assert [buffer.name for buffer in spec.buffers] == ["pixel_values", "patch_pixel_values"]
    assert spec.optout == ("OtherModel",)


def test_parts_with_newlines() -> None:
    spec = spec_of(
        PATHS,
        "[local, global]",
        "[{path: local, grid: [n, n], newline: self.newline}, global, {token: self.separator}]",
    )
    grid, whole, token = spec.assemble
    assert grid.grid is not None
    assert (grid.path, grid.newline, whole.path, token.token) == ("local", "self.newline", "global", "self.separator")


def test_axes_and_hooks() -> None:
    spec = spec_of(AXES)
    [axis] = spec.axes
    assert (axis.name, axis.keys) == ("grid", ([32, 32], [32, 64]))
    assert [(hook.name, hook.catalogue) for hook in spec.hooks] == [
        ("axis_resolve", "H9"), ("axis_capture", "H9"), ("replay", "H8"),
    ]  # fmt: skip
    mask = spec.buffer("attention_mask")
    assert (mask.pad.rule, mask.pad.value, mask.capture, mask.source) == ("fill", 1, "ones", "hook")
    assert spec.hook("select") is None


def test_let_names_that_an_expression_needs() -> None:
    spec = spec_of(PACKED)
    window = spec.attention.sequences[1]
    assert [name for name, _ in spec.lets_for(window.longest)] == ["m", "window"]
    assert [name for name, _ in spec.lets_for(spec.item.tokens, None)] == ["m"]
    assert spec.inline(window.longest).python() == "(self.visual.window_size // self.visual.merge) ** 2"
    paths = spec_of(PATHS)
    assert [name for name, _ in paths.lets_for(paths.paths[0].tokens)] == ["patch"]


def test_spec_is_hashable_by_identity_only_where_it_holds_mappings() -> None:
    spec = spec_of(TILES)
    assert spec == spec_of(TILES)
    assert hash(spec.item) == hash(spec_of(TILES).item)


# --- numbers of the shipped descriptors -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_grids_of_the_qwen_family(name: str) -> None:
    """A 224 x 224 image with patches of 14 is a grid of 16 x 16: 256 rows, 64 tokens (merge size 2)."""
    spec = build_spec(load_descriptor(name))
    patch_embed = SimpleNamespace(proj=SimpleNamespace(in_channels=3), temporal_patch_size=2, patch_size=14)
    model = SimpleNamespace(
        visual=SimpleNamespace(spatial_merge_size=2, patch_embed=patch_embed, patch_size=14, window_size=112)
    )
    grid = {"self": model, "t": 1, "h": 16, "w": 16}
    assert (value(spec, spec.item.rows, **grid), value(spec, spec.item.tokens, **grid)) == (256, 64)
    assert spec.pixels is not None
    assert [value(spec, size, self=model) for size in spec.pixels.shape] == [3 * 2 * 14 * 14]
    full = spec.attention.sequences[0]
    assert value(spec, full.longest, self=model, b=64) == 256
    # A small budget is not inflated by the number of frames that a video may have.
    assert value(spec, full.count, b=64, B=8, F=4096, self=model) == 64
    if name == "qwen2_5_vl":
        window = spec.attention.sequences[1]
        assert value(spec, window.longest, self=model) == 64
        assert value(spec, window.count, self=model, b=64, B=1, F=14) == 14 + 16


def test_tokens_of_step3() -> None:
    """Two strided convolutions over the patches of a square image; the processor's sides are 728 and 504."""
    spec = build_spec(load_descriptor("step3_vl"))
    config = SimpleNamespace(
        vision_config=SimpleNamespace(image_size=728, patch_size=14), understand_projector_stride=2
    )
    assert spec.processor is not None
    assert (spec.processor.module, spec.processor.values) == (
        "vllm.transformers_utils.processors.step3_vl",
        (("tile", "patch_size"),),
    )
    model = SimpleNamespace(config=config, **{spec.processor.property_of("tile"): 504})

    def tokens(size: int) -> int:
        side = math.isqrt((size // 14) ** 2)
        return (((side - 2) // 2 + 1 - 1) // 2 + 1) ** 2

    assert value(spec, spec.item.tokens, self=model, n=3) == tokens(728) + 3 * tokens(504) == 169 + 3 * 81
    assert value(spec, spec.item.rows, self=model, n=3) == 52**2 + 3 * 36**2
    whole, local = spec.paths
    assert value(spec, whole.capture, self=model, b=500, B=8, F=1) == 2
    assert value(spec, whole.capture, self=model, b=5000, B=8, F=1) == 8
    assert value(spec, local.capture, self=model, b=500, B=8, F=1) == 6


def test_tiles_of_internvl() -> None:
    spec = build_spec(load_descriptor("internvl"))
    model = SimpleNamespace(num_image_token=256)
    assert spec.capture.rows is not None
    assert value(spec, spec.capture.rows, self=model, b=1000) == 3
    assert value(spec, spec.item.tokens, self=model, n=13) == 3328
