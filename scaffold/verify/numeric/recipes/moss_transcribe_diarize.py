"""MOSS-Transcribe-Diarize: chunks of a sound through Whisper's encoder, of which each keeps its own length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scaffold.verify.numeric.recipes import calls
from scaffold.verify.numeric.recipes.base import Item, Recipe, Session

_BINS, _POSITIONS, _MERGE = 16, 12, 4
_WIDTH = 48
#: Tokens of a full chunk.
_TOKENS = _POSITIONS // _MERGE


class MossTranscribeDiarize(Recipe):
    """An item is the tokens of each of its chunks, at most `_TOKENS`: all but the last chunk of a sound are full."""

    module = "moss_transcribe_diarize"
    host_class = "MossTranscribeDiarizeForConditionalGeneration"
    modalities = ("audio",)
    min_budget = _POSITIONS

    def model_config(self) -> Any:
        from transformers import PretrainedConfig, WhisperConfig

        config = PretrainedConfig(audio_merge_size=_MERGE, adaptor_input_dim=_MERGE * _WIDTH)
        config.text_config = PretrainedConfig(hidden_size=self.hidden_size, vocab_size=99, rms_norm_eps=1e-6)
        config.audio_config = WhisperConfig(
            d_model=_WIDTH, encoder_layers=3, encoder_attention_heads=3, encoder_ffn_dim=80, num_mel_bins=_BINS,
            max_source_positions=_POSITIONS,
        )  # fmt: skip
        return config

    def fields(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return super().fields({**inputs, "audio_embeds": ()})

    def make_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any]:
        lengths = [length for item in items for length in item]
        return {
            "input_features": torch.randn(len(lengths), _BINS, 2 * _POSITIONS, generator=generator),
            "audio_feature_lengths": torch.tensor(lengths),
            "audio_chunk_counts": torch.tensor([len(item) for item in items]),
            "audio_token_lengths": torch.tensor([sum(item) for item in items]),
        }

    def embeds_inputs(self, modality: str, items: Sequence[Item], generator: torch.Generator) -> dict[str, Any] | None:
        embeds = [torch.randn(sum(item), self.hidden_size, generator=generator) for item in items]
        return {"audio_embeds": embeds if len({len(one) for one in embeds}) > 1 else torch.stack(embeds)}

    def tokens(self, modality: str, item: Item) -> int:
        return _POSITIONS * len(item)

    def sessions(self) -> tuple[Session, ...]:
        k, full = _POSITIONS, _TOKENS
        many = ((full, 1), (2,), (full, full, full), (1,), (full, 2))
        mixes = calls.usual("audio", ((full, full, 1), (2,)), (1,), ((full, 2), (full,), (1,)), many)
        above = calls.above("audio", (*(full,) * 5, 1), (2,), (full, 1))
        return (
            calls.manager((k, 2 * k, 4 * k), 4, mixes),
            calls.manager((k + 1, 3 * k + 5), 2, (*above, *mixes[1:])),
            calls.manager((16 * k,), 8, calls.one_to_eight(audio=((full, 1), (2,)))),
        )


RECIPE = MossTranscribeDiarize()
