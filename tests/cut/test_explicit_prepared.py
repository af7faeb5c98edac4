"""Explicit ports of units that a model prepares: the form, what is refused, and the proof that puts statements back."""

from __future__ import annotations

from typing import Any

import pytest
from changed_ports import port_of

from scaffold.cut import prove_extraction
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
MODEL = "vllm/model_executor/models/idefics3.py"
FOREIGN = ("encode=", "Mixin", "except", "inspect", "pytree", "mock", "__dict__", "vars(")
CALL = "self.model.image_pixels_to_features(\n            pixel_values,"
PIXELS = '        pixel_values = inputs["pixel_values"]\n'
CONNECTED = "        image_features = self.model.connector(image_features)\n"
FEATURES = "position_ids=position_ids,\n        )\n\n        return image_hidden_states"
ENCODER = "        image_hidden_states = self.vision_model("
PARSED = "pixel_values=pixel_values,\n                pixel_att"
GIVEN = "pixel_values, pixel_attention_mask, remove_padding\n        )"
TWICE = f"        if not pixel_values:\n            {CALL})\n        return {CALL}"


def text_of(prepared: Any) -> str:
    [change] = prepared.package
    assert change.path == MODEL
    return (change.after or b"").decode()


def test_a_port_runs_what_stands_before_its_graphs_once(release_tree: Any, ported: Any) -> None:
    port, tree = port_of("idefics3"), release_tree(RELEASE)
    prepared = prepare_port(port, tree, replace=True)
    text, before = text_of(prepared), tree.read(MODEL).splitlines()
    added = [line for line in text.splitlines() if line not in before]
    assert [word for word in FOREIGN if word in "\n".join(added)] == []
    assert len(added) < 120
    # Eager code calls the method, too, which gets the default that the model does not hand over.
    assert "self.prepare_patches(\n            pixel_values, pixel_attention_mask, remove_padding\n        )" in text
    assert 'mm_kwargs["pixel_values"], mm_kwargs["pixel_attention_mask"], True\n' in text
    assert text.count("prepare_patches(") == 3
    assert "return self._merge_patch_embeddings(image_input, image_features)" in text
    # A graph holds the projector, too.
    assert "return self.model.connector(\n            self.model.vision_model(\n" in text
    assert 'patch_attention_mask=inputs["patch_attention_mask"],\n                position_ids=None,\n' in text
    assert (prepared.plan.reenters, prepared.plan.counts_units, prepared.plan.single) == (False, True, False)
    assert not prepare_port(port, ported(port, prepared)).changed


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ("0.29.0", "no graph holds the encoder's call: `.cpu()`"),
        ("0.28.0", "is not the descriptor's call"),
    ],
)
def test_a_release_that_finds_patches_on_the_host_runs_its_code_again(
    release: str, says: str, release_tree: Any
) -> None:
    prepared = prepare_port(port_of("idefics3"), release_tree(release), replace=True)
    [note] = [note for note in prepared.notes if note.code == "VCG466"]
    assert says in note.message
    assert prepared.plan.reenters


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (f"        return {CALL}", TWICE, "more than one call leads to the encoder"),
        (FEATURES, f"{FEATURES} * 2", "changes what it gets of `self.vision_model`"),
        (ENCODER, ENCODER.replace("image_hidden_states =", "return"), "changes what it gets"),
        (CALL, CALL.replace("image_pixels", "pixels"), "is another method between the model and its encoder"),
        (PIXELS, PIXELS.replace("]", "].float()"), "which is no input of the model"),
        (PARSED, PARSED.replace("=pixel_values", "=pixel_values * 1"), "gets more than inputs of the model"),
        (CONNECTED, CONNECTED.replace("(image_features)", "(image_features, image_input)"), "not one after the other"),
        (CONNECTED, f"{CONNECTED.replace('image_features =', 'return', 1)}\n", "no statement before others keeps"),
    ],
)  # fmt: skip
def test_code_of_another_form_is_run_again(old: str, new: str, says: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    text = tree.read(MODEL)
    assert old in text
    # A method of the part that only leads on.
    between = (
        "    def pixels_to_features(self, x, **others):\n        return self.image_pixels_to_features(x, **others)\n\n"
    )
    above = "    def get_patch_attention_mask("
    text = text.replace(old, new, 1).replace(above, f"{between}{above}" * ("another" in says) or above)
    prepared = prepare_port(port_of("idefics3"), tree.with_files({MODEL: text.encode()}), replace=True)
    [note] = [note for note in prepared.notes if note.code == "VCG466"]
    assert says in note.message
    assert prepared.plan.reenters


def test_a_name_that_the_model_has_is_not_taken(release_tree: Any) -> None:
    port = port_of("idefics3", {"explicit.after": "_parse_and_validate_image_input"})
    prepared = prepare_port(port, release_tree(RELEASE), replace=True)
    [note] = [note for note in prepared.notes if note.code == "VCG466"]
    assert "the model has a method `_parse_and_validate_image_input` of its own" in note.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return pixel_values, patch_attention_mask\n", "return patch_attention_mask, pixel_values\n"),
        (GIVEN, GIVEN.replace("remove_padding", "True")),
        (").bool()\n        return pixel", ").bool()\n        pixel_values = -pixel_values\n        return pixel"),
        ("image_features.split(num_patches", "image_features.flip(0).split(num_patches"),
    ],
)  # fmt: skip
def test_the_proof_finds_a_changed_statement(old: str, new: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    text = text_of(prepare_port(port_of("idefics3"), tree, replace=True))
    mask = "patch_attention_mask = self.get_patch_attention_mask(pixel_attention_mask)\n        return pixel"
    text, old, new = (one.replace(").bool()\n        return pixel", mask) for one in (text, old, new))
    new = new.replace(").bool()", mask.partition("\n")[0])
    places = ("Idefics3Model", "image_pixels_to_features"), ("Idefics3ForConditionalGeneration", "_process_image_input")

    def prove(after: str) -> list[str]:
        found = prove_extraction(
            tree.read(MODEL), after, frozenset(places), "_merge_patch_embeddings", MODEL, "prepare_patches"
        )
        return [problem.code for problem in found]

    assert prove(text) == []
    assert text.count(old) == 1
    assert prove(text.replace(old, new)) == ["VCG646"]
