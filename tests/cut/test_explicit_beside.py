"""Explicit ports whose encoder gets something with each unit: the method of a graph has a parameter for it."""

from __future__ import annotations

from typing import Any

import pytest

from scaffold.descriptor.load import load_descriptor_text
from scaffold.diagnostics import DiagnosticError
from scaffold.workflow import prepare_port

# Audio Flamingo 3: chunks of sound, each with a mask that the encoder gets, and items of several chunks.
TEXT = """\
schema: 1
model: {module: audioflamingo3, class: AudioFlamingo3ForConditionalGeneration}
layout: cut
modalities:
  audio:
    pixels: input_features
    entry: self._process_audio_input(self._parse_and_validate_audio_input(**inputs))
fields:
  audio_embeds: batched
  audio_num_tokens: batched
  input_features: {sizes: chunk_counts}
  feature_attention_mask: {sizes: chunk_counts}
  chunk_counts: batched
let:
  bins: self.config.audio_config.num_mel_bins
  frames: 2 * self.config.audio_config.max_source_positions
pixels: {shape: [bins, frames]}
forward:
  with: {feature_attention_mask: {shape: [frames], dtype: int32}}
  call: self._encode_audio_features(pixels, feature_attention_mask)
explicit:
  call: self.multi_modal_projector(self._encode_audio_features(pixels, feature_attention_mask))
  tokens: self.config.audio_config.max_source_positions // 2
  after: _merge_chunk_embeddings
output: {hidden_size: self.config.text_config.hidden_size}
"""
MODEL = "vllm/model_executor/models/audioflamingo3.py"
ENCODER = "self._encode_audio_features(\n            input_features,\n            feature_attention_mask,\n        )"
ABOVE = "        audio_hidden_states = self._enc"


@pytest.mark.trees
def test_a_mask_of_each_chunk_is_a_buffer_beside_the_chunks(release_tree: Any, ported: Any) -> None:
    port, tree = load_descriptor_text(TEXT, "audio_flamingo3.yaml"), release_tree("0.33.0")
    prepared = prepare_port(port, tree)
    [change] = [one for one in prepared.package if "/models/" in one.path]
    assert change.after is not None
    text = change.after.decode()
    assert not prepared.plan.reenters
    assert f"audio_hidden_states = {ENCODER}" in text
    assert 'self._encode_audio_features(\n                inputs["input_features"], inputs["feature_attention' in text
    assert 'mm_kwargs["feature_attention_mask"].split(num_chunks)' in text
    assert "max_chunks, frames, device=device, dtype=torch.int32" in text
    # What follows reads two of three values that the model makes of its inputs, each of its own type.
    assert "_, feature_attention_mask, chunk_counts = self._normalize_audio_feature_inputs(" in text
    assert "chunk_counts: list[int],\n        audio_features: torch.Tensor," in text
    assert not prepare_port(port, ported(port, prepared)).changed


@pytest.mark.trees
def test_a_method_of_the_model_that_follows_the_encoder_needs_no_other(release_tree: Any, ported: Any) -> None:
    own, tree = "_group_audio_embeddings", release_tree("0.33.0")
    port = load_descriptor_text(TEXT.replace("_merge_chunk_embeddings", own), "audio_flamingo3.yaml")
    prepared = prepare_port(port, tree)
    [change] = [one for one in prepared.package if "/models/" in one.path]
    text = (change.after or b"").decode()
    assert f"self.{own}(\n                features, feature_attention_mask, chunk_counts\n" in text
    assert text.count(f"def {own}(") == 1
    assert not prepare_port(port, ported(port, prepared)).changed

    # Called with other values than its parameters, it is no part that a port can call by their names.
    before = "feature_attention_mask,\n            chunk_counts,\n        )\n\n    def _normalize"
    other = tree.read(MODEL).replace(before, before.replace("chunk_counts", "chunk_counts[:]"))
    assert other != tree.read(MODEL)
    assert prepare_port(port, tree.with_files({MODEL: other.encode()})).plan.reenters


@pytest.mark.trees
@pytest.mark.parametrize(
    ("before", "after"),
    [
        # No variable, and values that are not all of one call of a method of the model.
        (ENCODER, ENCODER.replace("feature_attention_mask", "feature_attention_mask.int()")),
        (ABOVE, f"        chunk_counts = chunk_counts[:1]\n{ABOVE}"),
        ("self._normalize_audio_feature_inputs(audio_input)\n", "normalize(audio_input)\n"),
        ("self._normalize_audio_feature_inputs(audio_input)\n", "self._normalize_audio_feature_inputs(self.inputs)\n"),
        ("            chunk_counts,\n        ) =", "            *chunk_counts,\n        ) ="),
        ("            chunk_counts,\n        ) = self._normalize_audio_feature_inputs(audio_input)\n",
         "            _,\n        ) = self._normalize_audio_feature_inputs(audio_input)\n"
         "        chunk_counts, _ = self._group_audio_embeddings(audio_input)\n"),
    ],
)  # fmt: skip
def test_other_code_is_run_again_or_refused(before: str, after: str, release_tree: Any) -> None:
    tree = release_tree("0.33.0")
    text = tree.read(MODEL)
    assert text.count(before) == 1
    tree = tree.with_files({MODEL: text.replace(before, after).encode()})
    port = load_descriptor_text(TEXT, "audio_flamingo3.yaml")
    if before == ENCODER:
        assert prepare_port(port, tree).plan.reenters
        return
    with pytest.raises(DiagnosticError) as caught:
        prepare_port(port, tree)
    assert [problem.code for problem in caught.value.diagnostics] == ["VCG465"]
