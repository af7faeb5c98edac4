"""Folders of checkpoints without weights: one with a processor of transformers, one with a processor as code.

The second is `tests/checkpoint`. It has the shape of Kanana-V's, whose processor no package has.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Pixels of the largest image that both processors make: 128 tokens.
MOST_PIXELS = 128 * 28**2


def write_kanana(folder: Path) -> Path:
    """Kanana-V, whose code must be trusted."""
    shutil.copytree(Path(__file__).with_name("checkpoint"), folder)
    _write_tokenizer(folder, ("</s>", "<|media|>"))
    return folder


def write_qwen2_vl(folder: Path, config: dict[str, Any]) -> Path:
    """Qwen2-VL with transformers' processor, and fewer pixels than its class allows."""
    folder.mkdir()
    tokens = ("</s>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    _write_tokenizer(folder, tokens)
    numbers = {"image_token_id": 259, "video_token_id": 260}
    (folder / "config.json").write_text(json.dumps(config | numbers), encoding="utf-8")
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "min_pixels": 4 * 28**2,
        "max_pixels": MOST_PIXELS,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
    return folder


def _write_tokenizer(folder: Path, special: Sequence[str]) -> None:
    """Bytes as tokens, and behind them these special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
