"""What follows from a descriptor: bounds of sequences, metadata, paths, and the numbers of real models."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from descriptor_documents import PACKED, PATHS, TILES

from scaffold.descriptor import (
    CutPort,
    PackedPort,
    PathsPort,
    Port,
    RowsPort,
    SizedPort,
    TilesPort,
    load_descriptor,
    load_descriptor_text,
)
from scaffold.descriptor.expressions import Expression
from scaffold.descriptor.port import property_of
from scaffold.descriptor.sections import Helper


def port_of(text: str, old: str = "", new: str = "") -> Any:
    assert old in text
    return load_descriptor_text(text.replace(old, new, 1) if old else text, "model.yaml")


def value(port: Port, expression: Expression, **values: object) -> object:
    """The value of an expression as generated code computes it, with `let` names and helpers resolved."""
    lets = dict(port.lets)
    values |= {name: value(port, lets[name], **values) for name in expression.names & lets.keys() - values.keys()}
    known = port.helpers.items() if isinstance(port, PathsPort) else ()

    def call(helper: Helper, *args: object) -> object:
        return value(port, helper.value, **{**values, **dict(zip(helper.args, args, strict=True))})

    helpers = {name: partial(call, helper) for name, helper in known}
    return eval(expression.python(), {"cdiv": lambda a, b: -(-a // b), **helpers, **values})


def test_tiles() -> None:
    port = port_of(TILES)
    assert isinstance(port, TilesPort)
    assert (port.name, port.module, port.class_name) == ("model", "vllm.model_executor.models.tiled", "TiledModel")
    assert [(modality.name, modality.pixels, modality.sizes, modality.embeds) for modality in port.inputs] == [
        ("image", "pixel_values_flat", "image_num_patches", "image_embeds"),
        ("video", "pixel_values_flat_video", "video_num_patches", None),
    ]
    assert (port.has_video, port.embeds, port.flashinfer) == (True, "image_embeds", False)
    assert port.switches == ("self.vision_model.use_data_parallel",)
    [test] = port.tests
    assert (test.template.name, test.num_video_frames, test.skip) == ("tiled_chat_template", 8, False)
    assert (port.docs_models, port.examples) == (("Tiled",), ("tiled_chat",))


def test_a_layout_has_the_sections_that_its_templates_read() -> None:
    shared = {"schema", "model", "layout", "modalities", "let", "processor", "gates", "output", "integration", "verify"}
    assert shared == Port.by_key.keys()
    assert CutPort.by_key.keys() - shared == {"fields", "item", "pixels", "forward", "explicit"}
    assert RowsPort.by_key.keys() - shared == {"fields", "item", "forward", "explicit"}
    shared.add("sizes")
    assert shared == SizedPort.by_key.keys()
    assert TilesPort.by_key.keys() - shared == {"item", "pixels", "capture", "budget", "forward", "data_parallel"}
    assert PathsPort.by_key.keys() - shared == {"helpers", "paths", "forward", "post", "data_parallel"}
    assert PackedPort.by_key.keys() - shared == {
        "item", "pixels", "attention", "capture", "buffers", "budget", "forward", "eager", "post", "tower",
    }  # fmt: skip


def test_metadata_of_a_packed_port() -> None:
    port = port_of(PACKED)
    assert isinstance(port, PackedPort)
    assert port.metadata == (
        "rotary_cos", "window_index", "cu_seqlens", "cu_window", "max_seqlen", "sequence_lengths",
    )  # fmt: skip
    assert port.lengths == {"sequence_lengths"}


def test_flashinfer_needs_lengths() -> None:
    assert port_of(PACKED).flashinfer
    assert not port_of(PACKED, ", lengths: sequence_lengths", "").flashinfer


def test_bounds_of_sequences() -> None:
    port = port_of(PACKED)
    full, window = port.sequences
    assert (full.count.python(), full.longest.python()) == ("max(B, min(F, b))", "b * m ** 2")
    assert value(port, window.count, b=64, B=2, F=9, m=2, window=8) == 2 + 8
    assert port_of(PACKED, "unit: frame", "unit: item").sequences[0].count.python() == "B"


def test_merge_is_derived_or_given() -> None:
    assert [side.python() for side in port_of(PACKED).merge] == ["m", "m"]
    given = port_of(PACKED, "tokens: t * (h // m) * (w // m)", "tokens: t * h * w // (2 * m), merge: [2, m]")
    assert [side.python() for side in given.merge] == ["2", "m"]
    assert given.sequences[0].longest.python() == "b * 2 * m"


def test_packed_calls_and_split() -> None:
    port = port_of(PACKED)
    assert port.eager.call.python({"pixels": "x", "sizes": "grid"}) == "self.visual(x, grid)"
    assert (port.tower, port.split.entry, port.split.data, port.split.metadata, port.split.grid) == (
        "visual", "forward", "x", ("grid_thw",), "list",
    )  # fmt: skip
    assert port.gate.python() == "not self.pruning"
    assert port.frames_info == "get_num_frames"
    assert port_of(PACKED, "{info: get_num_frames}", "32").frames_info is None
    assert port.counts_frames


def test_paths() -> None:
    port = port_of(PATHS)
    assert isinstance(port, PathsPort)
    assert (port.single.name, port.many.name) == ("global", "local")
    assert [path.name for path in port.assembled] == ["local", "global"]
    [modality] = port.inputs
    assert (modality.name, modality.pixels, modality.sizes) == ("image", "pixel_values", "num_patches")
    assert port.model.optout == ("OtherModel",)


def test_ports_are_equal_by_what_they_say() -> None:
    assert port_of(TILES) == port_of("# a comment\n" + TILES)
    assert port_of(TILES) != port_of(TILES, "n * k", "n * k + 1")


# --- numbers of the shipped descriptors -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_grids_of_the_qwen_family(name: str) -> None:
    """A 224 x 224 image with patches of 14 is a grid of 16 x 16: 256 rows, 64 tokens (merge size 2)."""
    port = load_descriptor(name)
    assert isinstance(port, PackedPort)
    patch_embed = SimpleNamespace(proj=SimpleNamespace(in_channels=3), temporal_patch_size=2, patch_size=14)
    model = SimpleNamespace(
        visual=SimpleNamespace(spatial_merge_size=2, patch_embed=patch_embed, patch_size=14, window_size=112)
    )
    grid = {"self": model, "t": 1, "h": 16, "w": 16}
    assert (value(port, port.item.rows, **grid), value(port, port.item.tokens, **grid)) == (256, 64)
    assert [value(port, size, self=model) for size in port.pixels.shape] == [3 * 2 * 14 * 14]
    full = port.sequences[0]
    assert value(port, full.longest, self=model, b=64) == 256
    # A small budget is not inflated by the number of frames that a video may have.
    assert value(port, full.count, b=64, B=8, F=4096, self=model) == 64
    if name == "qwen2_5_vl":
        window = port.sequences[1]
        assert value(port, window.longest, self=model) == 64
        assert value(port, window.count, self=model, b=64, B=1, F=14) == 14 + 16


def test_tokens_of_step3() -> None:
    """Two strided convolutions over the patches of a square image; the processor's sides are 728 and 504."""
    port = load_descriptor("step3_vl")
    config = SimpleNamespace(
        vision_config=SimpleNamespace(image_size=728, patch_size=14), understand_projector_stride=2
    )
    assert isinstance(port, PathsPort)
    assert port.processor is not None
    assert (port.processor_module, port.processor.values) == (
        "vllm.transformers_utils.processors.step3_vl",
        {"tile_side": "patch_size"},
    )
    model = SimpleNamespace(config=config, **{property_of("tile_side"): 504})

    def tokens(size: int) -> int:
        side = math.isqrt((size // 14) ** 2)
        return (((side - 2) // 2 + 1 - 1) // 2 + 1) ** 2

    assert value(port, port.single.tokens, self=model) == tokens(728) == 169
    assert value(port, port.many.tokens, self=model) == tokens(504) == 81
    assert [value(port, path.rows, self=model) for path in (port.single, port.many)] == [52**2, 36**2]


def test_tiles_of_internvl() -> None:
    port = load_descriptor("internvl")
    model = SimpleNamespace(num_image_token=256)
    assert isinstance(port, TilesPort)
    assert value(port, port.capture.rows, self=model, b=1000) == 3
    assert value(port, port.item.tokens, self=model, n=13) == 3328
