"""Configurations become small without coming apart: plain trees, no model."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from scaffold.verify.numeric.automatic.shrink import LAYERS, Level, role_of, shrink

CONFIG: dict[str, Any] = {
    "model_type": "example",
    "projector_hidden_size": 4096,
    "vision_feature_layer": -2,
    "vision_config": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "out_hidden_size": 2048,
        "deepstack_visual_indexes": [5, 11, 17],
        "image_size": 336,
        "patch_size": 14,
    },
    "text_config": {
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "layer_types": ["full_attention", "sliding_attention"] * 20,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
    "qformer_config": {"hidden_size": 768, "encoder_hidden_size": 1024, "num_attention_heads": 12},
}


def _shrunk(level: Level = Level.UNEQUAL, keep: tuple[str, ...] = ()) -> dict[str, Any]:
    tree = copy.deepcopy(CONFIG)
    shrink(tree, level, frozenset(keep))
    return tree


def test_the_parts_get_unequal_widths_and_the_geometry_stays() -> None:
    tree = _shrunk()
    vision, text, connector = tree["vision_config"], tree["text_config"], tree["qformer_config"]
    assert (vision["hidden_size"], text["hidden_size"], connector["hidden_size"]) == (64, 96, 48)
    assert (vision["image_size"], vision["patch_size"]) == (336, 14)
    assert text["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("part", "name", "expected"),
    [
        ("vision_config", "out_hidden_size", 96),  # as wide as the language model, as before
        ("vision_config", "intermediate_size", 256),  # four times its own width, as before
        ("qformer_config", "encoder_hidden_size", 64),  # as wide as the tower, as before
        ("text_config", "num_key_value_heads", 1),
        ("text_config", "head_dim", 32),
        ("text_config", "num_hidden_layers", LAYERS),
        ("vision_config", "deepstack_visual_indexes", [0, 1, 2]),
    ],
)
def test_what_belongs_together_stays_together(part: str, name: str, expected: Any) -> None:
    assert _shrunk()[part][name] == expected


def test_a_layer_has_one_number_in_all_parts() -> None:
    """A merger runs behind a layer of the tower, which the whole model's configuration numbers, too."""
    tree = {"insert_layer_id": 6, "vision_config": {"insert_layer_id": 6, "num_hidden_layers": 12}, "last_layer_id": 9}
    shrink(tree)
    number = tree["vision_config"]["insert_layer_id"]  # type: ignore[index]
    assert (number, tree["insert_layer_id"], tree["last_layer_id"]) == (1, 1, 9)
    assert number + 1 < LAYERS  # layers are left behind the merger


def test_lists_of_an_entry_a_layer_are_cut() -> None:
    assert _shrunk()["text_config"]["layer_types"] == ["full_attention", "sliding_attention", "full_attention"]


def test_only_the_depth() -> None:
    tree = _shrunk(Level.DEPTH)
    assert tree["vision_config"]["num_hidden_layers"] == LAYERS
    assert tree["vision_config"]["hidden_size"] == 1024


def test_one_factor_keeps_the_roles_apart_by_heads_only() -> None:
    tree = _shrunk(Level.ONE_FACTOR)
    assert tree["vision_config"]["hidden_size"] == tree["vision_config"]["num_attention_heads"] * 16 == 64


def test_what_is_kept_stays() -> None:
    tree = _shrunk(keep=("vision_config.hidden_size", "projector_hidden_size"))
    assert tree["vision_config"]["hidden_size"] == 1024
    assert tree["projector_hidden_size"] == 4096
    assert tree["text_config"]["hidden_size"] == 96


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ((), "root"),
        (("vision_config",), "vision"),
        (("text_config",), "text"),
        (("thinker_config", "audio_config"), "audio"),
        (("qformer_config",), "connector"),
    ],
)
def test_the_role_of_a_part(path: tuple[str, ...], role: str) -> None:
    assert role_of(path) == role


@pytest.mark.parametrize(("projected", "expected"), [(True, 160), (False, 96)])
def test_text_and_images_are_projected_to_a_width_of_its_own(projected: bool, expected: int) -> None:
    """CLIP's text has a projection. PaliGemma's has none: its images are projected to the width of the text."""
    tree = copy.deepcopy(CONFIG) | {"projection_dim": 2048}
    if projected:
        tree["text_config"]["projection_dim"] = 2048
    shrink(tree)
    assert tree["projection_dim"] == expected
    assert tree["text_config"].get("projection_dim") == (160 if projected else None)


def test_a_tower_without_heads_follows_the_language_models_width() -> None:
    tree = {"vision_config": {"decoder_dmodel": 6144, "n_layers": 24}, "text_config": CONFIG["text_config"] | {}}
    tree["text_config"]["hidden_size"] = 6144
    shrink(tree)
    assert tree["vision_config"] == {"decoder_dmodel": 96, "n_layers": LAYERS}


def test_what_single_layers_have_of_their_own_stays_theirs() -> None:
    own = {"05": {"head_dim": 64}, "29": {"head_dim": 512}}
    tree = {"num_hidden_layers": 30, "per_layer_config": own, "id2label": {0: "a", 1: "b"}}
    shrink(tree)
    assert tree["per_layer_config"] == {"0": {"head_dim": 64}, "2": {"head_dim": 512}}
    assert tree["id2label"] == {0: "a", 1: "b"}


@pytest.mark.parametrize(("sections", "cut"), [([24, 20, 20], [6, 5, 5]), ([11, 11, 10], [4, 2, 2])])
def test_sections_of_rotary_positions_fit_the_head(sections: list[int], cut: list[int]) -> None:
    rope = {"rope_type": "default", "mrope_section": sections}
    text = {"hidden_size": 4096, "num_attention_heads": 32, "rope_parameters": rope, "rope_scaling": {"factor": 2}}
    shrink(tree := {"text_config": text})
    assert tree["text_config"]["rope_parameters"] == {"rope_type": "default", "mrope_section": cut}
