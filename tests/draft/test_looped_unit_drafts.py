"""Drafts of a cut at a loop over a slice of the layers in a method of the model itself: MiniCPM-V 4.6 and its heirs."""

from __future__ import annotations

from typing import Any

import pytest

from scaffold.descriptor import CutPort, load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor, interview
from scaffold.workflow import prepare_port

pytestmark = pytest.mark.trees

RELEASE = "0.33.0"
FILE = "vllm/model_executor/models/minicpmv4_6.py"
SQUARE = "self.config.image_size // patch * (self.config.image_size // patch + 1)"
POSITIONS = "self.vpm.embeddings.num_patches"
#: The largest unit of a graph: the square that the processor cuts images to, where its configuration has one.
ROWS = {
    "MiniCPMV4_6ForConditionalGeneration": SQUARE,
    "MiniCPMV4_7ForConditionalGeneration": SQUARE,
    "MiniCPMOcrForConditionalGeneration": POSITIONS,
}


def first(question: Any) -> str:
    return str(question.candidates[0].value)


@pytest.mark.parametrize("architecture", ROWS)
def test_what_is_drafted(architecture: str, release_tree: Any) -> None:
    draft = interview(release_tree(RELEASE), architecture, {}, first, None)
    assert [question.key for question in draft.questions] == ["let.rows"]
    port = load_descriptor_text(draft.text, "draft.yaml")
    assert isinstance(port, CutPort)
    assert (port.layout, port.forward.loop) == ("cut", "self.vpm.encoder.layers")
    assert port.forward.call.text == "self.forward_layers(pixels, self.config.insert_layer_id, mask)"
    assert dict(port.forward.with_) == {"mask": "additive"}
    assert port.let["rows"].text == ROWS[architecture]
    assert {name: entry.pixels for name, entry in port.modalities.items()} == {
        "image": "pixel_values",
        "video": "video_pixel_values",
    }
    assert port.output.hidden_size.text == "self.config.text_config.hidden_size"
    assert port.gates is not None
    assert any(change.path == FILE for change in prepare_port(port, release_tree(RELEASE)).changed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Nothing says on which axis units are padded, or that a mask hides the padding.
        ("L = max(item.shape[-1] for item in pixel_values)", "L = 4096"),
        ("            attention_mask = None\n", "            attention_mask = 0\n"),
        # The loop takes what no descriptor says, and hands on more than features.
        ("insert_layer_id = getattr(self.config, ", "insert_layer_id = ask(self.config, "),
        (
            "        hidden_states = self.vpm.post_layernorm(hidden_states)",
            "        hidden_states = layer(hidden_states)",
        ),
    ],
)
def test_what_is_not(before: str, after: str, release_tree: Any) -> None:
    tree = release_tree(RELEASE)
    text = tree.read(FILE)
    assert before in text
    with pytest.raises(DiagnosticError) as caught:
        draft_descriptor(tree.with_files({FILE: text.replace(before, after).encode()}), next(iter(ROWS)))
    assert {problem.code for problem in caught.value.diagnostics} == {"VCG483"}
