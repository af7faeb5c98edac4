"""Models that nobody shipped, from `init` to a port that passes every static proof.

The tree's own ruff rules are among them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffold.cli.app import main

pytestmark = pytest.mark.trees

#: Architecture, release, and answers to what its source does not tell.
MODELS = {
    "a tower that is split where docstrings are checked": (
        "MiMoV2OmniForCausalLM",
        "0.33.0",
        {
            "attention.full.max": "max_seqlen",
            "buffers": "[rotary_cos, rotary_sin, window_index_1d_col, reverse_window_index_1d_col, col_cos, col_sin]",
            "budget.min": "64",
            "output.hidden_size": "self.config.hidden_size",
        },
    ),
    "a file that does not import torch": (
        "QianfanOCRForConditionalGeneration",
        "0.32.0",
        {"let.k": "self.num_image_token"},
    ),
    "a cut whose methods are in such a file": ("QianfanOCRForConditionalGeneration", "0.33.0", {}),
    "an inherited constructor": ("Glm4vMoeForConditionalGeneration", "0.22.0", {"budget.min": "64"}),
    "a constructor that runs its base's": ("GlmOcrForConditionalGeneration", "0.22.0", {"budget.min": "64"}),
}


@pytest.mark.parametrize(("architecture", "release", "answers"), MODELS.values(), ids=MODELS)
def test_a_drafted_model_becomes_a_port(
    release_tree, tmp_path: Path, capsys, architecture: str, release: str, answers: dict[str, str]
) -> None:
    tree, draft = str(release_tree(release).root), tmp_path / "drafted.yaml"
    given = [part for key, value in answers.items() for part in ("--answer", f"{key}={value}")]

    for arguments in (
        ["init", architecture, "--vllm", tree, "--no-input", "--no-run", "--force", "-o", str(draft), *given],
        ["new", str(draft), "--vllm", tree, "--diff", "--replace"],  # QianfanOCR inherits InternVL's port
    ):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        output = capsys.readouterr()
        assert done.value.code == 0, output.err
    assert f" {architecture}(" in output.out
