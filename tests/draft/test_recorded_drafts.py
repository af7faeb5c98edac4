"""Drafts from recordings of vLLM 0.33: equal to those from the sources, or refused with what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml

from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor, draft_recorded
from scaffold.verify.numeric import keep_warm, record_run
from scaffold.watch import Recording
from scaffold.workflow import recording_request

pytest.importorskip("torch", reason="needs the `cpu` extra")
pytestmark = [pytest.mark.trees, pytest.mark.lab]

Record = Callable[[str], Recording]
NEXT, ONEVISION = "LlavaNextForConditionalGeneration", "LlavaOnevisionForConditionalGeneration"


@pytest.fixture(scope="module")
def record(release_tree: Any) -> Iterator[Record]:
    made: dict[str, Recording] = {}

    def get(architecture: str) -> Recording:
        if architecture not in made:
            made[architecture] = record_run(recording_request(release_tree("0.33.0"), architecture))
        return made[architecture]

    with keep_warm():
        yield get


@pytest.mark.parametrize("architecture", [NEXT, "PaliGemmaForConditionalGeneration"])
def test_it_says_what_the_sources_say(architecture: str, record: Record, release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    seen, read = draft_recorded(tree, architecture, record(architecture)), draft_descriptor(tree, architecture)
    assert yaml.safe_load(seen.text) == yaml.safe_load(read.text)
    assert seen.questions == read.questions == ()


def test_one_call_serves_two_modalities(record: Record, release_tree: Any) -> None:
    """LLaVA-OneVision calls its tower for images in a method that gets it as an argument, and for videos at once."""
    tree = release_tree("0.33.0")
    seen, read = (
        yaml.safe_load(draft.text)
        for draft in (draft_recorded(tree, ONEVISION, record(ONEVISION)), draft_descriptor(tree, ONEVISION))
    )
    assert seen["forward"] == read["forward"]
    assert (seen["fields"], seen["pixels"], seen["output"]) == (read["fields"], read["pixels"], read["output"])
    entries = {name: modality.pop("entry") for name, modality in seen["modalities"].items()}
    assert set(entries.values()) == {"self.embed_multimodal(**inputs)"}
    assert entries.keys() == read["modalities"].keys()


def test_equal_numbers_are_asked_for(record: Record, release_tree: Any) -> None:
    """Where the text's configuration holds the side of an image, too, nothing in one recording tells which is meant."""
    recording = record(NEXT)
    side = recording.numbers["self.config.vision_config.image_size"]
    doubtful = replace(recording, numbers={**recording.numbers, "self.config.image_size": side})
    [question] = draft_recorded(release_tree("0.33.0"), NEXT, doubtful).open
    assert question.key == "let.side"
    assert {one.value for one in question.candidates} >= {
        "self.config.vision_config.image_size",
        "self.config.image_size",
    }


def test_a_refusal_says_what_was_seen(record: Record, release_tree: Any) -> None:
    with pytest.raises(DiagnosticError) as met:
        draft_recorded(
            release_tree("0.33.0"), "KimiVLForConditionalGeneration", record("KimiVLForConditionalGeneration")
        )
    [problem] = met.value.diagnostics
    assert problem.code == "VCG483"
    assert "the encoder `vision_tower.encoder` is called once for 2 images (vllm/" in problem.message


def test_a_call_that_gets_other_units_is_none(record: Record, release_tree: Any) -> None:
    """A batch whose units do not all enter the call rules it out."""
    recording = record(NEXT)
    first, *others = recording.batches
    fewer = replace(first, inputs=(*first.inputs, replace(first.inputs[0], at="pixel_values[9]")))
    with pytest.raises(DiagnosticError, match="neither it nor a call around it gets all pixels"):
        draft_recorded(release_tree("0.33.0"), NEXT, replace(recording, batches=(fewer, *others)))
