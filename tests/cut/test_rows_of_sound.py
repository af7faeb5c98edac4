"""The layout `rows` for sound: frames become rows in chunks, and attend to each other in windows (Qwen3-ASR)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from changed_ports import document_of, port_of

from scaffold.descriptor.load import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.draft import draft_descriptor
from scaffold.plan.methods import render_methods
from scaffold.plan.views import TreeFacts
from scaffold.protocol import known_profile
from scaffold.protocol.generations import SERVED
from scaffold.verify.numeric import check_numerics, record_run
from scaffold.watch import Recording
from scaffold.workflow import numeric_requests, recording_request

MODEL = "Qwen3ASRForConditionalGeneration"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item.frames": None}, "the rows of a sound are those of its frames"),
        ({"modalities": {"image": {"pixels": "input_audio_features", "entry": "self.embed_multimodal(**inputs)"}}},
         "nothing else has frames"),
        ({"fields.input_audio_features": "batched"}, "no input says how many frames of `input_audio_features`"),
        ({"fields.input_audio_features": None}, "no input says how many frames of `input_audio_features`"),
        ({"item.mask": "feature_attention_mask"}, "a sound has the rows of its frames alone"),
        ({"forward.per_item": True}, "a sound has the rows of its frames alone"),
        ({"fields.audio_embeds": "batched"}, "a sound has the rows of its frames alone"),
    ],
)  # fmt: skip
def test_what_a_sound_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DiagnosticError) as error:
        port_of("qwen3_asr", changes)
    assert any(problem.code == "VCG345" and message in problem.message for problem in error.value.diagnostics)


@pytest.mark.parametrize("generation", SERVED)
def test_an_item_is_a_sequence_for_each_window(generation: Any) -> None:
    profile = known_profile(generation)
    text = render_methods(port_of("qwen3_asr"), profile, TreeFacts()).source
    body = text[text.index("@property\ndef _encoder_cudagraph_window") :]
    names: dict[str, Any] = {"Any": Any}
    exec(body[: body.index("def _get_encoder_cudagraph_rows")], names)
    tower = SimpleNamespace(n_window=50, n_window_infer=800)
    model = SimpleNamespace(audio_tower=tower)
    model._encoder_cudagraph_window = names["_encoder_cudagraph_window"].fget(model)
    assert model._encoder_cudagraph_window == 104
    frames = SimpleNamespace(tolist=lambda: [1, 96, 100, 127, 800, 6250])
    found = names["_get_encoder_cudagraph_sequences"](model, {"audio_feature_lengths": frames})
    assert found == [[1], [12], [13], [17], [104], [104] * 7 + [85]]
    assert names["_get_encoder_cudagraph_sequences"](model, {}) == []
    # Behind each other along the frames: the second axis of a spectrum.
    assert '["input_audio_features"].movedim(1, 0).split(sizes)' in text
    upright = port_of("qwen3_asr", {"item.shape": ["8 * h * w", "bins"]})
    assert ".movedim(" not in render_methods(upright, profile, TreeFacts()).source


def with_floats(data: dict[str, Any]) -> None:
    """Qwen3-Omni's mask, which is of floating point as the spectrum is."""
    for leaf in (leaf for batch in data["batches"] for leaf in batch["inputs"]):
        leaf["dtype"] = "float32" if leaf["at"].startswith("feature_attention_mask") else leaf["dtype"]


def without(*names: str) -> Any:
    def change(data: dict[str, Any]) -> None:
        data["numbers"] = {name: n for name, n in data["numbers"].items() if not name.endswith(names)}

    return change


def on_the_gpu(data: dict[str, Any]) -> None:
    for leaf in (leaf for batch in data["batches"] for leaf in batch["inputs"]):
        leaf["device"] = "cuda"


def with_a_newline(data: dict[str, Any]) -> None:
    for leaf in (leaf for batch in data["batches"] for leaf in batch["results"]):
        leaf["shape"] = (leaf["shape"][0] + 1, *leaf["shape"][1:])


def with_more(data: dict[str, Any]) -> None:
    for batch in data["batches"]:
        batch["inputs"] = (*batch["inputs"], {**batch["inputs"][0], "at": "speaker", "dtype": "int64", "shape": (9,)})


UNDRAFTED = (
    (without("n_window", "n_window_infer"), "follow from no chunk of its frames"),
    (without("n_window_infer"), "no attribute says how many rows attend to each other: at most 104"),
    (on_the_gpu, "`audio_feature_lengths` says the frames of each item on the GPU"),
    (with_a_newline, "an item has another number of embeddings than rows"),
    (with_more, "the model gets `speaker` with `input_audio_features`"),
)


@pytest.mark.trees
@pytest.mark.lab
def test_a_draft_of_windows_is_right_and_frames_in_another_order_are_wrong(release_tree: Any, tmp_path: Any) -> None:
    pytest.importorskip("torch", reason="needs the `cpu` extra")
    tree = release_tree("0.33.0")
    recording = record_run(recording_request(tree, MODEL))
    draft = draft_descriptor(tree, MODEL, recording)
    drafted = yaml.safe_load(draft.text)
    assert draft.questions == ()
    assert drafted == {key: value for key, value in document_of("qwen3_asr").items() if key != "verify"}

    data = recording.to_json()
    with_floats(data)
    assert yaml.safe_load(draft_descriptor(tree, MODEL, Recording.from_json(data)).text) == drafted
    for change, message in UNDRAFTED:
        data = recording.to_json()
        change(data)
        with pytest.raises(DiagnosticError) as error:
            draft_descriptor(tree, MODEL, Recording.from_json(data), layout="rows")
        assert message in error.value.diagnostics[0].message

    port = load_descriptor_text(draft.text, str(tmp_path / "sound.yaml"))
    [request] = numeric_requests(port, tree)
    request = replace(request, options=replace(request.options, short=True))
    report = check_numerics(request)
    assert report.passed, report.diagnostics()
    [model] = [path for path in request.overlay if path.endswith("/qwen3_asr.py")]
    given = b"selected[key].movedim(0, 1)"
    assert request.overlay[model].count(given) == 1
    backwards = request.overlay[model].replace(given, b"selected[key].flip(0).movedim(0, 1)")
    report = check_numerics(replace(request, overlay=dict(request.overlay) | {model: backwards}))
    assert not report.passed
