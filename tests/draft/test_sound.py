"""Sound: what the lab makes of it, the draft of a model that hears, and a proof that a wrong port fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from scaffold.descriptor.load import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor
from scaffold.draft.common import omitted
from scaffold.draft.locate import locate
from scaffold.verify.numeric import check_numerics, record_run
from scaffold.watch import Recording
from scaffold.workflow import numeric_requests, prepare_port, recording_request

torch = pytest.importorskip("torch", reason="needs the `cpu` extra")

MODEL = "Qwen2AudioForConditionalGeneration"
#: Of the draft: what a graph holds, and the mask that hides the end of a chunk.
SHOWN = {
    "layout": "cut",
    "modalities": {
        "audio": {
            "pixels": "input_features",
            "entry": "self._process_audio_input(self._parse_and_validate_audio_input(**inputs))",
        }
    },
    "let": {
        "bins": "self.config.audio_config.num_mel_bins",
        "frames": "2 * self.config.audio_config.max_source_positions",
        "attention_mask_2": "self.config.audio_config.max_source_positions",
    },
    "pixels": {"shape": ["bins", "frames"]},
    "forward": {
        "with": {"attention_mask": {"shape": [1, 1, "attention_mask_2"], "dtype": "weights"}},
        "call": "self.audio_tower(pixels, attention_mask=attention_mask)",
        "result": "last_hidden_state",
    },
}


CHUNKS = "AudioFlamingo3ForConditionalGeneration"
LAYERS = "MossTranscribeDiarizeForConditionalGeneration"


def test_a_quarter_of_a_sound_is_made_quiet() -> None:
    from scaffold.verify.numeric.automatic.inputs import Size, negative, random_media

    size = Size(4_003, 0)
    sound = random_media(size, torch.Generator().manual_seed(0))
    assert (str(size), sound.shape) == ("4003 samples", (4_003,))
    changed = [(negative(sound, quarter) != sound).nonzero()[0] for quarter in range(4)]
    assert [(places[0], places[-1]) for places in changed] == [(0, 1000), (1001, 2001), (2002, 3002), (3003, 4002)]


def test_masks_of_one_shape_and_other_lengths_are_told_apart() -> None:
    from scaffold.verify.numeric.automatic.inputs import signature

    def item(length: int) -> Any:
        mask = (torch.arange(3000) < length).int()
        return {"mask": type("Element", (), {"data": mask})}

    assert signature(item(100)) == signature(item(100)) != signature(item(101))


class Heard:
    def get_supported_mm_limits(self) -> dict[str, int | None]:
        return {"audio": None}


class SeenAndHeard:
    def get_supported_mm_limits(self) -> dict[str, int | None]:
        return {"image": 1, "audio": None}


@pytest.mark.parametrize(("info", "alone"), [(Heard, True), (SeenAndHeard, False), (object, False), (None, False)])
def test_only_a_model_that_is_to_hear_gets_its_audio_tower(info: Any, alone: bool) -> None:
    """That of a model with images, too, would be built for nothing where nobody asks for sound."""
    from scaffold.verify.numeric.host import towers_of

    host = type("Host", (), {"_processor_factory": type("Factory", (), {"info": info})})
    assert towers_of(host, ("image", "video")) == (("audio",) if alone else ("image", "video", "vision_chunk"))
    assert towers_of(host, ("audio",)) == ("audio",)
    assert towers_of(host, ("image", "audio")) == ("image", "audio")


def test_bench_and_profile_refuse_sound() -> None:
    from scaffold.measure.subject import NoSubject, Subject

    with pytest.raises(NoSubject, match="its items are sound"):
        Subject("whisper", "whisper", "WhisperForConditionalGeneration", ("audio",))


@pytest.mark.trees
@pytest.mark.parametrize(
    ("reference", "drafted", "left"),
    [
        ("Phi4MMForCausalLM", "image", ["audio"]),
        # It may have videos and sound, as its configuration says.
        ("NemotronH_Nano_VL_V2", "image", ["audio"]),
        ("qwen2_5_omni_thinker:Qwen2_5OmniThinkerForConditionalGeneration", "image", ["audio"]),
        ("Qwen2_5_VLForConditionalGeneration", "image", []),
        ("Qwen3OmniMoeForConditionalGeneration", "audio", ["image", "video"]),
        (MODEL, "audio", []),
    ],
)
def test_what_another_encoder_of_a_model_serves_is_left_out_with_a_note(
    reference: str, drafted: str, left: list[str], release_tree: Any
) -> None:
    recording = Recording("", "", {}, (), (), {}, {}, (), (), {})
    notes = omitted(locate(release_tree("0.33.0"), reference), recording, [drafted], "", alone=False)
    assert [(note.code, note.message.split("`")[1]) for note in notes] == [("VCG484", name) for name in left]


@pytest.mark.trees
@pytest.mark.lab
def test_budgets_of_an_explicit_port_hold_an_item_of_an_encoder_decoder(release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    recording = record_run(recording_request(tree, "WhisperForConditionalGeneration"))
    draft = draft_descriptor(tree, "WhisperForConditionalGeneration", recording)
    assert recording.configuration["is_encoder_decoder"]
    assert "after" not in yaml.safe_load(draft.text)["explicit"]
    assert "VCG467" not in {note.code for note in draft.notes}


@pytest.mark.trees
@pytest.mark.lab
def test_a_draft_of_a_model_that_hears_is_right_and_needs_its_mask(release_tree: Any, tmp_path: Any) -> None:
    tree = release_tree("0.33.0")
    recording = record_run(recording_request(tree, MODEL))
    draft = draft_descriptor(tree, MODEL, recording)
    seen = yaml.safe_load(draft.text)
    assert draft.questions == ()
    assert {key: seen[key] for key in SHOWN} == SHOWN
    assert "integration" not in seen
    assert "VCG467" not in {note.code for note in draft.notes}
    crossed = replace(recording, configuration={**recording.configuration, "is_encoder_decoder": True})
    assert "VCG467" in {note.code for note in draft_descriptor(tree, MODEL, crossed).notes}

    port = load_descriptor_text(draft.text, str(tmp_path / "sound.yaml"))
    [request] = numeric_requests(port, tree)
    request = replace(request, options=replace(request.options, short=True))
    [model] = [path for path in request.overlay if path.endswith("/qwen2_audio.py")]
    given = b'inputs["attention_mask"]'
    assert request.overlay[model].count(given) == 1
    without = request.overlay[model].replace(given, b"torch.zeros_like(" + given + b")")

    report = check_numerics(request)
    assert report.passed, report.diagnostics()
    assert {check.modality for check in report.checks} == {"audio", "all"}
    report = check_numerics(replace(request, overlay=dict(request.overlay) | {model: without}))
    assert {check.code for check in report.checks if not check.passed} == {"VCG650"}


@pytest.mark.trees
@pytest.mark.lab
def test_chunks_and_a_mask_that_are_inputs_give_a_port_for_a_tree(release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    draft = draft_descriptor(tree, CHUNKS, record_run(recording_request(tree, CHUNKS)))
    assert draft.questions == ()
    assert yaml.safe_load(draft.text)["explicit"] == {
        "call": "self.multi_modal_projector(self._encode_audio_features(pixels, feature_attention_mask))",
        "tokens": "self.config.audio_config.max_source_positions // 2",
        "after": "_group_audio_embeddings",
    }
    [request] = numeric_requests(load_descriptor_text(draft.text, "x.yaml"), tree)
    report = check_numerics(replace(request, options=replace(request.options, short=True)))
    assert report.passed, report.diagnostics()
    assert report.hits > 10


@pytest.mark.trees
@pytest.mark.lab
def test_the_method_of_a_loop_has_types_for_all_that_it_takes(release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    draft = draft_descriptor(tree, LAYERS, record_run(recording_request(tree, LAYERS)))
    prepared = prepare_port(load_descriptor_text(draft.text, "x.yaml"), tree)
    [whisper] = [change.after for change in prepared.changed if change.path.endswith("/whisper.py")]
    assert b"def forward_layers(self, hidden_states: torch.Tensor)" in (whisper or b"")


def test_a_test_entry_of_sound_alone_is_refused() -> None:
    text = """
        schema: 1
        model: {module: qwen2_audio, class: Qwen2AudioForConditionalGeneration}
        layout: cut
        modalities: {audio: {pixels: input_features, entry: "self.embed_multimodal(**inputs)"}}
        fields: {input_features: batched}
        pixels: {shape: [128, 3000]}
        forward: {call: self.audio_tower(pixels)}
        output: {hidden_size: self.config.text_config.hidden_size}
    """
    load_descriptor_text(text, "sound.yaml")
    with pytest.raises(DiagnosticError) as error:
        load_descriptor_text(f"{text}    integration: {{docs: {{models: [Qwen2-Audio]}}}}\n", "sound.yaml")
    assert [(one.code, "sound alone" in one.message) for one in error.value.diagnostics] == [("VCG361", True)]
