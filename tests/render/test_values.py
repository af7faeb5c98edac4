"""What the generated methods compute, on encoders of a few lines: a wrong line of a template fails here within seconds.

No port is proven by that: the lab does, with vLLM's own classes. A call goes the way that a manager takes it, through
buffers that a graph keeps, and its embeddings must be those of the model's own code.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import indent
from types import SimpleNamespace as Struct
from typing import Any

import pytest
from test_methods import FACTS, render

from scaffold.cut import Extraction
from scaffold.plan.views import TreeFacts

torch = pytest.importorskip("torch", reason="needs the `cpu` extra")

GENERATION = "v0_30"
HIDDEN = 2


@dataclass
class Item:
    """What the protocol's `EncoderItemSpec` keeps."""

    input_size: int
    output_tokens: int
    path_output_tokens: dict[str, int] = field(default_factory=dict)


class Protocol:
    """What the protocol's class does where a port has no method of its own."""

    def postprocess_encoder_output(self, outputs, indices, per_item_out_tokens, dest, clone, batch_mm_kwargs):
        lengths = [per_item_out_tokens[index] for index in indices]
        for index, rows in zip(indices, outputs["default"][: sum(lengths)].split(lengths), strict=True):
            dest[index] = rows.clone() if clone else rows


def record(**values: Any) -> Struct:
    return Struct(**values)


#: The names of vLLM that generated code reads.
NAMES: dict[str, Any] = {
    "torch": torch,
    "VllmConfig": object,
    "MultiModalEmbeddings": list,
    "EncoderItemSpec": Item,
    "EncoderCudaGraphConfig": record,
    "EncoderCudaGraphCaptureInputs": record,
    "EncoderCudaGraphReplayBuffers": record,
    "SupportsEncoderCudaGraph": Protocol,
    "AttentionBackendEnum": Struct(FLASHINFER="flashinfer"),
    "cdiv": lambda a, b: -(-a // b),
    "init_logger": lambda name: Struct(warning=lambda text, error: pytest.fail(text % error)),
}


def executed(source: str, **given: Any) -> dict[str, Any]:
    """A module's names, with those above in place of its imports from vLLM."""
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("vllm"))
    ]
    names = {**given, **NAMES, "__name__": "generated"}
    exec(compile(tree, "generated", "exec"), names)
    return names


def made(model: str, owner: type, facts: TreeFacts = FACTS["unknown"]) -> Any:
    """An instance of `owner`, which says what a model has, with the methods of a shipped port."""
    methods = render(model, GENERATION, facts)
    imports = "".join(f"from {module} import {name}\n" for module, name in methods.imports)
    mixin = [methods.mixin.class_name] if methods.mixin else []
    head = f"class Port({', '.join([*mixin, 'Owner', 'SupportsEncoderCudaGraph'])}):\n"
    brought = executed(methods.mixin.source) if methods.mixin else {}
    names = executed(imports + head + indent(methods.source, "    "), **brought, Owner=owner)
    return names["Port"]()


def embedded(model: Any, mm_kwargs: dict[str, Any], budget: int, *, batch: int = 4, frames: int = 0) -> list[Any]:
    """The embeddings of a batch by way of a graph's buffers, in which all that a batch does not fill is foreign."""
    config = model.get_encoder_cudagraph_config()
    specs = model.get_encoder_cudagraph_item_specs(mm_kwargs)
    tokens = [spec.path_output_tokens.get("default", spec.output_tokens) for spec in specs]
    assert 0 < sum(tokens) <= budget
    kept = model.prepare_encoder_cudagraph_capture_inputs(
        budget, batch, frames, torch.device("cpu"), torch.float
    ).values
    given = model.prepare_encoder_cudagraph_replay_buffers(mm_kwargs, batch, frames).values
    pads = getattr(config, "padding_logics", {})
    for key, source in given.items():
        if not isinstance(kept[key], torch.Tensor) or source.ndim == 0:
            continue  # read on the host when the graph was captured
        assert len(source) <= len(kept[key]), key
        if key in pads:
            pads[key](kept[key], source)
        else:
            kept[key][: len(source)] = source
            kept[key][len(source) :] = 7
    output = model.encoder_cudagraph_forward(kept)
    found: dict[int, Any] = {}
    model.postprocess_encoder_output(
        {"default": output}, [*range(len(specs))], [spec.output_tokens for spec in specs], found, True, mm_kwargs
    )
    return [found[index] for index in range(len(specs))]


def agree(found: list[Any], wanted: list[Any]) -> None:
    assert [list(item.shape) for item in found] == [list(item.shape) for item in wanted]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def selections(model: Any, mm_kwargs: dict[str, Any], wanted: list[Any], budget: int) -> None:
    """Some items of a batch, in another order, give their own embeddings; no item gives none."""
    for indices in ([1], [2, 0], [0, 1, 2]):
        some = model.select_encoder_cudagraph_items(mm_kwargs, indices)
        agree(embedded(model, some, budget), [wanted[index] for index in indices])
    assert model.get_encoder_cudagraph_item_specs(model.select_encoder_cudagraph_items(mm_kwargs, [])) == []


# --- packed grids ----------------------------------------------------------------------------------------------------


class Visual:
    """Attention that takes the mean of a sequence, and leaves what is in none unwritten; then a merge of m x m."""

    spatial_merge_size, window_size, patch_size, out_hidden_size, attn_backend = 2, 8, 2, HIDDEN, "fa"
    patch_embed = Struct(proj=Struct(in_channels=1), temporal_patch_size=1, patch_size=1)

    def prepare_encoder_metadata(
        self,
        grid_thw,
        *,
        max_batch_size=None,
        max_frames_per_batch=None,
        max_seqlen_override=None,
        max_window_seqs_per_batch=None,
        max_seqlen_window_override=None,
        device=None,
    ):
        rows = [h * w for t, h, w in grid_thw for _ in range(t)]
        windows = [min(16, n - start) for n in rows for start in range(0, n, 16)]

        def offsets(lengths, capacity):
            found = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
            spare = (capacity or len(lengths)) - len(lengths)
            return torch.cat([found, found[-1:].expand(spare)])

        return {
            "cu_seqlens": offsets(rows, max_frames_per_batch),
            "cu_window_seqlens": offsets(windows, max_window_seqs_per_batch),
            "max_seqlen_full": torch.tensor(max_seqlen_override or max(rows)),
            "max_seqlen_window": torch.tensor(max_seqlen_window_override or 16),
        }

    def __call__(self, pixels, grid_thw, *, encoder_metadata=None):
        metadata = encoder_metadata or self.prepare_encoder_metadata(grid_thw)
        x = pixels.expand(-1, HIDDEN)
        for kind in ("window_seqlens", "seqlens"):
            offsets = metadata[f"cu_{kind}"]
            limit = metadata["max_seqlen_window" if kind.startswith("window") else "max_seqlen_full"]
            attended = torch.full_like(x, torch.nan)
            for start, end in pairwise(offsets):
                assert start <= end <= start + limit
                attended[start:end] = x[start:end] - x[start:end].mean(0)
            x = x + attended
        return x.view(-1, 4, HIDDEN).sum(1)


class Packed:
    """Qwen2.5-VL, as far as its port reads it."""

    is_multimodal_pruning_enabled, use_data_parallel = False, False
    visual = Visual()
    multimodal_config = Struct(get_limit_per_prompt=lambda modality: 1)
    model_config = Struct(max_model_len=100)

    def parameters(self):
        return iter([torch.zeros(1)])

    def embed_multimodal(self, **inputs):
        return inputs["image_embeds"].split([t * h * w // 4 for t, h, w in inputs["image_grid_thw"].tolist()])


GRIDS = [[1, 4, 6], [1, 2, 2], [2, 4, 2]]


def packed_batch(kind: str = "") -> dict[str, Any]:
    rows = sum(t * h * w for t, h, w in GRIDS)
    pixels = torch.arange(rows, dtype=torch.float).sin()[:, None]
    if kind == "video":
        return {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor(GRIDS)}
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor(GRIDS)}


def packed_result(model: Any, batch: dict[str, Any]) -> list[Any]:
    [pixels] = [value for key, value in batch.items() if key.startswith("pixel")]
    return [*model.visual(pixels, GRIDS).split([t * h * w // 4 for t, h, w in GRIDS])]


@pytest.mark.parametrize(
    ("kind", "budget"),
    [*(("image", budget) for budget in (11, 12, 19, 64)), *(("video", budget) for budget in (32, 33, 64))],
)
def test_packed_grids(kind: str, budget: int) -> None:
    model, batch = made("qwen2_5_vl", Packed), packed_batch(kind)
    wanted = packed_result(model, batch)

    agree(embedded(model, batch, budget, frames=budget), wanted)
    selections(model, batch, wanted, budget)
    agree([model.encoder_eager_forward(batch)], [torch.cat(wanted)])


def test_packed_grids_are_what_the_config_and_the_specs_say() -> None:
    model = made("qwen2_5_vl", Packed)
    assert model.get_encoder_cudagraph_config().max_frames_per_video == 100 // 8
    limits = Struct(scheduler_config=Struct(max_num_batched_tokens=500), model_config=Struct(max_model_len=200))
    assert model.get_encoder_cudagraph_budget_range(limits) == (64, 200)
    specs = model.get_encoder_cudagraph_item_specs(packed_batch())
    assert [(spec.input_size, spec.output_tokens) for spec in specs] == [(24, 6), (4, 1), (16, 4)]


def test_what_no_graph_of_packed_grids_holds_runs_eagerly() -> None:
    """Embeddings in place of pixels; the frames of a video claim eight tokens or more each."""
    model = made("qwen2_5_vl", Packed)
    ready = {"image_embeds": torch.rand(11, HIDDEN), "image_grid_thw": torch.tensor(GRIDS)}
    assert path_tokens(model, ready) == [2**31 - 1] * 3
    agree([model.encoder_eager_forward(ready)], [ready["image_embeds"]])
    # Ranks gather the model's type.
    half = {**ready, "image_embeds": ready["image_embeds"].bfloat16()}
    assert model.encoder_eager_forward(half).dtype == torch.float32
    cast = made("qwen2_5_vl", Packed, TreeFacts(embeds_are_cast=True))
    assert cast.encoder_eager_forward(half).dtype == torch.bfloat16, "such a model casts by itself"
    assert path_tokens(model, packed_batch()) == [6, 1, 4]

    assert path_tokens(model, packed_batch("video")) == [8, 8, 16]
    large = {"pixel_values_videos": torch.zeros(96, 1), "video_grid_thw": torch.tensor([[2, 8, 6]])}
    assert path_tokens(model, large) == [24], "what it has"


@pytest.mark.parametrize("frames", [0, 1, 2, 3, 5, 7, 16, 40])
@pytest.mark.parametrize("items", [1, 2, 6])
def test_videos_of_a_graph_have_no_more_frames_than_it(items: int, frames: int) -> None:
    """Whatever batches the manager makes of them, by their number and the tokens of the path, which bound no frames."""
    budgets = (64, 24, 8)
    model = made("qwen2_5_vl", Packed, TreeFacts(attention_fills_zeros=True))
    rooms = {}
    for budget in budgets:
        kept = capture(model, budget, items, frames)
        rooms[budget] = len(kept["cu_seqlens"]) - 1
        assert rooms[budget] == max(items, min(budget // 8, frames))
    grids = [[t, 2, 2 * w] for t in (1, 2, 3, 5, 7) for w in (1, 3)]
    for some in itertools.combinations(grids, items):
        tokens = path_tokens(model, videos(some))
        for count in range(1, items + 1):
            for batch in itertools.combinations(range(items), count):
                budget = next((one for one in sorted(budgets) if one >= sum(tokens[i] for i in batch)), None)
                assert budget is None or sum(some[i][0] for i in batch) <= rooms[budget], (some, batch)


def videos(grids: Sequence[list[int]]) -> dict[str, Any]:
    pixels = torch.zeros(sum(t * h * w for t, h, w in grids), 1)
    return {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor(grids)}


def capture(model: Any, budget: int, items: int, frames: int) -> dict[str, torch.Tensor]:
    inputs = model.prepare_encoder_cudagraph_capture_inputs(budget, items, frames, torch.device("cpu"), torch.float)
    values: dict[str, torch.Tensor] = inputs.values
    return values


@pytest.mark.parametrize(
    ("limit", "grids", "tokens"),
    [
        (16, [[1, 2, 2], [2, 6, 6], [8, 2, 2]], [8, 18, 64]),
        (8, [[4, 2, 2], [4, 2, 2]], [32, 32]),
        # Together too many: of 64 tokens each frame claims its share.
        (4, [[1, 2, 2], [2, 6, 6], [5, 2, 2]], [16, 32, 80]),
        (3, [[2, 2, 2], [2, 2, 2]], [44, 44]),
        (0, [[1, 2, 2], [2, 2, 2]], [64, 128]),
    ],
)
def test_frames_claim_eight_tokens_each_and_a_share_where_a_call_has_too_many(
    limit: int, grids: list[list[int]], tokens: list[int]
) -> None:
    """A share in each call would send short videos to large graphs."""
    model = made("qwen2_5_vl", Packed, TreeFacts(attention_fills_zeros=True))
    for budget in (64, 24):
        capture(model, budget, 2, limit)
    assert path_tokens(model, videos(grids)) == tokens
    assert path_tokens(model, packed_batch()) == [6, 1, 4], "an image has one frame, and no limit"


def path_tokens(model: Any, batch: dict[str, Any]) -> list[int]:
    return [spec.path_output_tokens["default"] for spec in model.get_encoder_cudagraph_item_specs(batch)]


def test_patches_behind_a_packed_batch_are_short_sequences() -> None:
    model = made("qwen2_5_vl", Packed)
    kept = torch.tensor([0, *[100] * 6])
    model._pad_cu_seqlens(kept, torch.tensor([0, 10, 20]))
    assert kept.tolist() == [0, 10, 20, 40, 60, 80, 100]  # 80 patches, four sequences
    kept = torch.tensor([0, *[24] * 4])
    model._pad_cu_seqlens(kept, torch.tensor([0, 6]))
    assert kept.tolist() == [0, 6, 22, 24, 24]  # at least a window, of 4 x 4 patches
    model.visual = Struct(attn_backend="flashinfer")
    kept = torch.tensor([0, 30, 30, 0, 60, 60])
    model._pad_cu_seqlens(kept, torch.tensor([0, 10, 0, 20]))
    assert kept.tolist() == [0, 10, 10, 0, 20, 20]


# --- tiles -----------------------------------------------------------------------------------------------------------


class Tiles:
    """InternVL, as far as its port reads it."""

    num_image_token, vision_model = 4, Struct()
    config = Struct(vision_config=Struct(image_size=2, model_type="clip"), text_config=Struct(hidden_size=HIDDEN))

    def extract_feature(self, pixels):
        return pixels.flatten(1)[:, :8].view(-1, 4, HIDDEN).cumsum(1)

    def embed_multimodal(self, **inputs):
        return inputs["image_embeds"]


def test_tiles() -> None:
    model = made("internvl", Tiles)
    pixels, tiles = torch.rand(6, 3, 2, 2), [1, 3, 2]
    batch = {"pixel_values_flat": pixels, "image_num_patches": torch.tensor(tiles)}
    wanted = [part.flatten(0, 1) for part in model.extract_feature(pixels).split(tiles)]

    assert model.get_encoder_cudagraph_config().modalities == ["image", "video"]
    assert [(spec.input_size, spec.output_tokens) for spec in model.get_encoder_cudagraph_item_specs(batch)] == [
        (1, 4),
        (3, 12),
        (2, 8),
    ]
    for budget in (24, 27, 40):
        agree(embedded(model, batch, budget), wanted)
        selections(model, batch, wanted, budget)
    agree([model.encoder_eager_forward(batch).flatten(0, -2)], [torch.cat(wanted)])
    ready = {"image_embeds": [torch.rand(3, HIDDEN), torch.rand(5, HIDDEN)]}
    assert [spec.output_tokens for spec in model.get_encoder_cudagraph_item_specs(ready)] == [3, 5]


# --- units and rows: the model's own code assembles ------------------------------------------------------------------


class Model:
    """A model with one method between its inputs and its embeddings."""

    config = Struct(
        vision_config=Struct(image_size=2, patch_size=1, model_type="clip"), text_config=Struct(hidden_size=HIDDEN)
    )
    vision_tower = None

    def parameters(self):
        return iter([torch.ones(1)])

    def _parse_and_validate_image_input(self, **inputs):
        return inputs

    def embed_multimodal(self, **inputs):
        return self._process_image_input(inputs)


class Units(Model):
    """LLaVA, whose encoder takes images of one shape."""

    def _image_pixels_to_features(self, tower, pixels):
        return pixels.flatten(1)[:, :8].view(-1, 4, HIDDEN).cumsum(1)

    def _process_image_input(self, inputs, encode=None):
        if "image_embeds" in inputs:
            return inputs["image_embeds"]
        pixels = inputs["pixel_values"]
        call = encode or (lambda pixels: self._image_pixels_to_features(self.vision_tower, pixels))
        if isinstance(pixels, torch.Tensor):
            return [*call(pixels).mul(3)]
        return [call(item[None])[0].mul(3) for item in pixels]


@pytest.mark.parametrize("as_list", [False, True], ids=["a tensor", "a list"])
def test_units(as_list: bool) -> None:
    model, pixels = made("llava", Units), torch.rand(3, 3, 2, 2)
    batch = {"pixel_values": [*pixels] if as_list else pixels}
    wanted = model.embed_multimodal(**batch)

    for budget in (12, 15, 40):
        agree(embedded(model, batch, budget), wanted)
        selections(model, batch, wanted, budget)
    agree([model.encoder_eager_forward(batch)], [torch.cat(wanted) / 3])
    limits = Struct(scheduler_config=Struct(max_num_batched_tokens=50), model_config=Struct(max_model_len=20))
    assert model.get_encoder_cudagraph_budget_range(limits) == (4, 20)


def test_units_of_another_shape_are_the_models() -> None:
    model = made("llava", Units)
    for other in ({"pixel_values": torch.rand(2, 3, 2, 4)}, {"image_embeds": torch.rand(2, 5, HIDDEN)}):
        specs = model.get_encoder_cudagraph_item_specs(other)
        assert [spec.path_output_tokens for spec in specs] == [{"default": 0}] * 2
        found: dict[int, Any] = {}
        model.postprocess_encoder_output({"default": torch.zeros(8, HIDDEN)}, [0, 1], [4, 4], found, True, other)
        agree([found[0], found[1]], [*model.embed_multimodal(**other)])


#: LLaVA's call of its tower.
TOWER = "self._image_pixels_to_features(self.vision_tower, pixel_values)"


class ExplicitUnits(Units):
    """LLaVA with the methods that an explicit port makes of its code."""

    def whole(self, pixels):
        return self._image_pixels_to_features(self.vision_tower, pixels).mul(3)

    def _project_image_features(self, features):
        return features.mul(3)

    def _split_image_features(self, features):
        return tuple(features.mul(3))


@pytest.mark.parametrize(
    "made_of",
    [
        {"after": None, "held": "self.whole(pixel_values)"},
        {"after": "_project_image_features", "returns": "torch.Tensor | tuple[torch.Tensor, ...]", "held": TOWER},
        {"after": "_split_image_features", "returns": "MultiModalEmbeddings", "held": TOWER},
    ],
    ids=["all of it", "what follows", "what follows makes items"],
)
def test_units_of_an_explicit_port(made_of: dict[str, Any]) -> None:
    extraction = Extraction((), (), arguments=(), parsed=None, split=False, regroups=False, **made_of)
    model = made("llava", ExplicitUnits, TreeFacts(extraction=extraction, checks_types=True))
    batch = {"pixel_values": torch.rand(3, 3, 2, 2)}
    wanted = model.embed_multimodal(**batch)

    assert not hasattr(model, "_embed_encoder_inputs")
    for budget in (12, 15, 40):
        agree(embedded(model, batch, budget), wanted)
        selections(model, batch, wanted, budget)
    agree([model.encoder_eager_forward(batch)], [torch.cat(wanted)])
    ready = {"image_embeds": torch.rand(2, 5, HIDDEN)}
    specs = model.get_encoder_cudagraph_item_specs(ready)
    assert [spec.output_tokens for spec in specs] == [5, 5]
    assert all(spec.path_output_tokens["default"] > 1 << 30 for spec in specs), "more than any graph holds"
    agree(
        [model.encoder_eager_forward(model.select_encoder_cudagraph_items(ready, [1]))],
        [ready["image_embeds"][1]],
    )


class Rows(Model):
    """Pixtral, whose encoder takes the patches of all images as rows, with their offsets."""

    vision_args = Struct(patch_size=1, spatial_merge_size=2)

    def __init__(self) -> None:
        self.vision_encoder = Struct(transformer=self.attend)

    def attend(self, rows, offsets, longest):
        result = torch.full_like(rows, torch.nan)
        for start, end in pairwise(offsets):
            assert start <= end <= start + longest
            result[:, start:end] = rows[:, start:end] - rows[:, start:end].mean(1)
        return result

    def _process_image_input(self, inputs, encode=None):
        images = inputs["images"]
        lengths = [image.shape[1] * image.shape[2] for image in images]
        rows = torch.cat([image.flatten(1).T for image in images])[None]
        offsets = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        features = (encode or self.attend)(rows, offsets, max(lengths))
        return [part.view(-1, 4, 3).sum(1) for part in features[0].split(lengths)]


def test_rows() -> None:
    model = made("pixtral", Rows)
    batch = {"images": [torch.rand(3, 2, 6), torch.rand(3, 2, 2), torch.rand(3, 4, 4)]}
    wanted = model.embed_multimodal(**batch)

    specs = model.get_encoder_cudagraph_item_specs(batch)
    assert [(spec.input_size, spec.output_tokens) for spec in specs] == [(12, 3), (4, 1), (16, 4)]
    config = model.get_encoder_cudagraph_config()
    assert (config.modalities, [*config.padding_logics]) == (["image"], ["offsets_1"])
    for budget in (8, 9, 64, 300):
        agree(embedded(model, batch, budget), wanted)
        selections(model, batch, wanted, budget)
    agree([model.encoder_eager_forward(batch).view(-1, 4, 3).sum(1)], [torch.cat(wanted)])


def test_patches_behind_rows_are_short_sequences() -> None:
    model = made("pixtral", Rows)
    kept = torch.tensor([0, *[600] * 5])
    model._pad_offsets(kept, torch.tensor([0, 100]))
    assert kept.tolist() == [0, 100, 228, 356, 484, 600]
