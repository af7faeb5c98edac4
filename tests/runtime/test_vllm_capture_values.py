"""What a graph is captured for, in the binding to vLLM: as many rows as its budget has, and every sequence."""

from types import SimpleNamespace

import pytest
import torch

from scaffold.runtime import GraphKey, Limits
from scaffold.runtime.adapter import Room
from scaffold.runtime.vllm import model as binding
from scaffold.runtime.vllm.dialect import ManagerDialect

VALUES = ManagerDialect(path_argument=False, dual_path=False, named_paths=False, axes=False)
LIMITS = Limits(8, 16)
MERGE = 4


@pytest.fixture(autouse=True)
def plain_results(monkeypatch):
    """The models here have no hook for results, and without one vLLM's own is asked for, which imports vLLM."""
    monkeypatch.setattr(binding.VllmAdapter, "_has_plain_post", lambda self: True)


class Packed:
    """Divides a budget evenly over items and frames and rounds up, as vLLM's models do."""

    def __init__(self, **changes):
        self.changes, self.asked = changes, []

    def prepare_encoder_cudagraph_capture_inputs(self, budget, items, frames, device, dtype):
        self.asked.append((items, frames))
        each = -(-budget // items)
        per_item = frames // items
        if per_item > 1:
            each = per_item * -(-each // per_item)
        sequences = max(items * max(per_item, 1), frames)
        rows = each * items * MERGE
        offsets = torch.arange(0, sequences + 1, dtype=torch.int32) * (rows // sequences)
        offsets[-1] = rows
        values = {
            "pixel_values": torch.zeros(rows, 6),
            "rotary_cos": torch.zeros(rows, 2),
            "window_index": torch.arange(rows // MERGE),
            "cu_seqlens": offsets,
            "sequence_lengths": torch.full((sequences,), rows // sequences),
            "max_seqlen": torch.tensor(budget * MERGE),
            "absent": None,
        }
        for name, change in self.changes.items():
            values[name] = change(items, rows)
        return SimpleNamespace(values=values)


def speaker(model, hooks=(), axes=()):
    config = SimpleNamespace(
        padding_logics=dict(hooks), out_hidden_size=6, modalities=["image"], input_key_by_modality={}, capture_axes=()
    )
    owner = SimpleNamespace(
        model=model, config=config, device=torch.device("cpu"), dtype=torch.float32, _capture_axes=(),
        axes=axes, _ladders=lambda: {"default": [64]},
    )  # fmt: skip
    return binding.VllmAdapter(owner, VALUES)


@pytest.mark.parametrize("budget", [1, 8, 32, 63, 64, 65, 1196, 1732])
@pytest.mark.parametrize("limits", [Limits(8, 0), LIMITS, Limits(3, 7)], ids=["images", "frames", "odd"])
def test_a_graph_computes_as_many_rows_as_its_budget_has(budget, limits):
    model = Packed()
    values = speaker(model).capture_values(GraphKey("default", budget), limits)
    rounded = model.prepare_encoder_cudagraph_capture_inputs(budget, limits.items, limits.frames, None, None).values
    rows = budget * MERGE
    assert {name: values[name].shape[0] for name in ("pixel_values", "rotary_cos")} == {
        "pixel_values": rows,
        "rotary_cos": rows,
    }
    assert values["window_index"].shape[0] == budget
    offsets = values["cu_seqlens"]
    assert offsets.shape == rounded["cu_seqlens"].shape  # as many sequences as the model asked for
    assert offsets[0] == 0
    assert offsets[-1] == rows
    assert bool((offsets.diff() >= 0).all())
    assert values["sequence_lengths"].shape == rounded["sequence_lengths"].shape
    assert int(values["sequence_lengths"].sum()) == rows
    assert int(values["max_seqlen"]) == rows
    assert values["absent"] is None


def test_a_budget_without_remainder_is_asked_for_once_when_rows_a_token_are_known():
    model = Packed()
    adapter = speaker(model)
    for budget in (64, 128, 65, 192):
        adapter.capture_values(GraphKey("default", budget), LIMITS)
    assert model.asked == [(8, 16), (1, 0), (8, 16), (8, 16), (1, 0), (8, 16)]


@pytest.mark.parametrize(("budget", "asked"), [(4095, 2), (4096, 2), (4097, 1), (8191, 1)])
def test_no_image_longer_than_a_rotary_table_is_asked_for(budget, asked):
    """One image of 4097 tokens is 8194 patches long. A GPU would read behind the table and end the process."""
    model = Packed()
    values = speaker(model).capture_values(GraphKey("default", budget), LIMITS)
    assert len(model.asked) == asked
    assert (values["pixel_values"].shape[0] == budget * MERGE) == (asked == 2 or budget % 16 == 0)


def refuse(items, rows):
    if items == 1:
        raise ValueError("no batch of one")


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": lambda items, rows: torch.zeros(items, 2)},
        {"more_pixels": lambda items, rows: torch.zeros(rows, 6)},
        {"pixel_values": lambda items, rows: torch.zeros(items, 3, 8, 8)},
        {"scale": lambda items, rows: torch.tensor(items)},
        {"grid": lambda items, rows: torch.zeros(rows, items)},
        {"absent": lambda items, rows: None if items == 1 else torch.zeros(rows)},
        {"absent": refuse},
        {"cu_seqlens": lambda items, rows: torch.zeros(9 if items == 1 else 5, dtype=torch.int32)},
    ],
    ids=["per item", "two inputs", "tiles", "number", "wide", "absent", "refused", "fewer sequences"],
)
def test_where_more_than_the_remainder_differs_the_models_values_stay(changes):
    model = Packed(**changes)
    values = speaker(model).capture_values(GraphKey("default", 65), LIMITS)
    expected = model.prepare_encoder_cudagraph_capture_inputs(65, 8, 16, None, None).values
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        assert (value is None and values[name] is None) or torch.equal(values[name], value), name


def test_a_buffer_that_a_hook_finds_by_its_address_stays():
    def hook(target, value):
        return target.data_ptr()

    model = Packed()
    values = speaker(model, {"cu_seqlens": hook}).capture_values(GraphKey("default", 65), LIMITS)
    assert values["pixel_values"].shape[0] == 80 * MERGE


def test_images_have_graphs_of_their_own_where_videos_are_allowed():
    """They have a sequence for each item, not for each frame."""
    model = Packed()
    assert speaker(model).rooms_of({"pixel_values": None, "image_grid_thw": None}) == ()
    found = speaker(model, axes=(tuple(Room),))
    sequences = {}
    for room in Room:
        values = found.capture_values(GraphKey("default", 128, (room,)), LIMITS)
        sequences[room] = len(values["cu_seqlens"]) - 1
    assert sequences == {Room.ITEMS: LIMITS.items, Room.FRAMES: LIMITS.frames}


@pytest.mark.parametrize(
    ("names", "room"),
    [
        (("pixel_values", "image_grid_thw"), Room.ITEMS),
        (("pixel_values_flat", "image_num_patches"), Room.ITEMS),
        (("pixel_values_videos", "video_grid_thw", "second_per_grid_ts"), Room.FRAMES),
        (("image_pixels", "video_pixels"), Room.FRAMES),
        (("pixel_values", "grid_thws"), Room.FRAMES),  # nothing says what they are
    ],
)
def test_names_of_inputs_tell_the_room_that_they_need(names, room):
    found = speaker(Packed(), axes=(tuple(Room),))
    assert found.rooms_of(dict.fromkeys(names)) == (room,)
