"""`verify --config FOLDER`: the inputs of a checkpoint's own processor, which may be code of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_folders import MOST_PIXELS, write_kanana, write_qwen2_vl

from scaffold.verify.numeric import check_numerics_all
from scaffold.verify.numeric.reports import NoteTaker
from scaffold.workflow import load_port, numeric_requests

pytestmark = [pytest.mark.trees, pytest.mark.lab]

KANANA = str(Path(__file__).parents[1] / "cut" / "kanana_v.yaml")
QWEN2_VL = {
    "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "hidden_size": 1536,
    "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2, "num_hidden_layers": 28,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "patch_size": 14},
}  # fmt: skip


class _Basis(NoteTaker):
    """Keeps what the lab says about the model."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def basis(self, text: str) -> None:
        self.lines.append(text)


def _requests(descriptor: str, tree: Any, folder: Path, **settings: Any) -> list[Any]:
    return numeric_requests(load_port(descriptor), tree, modalities=("image",), config=str(folder), **settings)


def test_a_processor_in_code_of_the_checkpoint(release_tree: Any, tmp_path: Path) -> None:
    folder = write_kanana(tmp_path / "kanana")
    incomplete = write_kanana(tmp_path / "incomplete")
    (incomplete / "tokenizer.json").unlink()

    told, tree = _Basis(), release_tree("0.33.0")
    refused, lacking, passed = check_numerics_all(
        [
            *_requests(KANANA, tree, folder),
            *_requests(KANANA, tree, incomplete, trust_remote_code=True),
            *_requests(KANANA, tree, folder, trust_remote_code=True),
        ],
        watch=told,
    )

    [problem] = refused.diagnostics()
    assert (problem.code, problem.message.partition(": ")[2]) == (
        "VCG668", f"the configuration of {folder} is code of the checkpoint"
    )  # fmt: skip
    assert problem.help is not None
    assert "--trust-remote-code" in problem.help
    [problem] = lacking.diagnostics()
    assert f"the tokenizer of {incomplete} cannot be loaded" in problem.message
    assert passed.passed, "\n".join(passed.lines())
    assert passed.guessed == ()
    assert passed.hits > 20
    assert any(text.startswith("KananaVProcessor; 3 layers") for text in told.lines), told.lines


def test_the_limits_of_a_checkpoints_processor(release_tree: Any, tmp_path: Path) -> None:
    folder = write_qwen2_vl(tmp_path / "checkpoint", QWEN2_VL)
    told = _Basis()

    [report] = check_numerics_all(_requests("qwen2_vl", release_tree("0.20.0"), folder), watch=told)

    assert report.passed, "\n".join(report.lines())
    assert report.guessed == ()
    [sizes] = [text for text in told.lines if text.startswith("Qwen2VLProcessor; 3 layers")]
    largest = int(sizes.split()[-2])
    assert 100 < largest <= MOST_PIXELS // 28**2
    assert any(text.startswith("Qwen2VLConfig (checkpoint/config.json)") for text in told.lines)
